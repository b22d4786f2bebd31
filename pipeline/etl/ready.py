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
    """Write the marker of a committed night unless it says the same already; whether it was written."""
    path = ready_marker(table_path, commit.night)
    document = {
        "night": commit.night,
        "run": commit.run,
        "records": commit.records,
        "rows": commit.rows,
        "rejects": commit.rejects,
        "missing": list(commit.missing),
    }
    if durable.holds(path, document):
        return False
    durable.write_json(path, document, lambda: failpoints.failpoint(READY_ASIDE))
    failpoints.failpoint(AFTER_READY)
    return True
