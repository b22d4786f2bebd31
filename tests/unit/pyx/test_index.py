"""Index and checkpoint files, byte for byte, and what a look-up makes of damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.pyx.log.checkpoint import format_checkpoint, read_checkpoint
from penstock.pyx.record.rawbatch import marker, split
from support.logs import LOGS, NOW_MS, Log, batch, index_entries


def filled(tmp_path: Path, **config: Any) -> Log:
    log = Log(tmp_path, segment_bytes=2000, index_interval_bytes=250, **config)
    for i in range(40):
        log.append(batch(2, timestamp_ms=NOW_MS + 10 * (i ^ 1)))
    return log


def test_offset_index_names_last_offsets_and_positions(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.stop()
    entries = 0
    for path in log.files(".index"):
        data = path.with_suffix(".log").read_bytes()
        previous = 0
        for relative, position in index_entries(path, ">ii"):
            (raw, *_) = split(data[position:])
            assert raw.last_offset == int(path.stem) + relative
            # More than the interval lies between entries, and no more than a batch above it.
            assert 250 < position - previous <= 250 + 2 * raw.size_in_bytes
            previous = position
            entries += 1
    assert entries > 10


def test_time_index_grows_and_ends_with_the_largest_timestamp(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.stop()
    for path in log.files(".timeindex"):
        entries = index_entries(path, ">qi")
        assert entries == sorted(entries) and len({t for t, _ in entries}) == len(entries)
        batches = split(path.with_suffix(".log").read_bytes())
        newest = max(raw.max_timestamp for raw in batches)
        assert entries[-1][0] == newest
        for timestamp, relative in entries:
            (named,) = [raw for raw in batches if raw.last_offset == int(path.stem) + relative]
            assert named.max_timestamp == timestamp
            assert all(raw.max_timestamp <= timestamp for raw in batches if raw.base_offset < named.base_offset)


def test_transaction_index(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(batch(1, producer=(7, 0, 0), transactional=True))
    log.append(batch(2, producer=(8, 0, 0), transactional=True))
    log.mark(marker(False, 8, 0, 0, NOW_MS))
    log.mark(marker(False, 7, 0, 0, NOW_MS))
    log.stop()
    (path,) = log.files(".txnindex")
    assert index_entries(path, ">hqqqq") == [(0, 8, 1, 3, 0), (0, 7, 0, 4, 5)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half an entry", "beyond the end"])
def test_a_damaged_index_is_rebuilt_or_harmless(tmp_path: Path, suffix: str, damage: str) -> None:
    log = filled(tmp_path)
    for producer in (1, 2):
        log.append(batch(1, producer=(producer, 0, 0), transactional=True))
        log.mark(marker(producer == 1, producer, 0, 0, NOW_MS))
    before = log.state()
    log.stop()
    good = {path: path.read_bytes() for path in log.files(".index") + log.files(".timeindex")}
    for path in log.files(suffix):
        if damage == "missing" and suffix != ".txnindex":
            path.unlink()
        elif damage == "empty" and suffix == ".timeindex":
            path.write_bytes(b"")
        elif damage == "half an entry":
            path.write_bytes(path.read_bytes()[:-3])
        elif damage == "beyond the end" and suffix == ".index":
            path.write_bytes(path.read_bytes() + struct.pack(">ii", 1 << 30, 1 << 30))
    assert log.lead(clean=True)[:2] == (0, 84)
    if suffix != ".txnindex":
        assert log.state() == before
        assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 200) == (40, NOW_MS + 210)
    log.stop()
    if damage in ("missing", "half an entry"):
        assert {path: path.read_bytes() for path in good} == good


def aborting(root: Path) -> Log:
    """Several segments, each with aborted transactions, some of which began in the one before."""
    log = Log(root, segment_bytes=1000, index_interval_bytes=200)
    for i in range(12):
        log.append(batch(1, producer=(1, 0, 2 * i), transactional=True))
        log.append(batch(4))
        log.append(batch(1, producer=(1, 0, 2 * i + 1), transactional=True))
        log.mark(marker(i % 2 == 0, 1, 0, 0, NOW_MS))
    assert len(log.state().aborted) == 6 and len(log.files(".log")) > 3
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing", [[".index"], [".timeindex"], [".index", ".snapshot", ".sequences"]])
def test_a_rebuilt_index_lists_the_aborted_transactions(tmp_path: Path, missing: list[str], clean: bool) -> None:
    log = aborting(tmp_path)
    before = log.state()
    log.stop()
    for suffix in missing:
        for path in log.files(suffix)[:-1]:
            path.unlink()
    log.lead(clean=clean)
    assert log.state() == before


def test_a_torn_transaction_index_is_rebuilt(tmp_path: Path) -> None:
    log = aborting(tmp_path)
    before = log.state()
    log.stop()
    for path in log.files(".txnindex"):
        path.write_bytes(path.read_bytes()[:-3])
    log.lead(clean=True)
    assert log.state() == before
    log.restart()
    assert log.state() == before


def test_an_index_after_a_kill_equals_the_one_of_a_clean_stop(tmp_path: Path) -> None:
    log = filled(tmp_path / "a")
    copy = log.snapshot(tmp_path / "b")
    log.stop()
    killed = copy.open()
    assert killed.recovered.batches_checked == 40
    killed.stop()
    for suffix in (".log", ".index", ".timeindex"):
        left = [path.read_bytes() for path in log.files(suffix)]
        assert [path.read_bytes() for path in killed.files(suffix)] == left


def test_an_index_grows_on_after_a_restart(tmp_path: Path) -> None:
    log = filled(tmp_path / "once")
    log.stop()
    again = Log(tmp_path / "again", segment_bytes=2000, index_interval_bytes=250)
    for i in range(40):
        again.append(batch(2, timestamp_ms=NOW_MS + 10 * (i ^ 1)))
        if i % 7 == 0:
            again.restart()
    again.stop()
    for suffix in (".log", ".index"):
        expected = [path.read_bytes() for path in log.files(suffix)]
        assert [path.read_bytes() for path in again.files(suffix)] == expected


def test_checkpoints_are_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(format_checkpoint({("b", 0): 5, ("a.b-c", 10): 1 << 40}))
    assert path.read_text() == f"0\n2\na.b-c 10 {1 << 40}\nb 0 5\n"
    assert read_checkpoint(path) == {("b", 0): 5, ("a.b-c", 10): 1 << 40}
    for wrong in ("", "1\n0\n", "0\nx\n", "0\n1\nb 0\n", "\xff"):
        path.write_text(wrong, encoding="latin-1")
        assert read_checkpoint(path) == {}
    assert read_checkpoint(tmp_path / "missing") == {}


@pytest.mark.parametrize("text", ["", "0\n", "1\n1\n0 0\n", "0\n5\n0 0\n", "0\n2\n0 0\nx y\n", "0\n1\n-4 7\n", "\0\0"])
def test_a_wrong_epoch_file_is_learned_again_or_cut(tmp_path: Path, text: str) -> None:
    log = Log(tmp_path)
    log.append(batch(3))
    log.stop()
    (log.folder / "leader-epoch-checkpoint").write_text(text)
    log.lead(clean=False)
    assert LOGS.offset_for_epoch(log.topic, 0, 0) == (0, 3)
