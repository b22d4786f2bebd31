"""The markers of nights, files that other jobs can wait for: one name once all of a night is in the table, another one for a
night that was loaded without all of it (`--incomplete mark`).

The marker of an incomplete night is replaced by that of a complete one with the first later night that lacks nothing: the rest
has come with that night. A marker whose night the table doesn't have is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock import failpoints
from penstock.pipeline.etl.ledger import NightCommit, Status
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

READY_ASIDE = failpoints.declare("etl.ready_aside", "the marker of a night is in its temporary file")
AFTER_READY = failpoints.declare("etl.after_ready", "the marker of a night is there")

READY = f"{SIDE_FOLDER}/_READY"
INCOMPLETE = f"{SIDE_FOLDER}/_INCOMPLETE"
NIGHT = "night="


def ready_marker(night: str) -> str:
    """The name, in the table's folder, that the marker of a night (`YYYY-MM-DD`) has once the night is complete there."""
    return f"{READY}/{NIGHT}{night}"


def incomplete_marker(night: str) -> str:
    """The name of the marker of a night that is in the table, but not all of it."""
    return f"{INCOMPLETE}/{NIGHT}{night}"


def mark_nights(table: Storage, committed: NightCommit, read: Callable[[], Status]) -> bool:
    """Let the markers say what the table holds: write those of a commit's nights, and of nights that a later one has completed,
    unless they say the same already, and remove those that are untrue; whether one was written or removed.

    `read` reads what the table holds. It is called once the markers are known: one that another machine writes later is not
    judged by it. A night that was loaded with a later one names it (`loaded_with`); the counts are those of all together.
    """
    there = {name for folder in (READY, INCOMPLETE) for name in _markers(table, folder)}
    status = read()
    commit = status.night(committed.night) or committed
    known = {night: each for each in [*status.nights, commit] for night in (*each.nights, each.night)}
    due = {night for night in known if incomplete_marker(night) in there} | {*commit.nights, commit.night}
    changed = [_mark(table, night, known[night], status) for night in sorted(due)]
    untrue = [name for name in sorted(there) if name not in _true_names(name.rpartition(NIGHT)[2], known, status)]
    for name in untrue:
        table.remove(name)
    return bool(untrue) or any(changed)


def _markers(table: Storage, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in table.names(folder) if name.startswith(NIGHT)]


def _true_names(night: str, known: dict[str, NightCommit], status: Status) -> list[str]:
    """The name that the marker of a night may have; none where the table lacks the night."""
    return [_name(night, status.completed_by(known[night]))] if night in known else []


def _name(night: str, completed_by: NightCommit) -> str:
    return incomplete_marker(night) if completed_by.missing else ready_marker(night)


def _mark(table: Storage, night: str, commit: NightCommit, status: Status) -> bool:
    """Write the marker of a night unless it is there; whether it was written."""
    completed_by = status.completed_by(commit)
    name = _name(night, completed_by)
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
    if completed_by is not commit:
        document["completed_with"] = completed_by.night
    if _holds(table, name, document):
        return False
    data = (json.dumps(document, indent=1) + "\n").encode()
    table.sweep(name)
    table.replace(name, data, lambda: failpoints.failpoint(READY_ASIDE))
    failpoints.failpoint(AFTER_READY)
    return True


def _holds(table: Storage, name: str, document: dict[str, object]) -> bool:
    """Whether the marker is there and says this."""
    try:
        return bool(json.loads(table.read(name)) == document)
    except (FileNotFoundError, ValueError):
        return False
