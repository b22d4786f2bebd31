"""`penstock doctor`: each check by planted facts, and the command on this machine."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.doctor import checks
from penstock.broker.doctor.facts import Disk, Facts
from penstock.broker.mounts import mount_of

DISK = Disk(
    folder="/srv/penstock/a/log",
    exists=True,
    mount_point="/srv/penstock/a",
    device="/dev/sda1",
    file_system="xfs",
    options=("rw", "noatime"),
    on_root=False,
    marked=True,
    mode=0o700,
    free_bytes=500 << 30,
    size_bytes=1000 << 30,
    rotational=True,
    scheduler="mq-deadline",
    read_ahead_kb=4096,
    fsync_p99_ms=12.0,
)
GOOD = Facts(
    disks=(DISK,),
    kernel="6.12.5-amd64",
    missing_features=(),
    swappiness=1,
    dirty_bytes=1 << 30,
    dirty_background_bytes=256 << 20,
    huge_pages="madvise",
    congestion_control="cubic",
    somaxconn=4096,
    open_files=200_000,
    clock_synchronised=True,
)


def levels(found: Facts) -> dict[str, str]:
    return {one.name: one.level for one in checks.check_all(found) if one.level != "good"}


def test_a_machine_as_the_roles_make_it_has_nothing_to_say() -> None:
    assert levels(GOOD) == {}


def test_a_command_that_is_to_be_pasted_quotes_its_folder() -> None:
    blank = dataclasses.replace(DISK, folder="/srv/a b", mode=0o755)
    found = checks.check_all(dataclasses.replace(GOOD, disks=(blank,)))
    assert [one for one in found if "chmod 700 '/srv/a b'" in str(one)]


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"exists": False}, "folder", "bad"),
        ({"on_root": True}, "disk", "warning"),
        ({"marked": False}, "disk", "warning"),
        ({"mode": 0o750}, "readers", "warning"),
        ({"free_bytes": 30 << 30}, "free", "warning"),
        ({"free_bytes": 1 << 30}, "free", "bad"),
        ({"free_bytes": None}, "free", "unseen"),
        ({"file_system": "ext4"}, "file system", "warning"),
        ({"file_system": None}, "file system", "unseen"),
        ({"options": ("rw", "relatime")}, "access times", "warning"),
        ({"options": ("ro", "noatime")}, "mode", "bad"),
        ({"read_ahead_kb": 128}, "read-ahead", "warning"),
        ({"read_ahead_kb": None}, "read-ahead", "unseen"),
        ({"scheduler": "none"}, "scheduler", "warning"),
        ({"fsync_p99_ms": 900.0}, "fsync p99", "warning"),
        ({"fsync_p99_ms": None}, "fsync p99", "unseen"),
    ],
)
def test_a_disk_that_is_otherwise(change: dict[str, Any], name: str, level: str) -> None:
    found = dataclasses.replace(GOOD, disks=(dataclasses.replace(DISK, **change),))
    assert levels(found) == {f"{DISK.folder}: {name}": level}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"kernel": "6.1.0-28-amd64"}, "kernel", "warning"),
        ({"kernel": "strange"}, "kernel", "unseen"),
        ({"missing_features": (("nice", "refused"),)}, "kernel feature nice", "warning"),
        ({"missing_features": (("boot_id", "hidden"),)}, "kernel feature boot_id", "bad"),
        ({"swappiness": 60}, "vm.swappiness", "warning"),
        ({"swappiness": None}, "vm.swappiness", "unseen"),
        ({"dirty_bytes": 0}, "vm.dirty_bytes", "warning"),
        ({"dirty_background_bytes": 1 << 34}, "vm.dirty_background_bytes", "warning"),
        ({"huge_pages": "always"}, "transparent huge pages", "warning"),
        ({"huge_pages": None}, "transparent huge pages", "unseen"),
        ({"somaxconn": 128}, "net.core.somaxconn", "warning"),
        ({"open_files": 1024}, "open files", "warning"),
        ({"clock_synchronised": False}, "clock", "warning"),
        ({"clock_synchronised": None}, "clock", "unseen"),
    ],
)
def test_a_kernel_that_is_otherwise(change: dict[str, Any], name: str, level: str) -> None:
    assert levels(dataclasses.replace(GOOD, **change)) == {name: level}


def test_two_folders_of_one_disk() -> None:
    twin = dataclasses.replace(DISK, folder="/srv/penstock/a/log2")
    assert levels(dataclasses.replace(GOOD, disks=(DISK, twin))) == {f"{twin.folder}: alone": "warning"}


def test_every_warning_says_why() -> None:
    worst = Facts((Disk("/gone", exists=False),), "5.10", (("nice", "x"),), 60, 0, 0, "always", "cubic", 128, 1024, False)
    assert [one.name for one in checks.check_all(worst) if one.level in ("warning", "bad") and not one.why] == []


def test_the_command_looks_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--json", "--data", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    document = json.loads(done.stdout)
    (disk,) = document["facts"]["disks"]
    assert disk["folder"] == str(tmp_path)
    assert disk["free_bytes"] > 0
    assert disk["mode"] == stat.S_IMODE(tmp_path.stat().st_mode)
    assert disk["mount_point"] is not None
    assert done.returncode == int(any(one["level"] == "bad" for one in document["findings"]))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_the_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--data", str(tmp_path / "gone")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"bad      {tmp_path / 'gone'}: folder: missing" in done.stdout


def test_kernel_and_limits_need_no_folder() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", "doctor", "--all"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and done.stderr == ""
    assert "unseen   folders: none was named; wanted: `--config FILE` with `log.dirs`, or `--data DIR`" in done.stdout
    assert "vm.swappiness" in done.stdout and "open files" in done.stdout


def test_mounts_are_read_as_the_kernel_writes_them() -> None:
    text = (
        "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "40 20 8:17 / /srv/a\\040b rw,noatime shared:2 - xfs /dev/sdb1 rw\n"
        "nonsense\n"
    )
    within = mount_of(Path("/srv/a b/log"), text)
    assert within is not None and within[0::3] == ("/srv/a b", "xfs") and within[4:] == ("/dev/sdb1", ("rw", "noatime"))
    beside = mount_of(Path("/srv/x"), text)
    assert beside is not None and beside[0::3] == ("/", "ext4") and beside[4:] == ("/dev/sda1", ("rw", "relatime"))
