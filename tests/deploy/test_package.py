"""The Debian package: it is built, installs without a network, and what it installs serves."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from penstock import __version__
from support.fleet_world import Release
from support.machines import base
from support.packages import ROOT, build, in_a_box

pytestmark = pytest.mark.timeout(900)  # the first test builds the package

UNITS = sorted((ROOT / "deploy" / "units").glob("*.service"))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and dpkg want root")
needs_debian = pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-shlibdeps is Debian's (dpkg-dev)")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze isn't there")


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The package, built once for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "deb"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = sorted(folder.glob("*.deb")) or build(folder)
    (package,) = built
    return package


@needs_root
@needs_debian
def test_it_installs_and_serves_where_there_is_no_network(deb: Path, tmp_path: Path) -> None:
    assert in_a_box(tmp_path, Path("/"), deb, "deb", f"penstock-{__version__}") == [
        "/var/lib/penstock:/usr/sbin/nologin",
        __version__,
        f"penstock, version {__version__}",
        "penstock broker 1 could start: properties, addresses and 1 data folders are right",
        "1000",
        "without byte code: ",
        "1",
    ]


@pytest.mark.machines
def test_a_bundle_is_all_that_a_bare_debian_needs(release: Release, tmp_path: Path) -> None:
    assert in_a_box(tmp_path, base(), release.archive, "bundle", release.version) == [
        "lo",
        f"penstock, version {__version__}",
        "1000",
        "java 17",
        "pyspark and deltalake",
    ]


@needs_debian
def test_system_libraries_are_debians(deb: Path) -> None:
    fields = subprocess.run(["dpkg-deb", "--field", str(deb), "Depends"], capture_output=True, text=True, check=True).stdout
    needed = {word.split()[0] for word in fields.split(", ")}
    assert {"libc6", "librocksdb7.8", "libsnappy1v5", "liblz4-1", "libzstd1", "zlib1g", "python3.11", "systemd"} <= needed


@needs_debian
def test_nothing_in_it_names_the_machine_that_built_it(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tmp_path)], check=True)
    site = next((tmp_path / "opt" / "penstock").glob("*/lib/python3.11/site-packages"))
    # Compiled modules of ours hold no debug information; other people's wheels name their own build machines.
    ours = [path for path in (tmp_path / "opt").rglob("*") if path.is_file() and not path.is_symlink()]
    ours = [path for path in ours if not path.is_relative_to(site) or path.is_relative_to(site / "penstock")]
    assert len(ours) > 300
    assert [str(path) for path in ours if str(ROOT).encode() in path.read_bytes()] == []


@needs_debian
def test_it_says_what_it_carries(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", str(deb), str(tmp_path)], check=True)
    (file,) = tmp_path.glob("opt/penstock/*/share/penstock/penstock.cdx.json")
    carried = {(one["name"].lower(), one["version"]) for one in json.loads(file.read_text())["components"]}
    lines = (ROOT / "deploy" / "deb" / "requirements.lock").read_text().splitlines()
    pinned = {tuple(line.split()[0].split("==")) for line in lines if not line.startswith("#")}
    assert carried == pinned | {("penstock", __version__)}
    assert f"/{file.name} " in (tmp_path / f"usr/share/doc/penstock-{__version__}/copyright").read_text()


@needs_debian
def test_its_compiled_modules_are_those_that_have_a_source(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", str(deb), str(tmp_path)], check=True)
    (folder,) = tmp_path.glob("opt/penstock/*/lib/python3.11/site-packages/penstock/pyx")
    compiled = {str(path.relative_to(folder)).partition(".")[0] for path in folder.rglob("*.so")}
    sources = (ROOT / "pyx").rglob("*.pyx")
    assert compiled == {str(path.relative_to(ROOT / "pyx").with_suffix("")) for path in sources}


LOCKS = {
    "everything": ROOT / "requirements.lock",
    "penstock": ROOT / "deploy" / "deb" / "requirements.lock",
    "penstock-etl": ROOT / "deploy" / "deb" / "requirements-etl.lock",
}


def pins(lock: str) -> set[str]:
    return {line for line in LOCKS[lock].read_text().splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_is_pinned_by_its_hash(lock: str) -> None:
    assert pins(lock)
    line = r"[a-z0-9_.-]+==([0-9]+!)?[0-9a-z.+]+( --hash=sha256:[0-9a-f]{64})+"
    assert [pin for pin in pins(lock) if not re.fullmatch(line, pin)] == []


def test_the_pins_hold_for_the_pythons_of_debian_12_and_13() -> None:
    """Where a version has a file for each Python, the lock has the hashes of two."""
    compiled = {"confluent-kafka", "cython", "numpy", "pyarrow"}
    hashes = {pin.split("==")[0]: pin.count("--hash=") for pin in pins("everything")}
    assert {name: hashes[name] for name in compiled} == dict.fromkeys(compiled, 2)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_pins_cover_what_the_project_needs(lock: str) -> None:
    with (ROOT / "pyproject.toml").open("rb") as text:
        declared = tomllib.load(text)
    project, extras = declared["project"], declared["project"]["optional-dependencies"]
    wanted = {
        "everything": [*declared["build-system"]["requires"], *project["dependencies"], *chain(*extras.values())],
        "penstock": project["dependencies"],
        "penstock-etl": extras["etl"],
    }[lock]
    named = {re.split(r"[<>=\[ ]", one)[0].lower().replace("_", "-") for one in wanted}
    assert named - {pin.split("==")[0].replace("_", "-") for pin in pins(lock)} == set()


def test_the_packages_carry_what_was_tested() -> None:
    assert pins("penstock") | pins("penstock-etl") <= pins("everything")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_exposed_to_little(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=15", "--no-pager", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_units_filter_of_system_calls_denies_and_does_not_allow(unit: Path) -> None:
    """An allow list of systemd's lacks the calls of newer kernels (cachestat); @resources has those of the time slices."""
    filters = [line for line in unit.read_text().splitlines() if line.startswith("SystemCallFilter=")]
    assert len(filters) == 1
    assert filters[0].startswith("SystemCallFilter=~")
    assert "@resources" not in filters[0]


@pytest.mark.parametrize("stage", ["mirror", "dedupe"])
def test_a_stage_whose_work_another_one_does_is_not_started_again(stage: str) -> None:
    """It ends with 4 then; a new start would fence the other one, and so on."""
    lines = (ROOT / "deploy" / "units" / f"penstock-{stage}.service").read_text().splitlines()
    assert "RestartPreventExitStatus=4" in lines


def test_the_boot_id_stays_visible_to_the_broker() -> None:
    """A broker that can't see it takes each kill for a power cut."""
    assert "\nProcSubset=" not in (ROOT / "deploy" / "units" / "penstock-broker.service").read_text()
