"""Compaction of messages of magic 0 and 1, wrapped or not, and of logs that hold all three formats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.pyx.compaction.cleaner import UncleanableError
from support.compacted import RETENTION_MS, CompactedLog
from support.logs import LOGS, NOW_MS
from support.messagesets import GZIP, LOG_APPEND_TIME, LZ4, SNAPPY, Message, pack_set, unwrap, wrap

CODECS = [GZIP, SNAPPY, LZ4]


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path, message_magic=0)


def put(log: CompactedLog, magic: int, pairs: list[tuple[bytes, bytes | None]], codec: int = 0) -> None:
    """As an old producer does: offsets from 0."""
    messages = [Message(i, key, value, NOW_MS + i if magic else -1) for i, (key, value) in enumerate(pairs)]
    if codec:
        log.append(wrap(magic, messages, codec, len(messages) - 1, timestamp_ms=NOW_MS if magic else -1))
    else:
        log.append(pack_set(magic, messages))


def stored(log: CompactedLog, magic: int) -> list[Message]:
    return unwrap(b"".join(bytes(raw) for raw in log.read_all()), magic)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, *CODECS])
def test_the_newest_message_of_each_key_stays(log: CompactedLog, magic: int, codec: int) -> None:
    put(log, magic, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"a", b"2")], codec)
    put(log, magic, [(b"c", b"2")], codec)
    log.roll()
    before = stored(log, magic)
    log.compact()
    kept = stored(log, magic)
    assert [(m.offset, m.key, m.value) for m in kept] == [(1, b"b", b"1"), (3, b"a", b"2"), (4, b"c", b"2")]
    assert kept == [before[1], before[3], before[4]]
    if codec:
        assert [raw.codec for raw in log.read_all()] == [codec, codec]
    log.kill(log.root.with_name(log.root.name + "k"))
    assert stored(log, magic) == kept
    assert log.offsets().log_end == 5


def test_a_wrapper_that_loses_its_last_message_ends_with_the_one_before(log: CompactedLog) -> None:
    put(log, 1, [(b"a", b"1"), (b"b", b"1")], GZIP)
    put(log, 1, [(b"b", b"2")])
    log.roll()
    log.compact()
    assert [raw.base_offset for raw in log.read_all()] == [0, 2]
    assert [(m.offset, m.timestamp_ms) for m in stored(log, 1)] == [(0, NOW_MS), (2, NOW_MS)]
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS) == (0, NOW_MS)


def test_timestamps_of_the_log_stay(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, log_append_time=1, message_magic=0)
    put(log, 1, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], GZIP)
    log.roll()
    before = {m.offset: m for m in stored(log, 1)}
    log.compact()
    assert stored(log, 1) == [before[1], before[2]]
    assert log.read_all()[0].attributes & LOG_APPEND_TIME


def test_formats_supersede_one_another(log: CompactedLog) -> None:
    put(log, 0, [(b"a", b"0"), (b"b", b"0"), (b"c", b"0")])
    put(log, 1, [(b"b", b"1"), (b"c", b"1"), (b"d", b"1")], SNAPPY)
    log.put((b"c", b"2"), (b"d", b"2"), (b"e", b"2"))
    put(log, 0, [(b"e", b"0 again")], GZIP)
    log.roll()
    log.compact()
    assert [(raw.magic, raw.base_offset) for raw in log.read_all()] == [(0, 0), (1, 3), (2, 6), (0, 9)]


def test_tombstones_go_by_the_age_of_their_file(tmp_path: Path) -> None:
    """Older than the last clean file by delete.retention.ms: only then is what they stand for surely gone."""
    log = CompactedLog(tmp_path, segment_bytes=100, message_magic=0)
    for key, ago_ms in ((b"a", RETENTION_MS), (b"b", RETENTION_MS - 1), (b"c", 0)):
        put(log, 0, [(key, None), (key + b"x", b"1")])
        log.roll()
        path = log.files(".log")[-2]
        os.utime(path, ns=((NOW_MS - ago_ms) * 1_000_000,) * 2)
    log.compact()
    assert [m.key for m in stored(log, 0)] == [b"a", b"ax", b"b", b"bx", b"c", b"cx"], "nothing was clean before"
    put(log, 0, [(b"bx", b"2")])
    log.roll()
    log.compact()
    assert [m.key for m in stored(log, 0)] == [b"ax", b"b", b"c", b"cx", b"bx"]
    ages = [round(path.stat().st_mtime * 1000) for path in log.files(".log")[:2]]
    assert ages == [NOW_MS - RETENTION_MS, NOW_MS - RETENTION_MS + 1], "cleaned files keep their age"


def test_corrupt_wrappers_are_refused(log: CompactedLog) -> None:
    put(log, 1, [(b"a", b"1"), (b"a", b"2")], GZIP)
    log.roll()
    path = log.files(".log")[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(UncleanableError):
        log.compact()
    assert path.read_bytes() == data
