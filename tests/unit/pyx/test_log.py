"""The partition log: appends, reads, limits, isolation, times, epochs, names."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.rawbatch import marker, records, split
from support.logs import LOGS, NOW_MS, TOPIC_ID, Log, batch, delete_records


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "logs", segment_bytes=2000)


def refused(code: ErrorCode, call: object, *arguments: object) -> None:
    with pytest.raises(KafkaError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert caught.value.code == code


def test_offsets_are_assigned_in_order_of_arrival(log: Log) -> None:
    assert [log.append(batch(n)) for n in (1, 3, 2)] == [0, 1, 4]
    assert log.offsets() == (0, 6, 6, 6, 0)
    assert [(raw.base_offset, raw.record_count) for raw in log.read_all()] == [(0, 1), (1, 3), (4, 2)]


def test_several_batches_of_one_request_are_appended_together(log: Log) -> None:
    assert log.append(batch(2) + batch(1) + batch(3)) == 0
    assert [raw.base_offset for raw in log.read_all()] == [0, 2, 3]


def test_batches_carry_the_leader_epoch_and_stay_otherwise_untouched(tmp_path: Path) -> None:
    log = Log(tmp_path, leader_epoch=5)
    sent = batch(2)
    log.append(sent)
    (raw,) = log.read_all()
    assert raw.leader_epoch == 5
    assert bytes(raw)[16:] == sent[16:]


def test_read_begins_with_the_batch_that_holds_the_offset(log: Log) -> None:
    for _ in range(40):
        log.append(batch(3))
    assert len(log.files(".log")) > 2
    for offset in range(120):
        first = split(LOGS.read(log.topic, 0, offset, 1))[0]
        assert first.base_offset == offset // 3 * 3
    assert LOGS.read(log.topic, 0, 120, 1000) == b""


def test_read_gives_whole_batches_within_the_limit_and_at_least_one(log: Log) -> None:
    for _ in range(3):
        log.append(batch(1))
    one = len(LOGS.read(log.topic, 0, 0, 1))
    assert len(LOGS.read(log.topic, 0, 0, 2 * one)) == 2 * one
    assert len(LOGS.read(log.topic, 0, 0, 3 * one - 1)) == 2 * one
    assert len(LOGS.read(log.topic, 0, 0, 0)) == one


def test_read_outside_the_log_is_refused(log: Log) -> None:
    log.append(batch(2))
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, LOGS.read, log.topic, 0, 3, 100)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, LOGS.read, log.topic, 0, -1, 100)
    delete_records(log.topic, 1)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, LOGS.read, log.topic, 0, 0, 100)
    assert split(LOGS.read(log.topic, 0, 1, 100))[0].base_offset == 0


def test_unknown_partitions_are_refused() -> None:
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, LOGS.offsets, "nobody", 0)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda data: data[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (lambda data: b"", ErrorCode.INVALID_RECORD),
        (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["cut", "longer", "bit", "empty", "negative length"],
)
def test_damaged_batches_never_reach_the_log(log: Log, spoil: object, code: ErrorCode) -> None:
    log.append(batch(1))
    # The good batch before the bad one isn't taken either.
    refused(code, log.append, spoil(batch(2)))  # type: ignore[operator]
    if spoil(batch(1)):  # type: ignore[operator]
        refused(code, log.append, batch(1) + spoil(batch(2)))  # type: ignore[operator]
    assert log.offsets().log_end == 1
    assert log.append(batch(1)) == 1


def test_control_batches_come_from_coordinators_only(log: Log) -> None:
    refused(ErrorCode.INVALID_RECORD, log.append, marker(True, 1, 0, 0, NOW_MS))
    assert log.mark(marker(True, 1, 0, 0, NOW_MS)) == 0


def test_sizes_are_limited(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=400, max_message_bytes=200)
    refused(ErrorCode.MESSAGE_TOO_LARGE, log.append, batch(1, size=200))
    refused(ErrorCode.RECORD_LIST_TOO_LARGE, log.append, batch(1, size=100) * 3)
    assert log.append(batch(1, size=100)) == 0


def test_timestamps_are_limited(tmp_path: Path) -> None:
    log = Log(tmp_path, timestamp_before_max_ms=3_600_000, timestamp_after_max_ms=0)
    refused(ErrorCode.INVALID_TIMESTAMP, log.append, batch(1, timestamp_ms=NOW_MS))
    refused(ErrorCode.INVALID_TIMESTAMP, log.append, batch(1, timestamp_ms=1 << 60))
    LOGS.reconfigure(log.topic, 0, {"timestamp_before_max_ms": (1 << 63) - 1})
    assert log.append(batch(1, timestamp_ms=0)) == 0


def test_log_append_time_replaces_timestamps_and_keeps_the_checksum_right(tmp_path: Path) -> None:
    log = Log(tmp_path, log_append_time=1)
    done = LOGS.append_client(log.topic, 0, batch(3, timestamp_ms=5))
    assert done.log_append_time_ms > NOW_MS
    (raw,) = log.read_all()
    assert raw.is_log_append_time and raw.max_timestamp == done.log_append_time_ms
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS) == (0, done.log_append_time_ms)


def test_times_are_found_in_every_segment_and_codec(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=1500, index_interval_bytes=300)
    for i in range(60):
        log.append(batch(5, timestamp_ms=NOW_MS + i * 10, codec=i % 5))
    log.upkeep()
    for restarted in (False, True):
        if restarted:
            log.restart()
        for i in range(60):
            for j, offset in ((0, 5 * i), (3, 5 * i + 3)):
                wanted = NOW_MS + i * 10 + j
                assert LOGS.offset_for_timestamp(log.topic, 0, wanted) == (offset, wanted)
        assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 7) == (5, NOW_MS + 10)
        assert LOGS.offset_for_timestamp(log.topic, 0, 0) == (0, NOW_MS)
        assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 595) is None
        assert LOGS.max_timestamp(log.topic, 0) == (299, NOW_MS + 594)


def test_times_that_run_backwards(tmp_path: Path) -> None:
    log = Log(tmp_path, index_interval_bytes=0)
    for timestamp in (50, 40, 90, 10, 90):
        log.append(batch(1, timestamp_ms=timestamp))
    found = [LOGS.offset_for_timestamp(log.topic, 0, t) for t in (0, 45, 51, 90, 91)]
    assert found == [(0, 50), (0, 50), (2, 90), (2, 90), None]
    assert LOGS.max_timestamp(log.topic, 0) == (2, 90)


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("segment_bytes", [300, 100_000])
def test_the_largest_timestamp_is_that_of_the_records_that_are_left(tmp_path: Path, segment_bytes: int, codec: int) -> None:
    """Wherever the log starts, also within a batch, and however far behind the largest one of all lies."""
    log = Log(tmp_path, segment_bytes=segment_bytes, index_interval_bytes=0, retention_ms=-1)
    times = []
    for first in (500, 90, 700, 600, 20, 610, 30, 50, 40):
        log.append(batch(3, timestamp_ms=first, codec=codec))
        times += [first, first + 1, first + 2]
    for start in range(len(times)):
        delete_records(log.topic, start)
        newest = max(times[start:])
        assert LOGS.max_timestamp(log.topic, 0) == (times.index(newest, start), newest)
        if start % 5 == 0:
            log.upkeep()
    delete_records(log.topic, len(times))
    assert LOGS.max_timestamp(log.topic, 0) is None


def test_read_committed_stops_at_the_first_open_transaction(log: Log) -> None:
    log.append(batch(2))
    log.append(batch(2, producer=(1, 0, 0), transactional=True))
    log.append(batch(2))
    assert log.offsets() == (0, 2, 6, 6, 0)
    assert [raw.base_offset for raw in split(LOGS.read(log.topic, 0, 0, 10_000, 1))] == [0]
    assert LOGS.read(log.topic, 0, 2, 10_000, 1) == b""
    assert len(split(LOGS.read(log.topic, 0, 0, 10_000, 0))) == 3
    log.mark(marker(True, 1, 0, 0, NOW_MS))
    assert log.offsets() == (0, 7, 7, 7, 0)
    assert len(split(LOGS.read(log.topic, 0, 0, 10_000, 1))) == 4


def test_read_committed_across_segments_while_a_transaction_is_open(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=600)
    for _ in range(5):
        log.append(batch(1))
    log.append(batch(1, producer=(1, 0, 0), transactional=True))
    for _ in range(12):
        log.append(batch(1))
    for restarted in (False, True):
        if restarted:
            log.restart()
        assert [raw.base_offset for raw in log.read_all(isolation=1)] == [0, 1, 2, 3, 4]


def test_aborted_transactions_are_listed_where_they_touch_the_range(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=500)
    ends = {}
    for i in range(8):
        first = log.append(batch(1, producer=(i, 0, 0), transactional=True))
        ends[i] = (first, log.mark(marker(i % 2 == 0, i, 0, 0, NOW_MS)))
    end = log.offsets().log_end
    expected = [(i, ends[i][0]) for i in (1, 3, 5, 7)]
    for flushed in (False, True):
        if flushed:
            log.flush()
        assert LOGS.aborted(log.topic, 0, 0, end) == expected
        first, last = ends[3]
        assert LOGS.aborted(log.topic, 0, first, last + 1) == [(3, first)]
        assert LOGS.aborted(log.topic, 0, last + 1, end) == expected[2:]
    assert records(log.read_all()[1])[0].key is not None


def test_interleaved_transactions_end_in_any_order(log: Log) -> None:
    for i in range(3):
        log.append(batch(1, producer=(i, 0, 0), transactional=True))
    assert log.offsets().last_stable == 0
    log.mark(marker(False, 1, 0, 0, NOW_MS))
    assert log.offsets().last_stable == 0
    log.mark(marker(False, 0, 0, 0, NOW_MS))
    assert log.offsets().last_stable == 2
    log.mark(marker(True, 2, 0, 0, NOW_MS))
    assert log.offsets().last_stable == log.offsets().log_end == 6
    assert LOGS.aborted(log.topic, 0, 0, 6) == [(1, 1), (0, 0)]


def test_a_stopped_partition_is_gone_and_comes_back(log: Log) -> None:
    log.append(batch(4))
    before = log.state()
    log.stop()
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, log.append, batch(1))
    assert log.lead(clean=True) == (0, 4, 0, 0)
    assert log.state() == before


def test_delete_removes_the_folder_and_leftovers_are_removed_later(log: Log) -> None:
    log.append(batch(1))
    LOGS.write_checkpoints()
    log.drop()
    assert not log.folder.exists()
    LOGS.write_checkpoints()
    assert log.topic not in (log.root / "recovery-point-offset-checkpoint").read_text()
    left = log.root / f"{log.topic}-0.{'0' * 32}-delete"
    left.mkdir()
    (left / "00000000000000000000.log").write_bytes(b"x")
    other = log.root / "my-delete"
    other.mkdir()
    assert LOGS.remove_deleted(str(log.root)) == 1
    assert not left.exists() and other.exists()


def test_what_a_deletion_drops_does_not_come_back(tmp_path: Path) -> None:
    """Deletions of records and look-ups go on in other threads while their partition is deleted."""
    log = Log(tmp_path, segment_bytes=300)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def trim() -> None:
        while True:
            try:
                LOGS.max_timestamp(log.topic, 0)
                delete_records(log.topic, -1)
            except KafkaError:
                return

    try:
        for _ in range(60):
            for _ in range(3):
                log.append(batch(3))
            threads = [threading.Thread(target=trim) for _ in range(3)]
            for thread in threads:
                thread.start()
            log.drop()
            for thread in threads:
                thread.join()
            LOGS.write_checkpoints()
            starts = tmp_path / "log-start-offset-checkpoint"
            assert not starts.exists() or log.topic not in starts.read_text()
            assert log.lead(clean=False)[:2] == (0, 0)
    finally:
        sys.setswitchinterval(interval)


def test_a_new_folder_forgets_an_older_topic_of_its_name(tmp_path: Path) -> None:
    """The broker died between the removal of the older one's folder and the writing of the checkpoints."""
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (tmp_path / name).write_text("0\n1\nagain 0 1000\n")
    assert LOGS.lead("again", TOPIC_ID, 0, 0, str(tmp_path), {})[:2] == (0, 0)
    LOGS.stop("again", 0)


def test_a_folder_of_another_topic_id_is_refused(log: Log) -> None:
    log.stop()
    with pytest.raises(ValueError, match="belongs to a topic"):
        LOGS.lead(log.topic, bytes(15) + b"\7", 0, 0, str(log.root), {}, True)
    assert (log.folder / "partition.metadata").read_text() == "version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA\n"


@pytest.mark.parametrize(
    ("topic", "topic_id", "config"),
    [
        ("a/b", TOPIC_ID, {}),
        ("", TOPIC_ID, {}),
        ("t", b"x", {}),
        ("t", TOPIC_ID, {"nonsense": 1}),
        ("t", TOPIC_ID, {"segment_bytes": 1 << 31}),
        ("t", TOPIC_ID, {"segment_ms": 0}),
    ],
)
def test_wrong_names_ids_and_configurations_are_refused(
    tmp_path: Path, topic: str, topic_id: bytes, config: dict[str, int]
) -> None:
    with pytest.raises(ValueError):
        LOGS.lead(topic, topic_id, 0, 0, str(tmp_path), config)


def test_epochs_begin_at_the_log_end_and_end_where_the_next_begins(log: Log) -> None:
    log.append(batch(3))
    LOGS.lead(log.topic, TOPIC_ID, 0, 4, str(log.root), log.config)
    log.append(batch(2))
    ends = [LOGS.offset_for_epoch(log.topic, 0, epoch) for epoch in (-1, 0, 2, 4, 5)]
    assert ends == [(-1, -1), (0, 3), (0, 3), (4, 5), (-1, -1)]
    assert (log.folder / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n4 3\n"
    assert LOGS.append(log.topic, 0, batch(1), 4).base_offset == 5


def test_replicas_take_bytes_as_they_are(log: Log, tmp_path: Path) -> None:
    for n in (1, 3, 2):
        log.append(batch(n))
    log.append(batch(2, producer=(1, 0, 0), transactional=True))
    log.mark(marker(False, 1, 0, 0, NOW_MS))
    copy = Log(tmp_path / "copy")
    everything = b"".join(bytes(raw) for raw in log.read_all())
    LOGS.append_replica(copy.topic, 0, everything)
    assert copy.state()[:2] == log.state()[:2]
    assert copy.state().aborted == log.state().aborted
    refused(ErrorCode.CORRUPT_MESSAGE, LOGS.append_replica, copy.topic, 0, everything)


def test_readers_and_appenders_in_parallel_see_whole_batches_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=5000, index_interval_bytes=200, retention_bytes=1 << 30)
    rounds = 400
    wrong: list[object] = []

    def append(producer: int) -> None:
        for i in range(rounds):
            log.append(batch(2, producer=(producer, 0, 2 * i)))

    def follow() -> None:
        offset = 0
        try:
            while offset < 3 * rounds * 2:
                for raw in split(LOGS.read(log.topic, 0, offset, 4000)):
                    raw.check()
                    assert raw.base_offset == offset
                    offset = raw.next_offset
        except BaseException as error:  # noqa: BLE001  (told to the main thread)
            wrong.append(error)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        log.upkeep()
        LOGS.write_checkpoints()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert log.offsets().log_end == 3 * rounds * 2
    assert all(p.last_sequence == 2 * rounds - 1 for p in LOGS.producers(log.topic, 0))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_idle_partitions_hold_no_files(tmp_path: Path) -> None:
    before = open_files()
    logs = [Log(tmp_path, segment_bytes=300) for _ in range(30)]
    for log in logs:
        for _ in range(6):
            log.append(batch(1))
    assert open_files() > before + 30
    for log in logs:
        log.upkeep()
        log.upkeep()
    assert open_files() <= before + 1
    assert [log.append(batch(1)) for log in logs] == [6] * 30


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.logs import LOGS, Log, batch
from penstock.errors import KafkaError
log = Log(Path(sys.argv[1]), segment_bytes=1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
appended = 0
while True:
    try:
        log.append(batch(1))
        appended += 1
    except KafkaError as error:
        assert error.code == 56 and error.retriable, error
        break
size = log.files(".log")[0].stat().st_size
assert size == LOGS.size_bytes(log.topic, 0) < 1000, size
assert len(log.read_all()) == appended == log.offsets().log_end
assert not LOGS.is_offline(log.topic, 0)
assert appended > 5
print("held", appended)
"""


def test_a_full_disk_is_answered_and_leaves_the_log_right(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path), tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("held")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_too_many_open_files_pass_by(tmp_path: Path) -> None:
    """As when too many clients have connected: appends fail while it lasts, and go on after it."""
    log = Log(tmp_path, flush_messages=1)
    log.append(batch(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        refused(ErrorCode.KAFKA_STORAGE_ERROR, log.append, batch(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not LOGS.is_offline(log.topic, 0)
    assert log.append(batch(1)) == log.offsets().log_end - 1


def test_a_failed_flush_takes_the_partition_offline_for_good(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(batch(1))
    log.stop()
    # fsync of a character device fails with EINVAL.
    log.files(".log")[0].unlink()
    (log.folder / "00000000000000000000.log").symlink_to("/dev/null")
    LOGS.drop_checkpoints(log.topic, 0, str(log.root))  # which would miss its record
    log.lead(clean=True)
    assert log.append(batch(1)) == 0
    with pytest.raises(OSError, match="Invalid argument"):
        log.flush()
    assert LOGS.is_offline(log.topic, 0)
    refused(ErrorCode.KAFKA_STORAGE_ERROR, log.append, batch(1))
    refused(ErrorCode.KAFKA_STORAGE_ERROR, LOGS.read, log.topic, 0, 0, 100)
    with pytest.raises(OSError):
        log.flush()
    with pytest.raises(OSError):
        log.stop()


def test_a_partition_that_is_not_open_says_so_whatever_is_sent(tmp_path: Path) -> None:
    logs = LogManager()
    logs.announce("early", TOPIC_ID, 0)
    for offline, code in ((False, ErrorCode.NOT_LEADER_OR_FOLLOWER), (True, ErrorCode.KAFKA_STORAGE_ERROR)):
        logs.announce("early", TOPIC_ID, 0, offline)
        for call, *arguments in (
            (logs.append_client, batch(1)),
            (logs.append, marker(True, 1, 0, 0, NOW_MS)),
            (logs.read, 0, 100),
            (logs.offsets,),
            (logs.upkeep, NOW_MS),
            (logs.stop,),
        ):
            refused(code, call, "early", 0, *arguments)
        assert logs.is_offline("early", 0) == offline
    assert logs.partitions() == []
    logs.lead("early", TOPIC_ID, 0, 0, str(tmp_path), {})
    assert logs.append_client("early", 0, batch(1)).base_offset == 0
    logs.stop("early", 0, announced=True)
    refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, logs.append_client, "early", 0, batch(1))
    logs.withdraw("early", 0)
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, logs.append_client, "early", 0, batch(1))
