"""Compaction: what stays of a log, and in which form."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.compaction.cleaner import Cleaner, UncleanableError
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.checkpoint import OURS, Offsets, format_line, format_offsets, parse_offsets
from penstock.pyx.log.endslots import NAME
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.rawbatch import marker, split
from support.compacted import RETENTION_MS, CompactedLog, Kept, keyed
from support.logs import LOGS, NOW_MS, TOPIC_ID, delete_records, index_entries

PRODUCER = (7, 0)


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path)


def values(log: CompactedLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.kept()}


def test_the_newest_record_of_each_key_stays_where_it_was(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.put((b"a", b"2"), (b"d", b"1"))
    log.roll()
    log.put((b"b", b"2"), (b"e", b"1"))
    log.roll()
    done = log.compact()
    assert (done.first_dirty, done.segments_before, done.segments_after) == (7, 2, 1)
    assert (done.records_read, done.records_kept, done.keys) == (7, 5, 5)
    assert log.kept() == [
        Kept(2, b"c", b"1", NOW_MS + 2),
        Kept(3, b"a", b"2", NOW_MS),
        Kept(4, b"d", b"1", NOW_MS + 1),
        Kept(5, b"b", b"2", NOW_MS),
        Kept(6, b"e", b"1", NOW_MS + 1),
    ]


def test_the_active_segment_is_never_touched(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"a", b"2"))
    assert log.cleanable().cleanable_bytes == 0
    assert log.compact().first_dirty == 0
    assert [record.value for record in log.kept()] == [b"1", b"2"]


def test_nothing_goes_for_a_record_that_a_power_cut_would_take(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.roll()
    log.flush_sealed()
    log.put((b"a", b"2"))
    log.roll()
    log.put((b"b", b"1"))
    done = Cleaner(Pace(), 1 << 20).compact(LOGS, log.topic, 0, -1, NOW_MS, 0, RETENTION_MS)
    assert done.first_dirty == 1 and [record.value for record in log.kept()] == [b"1", b"2", b"1"]
    assert log.compact().first_dirty == 2 and [record.value for record in log.kept()] == [b"2", b"1"]


def test_a_transaction_that_is_gone_with_its_marker_is_not_open_after_a_kill(tmp_path: Path) -> None:
    """Recovery begins at a snapshot that has it as open: it was taken between its records and its marker."""
    log = CompactedLog(tmp_path / "a", segment_bytes=470)  # so that the first two segments stay two
    log.put((b"a", b"x" * 300))
    log.append(keyed([(b"k", b"t")], producer=(2, 0, 0), transactional=True))
    log.roll()
    log.flush_sealed()
    LOGS.write_checkpoints()
    log.mark(marker(True, 2, 0, 0, NOW_MS))
    log.put((b"k", b"1"))
    log.roll()
    LOGS.reconfigure(log.topic, 0, {"producer_id_expiration_ms": 1})
    log.upkeep(log.rolled_ms)
    for later_ms in (0, 5000, 10_000):
        log.put((b"b", b"1"))
        log.roll()
        log.compact(NOW_MS + later_ms)
        LOGS.compacted(log.topic, TOPIC_ID, 0, log.checkpoint)
    log.put((b"c", b"1"))
    assert not [raw for raw in log.read_all() if raw.is_transactional]
    before = log.offsets()
    log.kill(tmp_path / "b")
    assert log.offsets() == before and before.last_stable == before.log_end


def test_offsets_and_the_log_end_survive_a_log_whose_end_is_superseded(log: CompactedLog) -> None:
    for value in (b"1", b"2", b"3"):
        log.put((b"a", value))
        log.roll()
    log.put((b"a", b"4"))
    log.roll()
    before = log.offsets()
    log.compact()
    assert log.kept() == [Kept(3, b"a", b"4", NOW_MS)]
    assert log.offsets() == before
    log.restart()
    assert log.offsets() == before
    assert log.put((b"b", b"1")) == 4


@pytest.mark.parametrize("codec", range(5))
def test_batches_keep_their_codec_and_header_fields(log: CompactedLog, codec: int) -> None:
    log.put((b"z", b"0"))  # an empty log takes a producer from its first batch only
    log.put((b"a", b"1" * 100), (b"b", b"1" * 100), (b"c", b"1" * 100), producer=(7, 3, 40), codec=codec)
    log.put((b"c", b"2"), (b"a", b"2"))
    log.roll()
    old = log.read_all()[1]
    log.compact()
    new = log.read_all()[1]
    assert (new.base_offset, new.last_offset_delta, new.record_count) == (1, 2, 1)
    for name in ("producer_id", "producer_epoch", "base_sequence", "last_sequence", "codec", "leader_epoch"):
        assert getattr(new, name) == getattr(old, name)
    assert new.max_timestamp == NOW_MS + 1
    assert log.kept()[1] == Kept(2, b"b", b"1" * 100, NOW_MS + 1)


def test_headers_of_records_stay(log: CompactedLog) -> None:
    from penstock.pyx.record.builder import BatchBuilder
    from penstock.pyx.record.rawbatch import records

    builder = BatchBuilder()
    builder.append(b"a", b"1", NOW_MS, headers=[("x", b"y"), ("z", None)])
    builder.append(b"b", None, NOW_MS, headers=[("t", b"u")])
    log.append(builder.build())
    log.put((b"c", b"1"), (b"c", b"2"))
    log.roll()
    log.compact()
    kept = [record for raw in log.read_all() for record in records(raw)]
    assert [record.headers for record in kept] == [(("x", b"y"), ("z", None)), (("t", b"u"),), ()]


def test_records_without_a_key_go_as_in_kafka(log: CompactedLog) -> None:
    LOGS.reconfigure(log.topic, 0, {"cleanup_compact": 0})  # They came before the topic was compacted.
    log.put((None, b"1"), (b"a", b"1"))
    LOGS.reconfigure(log.topic, 0, {"cleanup_compact": 1})
    log.roll()
    assert log.compact().records_without_key == 1
    assert values(log) == {b"a": b"1"}


def test_tombstones_stay_for_their_retention_and_go_then(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"a", None), (b"c", b"1"))
    log.roll()
    log.compact(NOW_MS)
    assert values(log) == {b"b": b"1", b"a": None, b"c": b"1"}
    batch = log.read_all()[1]
    assert batch.attributes & 0x40 and batch.base_timestamp == NOW_MS + RETENTION_MS
    assert log.kept()[1:] == [Kept(2, b"a", None, NOW_MS), Kept(3, b"c", b"1", NOW_MS + 1)]
    log.put((b"d", b"1"))
    log.roll()
    log.compact(NOW_MS + RETENTION_MS - 1)
    assert b"a" in values(log)
    assert log.read_all()[1].base_timestamp == NOW_MS + RETENTION_MS, "the horizon is set once"
    log.put((b"e", b"1"))
    log.roll()
    log.compact(NOW_MS + RETENTION_MS)
    assert values(log) == {b"b": b"1", b"c": b"1", b"d": b"1", b"e": b"1"}


def test_the_last_batch_of_the_range_keeps_its_header(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", None), (b"b", None))
    log.roll()
    log.compact(NOW_MS)
    log.compact(NOW_MS + RETENTION_MS)
    assert [(raw.base_offset, raw.last_offset, raw.record_count) for raw in log.read_all()] == [(1, 2, 0)]
    log.put((b"c", b"1"))
    log.roll()
    log.compact(NOW_MS + RETENTION_MS)
    assert [raw.base_offset for raw in log.read_all()] == [3]


def test_a_tombstone_is_superseded_like_any_record(log: CompactedLog) -> None:
    log.put((b"a", None))
    log.put((b"a", b"1"))
    log.roll()
    log.compact()
    assert log.kept() == [Kept(1, b"a", b"1", NOW_MS)]


def test_the_last_batch_of_a_producer_is_kept_without_its_records(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(7, 0, 0))
    log.put((b"a", b"2"), (b"b", b"2"), producer=(7, 0, 1))
    log.put((b"a", b"3"), (b"b", b"3"), producer=(8, 2, 0))
    log.put((b"a", b"4"), (b"b", b"4"))
    log.roll()
    log.compact()
    assert [(raw.base_offset, raw.last_offset, raw.record_count) for raw in log.read_all()] == [
        (1, 2, 0), (3, 4, 0), (5, 6, 2),
    ]  # fmt: skip
    assert log.read_all()[0].last_sequence == 2
    log.kill(log.root.with_name(log.root.name + "k"))
    with pytest.raises(KafkaError) as refused:
        log.put((b"a", b"5"), producer=(7, 0, 9))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.put((b"a", b"2"), (b"b", b"2"), producer=(7, 0, 1)) == 1, "a batch sent again is known"
    assert log.put((b"a", b"5"), producer=(7, 0, 3)) == 7
    log.roll()
    log.compact()
    assert [(raw.base_offset, raw.record_count) for raw in log.read_all()] == [(3, 0), (5, 1), (7, 1)]


def test_aborted_data_goes_at_once_and_its_marker_after_the_horizon(log: CompactedLog) -> None:
    log.put((b"a", b"committed"))
    log.put((b"a", b"aborted"), (b"b", b"aborted"), producer=(*PRODUCER, 0), transactional=True)
    log.mark(marker(False, *PRODUCER, 0, NOW_MS))
    log.put((b"c", b"committed"), producer=(*PRODUCER, 2), transactional=True)
    log.mark(marker(True, *PRODUCER, 0, NOW_MS))
    log.put((b"d", b"1"))
    log.roll()
    log.compact(NOW_MS)
    assert values(log) == {b"a": b"committed", b"c": b"committed", b"d": b"1"}
    assert LOGS.aborted(log.topic, 0, 0, 3) == [(7, 1)]
    assert [raw.base_offset for raw in log.read_all()] == [0, 3, 4, 5, 6]
    assert not log.read_all()[1].attributes & 0x40, "its data was there in this pass"
    log.put((b"e", b"1"))
    log.roll()
    log.compact(NOW_MS)
    abort = log.read_all()[1]
    assert (abort.base_offset, abort.attributes & 0x60, abort.base_timestamp) == (3, 0x60, NOW_MS + RETENTION_MS)
    assert LOGS.aborted(log.topic, 0, 0, 3) == [(7, 1)], "as long as the marker is there"
    log.put((b"f", b"1"))
    log.roll()
    log.compact(NOW_MS + RETENTION_MS)
    assert [raw.base_offset for raw in log.read_all()] == [0, 4, 5, 6, 7, 8]
    assert LOGS.aborted(log.topic, 0, 0, 9) == []
    assert not log.files(".txnindex")
    assert log.kept(committed=True) == log.kept()


def test_a_commit_marker_goes_once_its_data_and_its_horizon_are_gone(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(*PRODUCER, 0), transactional=True)
    log.mark(marker(True, *PRODUCER, 0, NOW_MS))
    log.put((b"b", b"1"), producer=(*PRODUCER, 1), transactional=True)
    log.mark(marker(True, *PRODUCER, 0, NOW_MS))
    log.put((b"a", b"2"))
    log.roll()
    for now_ms, left in ((NOW_MS, [1, 2, 3, 4]), (NOW_MS, [1, 2, 3, 4, 5]), (NOW_MS + RETENTION_MS, [2, 3, 4, 5, 6])):
        log.compact(now_ms)
        assert [raw.base_offset for raw in log.read_all()] == left
        log.put((b"c%d" % len(left), b"1"))
        log.roll()


def test_nothing_of_an_open_transaction_counts(log: CompactedLog) -> None:
    log.put((b"a", b"old"))
    for value in (b"0", b"1", b"2"):
        log.put((b"b", value), (b"x", value))
    log.put((b"a", b"open"), producer=(*PRODUCER, 0), transactional=True)
    log.put((b"b", b"3"))
    log.roll()
    done = log.compact()
    assert done.first_dirty == 7
    assert [record[:3] for record in log.kept()] == [
        (0, b"a", b"old"), (5, b"b", b"2"), (6, b"x", b"2"), (7, b"a", b"open"), (8, b"b", b"3"),
    ]  # fmt: skip
    # The batch lies further in front now: a reader must not take what is at its old place for the end.
    assert [record.value for record in log.kept(committed=True)] == [b"old", b"2", b"2"]
    log.mark(marker(False, *PRODUCER, 0, NOW_MS))
    log.roll()
    log.compact()
    assert values(log) == {b"a": b"old", b"x": b"2", b"b": b"3"}


def test_an_aborted_transaction_across_segments_and_passes(log: CompactedLog) -> None:
    log.put((b"a", b"keep"))
    log.put((b"a", b"bad1"), producer=(*PRODUCER, 0), transactional=True)
    log.roll()
    log.put((b"a", b"bad2"), producer=(*PRODUCER, 1), transactional=True)
    log.roll()
    log.mark(marker(False, *PRODUCER, 0, NOW_MS))
    log.put((b"z", b"1"))
    log.roll()
    log.compact(buffer_bytes=1 << 20)
    assert values(log) == {b"a": b"keep", b"z": b"1"}
    log.kill(log.root.with_name(log.root.name + "k"))
    assert log.kept(committed=True) == log.kept()


@pytest.mark.parametrize("first_to_end", [7, 8])
def test_interleaved_transactions_that_abort_in_any_order(log: CompactedLog, first_to_end: int) -> None:
    log.put((b"a", b"keep"), (b"b", b"keep"))
    log.put((b"a", b"bad"), producer=(7, 0, 0), transactional=True)
    log.put((b"b", b"bad"), producer=(8, 0, 0), transactional=True)
    log.put((b"a", b"bad"), producer=(7, 0, 1), transactional=True)
    for producer in (first_to_end, 15 - first_to_end):
        log.mark(marker(False, producer, 0, 0, NOW_MS))
    log.put((b"c", b"good"), producer=(7, 0, 2), transactional=True)
    log.mark(marker(True, 7, 0, 0, NOW_MS))
    log.roll()
    log.compact()
    assert values(log) == {b"a": b"keep", b"b": b"keep", b"c": b"good"}
    assert log.kept(committed=True) == log.kept()


def test_a_small_table_takes_several_passes(log: CompactedLog) -> None:
    for turn in range(3):
        for batch in range(10):
            log.put(*((b"k%d" % (batch * 5 + i), b"%d" % turn) for i in range(5)))
        log.roll()
    ends = []
    while log.cleanable().cleanable_bytes:
        ends.append(log.compact(buffer_bytes=24 * 20).first_dirty)
    assert len(ends) > 5 and ends == sorted(set(ends)) and ends[-1] == 150
    assert values(log) == {b"k%d" % i: b"2" for i in range(50)}
    assert len(log.kept()) < 150


def test_a_batch_with_more_keys_than_the_table_holds(log: CompactedLog) -> None:
    log.put(*((b"k%d" % (i % 60), b"%d" % i) for i in range(120)))
    log.roll()
    passes = 0
    while log.cleanable().upper_bound > max(log.checkpoint, 0):
        log.compact(buffer_bytes=24 * 20)
        passes += 1
        assert passes < 20
    assert values(log) == {b"k%d" % (i - 60): b"%d" % i for i in range(60, 120)}
    assert len(log.kept()) < 120


def test_the_lag_keeps_young_segments(log: CompactedLog) -> None:
    log.put((b"a", b"1"), timestamp_ms=NOW_MS - 5000)
    log.put((b"a", b"2"), timestamp_ms=NOW_MS - 5000)
    log.roll()
    log.put((b"a", b"3"), timestamp_ms=NOW_MS - 100)
    log.roll()
    assert log.cleanable(min_lag_ms=1000).upper_bound == 2
    assert log.compact(min_lag_ms=1000).first_dirty == 2
    assert [record.value for record in log.kept()] == [b"2", b"3"]
    assert log.cleanable().oldest_dirty_ms == NOW_MS - 100


def test_what_is_cleanable_is_counted_in_bytes(log: CompactedLog) -> None:
    size = len(keyed([(b"a", b"1")]))
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    log.put((b"a", b"3"))
    found = log.cleanable()
    assert (found.first_dirty, found.upper_bound, found.clean_bytes, found.cleanable_bytes) == (0, 2, 0, 2 * size)
    log.compact()
    found = log.cleanable()
    assert (found.first_dirty, found.clean_bytes, found.cleanable_bytes) == (2, size, 0)
    log.checkpoint = 1000
    assert log.cleanable().first_dirty == 0, "a checkpoint past the end is not believed"


def test_deleted_records_move_the_dirty_start(log: CompactedLog) -> None:
    for i in range(4):
        log.put((b"a", b"%d" % i))
        log.roll()
    delete_records(log.topic, 2)
    assert log.cleanable().first_dirty == 2
    log.compact()
    assert log.kept() == [Kept(3, b"a", b"3", NOW_MS)]


def test_times_are_found_across_holes(log: CompactedLog) -> None:
    for i in range(6):
        log.put((b"a" if i != 3 else b"b", b"%d" % i), timestamp_ms=NOW_MS + 10 * i, producer=(7, 0, i))
    log.roll()
    log.put((b"c", b"1"), timestamp_ms=NOW_MS + 5)
    log.compact()
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS) == (3, NOW_MS + 30)
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 31) == (5, NOW_MS + 50)
    assert LOGS.max_timestamp(log.topic, 0) == (5, NOW_MS + 50)


def test_an_emptied_batch_has_no_time(log: CompactedLog) -> None:
    log.put((b"a", b"1"), timestamp_ms=NOW_MS + 500, producer=(7, 0, 0))
    log.put((b"a", b"2"), timestamp_ms=NOW_MS)
    log.roll()
    log.compact()
    for _ in range(2):
        assert [raw.record_count for raw in log.read_all()] == [0, 1]
        assert LOGS.max_timestamp(log.topic, 0) == (1, NOW_MS)
        assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 1) is None
        log.kill(log.root.with_name(log.root.name + "k"))


def test_reads_in_holes_go_on_with_what_follows(log: CompactedLog) -> None:
    for i in range(5):
        log.put((b"a", b"%d" % i))
        log.roll()
    log.put((b"b", b"1"))
    log.compact()
    for offset in range(5):
        assert split(LOGS.read(log.topic, 0, offset, 1))[0].base_offset == 4
    assert split(LOGS.read(log.topic, 0, 5, 1))[0].base_offset == 5


def test_indexes_of_a_cleaned_segment_are_right(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, index_interval_bytes=200)
    for i in range(50):
        log.put((b"%d" % (i % 20), b"x" * 30), timestamp_ms=NOW_MS + i)
    log.roll()
    log.compact()
    positions = {raw.last_offset: at for raw, at in zip(log.read_all(), range(0, 10**6, 100), strict=False)}
    data = log.files(".log")[0].read_bytes()
    entries = index_entries(log.files(".index")[0], ">ii")
    assert entries
    for offset, position in entries:
        assert struct.unpack_from(">q", data, position)[0] == offset and offset in positions
    times = index_entries(log.files(".timeindex")[0], ">qi")
    assert times[-1] == (NOW_MS + 49, 49)


def test_segments_are_grouped_up_to_segment_bytes(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, segment_bytes=1000)
    for i in range(12):
        log.put((b"k%d" % i, b"x" * 200))
        log.roll()
    done = log.compact()
    assert done.segments_before == 12 and done.segments_after == 4
    assert len(log.files(".log")) == 5
    assert len(log.kept()) == 12
    assert {path.name.partition(".")[2] for path in log.folder.iterdir()} <= {
        "log", "index", "timeindex", "checks", "snapshot", "sequences", "metadata",
    } | {"leader-epoch-checkpoint"} | {""}  # fmt: skip


def test_nothing_is_written_when_nothing_goes(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"))
    log.roll()
    before = log.files(".log")[0].stat().st_ino
    done = log.compact()
    assert done.records_kept == 2 and log.files(".log")[0].stat().st_ino == before
    assert not log.files(".cleaned")


def test_readers_of_old_segments_go_on(log: CompactedLog) -> None:
    """A reader that looks all the time sees the newest value of each key, and offsets that grow, at any moment."""
    log.put(*((b"k%d" % i, b"0") for i in range(100)))
    log.roll()
    stop, faults = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            kept = log.kept()
            if [record.offset for record in kept] != sorted({record.offset for record in kept}):
                faults.append("order")
            if {record.key for record in kept} != {b"k%d" % i for i in range(100)}:
                faults.append(f"{len(kept)} records")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(1, 30):
            log.put(*((b"k%d" % i, b"%d" % turn) for i in range(100)), codec=turn % 5)
            log.roll()
            log.compact()
            log.upkeep()
    finally:
        stop.set()
        thread.join()
    assert faults == []
    assert len(log.kept()) == 100


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (25, "offset 0 .*checksum"),
        (65, "offset 0 .*checksum"),
        (70, "offset 72057594037927937.*order"),
        (70 + 8, "records"),
        (70 + 20, "offset 1 .*checksum"),
    ],
)
def test_a_corrupt_batch_leaves_the_log_as_it_is(log: CompactedLog, place: int, why: str) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.roll()
    path = log.files(".log")[0]
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(UncleanableError, match=why):
        log.compact()
    assert path.read_bytes() == data
    assert not log.files(".cleaned") and not log.files(".swap")


def test_a_batch_that_inflates_too_far_is_refused(log: CompactedLog) -> None:
    log.put((b"a", b"x" * 100_000), codec=4)
    log.roll()
    log.flush_sealed()
    with pytest.raises(UncleanableError, match="limit"):
        Cleaner(Pace(), 1 << 20, inflated_max_bytes=50_000).compact(LOGS, log.topic, 0, -1, NOW_MS, 0, 0)


def test_passes_end_with_their_pace_and_with_the_partition(log: CompactedLog) -> None:
    for i in range(20):
        log.put((b"a", b"%d" % i))
    log.roll()
    pace = Pace(1.0)  # a byte a second
    failures: list[KafkaError] = []

    def compact() -> None:
        try:
            log.compact(pace=pace)
        except KafkaError as error:
            failures.append(error)

    for end in (pace.end, log.stop):
        thread = threading.Thread(target=compact)
        thread.start()
        end()
        thread.join()
        if end == pace.end:
            with pytest.raises(KafkaError):
                log.compact(pace=pace)
        pace = Pace(1.0)
    assert len(failures) == 2 or all(f.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for f in failures[1:])
    assert not log.files(".cleaned")


def put_back(log: CompactedLog, copy: Path, to: Path) -> None:
    """An older copy of the log in its place. It isn't opened, unless nothing says where it ended, as in a file of version 1."""
    shutil.rmtree(log.folder)
    shutil.copytree(copy, log.folder)
    LOGS.write_checkpoints()
    with pytest.raises(CorruptLogError):
        log.lead(clean=True)
    shutil.copytree(log.root, to)
    log.root = to
    offsets, sums = parse_offsets((to / OURS).read_bytes())
    old = [format_line(key, Offsets(*known[:4])) for key, known in offsets.items()]
    (to / NAME).unlink()
    (to / OURS).write_bytes(format_offsets(old, sums))


def test_a_log_that_is_an_older_copy_of_itself_is_compacted_from_its_beginning(tmp_path: Path) -> None:
    log, copy = CompactedLog(tmp_path / "a"), tmp_path / "copy"
    log.put((b"K", b"v1"))
    log.roll()
    shutil.copytree(log.folder, copy)
    for i in range(6):
        log.put((b"fill%d" % i, b"1"))
    log.roll()
    assert log.compact().first_dirty == 7
    LOGS.compacted(log.topic, TOPIC_ID, 0, 7)
    log.stop()
    put_back(log, copy, tmp_path / "b")
    log.lead(clean=True)
    written = parse_offsets((log.root / OURS).read_bytes())[0]
    assert written[log.topic, 0].first_dirty == 0, "on the disk before anything is appended; not -1, for there may be holes"
    log.put((b"K", None))
    for i in range(8):
        log.put((b"fill%d" % i, b"1"))
    log.roll()
    for now_ms in (NOW_MS, NOW_MS + RETENTION_MS):
        log.checkpoint = LOGS.first_dirty(log.topic, TOPIC_ID, 0)
        log.compact(now_ms)
        assert (b"K", b"v1") not in [(record.key, record.value) for record in log.kept()]
    assert b"K" not in {record.key for record in log.kept()}


def test_a_log_that_was_never_compacted_has_no_holes_though_it_lost_its_end(tmp_path: Path) -> None:
    log, copy = CompactedLog(tmp_path / "a"), tmp_path / "copy"
    log.put((b"a", b"1"))
    log.roll()
    shutil.copytree(log.folder, copy)
    log.put((b"a", b"2"))
    log.stop()
    put_back(log, copy, tmp_path / "b")
    log.lead(clean=True)
    assert LOGS.first_dirty(log.topic, TOPIC_ID, 0) == -1


@pytest.mark.parametrize(
    "altered",
    [{"cleanup_compact": 0, "cleanup_delete": 1}, {"min_compaction_lag_ms": 1}, {"delete_retention_ms": RETENTION_MS + 1}],
)
def test_settings_that_keep_more_end_a_pass(log: CompactedLog, altered: dict[str, int]) -> None:
    for value in (b"1", b"2"):
        log.put((b"a", value))
        log.roll()
    before, pace, failures = log.state(), Pace(1.0), []

    def compact() -> None:
        try:
            log.compact(pace=pace)
        except KafkaError as error:
            failures.append(error.code)

    thread = threading.Thread(target=compact)
    thread.start()
    LOGS.reconfigure(log.topic, 0, altered)
    pace.limit(0)
    thread.join()
    assert failures == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert log.state() == before and not log.files(".cleaned")
    LOGS.reconfigure(log.topic, 0, {"cleanup_compact": 1, "min_compaction_lag_ms": 0, "delete_retention_ms": RETENTION_MS})
    log.compact()
    assert [record.value for record in log.kept()] == [b"2"]


def test_a_log_that_retention_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, cleanup_delete=1, retention_ms=-1)
    for i in range(5):
        log.put((b"a", b"%d" % i), (b"b%d" % i, b"1"))
        log.roll()
    stop = threading.Event()

    def trim() -> None:
        start = 0
        while not stop.is_set() and start < 6:
            start += 2
            delete_records(log.topic, start)
            log.upkeep()

    thread = threading.Thread(target=trim)
    thread.start()
    for _ in range(20):
        log.checkpoint = -1
        try:
            log.compact()
        except KafkaError as error:
            assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    stop.set()
    thread.join()
    kept = log.kept()
    assert kept[-1] == Kept(9, b"b4", b"1", NOW_MS + 1)
    log.kill(tmp_path.with_name(tmp_path.name + "k"))
    assert log.kept() == kept


def test_unknown_partitions_are_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        Cleaner(Pace(), 1 << 20).compact(LOGS, "nothing", 0, -1, NOW_MS, 0, 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_both_policies_together(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path, cleanup_delete=1, retention_ms=-1, segment_bytes=400)
    for i in range(6):
        log.put((b"a%d" % (i // 2), b"%d" % i * 100), timestamp_ms=NOW_MS + 1000 * i, producer=(7, 0, i))
        log.roll()
    log.compact()
    assert [record.offset for record in log.kept()] == [1, 3, 5]
    LOGS.reconfigure(log.topic, 0, {"retention_ms": 5000})
    log.upkeep(NOW_MS + 8500)
    LOGS.reconfigure(log.topic, 0, {"retention_ms": -1})
    assert [record.offset for record in log.kept()] == [5]
    start = log.offsets().log_start
    assert start == 4
    log.put((b"a2", b"new"), timestamp_ms=NOW_MS + 9000, producer=(7, 0, 6))
    log.roll()
    log.checkpoint = 1
    assert log.cleanable().first_dirty == start, "retention has taken what the checkpoint says"
    log.compact()
    assert [record.offset for record in log.kept()] == [6]
    log.kill(tmp_path.with_name(tmp_path.name + "k"))
    assert [record.offset for record in log.kept()] == [6]
    assert log.offsets()[:2] == (start, 7)


def removed_below(log: CompactedLog) -> int:
    return LOGS.replica_state(log.topic, 0).removed_below


def test_the_log_says_below_which_offset_deletions_are_gone(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path / "a")
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"a", b"2"))
    log.put((b"b", None))
    log.put((b"c", b"1"))
    log.roll()
    log.compact()
    assert removed_below(log) == 0, "values go, and the tombstone stays"
    log.kill(tmp_path / "b")
    assert removed_below(log) == 0
    log.put((b"c", b"2"))
    log.roll()
    log.checkpoint = 0
    log.compact(NOW_MS + RETENTION_MS)
    assert b"b" not in values(log) and removed_below(log) == 4
    log.kill(tmp_path / "c")
    assert removed_below(log) == 4
    log.restart()
    assert removed_below(log) == 4


def test_a_marker_that_goes_is_a_deletion_too(log: CompactedLog) -> None:
    log.put((b"a", b"1"), producer=(*PRODUCER, 0), transactional=True)
    log.mark(marker(False, *PRODUCER, 0, NOW_MS))
    log.put((b"b", b"1"), producer=(*PRODUCER, 1), transactional=True)
    log.mark(marker(True, *PRODUCER, 0, NOW_MS))
    log.roll()
    for now_ms in (NOW_MS, NOW_MS + 1):
        log.checkpoint = 0
        log.compact(now_ms)
        assert removed_below(log) == 0
    log.checkpoint = 0
    log.compact(NOW_MS + 1 + RETENTION_MS)
    assert removed_below(log) == 2


@pytest.mark.parametrize("damage", ["missing", "empty", "changed", "cut"])
def test_all_that_compaction_can_have_reached_counts_if_nothing_says_what_it_removed(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = CompactedLog(tmp_path / "a")
    log.put((b"a", b"1"), (b"a", b"2"))
    log.roll()
    log.put((b"b", b"1"))
    log.compact()
    path = log.folder / "penstock-removed-checkpoint"
    text = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "changed": text.replace(b"below 0", b"below 9"), "cut": text[:-1]}[damage])
    log.kill(tmp_path / "b")
    assert removed_below(log) == 3
    log.put((b"b", b"2"))
    log.kill(tmp_path / "c")
    assert removed_below(log) == 3, "what was guessed once stays"
    assert ("penstock-removed-checkpoint` is damaged" in caplog.text) == (damage != "missing")


def test_a_log_that_was_never_compacted_lacks_no_deletion(tmp_path: Path) -> None:
    log = CompactedLog(tmp_path / "a")
    log.put((b"a", None))
    LOGS.write_checkpoints()
    log.kill(tmp_path / "b")
    assert removed_below(log) == 0
    assert not (log.folder / "penstock-removed-checkpoint").exists()


@pytest.mark.parametrize("step", ["compact.noted", "compact.swapping", "compact.swapped"])
def test_what_a_pass_removes_is_on_the_disk_before_anything_goes(tmp_path: Path, step: str) -> None:
    """Before each of its steps that a kill can follow."""
    log = CompactedLog(tmp_path / "a")
    log.put((b"a", None), (b"b", b"1"))
    log.put((b"c", b"1"))
    log.roll()
    log.compact()
    log.checkpoint = 0
    failpoints.arm(f"{step}=error")
    try:
        with pytest.raises(failpoints.FailpointError):
            log.compact(NOW_MS + RETENTION_MS)
    finally:
        failpoints.disarm()
    log.kill(tmp_path / "b")
    assert removed_below(log) == 1
