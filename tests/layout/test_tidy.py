"""The house rules that a machine can hold: nothing half done in the product, every room with its door."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from penstock.pyx.wire.messages import FetchRequest, ProduceRequest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("bench", "broker", "dedupe", "mirror", "pipeline", "pyx")
PRODUCT = [*(ROOT / room for room in ROOMS), ROOT / "penstock"]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name.decode() for name in listed.split(b"\0") if name]


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes and path.is_file() and not path.is_symlink()]


def product(*suffixes: str) -> list[Path]:
    return [path for path in sources(*suffixes) if path.relative_to(ROOT).parts[0] in (*ROOMS, "penstock")]


def test_the_links_lead_to_the_rooms() -> None:
    for room in ROOMS:
        assert (ROOT / "penstock" / room).resolve() == ROOT / room


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_no_package_of_its_own(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"`import penstock.{room}`" in done.stderr


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "NotImplementedError", "type: ignore[misc]  #"])
def test_nothing_in_the_product_is_half_done(word: str) -> None:
    found = [str(path) for path in product(".py", ".pyx", ".pxd") if word in path.read_text()]
    # An abstract store and abstract messages say so by raising.
    assert [name for name in found if not name.endswith("store/base.py")] == []


def test_no_registry_or_path_of_a_machine_is_named() -> None:
    hosts = re.compile(r"https?://(?!127\.|localhost)[a-z0-9.-]*(pypi|maven|debian|npmjs|crates|golang)[a-z0-9.-]*")
    paths = re.compile(r"(?<![\w.])/(work|root)/")
    for path in sources(".py", ".pyx", ".pxd", ".pyi", ".md", ".toml", ".api", ".java", ".sh", ""):
        if path == Path(__file__).resolve():
            continue
        text = path.read_text(errors="replace")
        assert not hosts.search(text), path
        assert not paths.search(text), path


def leans_on() -> dict[str, set[str]]:
    """By module: those that it imports or cimports, also those that only a type checker imports."""
    sentence = re.compile(r"^ *from penstock\.([\w.]+) c?import (\([^)]*\)|.*)", re.M)
    named: dict[str, list[tuple[str, str]]] = {}
    for path in product(".py", ".pyx", ".pxd"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("penstock.")
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        named.setdefault(name.removesuffix(".__init__"), []).extend(sentence.findall(code))
    return {
        name: {
            f"{module}.{word}" if f"{module}.{word}" in named else module
            for module, words in sentences
            for word in re.findall(r"\w+", words)
        }
        for name, sentences in named.items()
    }


def test_modules_do_not_lean_on_each_other_in_a_circle() -> None:
    leans = leans_on()
    # What a partition is to others and what it is inside: an opaque struct and its body.
    leans["pyx.log.partition"].discard("pyx.log.partitionlog")
    order = TopologicalSorter({name: on - {name} for name, on in leans.items()})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# Each room may lean on those before it.
LAYERS = (
    ("pyx.record", "pyx.log", "pyx.compaction"),
    ("pyx.record", "pyx.log", "pyx.request", "pyx.net"),
    ("broker.store", "broker.configs", "broker.logs", "broker.upkeep"),
    ("broker.store", "broker.configs", "broker.coordination", "broker.api"),
    ("broker.logs", "broker.coordination", "broker.tools"),
)


@pytest.mark.parametrize("rooms", LAYERS, ids=lambda rooms: rooms[-1])
def test_rooms_lean_on_each_other_one_way(rooms: tuple[str, ...]) -> None:
    leans = leans_on()
    room_of = {name: ".".join(name.split(".")[:2]) for name in leans}
    assert {room for room in rooms if room not in room_of.values()} == set()
    back = [
        f"{name} -> {other}"
        for name, others in leans.items()
        for other in others
        if room_of[name] in rooms
        and room_of.get(other) in rooms
        and rooms.index(room_of[other]) > rooms.index(room_of[name])
    ]
    assert back == []


@pytest.mark.parametrize(
    ("source", "name", "request_type"),
    [("producerequest", "PRODUCE", ProduceRequest), ("fetch", "FETCH", FetchRequest)],
)
def test_network_threads_serve_the_versions_of_the_wire_tables(
    source: str, name: str, request_type: type[ProduceRequest | FetchRequest]
) -> None:
    text = (ROOT / "pyx" / "request" / f"{source}.pxd").read_text()
    served = dict(re.findall(rf"^    {name}_VERSION_(MIN|MAX) = (\d+)", text, re.M))
    assert served == {"MIN": str(request_type.MIN_VERSION), "MAX": str(request_type.MAX_VERSION)}


def test_every_product_module_says_what_it_is_for() -> None:
    bare = [
        str(path)
        for path in product(".py")
        if not re.match(r'(#!.*\n)?(r?""")', path.read_text()) and path.read_text().strip()
    ]
    assert bare == []


def test_data_plane_modules_have_no_typed_memoryviews() -> None:
    memoryview = re.compile(r"cdef (const )?(unsigned char|uint8_t|char|int64_t|int32_t) ?\[::?1?\]")
    assert [str(path) for path in product(".pyx", ".pxd") if memoryview.search(path.read_text())] == []


@pytest.mark.parametrize("command", ["broker", "mirror", "dedupe", "etl", "audit", "demo", "bench"])
def test_each_command_has_help_with_an_example(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", command, "--help"], capture_output=True, text=True, check=True
    )
    assert f"penstock {command}" in done.stdout.replace("\n", " ").split("Example", 1)[1]


def test_the_map_names_rooms_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for room in re.findall(r"^\| `([a-z/]+)/` \|", text, re.M):
        assert (ROOT / room).is_dir(), room
