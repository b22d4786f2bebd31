"""What others change in a table, read from a log that is written here: the notes of it, and what they explain."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.etl import changes, table
from penstock.pipeline.etl.changenotes import CHANGES_DOMAIN, Change, ChangeNotes
from penstock.pipeline.etl.changes import Changes
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.ledger import NightCommit, Range
from penstock.pipeline.etl.localstorage import LocalStorage

TP = ("events", 0)
NIGHT = NightCommit("2013-01-01", 1, {TP: Range(0, 10, 10, 10, 0)})
PLACE = (NIGHT.night, *TP)


def write_file(folder: Path, name: str, offsets: range) -> dict[str, Any]:
    columns = {
        "topic": ["events"] * len(offsets),
        "partition": pa.array([0] * len(offsets), pa.int32()),
        "offset": list(offsets),
    }
    pq.write_table(pa.table(columns), folder / name)
    return {"path": name, "dataChange": True}


def write_commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in actions))


def info(operation: str, **metrics: int) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, "timestamp": 7, "operationMetrics": {k: str(v) for k, v in metrics.items()}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of one night, whose ten rows lie in one file."""
    domain = {"domain": f"penstock.etl.night.{NIGHT.night}", "configuration": NIGHT.to_json(), "removed": False}
    added = {"add": write_file(tmp_path, "a.parquet", range(10)) | {"stats": '{"numRecords":10}'}}
    write_commit(tmp_path, 0, added, {"domainMetadata": domain}, {"txn": {"appId": "penstock.etl", "version": 1}})
    return tmp_path


def found(folder: Path) -> Changes:
    place = LocalStorage(folder)
    return changes.of_others(place, table.status(place))


def test_the_rows_of_the_files_that_went_and_came_are_the_change(folder: Path) -> None:
    kept = write_file(folder, "b.parquet", range(3, 10))
    write_commit(folder, 1, {"remove": {"path": "a.parquet", "dataChange": True}}, {"add": kept}, info("DELETE"))
    same = write_file(folder, "c.parquet", range(3, 10)) | {"dataChange": False}
    write_commit(folder, 2, {"remove": {"path": "b.parquet", "dataChange": False}}, {"add": same}, info("OPTIMIZE"))
    write_commit(folder, 3, info("VACUUM END"))
    write_commit(folder, 4, {"add": write_file(folder, "d.parquet", range(100, 102))}, info("WRITE"))
    seen = found(folder)
    assert [(one.version, one.operation, one.rows) for one in seen.changes] == [
        (1, "DELETE", {PLACE: 3}), (4, "WRITE", {("", *TP): -2})
    ]  # fmt: skip
    assert (seen.read_to, seen.unread) == (4, None)
    rows = Counter({PLACE: 7, ("", *TP): 2})
    assert seen.expected([NIGHT], rows) == rows
    one_less = Counter({PLACE: 6, ("", *TP): 2})
    assert (seen.expected([NIGHT], one_less) or one_less)[PLACE] == 7


@pytest.mark.parametrize(
    ("removed", "metrics", "untold"),
    [
        ({"stats": '{"numRecords":10}'}, {}, 7),
        ({}, {}, 7),
        ({"path": "gone"}, {"numDeletedRows": 4}, 4),
        ({"path": "gone"}, {}, None),
    ],
)
def test_of_files_that_are_gone_the_number_is_known_at_most(
    folder: Path, removed: dict[str, Any], metrics: dict[str, int], untold: int | None
) -> None:
    kept = write_file(folder, "b.parquet", range(3, 10)) | {"stats": '{"numRecords":3}'}
    gone = {"path": "a.parquet", "dataChange": True, **removed}
    write_commit(folder, 1, {"remove": gone}, {"add": kept}, info("DELETE", **metrics))
    (folder / "a.parquet").unlink()
    seen = found(folder)
    assert [(one.rows, one.untold) for one in seen.changes] == [({}, untold)]
    as_many, fewer = Counter({PLACE: 10 - (untold or 0)}), Counter({PLACE: 9 - (untold or 0)})
    if untold is None:
        assert seen.expected([NIGHT], fewer) is None
    else:
        assert seen.expected([NIGHT], as_many) == as_many and seen.expected([NIGHT], fewer) == Counter({PLACE: 10})


def test_rows_that_a_restore_takes_along_are_not_explained_and_those_it_brings_back_are() -> None:
    def change(operation: str, count: int) -> Change:
        return Change(1, 0, operation, 1, {PLACE: count})

    def expected(*made: Change) -> int:
        return (Changes(list(made), 1, None).expected([NIGHT], {}) or Counter())[PLACE]

    assert expected(change("DELETE", 4)) == 6
    assert expected(change("RESTORE", 4)) == 10
    assert expected(change("DELETE", 4), change("RESTORE", -4)) == 10
    assert expected(change("RESTORE", 4), change("RESTORE", -4)) == 10
    assert expected(change("DELETE", 4), change("WRITE", 6)) == 6
    # Rows that somebody writes once more cancel those that went, and explain no others.
    assert expected(change("DELETE", 4), change("WRITE", -4)) == 10
    assert expected(change("WRITE", -10)) == expected(change("MERGE", -10)) == 10


def test_a_reload_makes_the_changes_of_its_night_void() -> None:
    before, after = Change(1, 0, "DELETE", 1, {PLACE: 4}), Change(3, 0, "DELETE", 2, {PLACE: 1})
    untold = replace(before, rows={}, untold=3)
    reloaded = replace(NIGHT, run=2)
    assert changes.in_force([before, untold, after], [NIGHT]) == [before, untold, after]
    assert changes.in_force([before, untold, after], [reloaded]) == [untold, after]


def test_many_changes_are_added_up_by_their_operation() -> None:
    many = [Change(n, n, ("DELETE", "MERGE")[n % 2], n, {(f"{n % 7}", *TP): 1}, 0, 1) for n in range(1000)]
    noted = changes.folded(many, 1000)
    assert len(noted) == changes.CHANGES_MAX + 2 and noted[2:] == tuple(many[-changes.CHANGES_MAX :])
    assert {one.operation: (one.commits, one.run, one.updated) for one in noted[:2]} == {
        "DELETE": (400, 1000, 400), "MERGE": (400, 1000, 400)
    }  # fmt: skip
    sums: Counter[str] = Counter()
    for one in noted:
        sums.update({place[0]: count for place, count in one.rows.items()})
    assert sums == Counter(str(n % 7) for n in range(1000))
    for notes in (ChangeNotes(1000, 7, noted), ChangeNotes(1000, 7, noted, (3, 5))):
        assert ChangeNotes.from_json(notes.to_json()) == notes


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":2}', '{"format":1,"run":1,"read_to":0,"changes":[{"rows":7}]}'])
def test_notes_that_can_not_be_read_are_said(text: str) -> None:
    with pytest.raises(EtlError, match="the notes about changes of the table"):
        ChangeNotes.from_json(text)


def test_commits_that_are_gone_before_they_were_read_are_named(folder: Path) -> None:
    """The notes of a night stand in the commit behind those that they know."""

    def note(read_to: int) -> None:
        domain = {"domain": CHANGES_DOMAIN, "configuration": ChangeNotes(5, read_to).to_json(), "removed": False}
        pq.write_table(
            pa.Table.from_pylist([{"domainMetadata": domain}]), folder / "_delta_log" / f"{9:020}.checkpoint.parquet"
        )

    (folder / "_delta_log" / f"{0:020}.json").unlink()
    write_commit(folder, 10, info("VACUUM END"))
    note(8)
    assert (found(folder).unread, table.status(LocalStorage(folder)).run) == (None, 5)
    note(7)
    assert found(folder).unread == (8, 9)
    # The next night's notes keep that.
    place = LocalStorage(folder)
    assert changes.notes_for(place, table.status(place), NIGHT, 10).unread == (8, 9)


def test_an_owners_rows_without_a_position_are_nobodys(folder: Path) -> None:
    """Of a MERGE that inserts, or of a file that another program appends, and the notes of them can be read again."""
    own = pa.table(
        {
            "topic": ["events", None],
            "partition": pa.array([0, None], pa.int32()),
            "offset": pa.array([None, None], pa.int64()),
        }
    )
    pq.write_table(own, folder / "b.parquet")
    pq.write_table(pa.table({"id": ["own"]}), folder / "c.parquet")
    write_commit(folder, 1, {"add": {"path": "b.parquet", "dataChange": True}}, info("MERGE"))
    write_commit(folder, 2, {"add": {"path": "c.parquet", "dataChange": True}}, info("WRITE"))
    seen = found(folder)
    assert [one.rows for one in seen.changes] == [{("", "", -1): -2}, {("", "", -1): -1}]
    place = LocalStorage(folder)
    notes = changes.notes_for(place, table.status(place), NIGHT, 2)
    assert ChangeNotes.from_json(notes.to_json()) == notes
    rows = Counter({PLACE: 10, ("", "", -1): 3})
    assert seen.expected([NIGHT], rows) == rows


def test_a_reload_asks_about_rows_that_were_changed_and_about_a_log_that_is_gone(folder: Path) -> None:
    place = LocalStorage(folder)
    same = write_file(folder, "b.parquet", range(10))
    update = {"remove": {"path": "a.parquet", "dataChange": True}}, {"add": same}, info("UPDATE", numUpdatedRows=2)
    write_commit(folder, 1, *update)
    (words,) = changes.are_deleted(place, table.status(place), NIGHT)
    assert words.startswith("version 1 (UPDATE) changed 2 rows")


def test_what_was_changed_of_nights_that_are_taken_back_goes_along_with_their_rows(folder: Path) -> None:
    kept = write_file(folder, "b.parquet", range(3, 10))
    write_commit(folder, 1, {"remove": {"path": "a.parquet", "dataChange": True}}, {"add": kept}, info("DELETE"))
    place, into = LocalStorage(folder), replace(NIGHT, night="2012-12-31", run=2)
    notes = changes.notes_for(place, table.status(place), into, 1, [NIGHT.night])
    assert [(one.rows, one.run) for one in notes.changes] == [({(into.night, *TP): 3}, 2)]
    rows = Counter({(into.night, *TP): 7})
    assert Changes(list(notes.changes), 1, None).expected([into], rows) == rows
    reloaded = changes.notes_for(place, table.status(place), replace(NIGHT, run=2), 1)
    assert (reloaded.changes, reloaded.read_to, reloaded.run) == ((), 1, 2)
