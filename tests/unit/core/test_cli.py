"""The command line: help for every part, and one sentence - never a traceback - for what a user got wrong."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli import COMMANDS, EXTRAS, root
from support.stages import write_properties

PIPELINE = ("mirror", "dedupe", "etl", "audit")
MADE = {name: root.get_command(click.Context(root), name) for name in COMMANDS}
GROUPS = {name: made for name, made in MADE.items() if isinstance(made, click.Group)}
NIGHT = {"etl": ["--night", "2013-01-01"]}


def penstock(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_properties(
        tmp_path / "pipeline.properties",
        {"bootstrap.servers": "127.0.0.1:1", "source.a.bootstrap.servers": "127.0.0.1:1", "topics": "t",
         "penstock.dedupe.data": tmp_path / "dedupe", "penstock.etl.table": tmp_path / "table",
         "penstock.etl.schema": "id STRING", "penstock.etl.event.day": "date(timestamp)"},
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does_and_shows_its_options(command: str) -> None:
    result = CliRunner().invoke(root, [command, "--help"], prog_name="penstock")
    assert result.exit_code == 0
    assert f"Usage: penstock {command}" in result.output
    assert "Example:" in result.output and "--help" in result.output


def test_help_lists_the_commands_and_the_version_is_told() -> None:
    code, out, _ = penstock("--help")
    assert code == 0 and all(f"  {name} " in out for name in COMMANDS)
    assert penstock("--version")[1].startswith("penstock, version ")


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_help_has_a_whole_sentence_of_each_command(group: str) -> None:
    made = GROUPS.get(group, root)
    listed = CliRunner().invoke(root, [*group.split(), "--help"], terminal_width=80).output.partition("Commands:")[2]
    names = made.list_commands(click.Context(made))
    assert names and all(f"  {name} " in listed for name in names)
    assert "..." not in listed and max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["brokr"], "No such command 'brokr'"),
        (["audit"], "Missing option '--config'"),
        (["demo", "--nights", "0"], "0 is not in the range"),
        (["demo", "--nights", "many"], "'many' is not a valid integer"),
        (["broker", "--set", "log.segment.bytes=abc", "--data", "unused"], "`log.segment.bytes=abc` is not a whole"),
        (["broker", "--set", "log.segment.byte=1", "--data", "unused"], "did you mean `log.segment.bytes`?"),
        (["broker", "--data", "unused", "--log-level", "loud"], "log level `loud` is not one of DEBUG"),
        (["broker", "--config", "/nonexistent/file"], "cannot read `/nonexistent/file`: No such file or directory"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence_and_code_2(arguments: list[str], said: str) -> None:
    code, _, complained = penstock(*arguments)
    assert (code, said in complained) == (2, True), complained
    assert complained.splitlines()[-1].startswith("penstock: ") and "Error: " not in complained


def test_what_goes_wrong_begins_with_our_name() -> None:
    assert penstock("config", "nope") == (1, "", "penstock: no property's name contains `nope`\n")


@pytest.mark.parametrize("words", [["topics", "delete", "orders"], ["groups", "delete", "billing"]])
def test_what_nobody_confirms_is_not_deleted_and_that_is_said(words: list[str]) -> None:
    code, _, complained = penstock(*words)
    last = "penstock: nothing was deleted: nobody answers here; `--yes` deletes without asking"
    assert (code, complained.splitlines()[-1]) == (1, last)
    refused = CliRunner().invoke(root, words, input="n\n")
    assert refused.exit_code == 1 and "nothing was deleted" in refused.output


def test_a_port_that_speaks_another_protocol_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(1)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        code, _, complained = penstock("topics", "list", "-b", f"127.0.0.1:{port}", "--timeout", "2")
        server.shutdown(socket.SHUT_RDWR)
    assert code == 1 and "begins with `HTTP` " in complained and "does something else than Kafka's protocol" in complained


@pytest.mark.parametrize("command", PIPELINE)
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["topics="], "`topics` (Topics that the mirror copies"),
        (["penstock.watch.msec=3"], "unknown pipeline property `penstock.watch.msec`; did you mean `penstock.watch"),
        (["penstock.watch.ms=soon"], "`penstock.watch.ms=soon` is not a whole number"),
        (["nonsense"], "`nonsense` is not of the form key=value"),
        (["topics=or ders"], "`topics=or ders` is no topic's name"),
        (["topics=orders, orders"], "`topics=orders, orders` names `orders` twice"),
        (["penstock.dedupe.id=jsn:order_id"], "is neither `key` nor `header:NAME` nor `json:FIELD`"),
        (["source.a.bootstrap.servers=127.0.0.1"], "`source.a.bootstrap.servers=127.0.0.1` is not host:port"),
        (["bootstrap.servers=a:1,b:70000"], "names `b:70000`, which is not host:port: a port is from 1 to 65535"),
    ],
)
def test_a_wrong_pipeline_file_is_one_sentence_and_code_2(command: str, config: Path, overrides: list[str], said: str) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    result = CliRunner().invoke(root, [command, "--config", str(config), *NIGHT.get(command, []), *sets])
    assert type(result.exception).__name__ in ("ConfigError", "SystemExit")
    assert said in f"{result.exception} {result.output}"


@pytest.mark.parametrize("command", PIPELINE)
def test_a_file_that_is_missing_is_one_sentence_and_code_2(command: str, tmp_path: Path) -> None:
    missing = tmp_path / "none.properties"
    code, _, complained = penstock(command, "--config", str(missing), *NIGHT.get(command, []))
    assert code == 2
    assert complained == f"penstock: cannot read `{missing}`: No such file or directory\n"


@pytest.mark.parametrize("command", ["mirror", "dedupe", "audit"])
def test_an_address_that_is_none_is_one_sentence_and_code_2(command: str, config: Path) -> None:
    code, _, complained = penstock(command, "--config", str(config), "--set", "bootstrap.servers=nonsense")
    assert code == 2
    assert complained.strip() == "penstock: `bootstrap.servers=nonsense` is not host:port"


def test_failpoints_that_are_none_are_one_sentence_and_code_2(config: Path) -> None:
    code, _, complained = penstock("mirror", "--config", str(config), PENSTOCK_FAILPOINTS="nope=kill")
    assert code == 2
    assert complained.startswith("penstock: no failpoint `nope`; there are: mirror.")
    assert len(complained.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([sys.executable, "-m", "penstock", "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    _, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, "")


LACKING = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from penstock.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "lacking", "said"),
    [
        (["etl", "--night", "2013-01-01"], "deltalake", "`deltalake` is not installed; the extra `etl` brings it: `pip"),
        (["audit"], "pyarrow", "`pip install 'FILE.whl[etl]'` with the wheel that penstock was installed from, or the bundle"),
        (["demo"], "deltalake", "`deltalake` is not installed; the extra `etl` brings it"),
        (["demo"], "matplotlib", "`matplotlib` is not installed; the extra `demo` brings it"),
    ],
)
def test_a_command_without_its_extra_says_which(command: list[str], lacking: str, said: str, config: Path) -> None:
    given = [] if command == ["demo"] else ["--config", str(config)]
    run = [sys.executable, "-c", LACKING, lacking, *command, *given]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    helped = subprocess.run(
        [sys.executable, "-c", LACKING, lacking, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert helped.returncode == 0 and f"  {command[0]} " in helped.stdout


HELP_OF_ALL = """
import json, sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import click
from penstock.cli import root

def walk(command, context):
    helped = {context.command_path: command.get_help(context)}
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        helped |= walk(inner, click.Context(inner, info_name=name, parent=context))
    return helped

print(json.dumps(walk(root, click.Context(root, info_name="penstock"))))
"""


def test_the_help_of_every_command_needs_no_extra() -> None:
    run = [sys.executable, "-c", HELP_OF_ALL, *EXTRAS, "pandas"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    helped: dict[str, str] = json.loads(done.stdout)
    assert {f"penstock {name}" for name in COMMANDS} < helped.keys()
    assert {"penstock topics list", "penstock mirror status", "penstock dedupe restore"} < helped.keys()
    for command, text in helped.items():
        assert text.startswith(f"Usage: {command} ") and "--help" in text, command


LIGHT = ("broker", "mirror", "etl", "audit", "topics", "groups", "configs", "clients", "cluster", "check", "config", "doctor")
LOADED = """
import sys
sys.modules["numpy"] = sys.modules["rich"] = None
from penstock.cli import root
for name in sys.argv[1:]:
    root.get_command(None, name)
"""


def test_a_command_starts_without_what_few_of_its_calls_need() -> None:
    """numpy takes 60 ms, rich 30, and a command that is asked for one number 120 without them."""
    run = [sys.executable, "-c", LOADED, *LIGHT]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_byte_order_mark_is_no_part_of_a_key(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    _, _, complained = penstock("audit", "--config", str(config))
    assert "unknown" not in complained and "cannot connect to `127.0.0.1:1`: Connection refused" in complained


@pytest.mark.parametrize("command", ["etl", "audit"])
def test_a_stage_of_one_topic_does_not_choose_among_several(command: str, config: Path) -> None:
    code, _, complained = penstock(
        command, "--config", str(config), "--set", "topics=a,b",
        "--set", "penstock.etl.schema=id STRING, day DATE", "--set", "penstock.etl.event.day=day", *NIGHT.get(command, []),
    )  # fmt: skip
    assert code == 2 and "say which with `penstock.etl.topic`" in complained, complained


def test_the_number_of_an_error_is_not_shown(tmp_path: Path) -> None:
    code, _, complained = penstock("topics", "list", "--config", str(tmp_path))
    assert code == 2 and complained == f"penstock: cannot read `{tmp_path}`: Is a directory\n"


def test_a_check_says_all_that_is_wrong_at_once(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.properties"
    config.write_text(
        "bootstrap.servers=127.0.0.1:1\ntopics=a,b\npenstock.watch.msec=3\npenstock.watch.ms=soon\n"
        "penstock.etl.table=t\npenstock.etl.schema=id INTT\npenstock.etl.event.day=day\npenstock.etl.time.zone=Mars\n"
    )
    code, out, _ = penstock("check", "--config", str(config))
    assert code == 2
    for words in (
        "did you mean `penstock.watch.ms`", "`penstock.watch.ms=soon` is not a whole number",
        "lacks `source.*.bootstrap.servers`",
        "lacks `penstock.dedupe.data`", "say which with `penstock.etl.topic`", "`Mars` is no time zone",
        "`penstock.etl.schema`: `INTT` is no type",
    ):  # fmt: skip
        assert words in out, words
    assert len(out.splitlines()) == 7
    config.write_text("bootstrap.servers=127.0.0.1:1\ntopics=a\nsource.x.bootstrap.servers=127.0.0.1:2\n")
    assert penstock("check", "--config", str(config), "--for", "mirror")[0] == 0
    code, out, _ = penstock("check", "--config", str(config), "--for", "etl", "--json")
    assert code == 2 and len(json.loads(out)) == 3


@pytest.mark.parametrize("command", PIPELINE)
def test_a_key_that_stands_twice_in_the_file(command: str, config: Path) -> None:
    with config.open("a") as file:
        file.write("topics=u\n")
    code, _, complained = penstock(command, "--config", str(config), *NIGHT.get(command, []))
    assert (code, complained) == (
        2, f"penstock: {config}, line 8: `topics` stands in line 3 already: leave one of them\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topics": None, "topcs": "t"}, "unknown pipeline property `topcs`; did you mean `topics`?"),
        ({"topics": "or ders"}, "`topics=or ders` is no topic's name: "),
        ({"fetch.max.byte": "1"}, "property `fetch.max.byte`; `penstock config --list` lists all that there are"),
        ({"source.HAM.bootstap.servers": "h:1"}, "did you mean `source.HAM.bootstrap.servers`?"),
        ({"source.b.bootstrap.servers": "A:2, a:1"}, "source a and source b have the address `a:1` in common"),
        ({"bootstrap.servers": "A:1"}, "source a and the target (`bootstrap.servers`) have the address `a:1` in common"),
        ({"bootstrap.servers": "a:1", "penstock.mirror.rename": "${source}.${topic}"}, ""),
        ({"topics.include": "(a"}, "`topics.include=(a` is no expression: missing closing )"),
        ({"penstock.mirror.rename": "x"}, "`penstock.mirror.rename=x` must hold ${topic} once"),
        ({"penstock.etl.table": "gs://bucket/table"}, "`gs://bucket/table` is no place for a table: "),
        ({"penstock.etl.rejects": "s3://bucket/r"}, "`s3://bucket/r` is no place for a table: Spark's name for S3 is"),
    ],
)
def test_a_check_says_one_thing_once(changed: dict[str, str | None], said: str, tmp_path: Path) -> None:
    given = {
        "bootstrap.servers": "target:1", "source.a.bootstrap.servers": "a:1", "topics": "t",
        "penstock.dedupe.data": tmp_path / "dedupe", "penstock.etl.table": tmp_path / "table",
        "penstock.etl.schema": "id STRING", "penstock.etl.event.day": "date(timestamp)",
    }  # fmt: skip
    texts = {name: text for name, text in {**given, **changed}.items() if text is not None}
    result = CliRunner().invoke(root, ["check", "--config", str(write_properties(tmp_path / "p.properties", texts))])
    findings = [] if result.exit_code == 0 else result.output.splitlines()
    assert len(findings) == (1 if said else 0) and said in "".join(findings), result.output


def test_a_part_needs_its_own_keys_only(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.properties"
    config.write_text("bootstrap.servers=127.0.0.1:1\ntopics=a\nsource.x.bootstrap.servers=127.0.0.1:1\n")
    code, _, complained = penstock("dedupe", "--config", str(config))
    assert code == 2 and "dedupe needs more than" in complained and "`penstock.dedupe.data` (Folder" in complained
    code, _, complained = penstock("etl", "--config", str(config), *NIGHT["etl"])
    assert code == 2 and "`penstock.etl.table` (The Delta table" in complained and "dedupe.data" not in complained
    own = {"penstock.etl.table": tmp_path / "t", "penstock.etl.schema": "id STRING", "penstock.etl.event.day": "date(id)"}
    sets = [word for name, value in own.items() for word in ("--set", f"{name}={value}")]
    code, _, complained = penstock("etl", "--config", str(config), *NIGHT["etl"], "--incomplete", "fail", *sets)
    assert code == 3 and "the aggregate cluster can't be asked" in complained


def test_the_properties_are_listed_with_their_defaults() -> None:
    code, out, _ = penstock("config", "--list", "--json")
    listed = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and listed["penstock.watch.ms"]["default"] == 30_000
    assert listed["bootstrap.servers"]["needed_by"] == list(PIPELINE)
    assert listed["penstock.dedupe.data"]["needed_by"] == ["dedupe"]
    assert "penstock.etl.schema (needed by etl)" in penstock("config", "etl.schema")[1]
    assert penstock("config", "no.such")[0] == 1 and penstock("config")[0] == 2
