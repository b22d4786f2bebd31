"""The house rules that a machine can hold: nothing half done in the product, every folder with its map."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import FetchRequest, ProduceRequest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "broker", "dedupe", "mirror", "pipeline", "pyx")
PRODUCT = [*(ROOT / folder for folder in FOLDERS), ROOT / "penstock"]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name.decode() for name in listed.split(b"\0") if name]


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes and path.is_file() and not path.is_symlink()]


def product(*suffixes: str) -> list[Path]:
    return [path for path in sources(*suffixes) if path.relative_to(ROOT).parts[0] in (*FOLDERS, "penstock")]


def test_the_links_lead_to_the_folders() -> None:
    for folder in FOLDERS:
        assert (ROOT / "penstock" / folder).resolve() == ROOT / folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_no_package_of_its_own(folder: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"`import penstock.{folder}`" in done.stderr


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


# By folder: those of the other folders here that it may lean on.
MAY_LEAN_ON = {
    "pyx.linux": set[str](),
    "pyx.record": {"pyx.linux"},
    "pyx.producer": {"pyx.record"},
    "pyx.wire": set[str](),
    "pyx.ids": {"pyx.linux", "pyx.record"},
    "pyx.log": {"pyx.linux", "pyx.record"},
    "pyx.compaction": {"pyx.ids", "pyx.linux", "pyx.record", "pyx.log"},
    "pyx.request": {"pyx.linux", "pyx.record", "pyx.log"},
    "pyx.net": {"pyx.linux", "pyx.record", "pyx.log", "pyx.request", "pyx.wire"},
    "broker.store": set[str](),
    "broker.cluster": {"broker.store"},
    "broker.configs": {"broker.store", "pyx.log", "pyx.record"},
    "broker.doctor": {"broker.configs"},
    "broker.logs": {"broker.configs", "pyx.log"},
    "broker.topics": {"broker.configs", "broker.logs", "broker.store", "pyx.log"},
    "broker.upkeep": {"broker.configs", "broker.logs", "broker.topics", "pyx.compaction", "pyx.linux", "pyx.log", "pyx.net"},
    "broker.coordination": {
        "broker.configs",
        "broker.logs",
        "broker.store",
        "broker.topics",
        "pyx.log",
        "pyx.net",
        "pyx.record",
        "pyx.wire",
    },
    "broker.metrics": {
        "broker.configs",
        "broker.coordination",
        "broker.logs",
        "broker.store",
        "broker.upkeep",
        "pyx.log",
        "pyx.net",
        "pyx.wire",
    },
    "broker.replication": {
        "broker.cluster",
        "broker.configs",
        "broker.logs",
        "broker.store",
        "broker.topics",
        "pyx.log",
        "pyx.net",
        "pyx.wire",
    },
    "broker.api": {
        "broker.cluster",
        "broker.configs",
        "broker.coordination",
        "broker.logs",
        "broker.replication",
        "broker.topics",
        "pyx.wire",
    },
    "broker.tools": {"broker.coordination", "broker.logs", "pyx.log", "pyx.record", "pyx.wire"},
    "pipeline.clients": {"pyx.producer", "pyx.record", "pyx.wire"},
    "pipeline.stages": {"pipeline.clients", "pyx.record", "pyx.wire"},
    "pipeline.etl": {"pipeline.clients", "pipeline.stages", "pyx.record", "pyx.wire"},
    "pipeline.audit": {"pipeline.clients", "pipeline.etl", "pipeline.stages", "pyx.record", "pyx.wire"},
    "pipeline.commands": {"pipeline.clients", "pipeline.etl", "pipeline.stages", "pyx.record", "pyx.wire"},
    "pipeline.demo": {"pipeline.audit", "pipeline.clients", "pipeline.etl", "pipeline.stages", "pyx.record", "pyx.wire"},
}


def folder_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_each_folder_has_its_layer() -> None:
    there = {folder_of(name) for name in leans_on() if re.match(r"(broker|pipeline|pyx)\.\w+\.", name)}
    assert there == MAY_LEAN_ON.keys()


@pytest.mark.parametrize("folder", MAY_LEAN_ON)
def test_folders_lean_on_each_other_one_way(folder: str) -> None:
    allowed = MAY_LEAN_ON[folder] | {folder}
    others = [
        f"{name} -> {other}"
        for name, leans in leans_on().items()
        for other in leans
        if folder_of(name) == folder and folder_of(other) in MAY_LEAN_ON and folder_of(other) not in allowed
    ]
    assert others == []


def test_bytes_of_connections_pass_through_the_transport() -> None:
    calls = r"\b(?:recv|recvfrom|recvmsg|send|sendto|sendmsg|sendfile|splice)\b"
    code = {
        str(path.relative_to(ROOT)): re.sub(r'(?s:""".*?""")|#.*', "", path.read_text())
        for path in product(".pyx", ".pxd")
        if path.parent in (ROOT / "pyx" / "net", ROOT / "pyx" / "request")
    }
    named = {name: set(re.findall(calls, text)) for name, text in code.items()}
    assert [name for name, text in code.items() if re.search(r"\btransport\.fd\b", text)] == []
    # A reader thread sends a range to /dev/null, so that it is in the page cache: those are no connection's bytes.
    assert re.findall(r"\bsendfile\((\w+)", code["pyx/net/coldreader.pyx"]) == ["nowhere"]
    assert {name: words for name, words in named.items() if words} == {
        "pyx/net/transport.pxd": {"recv", "send", "sendfile"},
        "pyx/net/coldreader.pyx": {"sendfile"},
    }


def test_nothing_follows_from_a_hash_that_differs_in_each_process() -> None:
    """Python hashes texts with a secret of the process: a name, a seed or an order of that kind is another one in each run."""
    found = [
        f"{path}:{node.lineno}"
        for path in sources(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash"
    ]
    assert found == []


def test_a_connection_has_states_instead_of_flags() -> None:
    text = (ROOT / "pyx" / "net" / "plane.pxd").read_text()
    body = text.split("cdef struct Connection:\n")[1].split("\n\n")[0]
    assert "ConnectionState state" in body and re.findall(r"^    bint \w+", body, re.M) == []


@pytest.mark.parametrize(("name", "request_type"), [("PRODUCE", ProduceRequest), ("FETCH", FetchRequest)])
def test_network_threads_serve_the_versions_of_the_wire_tables(
    name: str, request_type: type[ProduceRequest | FetchRequest]
) -> None:
    text = (ROOT / "pyx" / "request" / "versions.pxd").read_text()
    served = dict(re.findall(rf"^    {name}_(KEY|VERSION_MIN|VERSION_MAX|FLEXIBLE_FROM) = (\d+)", text, re.M))
    assert served == {
        "KEY": str(request_type.API_KEY),
        "VERSION_MIN": str(request_type.MIN_VERSION),
        "VERSION_MAX": str(request_type.MAX_VERSION),
        "FLEXIBLE_FROM": str(request_type.FLEXIBLE_FROM),
    }


def test_only_the_tests_of_the_benchmarks_import_them() -> None:
    """What others need of them stands in `tests/support` or `penstock.pyx.wire.requests`."""
    imports = re.compile(r"^ *(from|import) penstock\.bench\b", re.M)
    found = [path.relative_to(ROOT) for path in sources(".py") if imports.search(path.read_text())]
    others = [path for path in found if path.parts[0] == "tests" and path.parts[:3] != ("tests", "unit", "bench")]
    # Apache Kafka, ZooKeeper, and clients that hoard memory, are started as the benchmarks start them.
    names = ("faults/test_memory_hoarders.py", "support/kafka_jars.py", "support/zookeeper.py")
    assert others == [Path("tests", name) for name in names]


def test_jars_come_through_one_door_which_holds_them_against_the_lock() -> None:
    asked = re.compile(r'"mvn"|\bdependency:(get|copy)|spark\.jars\.packages"')
    found = [path.relative_to(ROOT) for path in sources(".py") if asked.search(path.read_text())]
    # The door, and its tests, which put another program in Maven's place.
    door, tests = Path("pipeline/etl/maven.py"), Path("tests/unit/pipeline/etl/test_etl_jars.py")
    assert [path for path in found if path not in (tests, Path("tests/layout/test_tidy.py"))] == [door]


def test_a_logger_is_named_by_its_module() -> None:
    """So whoever reads a line, or alters a level, finds the file, and the file's logger."""
    asked = re.compile(r"\blog\.get\((?!__name__[,)])|\bgetLogger\(")
    found = [str(path) for path in product(".py", ".pyx") if asked.search(path.read_text())]
    # The door to loggers, who lists all of them, and who silences one of PySpark's.
    mine = "penstock/log.py", "broker/resources.py", "pipeline/etl/session.py"
    assert [name for name in found if not name.endswith(mine)] == []


def test_kafkas_error_codes_stand_once_for_cython() -> None:
    source = ROOT / "pyx" / "errorcodes.pxd"
    codes = re.findall(r"^    (\w+) = (.+)$", source.read_text(), re.M)
    assert codes == [(name, str(ErrorCode[name].value)) for name, _ in codes]
    code = re.compile(rf"^ *(?:cdef int\w* )?(?:{'|'.join(ErrorCode.__members__)}) = .*", re.M)
    texts = {path.name: path.read_text() for path in product(".pyx", ".pxd") if path != source}
    assert [f"{name}: {line}" for name, text in texts.items() for line in code.findall(text)] == []
    sentences = re.findall(r"^from penstock.pyx.errorcodes cimport (\([^)]*\)|.*)", "\n".join(texts.values()), re.M)
    assert {name for names in sentences for name in re.findall(r"\w+", names)} == {name for name, _ in codes}


def test_one_function_moves_a_high_watermark() -> None:
    moves = re.compile(r"^ +(?:atomic_store64\(&)?(\S+[.>]high_watermark)(?:,| [-+]?=) .*", re.M)
    found = [(path.name, at) for path in product(".pyx", ".pxd") for at in moves.findall(path.read_text())]
    # What a read is told of it is the other one.
    assert sorted(found) == [("partitionlog.pxd", "p.high_watermark"), ("read.pyx", "out.high_watermark")]


def test_every_product_module_says_what_it_is_for() -> None:
    bare = [
        str(path) for path in product(".py") if not re.match(r'(#!.*\n)?(r?""")', path.read_text()) and path.read_text().strip()
    ]
    assert bare == []


FUNCTION = re.compile(r"^cdef (?!extern|struct|enum|class|cppclass)[^(\n]*?(\w+)\(", re.M)


def cython(*suffixes: str) -> dict[Path, str]:
    return {path: path.read_text() for path in product(*suffixes)}


def test_functions_of_one_cython_module_begin_with_an_underscore() -> None:
    shared = cython(".pxd")
    bare = [
        f"{path.name}: {name}"
        for path, text in cython(".pyx").items()
        for name in FUNCTION.findall(text)
        if not name.startswith("_") and name not in FUNCTION.findall(shared.get(path.with_suffix(".pxd"), ""))
    ]
    assert bare == []


def test_what_a_cython_function_does_stands_in_its_docstring() -> None:
    commented = re.compile(r"^# (?!---).*\n" + FUNCTION.pattern, re.M)
    assert [f"{path.name}: {name}" for path, text in cython(".pyx").items() for name in commented.findall(text)] == []


# What is written in one way only, by a pattern of the others.
OTHER_WAYS = {
    "a head is a docstring": r'\A(?!""")',
    "a head says `; see x.pxd`": r'\A"""[^\n]*: see ',
    "parameters hang, or stand in the line of their function": r"^ *(?:def|cdef|cpdef) [^#\n]*\([^)\n]*,\n",
    "no comma follows the last parameter": r",\n\) noexcept",
    "noexcept stands before nogil": r"nogil noexcept",
    "lines between sections are 110 long": r"^# ---(?![^\n]{105}\n)[^\n]*",
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_cython_is_written_in_one_way(way: str) -> None:
    other = re.compile(OTHER_WAYS[way], re.M)
    texts = cython(".pyx", ".pxd")
    assert [f"{path.name}: {found[0]!r}" for path, text in texts.items() for found in other.finditer(text)] == []


def by_kind(name: str) -> tuple[int, list[str | int]]:
    """Constants, types, functions; in each, numbers by their value."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def test_cimports_are_sorted() -> None:
    mixed = []
    for path in product(".pyx", ".pxd"):
        sentences = re.findall(r"^from ([\w.]+) cimport (\([^)]*\)|[^*\n]*)$", path.read_text(), re.M)
        modules = [(module.startswith("penstock."), module) for module, _ in sentences]
        if modules != sorted(modules):
            mixed.append(f"{path.name}: the modules")
        for module, names in sentences:
            words = [name.split()[0] for name in names.strip("()").split(",") if name.strip()]
            if words != sorted(words, key=by_kind):
                mixed.append(f"{path.name}: {module}")
    assert mixed == []


def test_data_plane_modules_have_no_typed_memoryviews() -> None:
    memoryview = re.compile(r"cdef (const )?(unsigned char|uint8_t|char|int64_t|int32_t) ?\[::?1?\]")
    assert [str(path) for path in product(".pyx", ".pxd") if memoryview.search(path.read_text())] == []


@pytest.mark.parametrize("command", ["broker", "mirror", "dedupe", "etl", "audit", "demo", "bench"])
def test_each_command_has_help_with_an_example(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", command, "--help"], capture_output=True, text=True, check=True)
    assert f"penstock {command}" in done.stdout.replace("\n", " ").split("Example", 1)[1]


@pytest.mark.parametrize("name", ["", *(path.parent.name for path in sorted((ROOT / "pyx").glob("*/__init__.py")))])
def test_the_map_of_a_data_plane_folder_has_its_modules(name: str) -> None:
    folder = ROOT / "pyx" / name
    head = (folder / "__init__.py").read_text().split('"""')[1]
    mapped = re.findall(r"^(\w+)  +\w", head, re.M)
    there = {path.name.split(".")[0] for path in product(".py", ".pyx", ".pxd") if path.parent == folder}
    # What is generated is in no commit.
    there |= {path.stem for path in folder.glob("*.py")}
    assert sorted(mapped) == sorted(there - {"__init__"})


def test_the_map_names_folders_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in re.findall(r"^\| `([a-z/]+)/` \|", text, re.M):
        assert (ROOT / folder).is_dir(), folder


def test_words_of_our_own_are_few_and_explained() -> None:
    """What once had a meaning here that no dictionary gives has given way to what it meant."""
    words = re.compile(r"\b(?:anew|lately|rests|rested|judges?|ingests|housekeeping|aftercare)\b", re.I)
    texts = {path: path.read_text() for path in [*product(".py", ".pyx", ".pxd", ".pyi"), *ROOT.glob("*.md")]}
    assert [f"{path.name}: {found[0]}" for path, text in texts.items() for found in words.finditer(text)] == []
    glossary = texts[ROOT / "ARCHITECTURE.md"].split("## Ten words\n")[1].split("\n## ")[0]
    assert len(re.findall(r"\*([a-z ]+)\*:", glossary)) <= 10


def map_of(init: Path) -> list[str]:
    """The names that the map in a folder's docstring explains: a line each, a folder with a slash behind it."""
    docstring = re.match(r'"""(.*?)"""', init.read_text(), re.DOTALL)
    return re.findall(r"^(\w+/?) {2,}\S", docstring[1], re.M) if docstring else []


def mapped() -> list[Path]:
    # A file in `broker/api` is registered by being there.
    inits = [path for path in product(".py") if path.name == "__init__.py" and ROOT / "pyx" not in path.parents]
    return [path.parent for path in inits if path.parent != ROOT / "broker" / "api"]


@pytest.mark.parametrize("folder", mapped(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_the_map_of_a_folder_names_each_file_and_no_other(folder: Path) -> None:
    inside = [path.relative_to(folder) for path in tracked() if folder in path.parents and not path.is_symlink()]
    files = {path.stem for path in inside if len(path.parts) == 1 and path.suffix == ".py"}
    folders = {f"{path.parts[0]}/" for path in inside if len(path.parts) > 1}
    named = map_of(folder / "__init__.py")
    assert sorted(named) == sorted((files - {"__init__"}) | folders)


def test_the_map_of_what_tests_share_names_each_file() -> None:
    support = ROOT / "tests" / "support"
    lines = re.findall(r"^- (.*?): ", (support / "__init__.py").read_text(), re.M)
    named = {name.split(".")[0] for line in lines for name in re.findall(r"`([\w.]+)`", line)}
    there = {path.relative_to(support).parts[0].split(".")[0] for path in tracked() if support in path.parents}
    assert sorted(named) == sorted(there - {"__init__"})


def test_log_lines_are_formatted_only_where_they_are_written() -> None:
    # What ruff's G rules look for, also in loggers that are called `_log` and in Cython.
    call = re.compile(r"log(?:ger)?\.(?:debug|info|warning|error|exception|critical)\(\s*")
    literal = re.compile(r'"(?:[^"\\]|\\.)*"\s*')
    eager = []
    for path in product(".py", ".pyx"):
        text = path.read_text()
        for found in call.finditer(text):
            at = found.end()
            while more := literal.match(text, at):
                at = more.end()
            if at == found.end() or text[at] not in ",)":
                eager.append(f"{path}:{text.count(chr(10), 0, at) + 1}")
    assert eager == []


# Commands in messages: between backquotes, after `hint:`, or all of the text. Options alone end a command that the reader gave.
COMMAND = re.compile(
    r"(?:`|hint: )((?:penstock|systemctl|journalctl|runuser|pip|python|make|-e|--[a-z][a-z-]*) [^`]*)"
    r"|(?:`|hint: |\A)((?:chmod|chown|rm|mount|umount) [^`]*)"
)


def unquoted_in(text: str) -> Iterator[int]:
    """The lines of a Python module where a message has a command with a value that isn't quoted for a shell."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            values = []
            for value in node.args[1:]:
                values += value.value.elts if isinstance(value, ast.Starred) and isinstance(value.value, ast.Tuple) else [value]
            said = re.sub(r"%[0-9.]*[a-z]", "\0", str(node.args[0].value))
        else:
            continue
        for command in COMMAND.finditer(said):
            at = said[: command.start()].count("\0")
            for value in values[at : at + command[0].count("\0")]:
                if not (isinstance(value, ast.Call) and ast.unparse(value.func) in ("quoted", "shlex.quote", "shlex.join")):
                    yield node.lineno


def test_commands_in_messages_can_be_pasted_into_a_shell() -> None:
    modules = [*product(".py"), *(ROOT / "deploy").rglob("plugins/modules/*.py")]
    found = [f"{path}:{line}" for path in modules for line in unquoted_in(path.read_text())]
    for path in product(".pyx"):
        joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
        found += [f"{path}: {command[0]}" for command in COMMAND.finditer(joined) if re.search(r"\{(?!quoted\b)", command[0])]
    # Rules are quoted by a template of Prometheus' own: tests/monitoring.
    made = [path for path in (ROOT / "deploy").rglob("*.yml") if ROOT / "deploy" / "monitoring" not in path.resolve().parents]
    for path in made:
        values = (value for command in COMMAND.finditer(path.read_text()) for value in re.findall(r"\{\{.*?\}\}", command[0]))
        found += [f"{path}: {value}" for value in values if "| quote }}" not in value]
    assert found == []
    # One function does it; a module of Ansible is alone on its host.
    others = [path for path in product(".py", ".pyx") if "shlex.quote" in path.read_text()]
    assert others == [ROOT / "penstock" / "hints.py"]
