"""The history of runs: a file with a line of JSON a run, so that a figure can be drawn over time.

A line has the run's date, commit and machine, and the median of each metric by case and side. Runs only append.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.case import Measured
from penstock.bench.run import WHEN, Run

DEFAULT = "~/.local/state/penstock/bench-history.jsonl"  # or below `$XDG_STATE_HOME`
# What two runs must have in common for their figures to be compared.
SAME = ("cores", "memory", "file system")


@dataclass(frozen=True)
class Entry:
    """A run of the history."""

    when: datetime.datetime
    penstock: str
    conditions: str  # machine and scale, in words
    cases: dict[str, Measured]  # one sample a side: its medians


def default_file() -> Path:
    """Outside of every checkout, so that neither `git clean` nor another clone loses it."""
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state, "penstock", Path(DEFAULT).name) if state else Path(DEFAULT).expanduser()


def append(file: Path, run: Run) -> None:
    """Add a run's line. Raises OSError."""
    line = json.dumps(_line(run), ensure_ascii=False) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as history:
        # A line that a full disk cut short stays alone.
        if end := history.tell():
            history.seek(end - 1)
            line = line if history.read() == b"\n" else f"\n{line}"
        history.write(line.encode())


def _line(run: Run) -> dict[str, Any]:
    machine = {name: value for name, value in run.machine.items() if name not in ("when", "penstock")}
    version, _, commit = run.machine["penstock"].partition(" ")
    figures = {
        name: {
            side: {metric: value for metric in measured.metrics() if (value := measured.median(side, metric)) is not None}
            for side in measured.samples
        }
        for name, measured in run.measured.items()
        if measured.samples
    }
    return {
        "date": run.machine["when"],
        "version": version,
        "commit": commit,
        "machine": machine,
        "what": run.what,
        "rounds": run.rounds,
        "scale": run.scale,
        "figures": figures,
    }


def read(file: Path, what: str) -> tuple[list[Entry], list[int]]:
    """The runs of such a `what` in the order of time, and the numbers of lines that can't be read. Raises OSError."""
    entries, unread = [], []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            found = json.loads(line)
            if found["what"] == what:
                entries.append(_entry(found))
        except (ValueError, KeyError, TypeError, AttributeError):
            unread.append(number)
    return sorted(entries, key=lambda entry: entry.when), unread


def _entry(found: dict[str, Any]) -> Entry:
    conditions = [str(found["machine"].get(name, "?")) for name in SAME]
    return Entry(
        datetime.datetime.strptime(found["date"], WHEN).replace(tzinfo=datetime.UTC),
        f"{found['version']} {found['commit']}".strip(),
        ", ".join([*conditions, f"scale {found['scale']:g}"]),
        {
            case: Measured(case, case, {side: [dict(medians)] for side, medians in sides.items()})
            for case, sides in found["figures"].items()
        },
    )
