"""Runs what proves the hard promises, part by part, and writes into tests/PROVED.md what was last proved when: `make prove`.

    make prove                                   all parts, one after the other: most of a day, as root
    make prove PARTS="faults powercuts"          these
    python tests/prove.py --list                 the parts, what each needs and takes

Each part is a target of the Makefile; its output goes to build/prove/PART.log. A part that fails is in the table as well, until
it passes. The exit code is 1 if any of the parts failed or couldn't be run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("tests") / "PROVED.md"
NEVER = "never run"
HEAD = """\
# What was last proved when

Written by `make prove`, a row as soon as its part is over; a `+` after a commit says that the tree had changes. Each part is a
target of the Makefile: CONTRIBUTING.md says what it does.

| part | result | commit | began, UTC | took |
| --- | --- | --- | --- | --- |
"""


class Part(NamedTuple):
    """A target of the Makefile that proves something, and what it asks of the machine."""

    target: str
    takes: str
    root: bool = False
    needs: str = ""


PARTS = {
    "faults": Part("faults", "an hour"),
    "failpoints": Part("failpoints", "20 minutes"),
    "powercuts": Part("powercuts", "half an hour", root=True),
    "soak": Part("soak", "an hour", root=True),
    "remote-tables": Part("remote-tables", "15 minutes", needs="Go 1.25"),
    "deploy": Part("deploy-test", "an hour", root=True),
    "suites": Part("compat", "two hours the first time"),
    "bench": Part("bench", "more than an hour", needs="a machine that does nothing else"),
}


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
        print(f"{name}: `make {PARTS[name].target}`, {', '.join(wishes(PARTS[name]))}")
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
            made = subprocess.run(
                ["make", PARTS[name].target], cwd=tree, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        result = "passed" if made.returncode == 0 else f"failed: exit code {made.returncode}"
    finally:
        seconds = round(time.monotonic() - clock)
        took = f"{seconds // 60} min {seconds % 60} s"
        write(tree / TABLE, name, [result, commit, f"{began:%Y-%m-%d %H:%M}", took])
        print(f"{name}: {result}, {took}; log: {log}", flush=True)
    return result == "passed"


def commit_of(tree: Path) -> str:
    """The commit that is checked out, with a `+` if the tree differs from it in more than the table."""
    changes = git(tree, "status", "--porcelain", "--", ".", f":!{TABLE}")
    return git(tree, "rev-parse", "--short", "HEAD") + ("+" if changes else "")


def git(tree: Path, *words: str) -> str:
    """What git says."""
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


def write(table: Path, part: str, cells: list[str]) -> None:
    """Write a part's row; the others stay as they are, and a part without one gets it."""
    lines = table.read_text().splitlines() if table.exists() else []
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    rows[part] = " | ".join([f"| {part}", *cells]) + " |"
    kept = (rows.get(name) or f"| {name} | {NEVER} | | | |" for name in PARTS)
    fresh = table.with_suffix(".new")
    fresh.write_text(HEAD + "".join(f"{row}\n" for row in kept))
    fresh.replace(table)


if __name__ == "__main__":
    sys.exit(main())
