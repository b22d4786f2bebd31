"""`make prove` keeps what each part gave, what passed as well as what failed, and runs nothing that it can't."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROVE = ROOT / "tests" / "prove.py"
COMMIT = r"[0-9a-f]{7,}"
DATE = r"20\d\d-\d\d-\d\d \d\d:\d\d"
MAKEFILE = """\
KILLS ?= 200
PARTS ?=
faults:
\t@echo judged
failpoints-load:
\t@echo lost a record; exit 3
"""


def prove(tree: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROVE), "--tree", str(tree), *words]
    kept = {name: value for name, value in os.environ.items() if name not in ("KILLS", "PARTS")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**kept, **variables})


def row(tree: Path, part: str) -> list[str]:
    """Its cells: last run, with, commit, began, took, passed last."""
    (line,) = re.findall(rf"^\| {part} \|(.*)\|$", (tree / "tests" / "PROVED.md").read_text(), re.M)
    return [cell.strip() for cell in line.split("|")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("build/\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "made"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_each_part_leaves_its_row(tree: Path) -> None:
    done = prove(tree, "faults", "failpoints-load", PARTS="faults failpoints-load")
    assert done.returncode == 1
    last, given, commit, began, took, passed = row(tree, "faults")
    assert (last, given, passed) == ("passed", "", f"{commit}, {began}")
    assert re.fullmatch(COMMIT, commit) and re.fullmatch(DATE, began) and re.fullmatch(r"0 min \d+ s", took)
    assert row(tree, "failpoints-load")[0] == "failed: exit code 2" and row(tree, "failpoints-load")[-1] == ""
    assert row(tree, "powercuts") == ["never run", "", "", "", "", ""]
    assert "lost a record" in (tree / "build" / "prove" / "failpoints-load.log").read_text()


def test_a_row_stays_until_its_part_is_run_again(tree: Path) -> None:
    prove(tree, "failpoints-load")
    failed = row(tree, "failpoints-load")
    (tree / "Makefile").write_text(MAKEFILE.replace("exit 3", "exit 0"))
    assert prove(tree, "faults").returncode == 0
    assert row(tree, "failpoints-load") == failed
    assert re.fullmatch(COMMIT + r"\+", row(tree, "faults")[2])
    assert prove(tree, "failpoints-load").returncode == 0
    assert row(tree, "failpoints-load")[0] == "passed"


def test_a_failure_does_not_hide_what_passed_before(tree: Path) -> None:
    prove(tree, "faults")
    before = row(tree, "faults")
    (tree / "Makefile").write_text(MAKEFILE.replace("@echo judged", "false"))
    assert prove(tree, "faults").returncode == 1
    assert row(tree, "faults")[0] == "failed: exit code 2" and row(tree, "faults")[-1] == before[-1]


def test_a_part_that_proves_less_says_so(tree: Path) -> None:
    prove(tree, "faults", KILLS="1")
    assert row(tree, "faults")[:2] == ["passed", "KILLS=1"]


def test_a_part_that_does_not_exist_runs_nothing(tree: Path) -> None:
    done = prove(tree, "faults", "powercut")
    assert done.returncode == 2 and "there is no part `powercut`: the parts are faults, " in done.stderr
    assert not (tree / "tests" / "PROVED.md").exists()


def test_each_part_is_a_target_and_says_what_it_takes() -> None:
    done = prove(ROOT, "--list")
    targets = re.findall(r"^([\w-]+): .+$", done.stdout, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert done.returncode == 0 and len(targets) == len(done.stdout.splitlines())
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
    assert re.search(r"^powercuts: .*needs root", done.stdout, re.M)
    rows = re.findall(r"^\| ([\w-]+) \| (?:passed|failed|never)", (ROOT / "tests" / "PROVED.md").read_text(), re.M)
    assert rows == targets
