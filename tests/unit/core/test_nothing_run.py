"""Programs and settings of the tests: a run of nothing is no success."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]


def compat_run() -> ModuleType:
    """`tests/compat/run.py` as a module."""
    spec = importlib.util.spec_from_file_location("compat_run", ROOT / "tests" / "compat" / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


@pytest.mark.parametrize(
    ("outcomes", "listed", "only", "wrong"),
    [
        ({"a": "PASS", "b": "SKIP"}, "a\n", "", []),
        ({"b": "FAIL"}, "a\n", "b", []),
        ({}, "a\n", "", ["no test was run", "a: did not run"]),
        ({}, "a\n", "nosuch", ["no test was run: `--only nosuch` fits none"]),
        ({"b": "SKIP"}, "a\n", "b", ["no test was run: `--only b` fits none"]),
        ({"a": "PASS"}, None, "", ["list.txt: it lists no test that must pass (--update makes the list)"]),
        ({"a": "PASS"}, "", "", ["list.txt: it lists no test that must pass (--update makes the list)"]),
        ({"a": "PASS"}, "a\nb\n", "", ["b: did not run"]),
    ],
)
def test_a_suite_of_which_nothing_ran_is_not_as_it_must_be(
    tmp_path: Path, outcomes: dict[str, str], listed: str | None, only: str, wrong: list[str]
) -> None:
    path = tmp_path / "list.txt"
    if listed is not None:
        path.write_text(listed)
    wants = SimpleNamespace(only=only, wants=lambda name: only in name)
    assert compat_run().judge(outcomes, path, wants, update=False) == wrong


def test_every_suite_has_a_list() -> None:
    run = compat_run()
    for suite in run.SUITES:
        assert run.listed(suite).read_text().split(), suite
    assert run.listed("librdkafka", "consumer").read_text().split()


def test_what_differs_with_several_brokers(tmp_path: Path) -> None:
    run, path = compat_run(), tmp_path / "list.txt"
    path.write_text("a\nb\n")
    differs = run.difference(path, 3)
    wants = SimpleNamespace(only="", wants=lambda name: True)
    assert run.must_pass(path, 3) == {"a", "b"}
    differs.write_text("- b\n+ c\n")
    assert (run.must_pass(path), run.must_pass(path, 3)) == ({"a", "b"}, {"a", "c"})
    assert run.judge({"a": "PASS", "b": "FAIL", "c": "FAIL"}, path, wants, update=False, brokers=3) == ["c: FAIL"]
    assert run.judge({"a": "PASS", "b": "FAIL"}, path, wants, update=False) == ["b: FAIL"]
    assert run.judge({"a": "PASS", "b": "PASS", "c": "PASS", "d": "PASS"}, path, wants, update=True, brokers=3) == []
    assert (path.read_text(), differs.read_text()) == ("a\nb\n", "+ c\n+ d\n")
    for line in ("- z", "+ a", "a"):
        differs.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=f"`{re.escape(line)}` is no difference"):
            run.must_pass(path, 3)


def test_every_difference_fits_its_list() -> None:
    run = compat_run()
    suffix = "-3-brokers"
    for path in (ROOT / "tests" / "compat" / "allowed").glob(f"*{suffix}.txt"):
        run.must_pass(path.with_name(f"{path.stem.removesuffix(suffix)}.txt"), 3)


def test_make_runs_every_suite() -> None:
    (line,) = re.findall(r"^SUITES \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert tuple(line.split()) == compat_run().SUITES


def test_no_suites_for_make_is_an_error() -> None:
    command = ["make", "--no-print-directory", "-o", "build", "compat", "SUITES="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "SUITES names no suite" in done.stdout


CASES = """import pytest
@pytest.mark.skip(reason="not here")
def test_skipped(): pass
def test_passes(): pass
"""
WITHOUT_CASES = """import pytest
@pytest.mark.parametrize("case", [])
def test_nothing(case): pass
"""


@pytest.mark.parametrize(
    ("content", "environment", "code", "said"),
    [
        (CASES, {}, 0, "1 passed, 1 skipped"),
        (CASES, {"PENSTOCK_NO_SKIPS": "1"}, 1, "test_skipped"),
        (WITHOUT_CASES, {}, 2, "Empty parameter set"),
    ],
)
def test_tests_that_did_not_run_are_seen(
    tmp_path: Path, content: str, environment: dict[str, str], code: int, said: str
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_made.py").write_text(content)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"),
        "--rootdir", str(tmp_path), f"--override-ini=pythonpath={ROOT / 'tests'}", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == code and said in done.stdout, done.stdout + done.stderr
