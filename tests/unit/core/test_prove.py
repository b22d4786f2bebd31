"""`make prove` keeps what each part gave, what passed as well as what failed, and runs nothing that it can't."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROVE = ROOT / "tests" / "prove.py"
ROW = r"\| {} \| {} \| [0-9a-f]{{7,}}{} \| 20\d\d-\d\d-\d\d \d\d:\d\d \| 0 min \d+ s \|"
MAKEFILE = """\
faults:
\t@echo judged
failpoints:
\t@echo lost a record; exit 3
"""


def prove(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROVE), "--tree", str(tree), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
    done = prove(tree, "faults", "failpoints")
    assert done.returncode == 1
    table = (tree / "tests" / "PROVED.md").read_text()
    assert re.search(ROW.format("faults", "passed", ""), table)
    assert re.search(ROW.format("failpoints", "failed: exit code 2", ""), table)
    assert "| powercuts | never run | | | |" in table
    assert "lost a record" in (tree / "build" / "prove" / "failpoints.log").read_text()


def test_a_row_stays_until_its_part_is_run_again(tree: Path) -> None:
    prove(tree, "failpoints")
    (tree / "Makefile").write_text(MAKEFILE.replace("exit 3", "exit 0"))
    assert prove(tree, "faults").returncode == 0
    table = (tree / "tests" / "PROVED.md").read_text()
    assert re.search(ROW.format("failpoints", "failed: exit code 2", ""), table)
    assert re.search(ROW.format("faults", "passed", r"\+"), table)
    assert prove(tree, "failpoints").returncode == 0
    assert re.search(ROW.format("failpoints", "passed", r"\+"), (tree / "tests" / "PROVED.md").read_text())


def test_a_part_that_does_not_exist_runs_nothing(tree: Path) -> None:
    done = prove(tree, "faults", "powercut")
    assert done.returncode == 2 and "there is no part `powercut`: the parts are faults, " in done.stderr
    assert not (tree / "tests" / "PROVED.md").exists()


def test_each_part_is_a_target_and_says_what_it_takes() -> None:
    done = prove(ROOT, "--list")
    targets = re.findall(r"^[\w-]+: `make ([\w-]+)`, .+$", done.stdout, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert done.returncode == 0 and len(targets) == len(done.stdout.splitlines())
    assert [name for name in targets if f"\n{name}:" not in makefile] == []
    assert re.search(r"^powercuts: .*needs root", done.stdout, re.M)
    rows = re.findall(r"^\| ([\w-]+) \| (?:passed|failed|never)", (ROOT / "tests" / "PROVED.md").read_text(), re.M)
    assert rows == re.findall(r"^([\w-]+): ", done.stdout, re.M)
