"""The table of figures in a document: one row a target, each with the run that measured it.

A run writes the rows that it measured whole and leaves the others as they are, so that the table says of each figure which
commit it was measured on, and when. The table stands between two comments.
"""

from __future__ import annotations

from pathlib import Path

from penstock.bench.run import Run
from penstock.bench.sides import PENSTOCK
from penstock.bench.targets import ALL_TARGETS, FULL_SCALE, LONG_RUN, LONG_RUN_MINUTES, Target, Verdict

BEGIN = "<!-- figures: written by `penstock bench --figures FILE` -->"
END = "<!-- end of figures -->"
HEAD = ("| figure | target | measured | verdict | run |", "| --- | --- | --- | --- | --- |")
NEVER = "not measured yet"


class NoTable(Exception):
    """The document has no place for the table; the text says what is missing."""


def checked(document: Path) -> str:
    """The document's text, in which the table has its place. Raises NoTable, OSError."""
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise NoTable(f"`{document}` has no `{BEGIN}` with a `{END}` behind it")
    return text


def update(document: Path, run: Run) -> int:
    """Write what the run measured into the document's table; how many rows it wrote. Raises NoTable, OSError."""
    text = checked(document)
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    fresh = {target.figure: _row(target, run) for target in ALL_TARGETS if _is_whole(target, run)}
    rows = [fresh.get(target.figure) or kept.get(target.figure) or _unmeasured(target) for target in ALL_TARGETS]
    document.write_text("\n".join([before + BEGIN, *HEAD, *rows, END]) + after, encoding="utf-8")
    return len(fresh)


def _is_whole(target: Target, run: Run) -> bool:
    return bool(target.bounds) and all(bound.verdict(run.measured) is not Verdict.NOT_MEASURED for bound in target.bounds)


def _row(target: Target, run: Run) -> str:
    figures = "; ".join(bound.text(run.measured) for bound in target.bounds)
    # Some cases have fewer rounds than are asked for.
    rounds = min(len(run.measured[bound.case].samples.get(PENSTOCK, ())) for bound in target.bounds)
    how = f"{run.machine.get('penstock', '?')}, {run.machine.get('when', '?')}, {rounds} x, scale {run.scale:g}"
    return _line(target.figure, target.target, figures, _verdict(target, run), how)


def _verdict(target: Target, run: Run) -> str:
    """The verdict with what was easier than the target says: shorter loads for an absolute bound, fewer minutes."""
    easier = []
    if run.scale < FULL_SCALE and any(bound.is_absolute for bound in target.bounds):
        easier.append(f"at scale {run.scale:g}")
    if run.minutes < LONG_RUN_MINUTES and any(bound.case == LONG_RUN for bound in target.bounds):
        easier.append(f"over {run.minutes:g} minutes")
    return " ".join([target.verdict(run.measured).value, *easier])


def _unmeasured(target: Target) -> str:
    if not target.bounds:
        return _line(target.figure, target.target, target.why, Verdict.MISSED.value, "")
    return _line(target.figure, target.target, NEVER, Verdict.NOT_MEASURED.value, "")


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
