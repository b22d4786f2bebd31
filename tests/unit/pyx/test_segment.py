"""Segments: when they are rolled, when they are deleted, what their files are called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.checkpoint import read_checkpoint
from penstock.pyx.log.logmanager import LogManager, room_end
from penstock.pyx.record.rawbatch import split
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS, TOPIC_ID, Log, batch, delete_records

DAY_MS = 86_400_000


def now_ms() -> int:
    return int(time.time() * 1000)


def bases(log: Log) -> list[int]:
    return [int(path.stem) for path in log.files(".log")]


def test_files_are_named_after_the_first_offset(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300)
    for _ in range(5):
        log.append(batch(2))
    assert bases(log) == [raw.base_offset for raw in log.read_all()][:: bases(log)[1] // 2]
    assert log.files(".log")[1].name == f"{bases(log)[1]:020d}.log"
    assert all(path.stat().st_size <= 300 for path in log.files(".log"))
    log.stop()
    for suffix in (".index", ".timeindex"):
        assert [int(path.stem) for path in log.files(suffix)] == bases(log)
    assert log.files(".txnindex") == []
    assert [int(path.stem) for path in log.files(".snapshot")] == [*bases(log)[1:], 10]


def test_rolled_by_the_age_of_timestamps(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_ms=1000)
    for age in (0, 1000, 1001, 1500, 2003):
        log.append(batch(1, timestamp_ms=NOW_MS + age))
    assert bases(log) == [0, 2, 4]


def test_rolled_by_the_clock_in_upkeep(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_ms=1000, retention_ms=-1)
    assert not log.upkeep(1 << 50).rolled
    log.append(batch(1))
    assert not log.upkeep(0).rolled
    assert log.upkeep(1 << 50).rolled
    assert not log.upkeep(1 << 50).rolled
    assert bases(log) == [0, 1]


@pytest.mark.parametrize("entry", [8, 12])
def test_rolled_when_an_index_is_full(tmp_path: Path, entry: int) -> None:
    log = Log(tmp_path, segment_index_bytes=48, index_interval_bytes=0)
    for i in range(30):
        # Timestamps that don't grow add nothing to the time index: the offset index is full first then.
        log.append(batch(1, timestamp_ms=NOW_MS + (i if entry == 12 else 0)))
    log.stop()
    assert len(bases(log)) > 3
    assert max(path.stat().st_size for path in log.files(".index")) <= 48
    assert max(path.stat().st_size for path in log.files(".timeindex")) <= 48
    assert log.lead(clean=True).log_end == 30


def test_retention_by_time_uses_record_timestamps(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, retention_ms=DAY_MS)
    for i in range(12):
        log.append(batch(1, timestamp_ms=NOW_MS + i * DAY_MS // 4))
    before = bases(log)
    kept = log.upkeep(NOW_MS + DAY_MS + DAY_MS * 3 // 2)
    # Deleted: segments whose newest record is more than a day old then, i.e. older than NOW + 1.5 days = record 6.
    first = bases(log)[0]
    assert kept.segments_deleted == before.index(first) > 0
    newest = [raw.max_timestamp for raw in log.read_all() if raw.base_offset < bases(log)[1]][-1]
    assert newest >= NOW_MS + DAY_MS * 3 // 2
    assert log.offsets().log_start == first
    assert kept.bytes_deleted > 0


def test_an_expired_log_keeps_its_end(tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=DAY_MS)
    for _ in range(3):
        log.append(batch(1))
    kept = log.upkeep(NOW_MS + 10 * DAY_MS)
    assert (kept.segments_deleted, kept.rolled) == (1, True)
    assert log.offsets() == (3, 3, 3, 3, 0)
    assert bases(log) == [3]
    assert LOGS.size_bytes(log.topic, 0) == 0
    assert log.restart() == (3, 3, 0, 0)
    assert log.append(batch(1)) == 3


def test_retention_by_size_leaves_at_least_the_limit(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, retention_bytes=700, retention_ms=-1)
    for _ in range(30):
        log.append(batch(1))
    log.upkeep()
    size = LOGS.size_bytes(log.topic, 0)
    assert 700 <= size < 700 + 300
    assert [raw.base_offset for raw in log.read_all()] == list(range(bases(log)[0], 30))
    assert not log.upkeep().segments_deleted


def test_without_a_limit_nothing_is_deleted(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, retention_bytes=-1, retention_ms=-1)
    for _ in range(10):
        log.append(batch(1))
    assert log.upkeep(1 << 50).segments_deleted == 0
    compacted = Log(tmp_path, segment_bytes=300, retention_ms=1, cleanup_delete=0, cleanup_compact=1)
    for _ in range(10):
        compacted.append(batch(1))
    assert compacted.upkeep(1 << 50).segments_deleted == 0


def test_deleted_records_take_their_segments_with_them(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, cleanup_delete=0)
    for _ in range(10):
        log.append(batch(1))
    middle = bases(log)[2]
    assert delete_records(log.topic, middle + 1) == middle + 1
    assert delete_records(log.topic, 1) == middle + 1
    log.upkeep()
    assert bases(log)[0] == middle
    assert log.restart().log_start == middle + 1
    assert delete_records(log.topic, -1) == 10
    assert log.offsets() == (10, 10, 10, 10, 0)
    with pytest.raises(KafkaError):
        delete_records(log.topic, 11)
    assert log.restart() == (10, 10, 0, 0)
    assert log.append(batch(1)) == 10


def test_records_of_many_logs_are_deleted_at_once(tmp_path: Path) -> None:
    one, two, failing = Log(tmp_path / "a"), Log(tmp_path / "a"), Log(tmp_path / "b")
    for log in (one, two, failing):
        log.append(batch(10))
    in_the_way = tmp_path / "b" / "log-start-offset-checkpoint.tmp"
    in_the_way.mkdir()
    outcomes = LOGS.delete_records(
        [
            (one.topic, TOPIC_ID, 0, 4),
            ("nobody", TOPIC_ID, 0, 1),
            (failing.topic, TOPIC_ID, 0, 5),
            (two.topic, TOPIC_ID, 0, 11),
            (two.topic, TOPIC_ID, 0, -1),
            (two.topic, TOPIC_ID[::-1], 0, 4),
        ]
    )
    in_the_way.rmdir()
    assert [outcomes[0], outcomes[4]] == [4, 10]
    assert isinstance(outcomes[2], OSError)
    assert [refused.code for refused in outcomes if isinstance(refused, KafkaError)] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert read_checkpoint(tmp_path / "a" / "log-start-offset-checkpoint") == {(one.topic, 0): 4, (two.topic, 0): 10}


def test_the_log_start_moves_the_last_stable_offset_along(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(batch(1, producer=(1, 0, 0), transactional=True))
    log.append(batch(3))
    delete_records(log.topic, 2)
    assert log.offsets()[:2] == (2, 2)


def test_deleted_files_are_gone_and_their_snapshots_too(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300, retention_bytes=300, file_delete_delay_ms=1000)
    for i in range(20):
        log.append(batch(1, producer=(1, 0, i)))
    log.flush()
    log.upkeep(NOW_MS)
    log.upkeep(NOW_MS + 999)
    assert list(log.folder.glob("*.log.deleted"))
    log.upkeep(NOW_MS + 1000)
    stems = {path.stem for path in log.folder.glob("0*")}
    assert stems == {path.stem for path in log.files(".log")}
    assert list(log.folder.glob("*.deleted")) == []


def test_flush_by_count_comes_before_the_answer(tmp_path: Path) -> None:
    log = Log(tmp_path / "a", flush_messages=3, segment_bytes=400)
    recovery_points: list[int] = []
    for _ in range(6):
        log.append(batch(2, producer=(1, 0, 2 * len(recovery_points))))
        LOGS.write_checkpoints()
        text = (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()
        recovery_points.append(int(text.split()[-1]))
    # One below the end while the segment isn't sealed.
    assert recovery_points == [0, 3, 3, 7, 7, 11]
    before = log.state()
    log.kill(tmp_path / "b")
    assert log.state() == before


def test_flush_by_time(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_ms=1 << 40, retention_ms=-1, segment_ms=1 << 60)
    log.append(batch(2))
    assert not log.upkeep(int(time.time() * 1000)).flushed
    assert log.upkeep(1 << 50).flushed
    assert not log.upkeep(1 << 50).flushed
    LOGS.write_checkpoints()
    assert f"{log.topic} 0 1\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_rolled_segments_are_flushed_in_any_case(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=300)
    for _ in range(5):
        log.append(batch(1))
    log.upkeep()
    LOGS.write_checkpoints()
    text = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert f"{log.topic} 0 {bases(log)[-1]}\n" in text
    assert text.startswith("0\n1\n")


def test_reads_go_on_in_segments_with_holes(tmp_path: Path) -> None:
    source = Log(tmp_path / "source")
    for _ in range(12):
        source.append(batch(1))
    log = Log(tmp_path / "log", segment_bytes=300)
    kept = [raw for raw in source.read_all() if raw.base_offset in (0, 3, 4, 7, 8, 11)]
    LOGS.append_replica(log.topic, 0, bytes(kept[0]))
    # A log that is known to have none would be taken for damaged at the next start.
    with pytest.raises(KafkaError) as caught:
        LOGS.append_replica(log.topic, 0, bytes(kept[1]))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    LOGS.note_holes(log.topic, TOPIC_ID, 0)
    for raw in kept[1:]:
        LOGS.append_replica(log.topic, 0, bytes(raw))
    expected = {0: 0, 1: 3, 2: 3, 3: 3, 5: 7, 6: 7, 9: 11, 10: 11, 11: 11}
    for offset, found in expected.items():
        assert split(LOGS.read(log.topic, 0, offset, 1))[0].base_offset == found
    assert log.restart().log_end == 12
    assert [raw.base_offset for raw in log.read_all()] == [0, 3, 4, 7, 8, 11]


def test_jitter_spreads_the_rolls_of_logs_that_were_made_together(tmp_path: Path) -> None:
    logs = [
        Log(tmp_path, segment_ms=100_000, segment_jitter_ms=100_000, retention_ms=-1, segment_bytes=5000) for _ in range(64)
    ]
    for log in logs:
        log.append(batch(1))
    now_ms = time.time_ns() // 1_000_000
    rolled = [log.upkeep(now_ms + 50_000).rolled for log in logs]
    assert any(rolled) and not all(rolled)
    assert all(log.upkeep(now_ms + 200_000).rolled != before for log, before in zip(logs, rolled, strict=True))


def test_preallocate_takes_a_segments_room_and_no_byte_of_its_size(tmp_path: Path) -> None:
    log = Log(tmp_path, preallocate=1, segment_bytes=1 << 20, retention_ms=-1)
    for _ in range(3):
        log.append(batch(1, size=500_000))
    first, last = log.files(".log")
    assert last.stat().st_size < last.stat().st_blocks * 512 >= 1 << 20
    assert first.stat().st_size + last.stat().st_size == LOGS.size_bytes(log.topic, 0)
    batches = log.read_all()
    assert log.kill(tmp_path / "killed").cut_bytes == 0
    assert [bytes(raw) for raw in log.read_all()] == [bytes(raw) for raw in batches]


def test_a_small_segment_keeps_nothing_of_what_it_preallocated(tmp_path: Path) -> None:
    log = Log(tmp_path, preallocate=1, segment_bytes=4 << 20, segment_ms=1000, segment_jitter_ms=0, retention_ms=-1)
    for second in (10, 20):  # the first segment of a log is made without: the second one is looked at
        log.append(batch(1))
        assert log.upkeep(time.time_ns() // 1_000_000 + second * 1000).rolled
    _, sealed, active = log.files(".log")
    assert sealed.stat().st_blocks * 512 <= sealed.stat().st_size + (64 << 10)
    assert active.stat().st_blocks * 512 >= 4 << 20


# Where it pays (ext4, XFS), a file that grows fast has room ahead, and on newer kernels zeros behind its batches; these tests
# hold without, too. The first one says where there must be some.
def grown(log: Log, megabytes: int = 4) -> list[bytes]:
    """What was appended: batches of 40 KB, as many as make a log have room ahead."""
    appended = [batch(1, size=40_000 + number) for number in range(megabytes * 25)]
    for raw in appended:
        log.append(raw)
    return appended


def file_system(folder: Path) -> str:
    """`ext2/ext3`, `xfs` ..."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], stdout=subprocess.PIPE, text=True, check=True).stdout
    return kind.strip()


def sizes(log: Log) -> list[int]:
    return [path.stat().st_size for path in log.files(".log")]


def test_a_log_that_grows_fast_has_room_ahead_until_it_is_idle(tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=-1)
    log.append(batch(1, size=1_000_000))
    assert not LOGS.folder_states()[str(tmp_path)].ahead  # little is left as it is
    grown(log)
    release = tuple(int(number) for number in os.uname().release.split(".")[:2] if number.isdigit())
    if release >= {"ext2/ext3": (6, 16), "xfs": (6, 6)}.get(file_system(tmp_path), (sys.maxsize,)):
        assert LOGS.size_bytes(log.topic, 0) < sizes(log)[0] <= room_end(LOGS.size_bytes(log.topic, 0))
    LOGS.give_back_idle()
    log.append(batch(1))
    LOGS.give_back_idle()
    assert LOGS.folder_states()[str(tmp_path)].ahead
    LOGS.give_back_idle()  # nothing since the last look
    assert not LOGS.folder_states()[str(tmp_path)].ahead and LOGS.give_back_idle() == 0
    (file,) = log.files(".log")
    assert file.stat().st_size == LOGS.size_bytes(log.topic, 0) > file.stat().st_blocks * 512 - 8192
    # It has to grow fast again before it gets any.
    log.append(batch(1, size=1_000_000))
    assert sizes(log) == [LOGS.size_bytes(log.topic, 0)]
    assert len(log.read_all(1 << 22)) == 103


def test_a_sealed_segment_is_its_batches_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=-1, segment_bytes=3 << 20)
    appended = grown(log, 10)
    killed = log.snapshot(tmp_path / "killed")  # before anything was flushed
    assert len(sizes(log)) > 2 and all(size <= 3 << 20 for size in sizes(log)[:-1])
    recovered = killed.open()
    assert recovered.recovered.log_end == len(appended) and recovered.recovered.cut_bytes == 0


def test_after_a_kill_room_ahead_is_cut_and_is_no_damage(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", retention_ms=-1)
    appended = grown(log)
    before = [bytes(raw) for raw in log.read_all(1 << 22)]
    os.truncate(log.files(".log")[0], room_end(LOGS.size_bytes(log.topic, 0)))  # as it is already, where there is room
    assert log.kill(tmp_path / "killed").cut_bytes == 0
    assert sizes(log) == [LOGS.size_bytes(log.topic, 0)]
    grown(log)
    after = [bytes(raw) for raw in log.read_all(1 << 22)]
    assert len(after) == 2 * len(appended) and after[: len(before)] == before
    log.stop()
    assert sizes(log) == [sum(len(raw) for raw in after)]


@pytest.mark.parametrize("more", [-1, 1, 256 << 10], ids=["too few", "too many", "twice"])
def test_zeros_that_end_elsewhere_are_damage(tmp_path: Path, more: int) -> None:
    """As a power cut leaves them: what was appended there is lost, and that has to be said."""
    log = Log(tmp_path / "log", retention_ms=-1)
    grown(log)
    size = LOGS.size_bytes(log.topic, 0)
    os.truncate(log.files(".log")[0], room_end(size) + more)
    end = log.offsets().log_end
    recovered = log.kill(tmp_path / "killed")
    assert recovered.cut_bytes == room_end(size) + more - size and recovered.log_end == end


@pytest.mark.parametrize("at", [0, 100, -1])
def test_anything_but_zeros_behind_the_batches_is_damage(tmp_path: Path, at: int) -> None:
    log = Log(tmp_path / "log", retention_ms=-1)
    grown(log)
    size = LOGS.size_bytes(log.topic, 0)
    tail = bytearray(room_end(size) - size)
    tail[at] = 1
    with log.files(".log")[0].open("r+b") as file:
        file.seek(size)
        file.write(tail)
    assert log.kill(tmp_path / "killed").cut_bytes == len(tail)


def test_rolled_segments_are_flushed_without_upkeep(tmp_path: Path) -> None:
    logs = LogManager()
    logs.lead("rolled", TOPIC_ID, 0, 0, str(tmp_path), {"segment_bytes": 300, "retention_ms": -1})
    for _ in range(6):
        logs.append_client("rolled", 0, batch(1))
    assert logs.folder_states()[str(tmp_path)].rolled
    assert logs.flush_rolled(now_ms()) == 0 and logs.folder_states()[str(tmp_path)].rolled  # they rest for a second
    assert logs.flush_rolled(now_ms() + FLUSH_DUE_MS) == 1
    assert logs.flush_rolled(now_ms() + FLUSH_DUE_MS) == 0 and not logs.folder_states()[str(tmp_path)].rolled
    logs.write_checkpoints()
    sealed = sorted((tmp_path / "rolled-0").glob("*.log"))[:-1]
    assert sealed and all(path.with_suffix(".index").exists() for path in sealed)
    # Only the segment that is written is checked after a kill.
    recovered = LogManager().lead("rolled", TOPIC_ID, 0, 0, str(tmp_path), {"segment_bytes": 300})
    assert 0 < recovered.batches_checked < 6


def test_segments_that_retention_will_delete_are_not_flushed(tmp_path: Path) -> None:
    config = {"segment_bytes": 300, "retention_ms": -1, "retention_bytes": 300}
    logs = LogManager()
    logs.lead("short", TOPIC_ID, 0, 0, str(tmp_path), config)
    for _ in range(12):
        logs.append_client("short", 0, batch(1))
    assert logs.flush_rolled(now_ms() + FLUSH_DUE_MS) == 1
    logs.write_checkpoints()
    *sealed, last, _ = sorted((tmp_path / "short-0").glob("*.log"))
    assert len(sealed) > 1
    assert [path.with_suffix(".index").exists() for path in [*sealed, last]] == [False] * len(sealed) + [True]
    # A kill now: what wasn't flushed is walked, and nothing is lost before retention says so.
    shutil.copytree(tmp_path / "short-0", tmp_path / "killed" / "short-0")
    for path in tmp_path.glob("*checkpoint*"):
        shutil.copy(path, tmp_path / "killed")
    reborn = LogManager()
    assert reborn.lead("short", TOPIC_ID, 0, 0, str(tmp_path / "killed"), config).batches_checked == 12
    assert reborn.offsets("short", 0).log_end == 12
    # The next look deletes them, and the one after it has nothing left to walk but the active segment.
    assert logs.upkeep("short", 0, NOW_MS).segments_deleted == len(sealed)
    logs.write_checkpoints()
    recovered = LogManager().lead("short", TOPIC_ID, 0, 0, str(tmp_path), config)
    assert recovered.batches_checked <= 12 - 2 * len(sealed)


def test_blocks_for_what_comes_next_are_given_back(tmp_path: Path) -> None:
    """A file that grows has blocks beyond its end, where its file system likes that; a sealed or stopped one has none."""

    def has_spare(path: Path) -> bool:
        # The file system's own account of a file takes some blocks, too. XFS reserves more by itself, as it likes.
        return file_system(path) != "xfs" and path.stat().st_blocks * 512 > path.stat().st_size + (64 << 10)

    log = Log(tmp_path, segment_bytes=6 << 20, max_message_bytes=2 << 20)
    sent = [batch(1, size=300_000 + n) for n in range(30)]
    for records in sent[:25]:
        log.append(records)
    first, _ = log.files(".log")
    assert first.stat().st_size <= 6 << 20
    log.flush()
    assert not has_spare(first)
    reborn = log.kill(tmp_path / "after")
    assert reborn.log_end == 25
    for records in sent[25:]:
        log.append(records)
    assert [raw.base_offset for raw in log.read_all(64 << 20)] == list(range(30))
    log.stop()
    assert not any(has_spare(path) for path in log.files(".log"))
