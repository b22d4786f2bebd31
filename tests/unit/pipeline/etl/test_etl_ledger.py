"""The table's ledger in Delta's log, read without a JVM; plans; the ready marker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.pipeline.etl import plan, ready, rowcounts, table
from penstock.pipeline.etl.errors import EtlError, Refused
from penstock.pipeline.etl.ledger import NightCommit, Range, Status
from penstock.pipeline.etl.localstorage import LocalStorage

TP = ("events", 0)


def night(date: str, run: int, start: int, end: int) -> NightCommit:
    return NightCommit(date, run, {TP: Range(start, end, end - start, end - start - 1, 1)})


def domain(commit: NightCommit, removed: bool = False) -> dict[str, object]:
    return {"domain": f"penstock.etl.night.{commit.night}", "configuration": commit.to_json(), "removed": removed}


def write_commit(folder: Path, version: int, commit: NightCommit, removed: bool = False) -> None:
    log = folder / "_delta_log"
    log.mkdir(exist_ok=True)
    actions = [
        {"commitInfo": {}},
        {"domainMetadata": domain(commit, removed)},
        {"txn": {"appId": "penstock.etl", "version": commit.run}},
    ]
    actions.append({"txn": {"appId": "another", "version": 99}})
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    (log / f"{version:020d}.json").write_text(text)


def write_checkpoint(folder: Path, name: str, commits: list[NightCommit]) -> None:
    rows = [{"domainMetadata": domain(commit), "txn": None} for commit in commits]
    rows.append({"domainMetadata": None, "txn": {"appId": "penstock.etl", "version": max(commit.run for commit in commits)}})
    pq.write_table(pa.Table.from_pylist(rows), folder / "_delta_log" / name)


def test_a_commit_is_read_as_it_was_written() -> None:
    commit = NightCommit(
        "2013-01-01", 3, {("b", 1): Range(5, 9, 4, 3, 1), ("a", 0): Range(0, 0, 0, 0, 0)}, ("source x is down",), "aa11",
        ("2012-12-30", "2012-12-31"),
    )  # fmt: skip
    assert NightCommit.from_json(commit.to_json()) == commit
    assert (commit.records, commit.rows, commit.rejects) == (4, 3, 1)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format":2}', '{"format":1,"night":"a","run":1,"ranges":[["t"]],"missing":[]}']
)
def test_a_ledger_that_can_not_be_read_is_said(text: str) -> None:
    with pytest.raises(EtlError, match="ledger"):
        NightCommit.from_json(text)


def test_no_table_is_an_empty_status(tmp_path: Path) -> None:
    assert table.status(LocalStorage(tmp_path)) == Status([], 0)
    assert table.committed(LocalStorage(tmp_path / "none")) == []
    assert rowcounts.rows_by_night(LocalStorage(tmp_path), []) == {}


def test_the_newest_entry_of_a_night_counts(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, night("2013-01-01", 1, 0, 5))
    write_commit(tmp_path, 1, night("2013-01-02", 2, 5, 9))
    write_commit(tmp_path, 2, night("2013-01-01", 3, 0, 5))
    status = table.status(LocalStorage(tmp_path))
    assert [(commit.night, commit.run) for commit in status.nights] == [("2013-01-01", 3), ("2013-01-02", 2)]
    assert status.run == 3
    assert status.ends == {TP: 9}


def test_a_checkpoint_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    first, second, third = night("2013-01-01", 1, 0, 5), night("2013-01-02", 2, 5, 9), night("2013-01-03", 3, 9, 12)
    write_commit(tmp_path, 8, third)
    write_checkpoint(tmp_path, f"{7:020d}.checkpoint.parquet", [first, second])
    assert table.committed(LocalStorage(tmp_path)) == [first, second, third]
    assert table.status(LocalStorage(tmp_path)).run == 3


def test_a_checkpoint_in_parts_counts_only_when_it_is_whole(tmp_path: Path) -> None:
    first, second = night("2013-01-01", 1, 0, 5), night("2013-01-02", 2, 5, 9)
    write_commit(tmp_path, 0, first)
    write_commit(tmp_path, 1, second)
    write_checkpoint(tmp_path, f"{1:020d}.checkpoint.{1:010d}.{2:010d}.parquet", [first])
    assert table.committed(LocalStorage(tmp_path)) == [first, second]
    write_checkpoint(tmp_path, f"{1:020d}.checkpoint.{2:010d}.{2:010d}.parquet", [second])
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert table.committed(LocalStorage(tmp_path)) == [first, second]


def test_a_removed_night_is_gone(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, night("2013-01-01", 1, 0, 5))
    write_commit(tmp_path, 1, night("2013-01-01", 2, 0, 5), removed=True)
    assert table.committed(LocalStorage(tmp_path)) == []


def test_a_plan_is_pending_until_its_run_is_committed(tmp_path: Path) -> None:
    made = plan.Plan("2013-01-02", 2, {TP: (5, 9)}, missing=("source x is down",))
    plan.persist(LocalStorage(tmp_path), made)
    before = Status([night("2013-01-01", 1, 0, 5)], 1)
    assert plan.pending(LocalStorage(tmp_path), before) == made
    assert plan.pending(LocalStorage(tmp_path), Status([*before.nights, night("2013-01-02", 2, 5, 9)], 2)) is None


def test_a_plan_that_does_not_continue_the_table_is_refused(tmp_path: Path) -> None:
    plan.persist(LocalStorage(tmp_path), plan.Plan("2013-01-02", 2, {TP: (4, 9)}))
    with pytest.raises(Refused, match="does not continue"):
        plan.pending(LocalStorage(tmp_path), Status([night("2013-01-01", 1, 0, 5)], 1))


def test_a_reload_plan_takes_the_committed_ranges_and_no_others(tmp_path: Path) -> None:
    status = Status([night("2013-01-01", 1, 0, 5)], 1)
    right, wrong = LocalStorage(tmp_path / "right"), LocalStorage(tmp_path / "wrong")
    plan.persist(right, plan.Plan("2013-01-01", 2, {TP: (0, 5)}, reload=True))
    assert plan.pending(right, status) is not None
    plan.persist(wrong, plan.Plan("2013-01-01", 2, {TP: (0, 6)}, reload=True))
    with pytest.raises(Refused):
        plan.pending(wrong, status)


def test_of_two_plans_of_a_run_the_first_stands(tmp_path: Path) -> None:
    """Two machines that share the table's folder: each may have seen that there is no plan yet."""
    first, second = (plan.Plan("2013-01-01", 1, {TP: (0, end)}) for end in (5, 6))
    plan.persist(LocalStorage(tmp_path), first)
    with pytest.raises(Refused, match="another process has planned run 1"):
        plan.persist(LocalStorage(tmp_path), second)
    assert plan.load(LocalStorage(tmp_path), 1) == first
    with pytest.raises(Refused, match="replaced by another"):
        plan.replace(LocalStorage(tmp_path), second)
    found = dataclasses.replace(first, corrupt=(plan.CorruptBatch(*TP, 0, 0, 1, 1),))
    plan.replace(LocalStorage(tmp_path), found)
    assert plan.load(LocalStorage(tmp_path), 1) == found
    assert [path.name for path in (tmp_path / "_penstock" / "plans").iterdir()] == ["run-00000001.json"]


def test_what_a_killed_process_left_of_a_plan_goes_with_a_later_one(tmp_path: Path) -> None:
    folder = tmp_path / "_penstock" / "plans"
    folder.mkdir(parents=True)
    for run in (1, 2):
        (folder / f".run-{run:08d}.json.{'0' * 32}.tmp").touch()
    plan.persist(LocalStorage(tmp_path), plan.Plan("2013-01-02", 2, {TP: (5, 9)}))
    assert sorted(path.name[:18] for path in folder.iterdir()) == [".run-00000002.json", "run-00000002.json"]


def test_a_plan_that_differs_from_the_committed_one_is_refused_with_the_difference(tmp_path: Path) -> None:
    plan.persist(LocalStorage(tmp_path), plan.Plan("2013-01-01", 1, {TP: (0, 6)}))
    with pytest.raises(Refused, match=r"from 0 up to \(not with\) 6 for events-0, the table committed offsets from 0 .* 5;"):
        plan.check_committed(LocalStorage(tmp_path), night("2013-01-01", 1, 0, 5))
    plan.check_committed(LocalStorage(tmp_path), night("2013-01-02", 2, 5, 9))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"night": "2013-01-01", "run": 7, "reload": false, "ranges": [], "missing": []}']
)
def test_a_plan_that_can_not_be_read_is_said(tmp_path: Path, text: str) -> None:
    plan.persist(LocalStorage(tmp_path), plan.Plan("2013-01-01", 1, {TP: (0, 6)}))
    next((tmp_path / "_penstock" / "plans").iterdir()).write_text(text)
    with pytest.raises(EtlError, match="plan"):
        plan.load(LocalStorage(tmp_path), 1)


def test_a_plan_is_whole_or_not_there(tmp_path: Path) -> None:
    failpoints.arm(f"{plan.PLAN_ASIDE}=error")
    try:
        with pytest.raises(failpoints.FailpointError):
            plan.persist(LocalStorage(tmp_path), plan.Plan("2013-01-01", 1, {TP: (0, 6)}))
    finally:
        failpoints.disarm()
    assert plan.load(LocalStorage(tmp_path), 1) is None


def mark(folder: Path, *commits: NightCommit) -> bool:
    """Let the markers say what a table of these nights holds, after the last of them."""
    status = Status(list(commits), max(commit.run for commit in commits))
    return ready.mark_nights(LocalStorage(folder), commits[-1], lambda: status)


def markers(folder: Path) -> list[str]:
    found = sorted((folder / "_penstock").glob("_*/*"))
    return [f"{path.parent.name} {path.name.removeprefix('night=')}" for path in found]


def test_the_ready_marker_tells_the_counts_and_is_written_once(tmp_path: Path) -> None:
    commit = night("2013-01-01", 1, 0, 5)
    assert mark(tmp_path, commit)
    assert not mark(tmp_path, commit)
    marker = tmp_path / ready.ready_marker("2013-01-01")
    told = json.loads(marker.read_text())
    assert told == {"night": "2013-01-01", "run": 1, "records": 5, "rows": 4, "rejects": 1, "missing": []}
    marker.unlink()
    assert mark(tmp_path, commit)
    assert mark(tmp_path, night("2013-01-01", 2, 0, 5))
    assert tmp_path / "_penstock" in marker.parents


def test_an_incomplete_night_is_ready_once_a_later_one_lacks_nothing(tmp_path: Path) -> None:
    lacking = dataclasses.replace(night("2013-01-02", 2, 5, 9), missing=("source x is down",), nights=("2013-01-01",))
    nights = [lacking]
    assert mark(tmp_path, *nights)
    assert markers(tmp_path) == ["_INCOMPLETE 2013-01-01", "_INCOMPLETE 2013-01-02"]
    nights.append(dataclasses.replace(night("2013-01-03", 3, 9, 12), missing=("source x is down",)))
    assert mark(tmp_path, *nights)
    assert markers(tmp_path) == [f"_INCOMPLETE 2013-01-0{day}" for day in (1, 2, 3)]
    nights.append(night("2013-01-04", 4, 12, 15))
    assert mark(tmp_path, *nights)
    assert markers(tmp_path) == [f"_READY 2013-01-0{day}" for day in (1, 2, 3, 4)]
    assert not mark(tmp_path, *nights)
    told = json.loads((tmp_path / ready.ready_marker("2013-01-01")).read_text())
    assert (told["loaded_with"], told["completed_with"], told["missing"]) == ("2013-01-02", "2013-01-04", ["source x is down"])


def test_markers_of_nights_that_the_table_lacks_are_removed(tmp_path: Path) -> None:
    """An earlier version called an incomplete night ready, a clock that was ahead left nights that haven't been."""
    lacking = dataclasses.replace(night("2013-01-01", 1, 0, 5), missing=("source x is down",))
    for name in (ready.ready_marker("2013-01-01"), ready.ready_marker("2013-02-01"), ready.incomplete_marker("2013-02-02")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert mark(tmp_path, lacking)
    assert markers(tmp_path) == ["_INCOMPLETE 2013-01-01"]


def test_a_marker_that_another_machine_writes_meanwhile_stays(tmp_path: Path) -> None:
    first, second = night("2013-01-01", 1, 0, 5), night("2013-01-02", 2, 5, 9)

    def read() -> Status:
        mark(tmp_path, first, second)
        return Status([first], 1)  # as it was when this machine asked

    ready.mark_nights(LocalStorage(tmp_path), first, read)
    assert markers(tmp_path) == ["_READY 2013-01-01", "_READY 2013-01-02"]


def test_what_another_machine_left_of_a_marker_goes_and_does_no_harm(tmp_path: Path) -> None:
    """A load stands still before its marker is there; another one writes it; then the first one goes on."""
    place, commit = LocalStorage(tmp_path), night("2013-01-01", 1, 0, 5)
    name = ready.ready_marker("2013-01-01")
    marker = tmp_path / name
    mark(tmp_path, night("2013-01-01", 2, 0, 5))
    told = marker.read_text()
    place.replace(name, b"older", lambda: place.sweep(name))
    assert marker.read_text() == told
    (marker.parent / f".{marker.name}.{'0' * 32}.tmp").touch()
    assert mark(tmp_path, commit)
    assert [path.name for path in marker.parent.iterdir()] == [marker.name]


def test_a_plan_reads_around_corrupt_batches(tmp_path: Path) -> None:
    corrupt = (
        plan.CorruptBatch(*TP, 10, 11, 14, 3),  # behind a control record at 10
        plan.CorruptBatch(*TP, 10, 14, 16, 2),
        plan.CorruptBatch(*TP, 20, 20, 25, 5),  # to the end and beyond
        plan.CorruptBatch("events", 1, 0, 0, 4, 4),
    )
    made = plan.Plan("2013-01-01", 1, {TP: (2, 24), ("events", 1): (0, 4)}, corrupt=corrupt, topic_id="aa11")
    assert made.pieces(TP) == [(2, 10), (16, 20)]
    assert made.pieces(("events", 1)) == []
    assert (made.offsets, made.readable) == (26, 12)
    plan.persist(LocalStorage(tmp_path), made)
    assert plan.load(LocalStorage(tmp_path), 1) == made
