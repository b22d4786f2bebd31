"""Killed at each step of a compaction, a log is whole at the next start, and the next pass goes on.

A process of its own writes a fixed history, compacts it and dies at the failpoint; the test opens what is left.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.failpoints import declared
from penstock.pyx.compaction import cleaner
from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.checkpoint import OURS
from penstock.pyx.record.rawbatch import marker
from support.compacted import CompactedLog, Kept
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS

TOPIC = "killed"
# Three segments become one: five names to .swap, a sync, ten old files, five names, an empty .txnindex, a sync.
STEPS_MAX = 5 + 1 + 10 + 5 + 1 + 1


def life(root: Path, aborts: bool) -> None:
    """Three sealed segments with tombstones, producers and transactions; then a pass."""
    log = _log(root)
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), producer=(5, 0, 0))
    log.put((b"d", b"bad" if aborts else b"1"), producer=(7, 0, 0), transactional=True)
    log.roll()
    log.mark(marker(not aborts, 7, 0, 0, NOW_MS))
    log.put((b"b", None), (b"e", b"1"))
    log.roll()
    log.put((b"a", b"2"), (b"c", b"2"), codec=4)
    log.roll()
    log.put((b"z", b"active"))
    log.flush()
    log.compact()


def holed_life(root: Path) -> None:
    """Batches of nobody's, so that a pass leaves nothing in the place of some; then a pass. No checkpoint says what was
    flushed: the next start walks it all."""
    log = _log(root)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2")):
        log.put((key, value))
    log.roll()
    log.put((b"z", b"active"))
    log.compact()


def _log(root: Path, compact: int = 1) -> CompactedLog:
    root.mkdir(parents=True, exist_ok=True)
    log = CompactedLog.__new__(CompactedLog)
    log.root, log.topic = root, TOPIC
    log.config = {"cleanup_delete": 0, "cleanup_compact": compact, "index_interval_bytes": 0}
    log.checkpoint, log.rolls, log.rolled_ms = -1, 0, 0
    log.lead(clean=False)
    return log


def run(root: Path, spec: str, aborts: bool) -> int:
    """The life in a forked process with a failpoint armed; the signal that ended it, 0 if none did."""
    child = os.fork()
    if child == 0:
        try:
            failpoints.arm(spec)
            life(root, aborts)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), spec
    return status


def expected(aborts: bool) -> dict[bytes, bytes | None]:
    """The newest committed value of each key, which no moment may lose."""
    kept: dict[bytes, bytes | None] = {b"a": b"2", b"b": None, b"c": b"2", b"e": b"1", b"z": b"active"}
    return kept if aborts else {**kept, b"d": b"1"}


def check(log: CompactedLog, aborts: bool) -> list[Kept]:
    """What a read_committed consumer makes of the log, and that producers and offsets are known."""
    kept = log.kept(committed=True)
    offsets = [record.offset for record in kept]
    assert offsets == sorted(set(offsets))
    assert {record.key: record.value for record in kept} == expected(aborts)
    assert log.offsets()[:4] == (0, 10, 10, 10)
    assert LOGS.sequences(TOPIC, 0, 5) == [(0, 2, 0)] and LOGS.sequences(TOPIC, 0, 7) == [(0, 0, 3)]
    return kept


@pytest.mark.parametrize("kind", ["commits", "aborts"])
def test_every_step_can_be_the_last(tmp_path: Path, kind: str) -> None:
    aborts = kind == "aborts"
    specs = [f"{name}=kill@1" for name in declared("compact.") if name != cleaner.SWAPPING]
    specs += [f"{cleaner.SWAPPING}=kill@{step}" for step in range(1, STEPS_MAX + 1)]
    assert len(specs) == len(declared("compact.")) - 1 + STEPS_MAX
    outcomes = []
    for number, spec in enumerate(specs):
        root = tmp_path / str(number)
        outcomes.append(run(root, spec, aborts))
        log = _log(root)
        assert not [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
        check(log, aborts)
        log.compact()
        assert [record.offset for record in check(log, aborts)] == [
            offset for offset in (3, 5, 6, 7, 8, 9) if offset != 3 or not aborts
        ]
        log.restart()
        check(log, aborts)
        LOGS.delete(TOPIC, 0)
    ended = [spec for spec, outcome in zip(specs, outcomes, strict=True) if outcome == 0]
    # With aborts the .txnindex isn't empty: one step less.
    assert ended == ([f"{cleaner.SWAPPING}=kill@{STEPS_MAX}"] if aborts else [])


@pytest.mark.parametrize("step", [2, 7])
def test_a_log_that_is_not_compacted_any_more_has_no_damage_from_a_first_pass_that_was_killed(
    tmp_path: Path, step: int
) -> None:
    child = os.fork()
    if child == 0:
        try:
            failpoints.arm(f"{cleaner.SWAPPING}=kill@{step}")
            holed_life(tmp_path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    log = _log(tmp_path, compact=0)
    kept = log.kept()
    assert {record.key: record.value for record in kept} == {b"a": b"2", b"b": b"2", b"z": b"active"}
    assert len(kept) == (3 if step > 5 else 5), "the .log has its .swap name after the fifth step"
    log.restart()
    assert log.kept() == kept
    LOGS.delete(TOPIC, 0)


def test_no_file_is_swapped_before_the_disk_says_that_there_may_be_holes(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path)
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    before, refused = log.state(), tmp_path / f"{OURS}.tmp"
    refused.mkdir()  # which is no file that could be written again
    for _ in range(2):
        with pytest.raises(OSError, match="directory"):
            log.compact()
        assert log.state() == before and not LOGS.is_offline(log.topic, 0)
    refused.rmdir()
    log.compact()
    assert len(log.kept()) == 1


def test_a_failed_step_leaves_the_old_segments_or_takes_the_partition_offline(tmp_path: Path) -> None:
    """Each name that can't be given: before the .log has its .swap name all is as before; after it the disk is lost."""
    for step in range(1, 6):
        log = CompactedLog(tmp_path / str(step))
        log.put((b"a", b"1"))
        log.put((b"a", b"2"))
        log.roll()
        suffix = ("txnindex", "timeindex", "index", "checks", "log")[step - 1]
        (log.folder / f"{0:020d}.{suffix}.swap").mkdir()  # a rename onto a folder is refused
        before = log.state()
        with pytest.raises(OSError, match="directory"):
            log.compact()
        assert log.state() == before and not log.files(".cleaned")
        (log.folder / f"{0:020d}.{suffix}.swap").rmdir()
        log.compact()
        assert len(log.kept()) == 1


def test_a_disk_that_fails_between_names_takes_the_partition_offline(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path / "a")
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    LOGS.flush_rolled(log.rolled_ms + FLUSH_DUE_MS)
    (log.folder / f"{0:020d}.timeindex").unlink()
    (log.folder / f"{0:020d}.timeindex").mkdir()
    with pytest.raises(OSError):
        Cleaner(Pace(), 1 << 20).compact(LOGS, log.topic, 0, -1, NOW_MS, 0, 0)
    assert LOGS.is_offline(log.topic, 0)
    (log.folder / f"{0:020d}.timeindex").rmdir()
    killed = log.snapshot(tmp_path / "b")
    log.drop()
    opened = killed.open()
    assert [record.value for record in CompactedLog.kept(opened)] == [b"2"]  # type: ignore[arg-type]


def test_a_swap_that_has_begun_needs_no_descriptor(tmp_path: Path) -> None:
    """From the step that commits it on, the process may have no descriptor left: the pass ends, and nothing is offline."""
    child = os.fork()
    if child == 0:
        try:
            failpoints.arm(f"{cleaner.SWAPPING}=stop@6")
            life(tmp_path, False)
            os._exit(1 if LOGS.is_offline(TOPIC, 0) else 0)
        finally:
            os._exit(2)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    resource.prlimit(child, resource.RLIMIT_NOFILE, (3, resource.prlimit(child, resource.RLIMIT_NOFILE)[1]))
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log = _log(tmp_path)
    check(log, False)
    LOGS.delete(TOPIC, 0)
