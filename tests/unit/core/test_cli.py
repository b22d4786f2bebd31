"""The command line: help for every part, and one sentence - never a traceback - for what a user got wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import COMMANDS, root
from support.stages import write_properties

PIPELINE = ("mirror", "dedupe", "etl", "audit")
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
         "penstock.dedupe.data": tmp_path / "dedupe", "penstock.etl.table": tmp_path / "table"},
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


@pytest.mark.parametrize("command", PIPELINE)
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["topics="], "`topics` names no topic"),
        (["penstock.watch.msec=3"], "unknown pipeline property `penstock.watch.msec`; did you mean `penstock.watch"),
        (["penstock.watch.ms=soon"], "`penstock.watch.ms=soon` is not a whole number"),
        (["nonsense"], "`nonsense` is not of the form key=value"),
    ],
)
def test_a_wrong_pipeline_file_is_one_sentence_and_code_2(
    command: str, config: Path, overrides: list[str], said: str
) -> None:
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
    assert complained.strip() == "penstock: `nonsense` in `bootstrap.servers` is not host:port"


def test_failpoints_that_are_none_are_one_sentence_and_code_2(config: Path) -> None:
    code, _, complained = penstock("mirror", "--config", str(config), PENSTOCK_FAILPOINTS="nope=kill")
    assert code == 2
    assert complained.startswith("penstock: no failpoint `nope`; there are: mirror.")
    assert len(complained.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "--help"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    _, complained = process.communicate(timeout=60)
    assert complained == ""
