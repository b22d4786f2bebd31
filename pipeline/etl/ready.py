"""The ready marker of a night: a file that other jobs can wait for."""

from __future__ import annotations

from pathlib import Path

from penstock import failpoints
from penstock.pipeline.etl import durable
from penstock.pipeline.etl.table import NightCommit

READY_ASIDE = failpoints.declare("etl.ready_aside", "the ready marker is in its temporary file")
AFTER_READY = failpoints.declare("etl.after_ready", "the ready marker is there")


def ready_marker(table_path: str, night: str) -> Path:
    """Where the marker of a night (`YYYY-MM-DD`) is once the night is complete in the table."""
    return durable.side_folder(table_path) / "_READY" / f"night={night}"


def mark_ready(table_path: str, commit: NightCommit) -> bool:
    """Write the markers of a commit's nights unless they say the same already; whether one was written.

    A night that was loaded with a later one names it (`loaded_with`); the counts are then those of all together.
    """
    written = [_mark(table_path, night, commit) for night in (*commit.nights, commit.night)]
    return any(written)


def _mark(table_path: str, night: str, commit: NightCommit) -> bool:
    path = ready_marker(table_path, night)
    document = {
        "night": night,
        "run": commit.run,
        "records": commit.records,
        "rows": commit.rows,
        "rejects": commit.rejects,
        "missing": list(commit.missing),
    }
    if night != commit.night:
        document["loaded_with"] = commit.night
    if durable.holds(path, document):
        return False
    durable.sweep(path)
    durable.write_json(path, document, lambda: failpoints.failpoint(READY_ASIDE))
    failpoints.failpoint(AFTER_READY)
    return True
