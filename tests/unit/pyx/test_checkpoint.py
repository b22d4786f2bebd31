"""What a log folder says of its logs: whose it is, what is believed of it, and what is said when it contradicts them."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import KafkaError
from penstock.pyx.log.checkpoint import (
    CLEANED,
    HIGH_WATERMARKS,
    KAFKAS,
    OURS,
    RECOVERY_POINTS,
    STARTS,
    Checkpoints,
    Offsets,
    format_checkpoint,
    parse_checkpoint,
    parse_offsets,
    read_checkpoint,
)  # fmt: skip
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.crc import crc32c
from support.logs import NOW_MS, TOPIC_ID, batch

OTHER_ID = bytes(range(2, 18))
KEY = ("t", 0)
SMALL = {"segment_bytes": 300, "retention_ms": -1}


def lead(folder: Path, topic_id: bytes = TOPIC_ID, *, clean: bool = False, logs: LogManager | None = None) -> LogManager:
    """The log `t-0` of a folder, opened by a broker that knows nothing but the files."""
    logs = logs or LogManager()
    logs.lead("t", topic_id, 0, 0, str(folder), SMALL, clean)
    return logs


def filled(folder: Path, count: int = 10, log_start: int = 0) -> LogManager:
    """A log of so many records, one to a batch, deleted up to `log_start`."""
    logs = lead(folder)
    for _ in range(count):
        logs.append_client("t", 0, batch(1))
    if log_start:
        assert logs.delete_records([("t", TOPIC_ID, 0, log_start)]) == [log_start]
    return logs


def ends(logs: LogManager) -> tuple[int, int]:
    offsets = logs.offsets("t", 0)
    return offsets.log_start, offsets.log_end


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def test_a_file_says_whose_offsets_it_has(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7, 8, 2)
    checkpoints.put_first_dirty(KEY, TOPIC_ID, 6)
    checkpoints.write()
    kafkas = {CLEANED: b"0\n1\nt 0 6\n", STARTS: b"0\n1\nt 0 5\n", RECOVERY_POINTS: b"0\n1\nt 0 7\n"}
    kafkas[HIGH_WATERMARKS] = b"0\n1\nt 0 8\n"
    assert {name: (tmp_path / name).read_bytes() for name in KAFKAS} == kafkas
    body = "".join([
        "penstock-checkpoints 3\n",
        *(f"kafka {name} {crc32c(text):08x} -\n" for name, text in kafkas.items()),
        "partition AQIDBAUGBwgJCgsMDQ4PEA t 0 5 7 6 0 9 7 8 2\n",
    ])  # fmt: skip
    assert (tmp_path / OURS).read_text() == f"{body}crc32c {crc32c(body.encode()):08x}\n"
    again = Checkpoints(str(tmp_path))
    assert again.of(KEY, TOPIC_ID) == Offsets(TOPIC_ID, 5, 7, 6, 0, 9, 7, 8, 2)
    assert again.of(KEY, OTHER_ID) == Offsets(None)


def test_a_file_without_high_watermarks_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An older Penstock's, beside a file of high watermarks that is Apache Kafka's."""
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7)
    checkpoints.write()
    lines = (tmp_path / OURS).read_text().splitlines()[:-1]
    lines[0] = "penstock-checkpoints 2"
    lines = [line.removesuffix(" -1 0") for line in lines if HIGH_WATERMARKS not in line]
    body = "".join(f"{line}\n" for line in lines)
    (tmp_path / OURS).write_text(f"{body}crc32c {crc32c(body.encode()):08x}\n")
    (tmp_path / HIGH_WATERMARKS).write_bytes(format_checkpoint({KEY: 4}))
    for _ in range(2):
        again = Checkpoints(str(tmp_path))
        assert again.of(KEY, TOPIC_ID) == Offsets(TOPIC_ID, 5, 7, -1, 0, 9, 7)
        again.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7)
        again.write()
        assert read_checkpoint(tmp_path / HIGH_WATERMARKS) == {KEY: 4}, "no log here has another replica"
    assert warnings(caplog) == []


def test_logs_without_other_replicas_are_written_for_the_version_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7)
    checkpoints.write()
    lines = (tmp_path / OURS).read_text().splitlines()
    assert (lines[0], lines[-2]) == ("penstock-checkpoints 2", "partition AQIDBAUGBwgJCgsMDQ4PEA t 0 5 7 -1 0 9 7")
    assert Checkpoints(str(tmp_path)).of(KEY, TOPIC_ID) == Offsets(TOPIC_ID, 5, 7, -1, 0, 9, 7)


def test_of_another_topics_log_nothing_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7)
    checkpoints.put_first_dirty(KEY, TOPIC_ID, 6)
    checkpoints.put(KEY, OTHER_ID, 3, 0, 0, 5, 3)
    checkpoints.put_first_dirty(KEY, TOPIC_ID, 6)
    assert checkpoints.of(KEY, OTHER_ID) == Offsets(OTHER_ID, 0, 3, -1, 0, 5, 3)
    assert checkpoints.of(KEY, TOPIC_ID) == Offsets(None)


def test_a_log_start_that_the_first_segment_says_is_not_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 5, 9, 7)
    checkpoints.write()
    assert not (tmp_path / STARTS).exists()


def test_what_moves_replaces_an_older_line_of_its_name(tmp_path: Path) -> None:
    """A partition lay here before, with records deleted; where it comes from now, the log begins with its segment."""
    for name in "ab":
        (tmp_path / name).mkdir()
    here, there = Checkpoints(str(tmp_path / "a")), Checkpoints(str(tmp_path / "b"))
    there.put(KEY, TOPIC_ID, 100, 90, 0, 102, 100)
    here.put(KEY, TOPIC_ID, 20, 0, 0, 22, 20)
    here.put_first_dirty(KEY, TOPIC_ID, 10)
    there.carry(KEY, here)
    assert there.of(KEY, TOPIC_ID) == Offsets(TOPIC_ID, 0, 20, 10, 0, 22, 20)
    here.drop(KEY)
    there.carry(KEY, here)
    assert there.of(KEY, TOPIC_ID) == Offsets(None)


def test_what_moves_is_written_again_if_a_crash_must_not_forget_it(tmp_path: Path) -> None:
    """An older end is as good, an older beginning would be missed."""
    for name in "ab":
        (tmp_path / name).mkdir()
    here, there = Checkpoints(str(tmp_path / "a")), Checkpoints(str(tmp_path / "b"))
    here.put(KEY, TOPIC_ID, 7, 0, 0, 9, 7)
    assert there.carry(KEY, here)
    here.put(KEY, TOPIC_ID, 9, 0, 0, 12, 11)
    assert not there.carry(KEY, here)
    here.put(KEY, TOPIC_ID, 9, 0, 5, 12, 11)
    assert there.carry(KEY, here)


@pytest.mark.parametrize("written", [(), (STARTS,), (STARTS, RECOVERY_POINTS), KAFKAS])
def test_a_kill_between_the_files_is_neither_seen_nor_said(
    tmp_path: Path, written: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    checkpoints = Checkpoints(str(before))
    checkpoints.put(KEY, TOPIC_ID, 7, 5, 0, 9, 7, 8)
    checkpoints.put_first_dirty(KEY, TOPIC_ID, 6)
    checkpoints.write()
    shutil.copytree(before, after)
    checkpoints = Checkpoints(str(after))
    checkpoints.put(KEY, TOPIC_ID, 17, 15, 0, 19, 17, 18)
    checkpoints.put_first_dirty(KEY, TOPIC_ID, 16)
    checkpoints.write()
    for name in (OURS, *written):
        shutil.copy(after / name, before / name)
    again = Checkpoints(str(before))
    assert again.of(KEY, TOPIC_ID) == Offsets(TOPIC_ID, 15, 17, 16, 0, 19, 17, 18)
    again.write()
    assert warnings(caplog) == []
    assert [(before / name).read_bytes() for name in KAFKAS] == [(after / name).read_bytes() for name in KAFKAS]


def test_a_log_start_that_somebody_has_changed_is_said_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, log_start=5).write_checkpoints()
    (tmp_path / STARTS).write_bytes(format_checkpoint({KEY: 9}))
    logs = lead(tmp_path)
    assert ends(logs) == (5, 10)
    assert warnings(caplog) == [
        f"`{tmp_path / STARTS}` was changed, by Apache Kafka or by damage (t-0 begins at 5, not at 9); "
        "what `penstock-checkpoints` says holds"
    ]
    assert logs.upkeep("t", 0, NOW_MS).segments_deleted > 0
    assert int(logs.read("t", 0, 5, 1 << 20)[7]) == 5, "the record at 5 is still there"
    logs.write_checkpoints()
    assert read_checkpoint(tmp_path / STARTS) == {KEY: 5}
    lead(tmp_path)
    assert warnings(caplog) == []


@pytest.mark.parametrize(("said", "log_start"), [(5, 5), (10, 10), (11, 0), (1 << 62, 0)])
def test_of_a_folder_that_kafka_left_log_starts_are_taken_that_fit(
    tmp_path: Path, said: int, log_start: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).write_checkpoints()
    (tmp_path / OURS).unlink()
    (tmp_path / STARTS).write_bytes(format_checkpoint({KEY: said, ("deleted", 0): 3}))
    logs = lead(tmp_path)
    assert ends(logs) == (log_start, 10)
    words = warnings(caplog)
    assert "penstock-checkpoints` is not there, as in a folder of Apache Kafka's" in words[0]
    assert words[1:] == (
        [f"topic=t partition=0: the log start {said} is that of an unchecked file: records below are hidden, and no file is "
         "deleted for it. If they should be seen, stop the broker, remove `penstock-checkpoints`, take the line of the "
         f"partition out of `{STARTS}`, and start again"] if log_start else
        [f"topic=t partition=0: the log start {said} of an unchecked file lies beyond its log end 10 and isn't applied"]
    )  # fmt: skip
    logs.write_checkpoints()
    assert ("deleted", 0) not in parse_offsets((tmp_path / OURS).read_bytes())[0]
    assert logs.upkeep("t", 0, NOW_MS).segments_deleted == 0
    # It is no more certain for having been written again.
    logs = lead(tmp_path)
    assert ends(logs) == (log_start, 10)
    assert warnings(caplog) == []
    assert logs.upkeep("t", 0, NOW_MS).segments_deleted == 0
    if log_start == 5:
        logs.delete_records([("t", TOPIC_ID, 0, 8)])
        assert logs.upkeep("t", 0, NOW_MS).segments_deleted > 0


def test_what_kafkas_file_says_of_logs_that_are_not_open_yet_is_kept(tmp_path: Path) -> None:
    """A broker adopts a folder of Kafka's and is killed while it opens the logs."""
    filled(tmp_path).write_checkpoints()
    (tmp_path / OURS).unlink()
    (tmp_path / STARTS).write_bytes(format_checkpoint({KEY: 5}))
    logs = LogManager()
    logs.lead("other", TOPIC_ID, 0, 0, str(tmp_path), {})
    logs.write_checkpoints()
    assert read_checkpoint(tmp_path / STARTS) == {KEY: 5}
    assert ends(lead(tmp_path)) == (5, 10)


@pytest.mark.parametrize("again", [False, True])
def test_a_name_of_a_kafka_folder_is_free_once_no_file_has_it(tmp_path: Path, again: bool) -> None:
    """Such a line has no topic's id: it goes before another topic may have the name, or that one is told of it."""
    filled(tmp_path).write_checkpoints()
    (tmp_path / OURS).unlink()
    (tmp_path / STARTS).write_bytes(format_checkpoint({KEY: 5}))
    logs = LogManager()
    logs.write_overdue_checkpoints(str(tmp_path))
    if again:
        shutil.rmtree(tmp_path / "t-0")
        lead(tmp_path, OTHER_ID, logs=logs)
    else:
        logs.drop_checkpoints("t", 0, str(tmp_path))
    logs.write_overdue_checkpoints(str(tmp_path))
    assert read_checkpoint(tmp_path / STARTS) == {}
    assert Checkpoints(str(tmp_path)).of(KEY, OTHER_ID).log_start == 0


def test_all_that_was_deleted_stays_deleted_where_its_end_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A power cut has taken the end of a log whose records were deleted: offsets must not be given twice."""
    filled(tmp_path, log_start=10).write_checkpoints()
    shutil.copytree(tmp_path, tmp_path / "cut")
    for path in sorted((tmp_path / "cut" / "t-0").glob("*.log"))[1:]:
        path.unlink()
    os.truncate(next((tmp_path / "cut" / "t-0").glob("*.log")), 0)
    logs = lead(tmp_path / "cut")
    assert ends(logs) == (10, 10)
    assert any("its log ends at offset 0, before its log start 10: all of it was deleted" in line for line in warnings(caplog))


def test_flushed_records_that_are_gone_are_missed_after_a_power_cut(tmp_path: Path) -> None:
    logs = filled(tmp_path)
    logs.flush(*KEY)
    logs.write_checkpoints()
    assert Checkpoints(str(tmp_path)).of(KEY, TOPIC_ID).recovery_point == 9
    first, *others = sorted((tmp_path / "t-0").glob("*.log"))
    for path in others:
        path.unlink()
    words = f"ended at offset 10 or later, and what is there ends at offset {int(others[0].stem)} "
    with pytest.raises(CorruptLogError, match=words):
        LogManager().lead("t", TOPIC_ID, 0, 0, str(tmp_path), SMALL, power_cut=True)
    assert first.exists()


def test_a_log_whose_folder_is_gone_begins_again_with_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, log_start=5).write_checkpoints()
    shutil.rmtree(tmp_path / "t-0")
    assert ends(lead(tmp_path)) == (0, 0)
    assert warnings(caplog) == [
        f"topic=t partition=0: its log had records up to offset 10 or more, and `{tmp_path}/t-0` is gone: it begins again"
    ]


@pytest.mark.parametrize("name", [OURS, RECOVERY_POINTS])
def test_a_changed_recovery_point_hides_no_damage(tmp_path: Path, name: str) -> None:
    """A kill, and a batch of a segment that wasn't flushed is damaged: whatever the files say, it is found."""
    filled(tmp_path).write_checkpoints()
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"t 0 0", b"t 0 9"))
    assert path.read_bytes() != data
    second = sorted((tmp_path / "t-0").glob("*.log"))[1]
    damaged = bytearray(second.read_bytes())
    damaged[70] ^= 1
    second.write_bytes(damaged)
    with pytest.raises(CorruptLogError, match=f"{second.name} is damaged at byte 0"):
        lead(tmp_path)


def test_a_pass_of_the_cleaner_over_a_deleted_topic_is_not_the_next_ones(tmp_path: Path) -> None:
    logs = filled(tmp_path)
    logs.compacted("t", TOPIC_ID, 0, 7)
    assert logs.first_dirty("t", TOPIC_ID, 0) == 7
    logs.delete("t", 0)
    with pytest.raises(KafkaError):
        logs.compacted("t", TOPIC_ID, 0, 9)
    lead(tmp_path, OTHER_ID, logs=logs)
    logs.compacted("t", TOPIC_ID, 0, 9)
    assert logs.first_dirty("t", OTHER_ID, 0) == -1
    killed = lead(tmp_path, OTHER_ID)
    assert killed.first_dirty("t", OTHER_ID, 0) == -1
    killed.compacted("t", OTHER_ID, 0, 0)
    assert lead(tmp_path, OTHER_ID).first_dirty("t", OTHER_ID, 0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"0\n", b"1\n0\n", b"0\nx\n", b"0\n1\n", b"0\n0\nt 0 1\n", b"0\n1\nt 0 1", b"0\n1\nt 0\n", b"0\n1\nt 0 -1\n",
        b"0\n1\nt 0 +1\n", b"0\n1\nt 0 1_0\n", b"0\n1\nt 0 01\n", b"0\n1\nt  0 1\n", b"0\n2\nt 0 1\nt 0 2\n", b"\xff",
        b"0\n1\nt 0 9223372036854775808\n", bytes(12),
    ],
)  # fmt: skip
def test_anything_but_kafkas_text_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_checkpoint(wrong)
