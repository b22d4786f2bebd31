"""What others have changed in the table, read from Delta's log: rows that an owner deleted, updated, merged or restored.

A commit of ours has the run number; any other is somebody else's. Of each that changed data, the rows of the files that it took
out of the table are counted, less those of the files that it put in. Commits that only write rows into other files (OPTIMIZE)
say so themselves, and change nothing. Where VACUUM has removed a file before it was counted, Delta's own numbers say how many
rows those were, but not which.

Delta removes its log's older files. So each night's commit notes what was changed before it (changenotes.py), without the
conditions of statements: one may name the person who asked to be forgotten, so it lasts as long as Delta keeps it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from penstock.pipeline.etl.changenotes import Change, ChangeNotes, Place
from penstock.pipeline.etl.errors import EtlError, Refused, words_of
from penstock.pipeline.etl.ledger import RUN_APP_ID, NightCommit, Status, TopicPartition
from penstock.pipeline.etl.rowcounts import NightRanges, count_file, rows_by_night
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import LOG, commits_after

CHANGES_MAX = 200
PLACES_MAX = 20_000
"""How much of others' changes a commit notes one by one; it adds older ones up by their operation."""
CONDITION_MAX = 500  # characters
DELETED_ROWS = ("numDeletedRows", "numTargetRowsDeleted")
INSERTED_ROWS = ("numTargetRowsInserted",)
UPDATED_ROWS = ("numUpdatedRows", "numTargetRowsUpdated")


@dataclass(frozen=True)
class Changes:
    """The changes that are in force, oldest first, in commits up to version `read_to`. `unread` are the versions from and up to
    which Delta has removed commits before they were read."""

    changes: list[Change]
    read_to: int
    unread: tuple[int, int] | None

    @property
    def meant(self) -> Counter[Place]:
        """The rows that are gone (less those that came) because somebody meant it, as far as it is known which they were.

        A statement says which rows it means, so it explains what it took. A RESTORE, or an overwritten table, takes rows along:
        it explains the rows that it brought back, and no more. What came among a night's rows cancels only what went.
        """
        meant = self._sums(are_statements=True)
        for place, count in self._sums(are_statements=False).items():
            meant[place] += min(0, count)
        return Counter({place: max(0, count) if place[0] else count for place, count in meant.items()})

    @property
    def taken(self) -> set[Place]:
        """Where rows went along, and haven't come back since."""
        return {place for place, count in self._sums(are_statements=False).items() if count > 0}

    def _sums(self, *, are_statements: bool) -> Counter[Place]:
        sums: Counter[Place] = Counter()
        for change in self.changes:
            for place, count in change.rows.items() if change.is_statement == are_statements else ():
                sums[place] += count
        return sums

    @property
    def meant_untold(self) -> int | None:
        """The others that were meant; None where their number isn't known."""
        counts = [(change.untold, change.is_statement) for change in self.changes]
        if any(rows is None for rows, _ in counts):
            return None
        taken = sum(rows or 0 for rows, is_statement in counts if not is_statement)
        return sum(rows or 0 for rows, is_statement in counts if is_statement) + min(0, taken)

    def expected(self, nights: Iterable[NightCommit], rows: Mapping[Place, int]) -> Counter[Place] | None:
        """The rows that the table should have, by its ledger and by what was meant; `rows` are those that it has. None where
        rows are missing, and it isn't known how many were meant."""
        wanted = Counter({(night.night, *tp): part.rows for night in nights for tp, part in night.partitions.items()})
        for place, count in self.meant.items():
            wanted[place] -= count
        missing = [wanted[place] - rows.get(place, 0) for place in wanted.keys() | rows.keys()]
        untold = self.meant_untold if any(missing) else 0
        if untold is None:
            return None
        # Nobody can tell which rows those were. So they explain what is missing only if that is as many, and none too many.
        if untold and sum(missing) == untold and all(count * untold >= 0 for count in missing):
            return Counter(rows)
        return wanted


def of_others(table: Storage, status: Status, up_to: int | None = None) -> Changes:
    """What others have changed, in commits up to a version (the newest, unless it is given). Raises EtlError."""
    notes, ranges = status.notes, NightRanges(status.nights)
    found, read_to, run = list(notes.changes), notes.read_to, notes.run
    unread = notes.unread
    for version, name in commits_after(table, notes.read_to):
        if up_to is not None and version > up_to:
            break
        # The commit that the notes come from follows what they were read up to.
        if version > read_to + (2 if read_to == notes.read_to >= 0 else 1):
            unread = (read_to + 1 if unread is None else unread[0]), version - 1
        data = table.read_commit(f"{LOG}/{name}")
        ours = _run_of(data)
        if ours is not None:
            run = ours
        else:
            change = _change(table, version, data, run, ranges)
            found += [] if change is None else [change]
        read_to = version
    return Changes(in_force(found, status.nights), read_to, unread)


def notes_for(table: Storage, status: Status, night: NightCommit, up_to: int, takes_back: Collection[str] = ()) -> ChangeNotes:
    """The notes that the commit of a night carries, which follows a version of the table. Of nights that it takes back it has
    the rows as they are, and so what was changed of them. Raises EtlError."""
    found = of_others(table, status, up_to)
    if takes_back:
        noted = [_moved(change, takes_back, night) for change in found.changes]
    else:
        noted = in_force(found.changes, [*(commit for commit in status.nights if commit.night != night.night), night])
    return ChangeNotes(night.run, found.read_to, folded(noted, night.run), found.unread)


def _moved(change: Change, takes_back: Collection[str], into: NightCommit) -> Change:
    rows: Counter[Place] = Counter()
    for (night, topic, partition), count in change.rows.items():
        rows[into.night if night in takes_back else night, topic, partition] += count
    return replace(change, run=into.run, rows=rows)


def in_force(changes: Iterable[Change], nights: Iterable[NightCommit]) -> list[Change]:
    """The changes without those rows whose night was loaded again since: a reload replaces all of its night."""
    runs = {night.night: night.run for night in nights}
    found = []
    for change in changes:
        rows = {place: count for place, count in change.rows.items() if runs.get(place[0], 0) <= change.run}
        if rows or not change.rows:
            found.append(replace(change, rows=rows))
    return found


def folded(changes: list[Change], run: int) -> tuple[Change, ...]:
    """Changes that are in force at a run, with the oldest added up where they are too many to be noted one by one."""
    kept, places = 0, 0
    for change in reversed(changes):
        places += len(change.rows)
        if kept == CHANGES_MAX or places > PLACES_MAX:
            break
        kept += 1
    old, new = changes[: len(changes) - kept], changes[len(changes) - kept :]
    sums: dict[str, Change] = {}
    for change in old:
        before = sums.get(change.operation)
        if before is None:
            sums[change.operation] = replace(change, run=run)
            continue
        rows = Counter(dict(before.rows))
        for place, count in change.rows.items():
            rows[place] += count
        untold = None if before.untold is None or change.untold is None else before.untold + change.untold
        sums[change.operation] = replace(
            change,
            run=run,
            rows=rows,
            untold=untold,
            updated=before.updated + change.updated,
            commits=before.commits + change.commits,
        )
    return (*sums.values(), *new)


def condition(table: Storage, version: int) -> str:
    """The condition of the statement that made a version, as Delta's log has it; of a RESTORE, what it went back to. Empty
    where there is none, or the log has removed it. Raises EtlError."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
        for line in table.read_commit(f"{LOG}/{version:020}.json").splitlines():
            if info := json.loads(line).get("commitInfo"):
                return _condition(info.get("operationParameters") or {})
    return ""


def deleted_rows(table: Storage, status: Status, night: NightCommit) -> Counter[TopicPartition]:
    """How many of a night's rows somebody has deleted on purpose, by partition; those that a reload left out before are among
    them. Raises Refused where the night lacks others, too, so that nobody can tell them apart; EtlError."""
    ranges, others = rows_by_night(table, status.nights), of_others(table, status)
    wanted = others.expected(status.nights, ranges)
    deleted = Counter[TopicPartition]()
    for tp, part in night.partitions.items():
        place = (night.night, *tp)
        deleted[tp] = part.rows - ranges[place] + part.deleted
        if wanted is None or wanted[place] != ranges[place]:
            raise Refused(
                f"night {night.night} lacks rows of {tp[0]}-{tp[1]} that no statement in the table's log names, so nobody can "
                "tell which were deleted on purpose"
            )
    return deleted


def are_deleted(table: Storage, status: Status, night: NightCommit) -> list[str]:
    """What was deleted of a night's rows on purpose, a few words for each statement; empty where a reload brings back nothing
    that somebody has deleted. Raises EtlError."""
    before = sum(part.deleted for part in night.partitions.values())
    words = [f"{before:,} rows that an earlier reload left out"] if before else []
    others, known = of_others(table, status), before
    for change in others.changes:
        count = sum(rows for place, rows in change.rows.items() if place[0] == night.night)
        if change.is_statement and (count > 0 or change.untold is None or change.untold > 0):
            rows = f"{count:,} rows" if count > 0 else "rows, which can't be told"
            words.append(f"version {change.version} ({change.operation}) took {rows}")
            known += max(0, count)
        elif change.is_statement and change.updated and change.run >= night.run:
            rows = f"{change.updated:,} rows, of this night or of others"
            words.append(f"version {change.version} ({change.operation}) changed {rows}, which a reload changes back")
    if others.unread is not None and not words:
        there = rows_by_night(table, status.nights)
        missing = sum(part.rows - there[(night.night, *tp)] for tp, part in night.partitions.items()) - known
        if missing > 0:
            first, last = others.unread
            words.append(f"{missing:,} rows are gone, and so are versions {first} to {last} of the table's log")
    return words


def _run_of(data: bytes) -> int | None:
    """The run number of a commit of ours; None for another's."""
    for line in data.splitlines():
        if line.startswith(b'{"txn"'):
            txn = json.loads(line)["txn"]
            if txn["appId"] == RUN_APP_ID:
                return int(txn["version"])
    return None


def _change(table: Storage, version: int, data: bytes, run: int, ranges: NightRanges) -> Change | None:
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})
        removed = [action["remove"] for action in actions if action.get("remove", {}).get("dataChange", "remove" in action)]
        added = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
        if not removed and not added:
            return None
        metrics = info.get("operationMetrics") or {}
        rows, untold = _rows(table, removed, added, metrics, ranges)
        updated = sum(int(metrics.get(name, 0)) for name in UPDATED_ROWS)
        operation, time_ms = str(info.get("operation", "a commit without a name")), int(info.get("timestamp", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EtlError(f"version {version} of the table `{table}` can't be read: {words_of(error)}") from None
    if not rows and untold == 0 and operation == "WRITE":
        return None
    return Change(version, time_ms, operation, run, rows, untold, updated)


def _condition(parameters: Mapping[str, Any]) -> str:
    text = str(parameters.get("predicate") or "")
    with contextlib.suppress(ValueError, TypeError):
        text = " AND ".join(json.loads(text))
    if not text:
        names = ("version", "timestamp", "mode")
        text = ", ".join(f"{name} {parameters[name]}" for name in names if parameters.get(name) is not None)
    return re.sub(r"(?<=\w)#\d+", "", text)[:CONDITION_MAX]  # Spark numbers its columns


def _rows(
    table: Storage, removed: list[Any], added: list[Any], metrics: Mapping[str, Any], ranges: NightRanges
) -> tuple[dict[Place, int], int | None]:
    """The rows that a commit took away less those that it added, by their places; and how many they are altogether where a file
    is gone, or has rows that are deleted in it."""
    counts = Counter[Place]()
    if not any("deletionVector" in file and file["deletionVector"] for file in (*removed, *added)):
        try:
            for files, sign in ((removed, 1), (added, -1)):
                for file in files:
                    for place, count in count_file(table, unquote(file["path"]), ranges).items():
                        counts[place] += sign * count
        except FileNotFoundError:
            pass
        else:
            return {place: count for place, count in counts.items() if count}, 0
    before, after = _records(table, removed), _records(table, added)
    if before is not None and after is not None:
        return {}, before - after
    deleted = [int(metrics[name]) for name in DELETED_ROWS if name in metrics]
    inserted = sum(int(metrics[name]) for name in INSERTED_ROWS if name in metrics)
    return {}, deleted[0] - inserted if deleted else None


def _records(table: Storage, files: Iterable[Any]) -> int | None:
    """The rows of files by Delta's own numbers; None where it has none of one."""
    total, written = 0, dict[str, Any]()
    for file in files:
        found = json.loads(file.get("stats") or "{}").get("numRecords")
        if found is None:
            written = written or _written(table)
            found = written.get(file["path"])
        if found is None:
            return None
        vector = file.get("deletionVector") or {}
        total += int(found) - int(vector.get("cardinality", 0))
    return total


def _written(table: Storage) -> dict[str, Any]:
    """The rows of the files that the log's commits put into the table, where they say it."""
    found = {}
    for _, name in commits_after(table, -1):
        for line in table.read_commit(f"{LOG}/{name}").splitlines():
            if line.startswith(b'{"add"'):
                file = json.loads(line)["add"]
                found[file["path"]] = json.loads(file.get("stats") or "{}").get("numRecords")
    return found
