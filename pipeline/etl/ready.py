"""The ready marker of a night: a file that other jobs can wait for."""

from __future__ import annotations

import json

from penstock import failpoints
from penstock.pipeline.etl.ledger import NightCommit
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

READY_ASIDE = failpoints.declare("etl.ready_aside", "the ready marker is in its temporary file")
AFTER_READY = failpoints.declare("etl.after_ready", "the ready marker is there")


def ready_marker(night: str) -> str:
    """The name, in the table's folder, that the marker of a night (`YYYY-MM-DD`) has once the night is complete there."""
    return f"{SIDE_FOLDER}/_READY/night={night}"


def mark_ready(table: Storage, commit: NightCommit) -> bool:
    """Write the markers of a commit's nights unless they say the same already; whether one was written.

    A night that was loaded with a later one names it (`loaded_with`); the counts are then those of all together.
    """
    written = [_mark(table, night, commit) for night in (*commit.nights, commit.night)]
    return any(written)


def _mark(table: Storage, night: str, commit: NightCommit) -> bool:
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
    if _holds(table, night, document):
        return False
    data = (json.dumps(document, indent=1) + "\n").encode()
    table.sweep(ready_marker(night))
    table.replace(ready_marker(night), data, lambda: failpoints.failpoint(READY_ASIDE))
    failpoints.failpoint(AFTER_READY)
    return True


def _holds(table: Storage, night: str, document: dict[str, object]) -> bool:
    """Whether the marker is there and says this."""
    try:
        return bool(json.loads(table.read(ready_marker(night))) == document)
    except (FileNotFoundError, ValueError):
        return False
