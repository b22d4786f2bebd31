"""Runs what proves the hard promises, part by part, and writes into tests/PROVED.md how each ended: `make prove`.

    make prove                                   all parts, one after the other: most of a day, as root
    make prove PARTS="faults powercuts"          these
    python tests/prove.py --list                 the parts, what each needs and takes

Each part is a target of the Makefile; its output goes to build/prove/PART.log. The table says how a part ended when it was last
run, with which variables (`KILLS=20`, say), and when it passed last. The exit code is 1 if a part failed or couldn't be
run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("tests") / "PROVED.md"
NEVER = "never run"
PASSED = "passed"
COLUMNS = 7
HEAD = """\
# The last runs of `make prove`

Written by `make prove`, a row as soon as its part is over; a `+` after a commit says that the tree had changes. Each part is a
target of the Makefile: CONTRIBUTING.md says what it does. `with`: variables of the Makefile that weren't at their defaults.

| part | last run | with | commit | began, UTC | took | passed last |
| --- | --- | --- | --- | --- | --- | --- |
"""


class Part(NamedTuple):
    """What a target of the Makefile that proves something asks of the machine."""

    takes: str
    root: bool = False
    needs: str = ""


PARTS = {
    "faults": Part("an hour"),
    "simulate": Part("an hour and a half"),
    "mutants": Part("10 minutes"),
    "failpoints-stages": Part("half an hour"),
    "failpoints-load": Part("a quarter of an hour"),
    "failovers": Part("a quarter of an hour"),
    "powercuts": Part("half an hour", root=True),
    "soak": Part("an hour", root=True),
    "cluster-soak": Part("an hour", root=True),
    "remote-tables": Part("15 minutes", needs="Go 1.25"),
    "monitoring-test": Part("a quarter of an hour", root=True),
    "deploy-test": Part("an hour", root=True),
    "compat": Part("two hours the first time"),
    "compat-cluster": Part("two hours the first time"),
    "bench": Part("more than an hour", needs="a machine that does nothing else"),
}
"""By target."""
NO_VARIABLES = {"PARTS", "PYTHON"}
"""Of the Makefile's, those that don't say how much a part proves."""


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--list", action="store_true", help="say what each part needs, and run nothing")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose Makefile and table")
    asked = parser.parse_args()
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part `{unknown[0]}`: the parts are {', '.join(PARTS)}")
    chosen = asked.parts or list(PARTS)
    lacking = [name for name in chosen if PARTS[name].root and os.geteuid() != 0]
    for name in chosen:
        print(f"{name}: {', '.join(wishes(PARTS[name]))}")
    if asked.list:
        return 0
    if lacking:
        print(f"{', '.join(lacking)}: only root can run these; nothing was run")
        return 1
    results = [prove(name, asked.tree) for name in chosen]
    return 0 if all(results) else 1


def wishes(part: Part) -> list[str]:
    """What a part takes and needs, in words."""
    return [part.takes, *(["needs root"] if part.root else []), *([f"needs {part.needs}"] if part.needs else [])]


def prove(name: str, tree: Path) -> bool:
    """Run a part and write its row; whether it passed."""
    log = tree / "build" / "prove" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    commit, began, clock = commit_of(tree), datetime.datetime.now(datetime.UTC), time.monotonic()
    result = "failed: interrupted"
    try:
        with log.open("wb") as output:
            made = subprocess.run(["make", name], cwd=tree, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        result = PASSED if made.returncode == 0 else f"failed: exit code {made.returncode}"
    finally:
        seconds = round(time.monotonic() - clock)
        took = f"{seconds // 60} min {seconds % 60} s"
        write(tree / TABLE, name, [result, variables(tree), commit, f"{began:%Y-%m-%d %H:%M}", took])
        print(f"{name}: {result}, {took}; log: {log}", flush=True)
    return result == PASSED


def variables(tree: Path) -> str:
    """Those of the Makefile that were given; make passes them on by the environment."""
    named = re.findall(r"^(\w+) \?=", (tree / "Makefile").read_text(), re.M)
    return " ".join(f"{name}={os.environ[name]}" for name in named if os.environ.get(name) and name not in NO_VARIABLES)


def commit_of(tree: Path) -> str:
    """The commit that is checked out, with a `+` if the tree differs from it in more than the table."""
    changes = git(tree, "status", "--porcelain", "--", ".", f":!{TABLE}")
    return git(tree, "rev-parse", "--short", "HEAD") + ("+" if changes else "")


def git(tree: Path, *words: str) -> str:
    """What git says."""
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


def write(table: Path, part: str, run: list[str]) -> None:
    """Write how a part's run ended: result, variables, commit, beginning, duration. Other rows stay as they are."""
    lines = table.read_text().splitlines() if table.exists() else []
    rows = {cells[0]: cells[1:] for cells in map(_cells, lines) if len(cells) == COLUMNS}
    result, _, commit, began, _ = run
    passed = f"{commit}, {began}" if result == PASSED else rows.get(part, [""])[-1]
    rows[part] = [*run, passed]
    kept = ([name, *rows.get(name, [NEVER, *[""] * (COLUMNS - 2)])] for name in PARTS)
    fresh = table.with_suffix(".new")
    fresh.write_text(HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in kept))
    fresh.replace(table)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


if __name__ == "__main__":
    sys.exit(main())
