"""What opening a log makes of files that a kill, a power cut or a bad disk has left."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.tools.logrepair import repair
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.checkpoint import OURS, format_line, format_offsets, parse_offsets
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import marker, split
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS, TOPIC_ID, Killed, Log, batch, delete_records
from support.messagesets import Message, pack_set


def busy(root: Path, **config: Any) -> Log:
    """A log with several segments, producers, ended and open transactions."""
    log = Log(root, **{"segment_bytes": 1000, "index_interval_bytes": 200} | config)
    for i in range(12):
        log.append(batch(2, producer=(1, 0, 2 * i)))
        log.append(batch(1, producer=(2, 0, i), transactional=True))
        if i % 3 == 2:
            log.mark(marker(i % 2 == 0, 2, 0, 0, NOW_MS))
        log.append(batch(1, timestamp_ms=NOW_MS + i))
    log.append(batch(2, producer=(3, 5, 0), transactional=True))
    log.append(batch(1))
    return log


def test_a_killed_log_is_what_it_was(tmp_path: Path) -> None:
    log = busy(tmp_path / "a")
    before = log.state()
    recovered = log.kill(tmp_path / "b")
    assert recovered.batches_checked == len(before.batches) and recovered.cut_bytes == 0
    assert log.state() == before
    assert log.offsets().last_stable < log.offsets().log_end
    log.mark(marker(False, 3, 5, 0, NOW_MS))
    assert log.offsets().last_stable == log.offsets().log_end


@pytest.mark.parametrize("flushes", [1, 2])
def test_only_what_lies_above_the_recovery_point_is_walked(tmp_path: Path, flushes: int) -> None:
    log = busy(tmp_path / "a")
    if flushes == 1:
        log.upkeep()
        LOGS.write_checkpoints()
    else:
        log.flush()
    log.append(batch(1))
    before = log.state()
    recovered = log.kill(tmp_path / "b")
    active = len(split(log.files(".log")[-1].read_bytes()))
    assert recovered.batches_checked == active < len(before.batches)
    assert log.state() == before


def test_a_clean_stop_needs_no_walk(tmp_path: Path) -> None:
    log = busy(tmp_path)
    before = log.state()
    for _ in range(2):
        assert log.restart() == (0, before.offsets.log_end, 0, 0)
        assert log.state() == before
    log.append(batch(1, producer=(1, 0, 24)))
    assert log.offsets().log_end == before.offsets.log_end + 1


def test_the_log_start_survives_a_kill(tmp_path: Path) -> None:
    log = busy(tmp_path / "a")
    delete_records(log.topic, 7)
    before = log.state()
    root = tmp_path / "b"
    killed = log.snapshot(root).open()
    assert killed.state() == before
    assert killed.offsets().log_start == 7


TAIL = 3


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "flipped"])
def test_the_log_is_cut_at_the_first_bad_byte(tmp_path: Path, damage: str) -> None:
    """At each byte of the last batches: whatever comes after is gone, whatever came before is there."""
    log = Log(tmp_path / "a", segment_bytes=900)
    for i in range(10):
        log.append(batch(1, producer=(1, 0, i), transactional=i > 7))
    good = log.state()
    path = log.files(".log")[-1]
    data = path.read_bytes()
    raws = split(data)
    first = raws[0].base_offset
    assert len(raws) > TAIL
    first_byte = len(data) - sum(raw.size_in_bytes for raw in raws[-TAIL:])
    ends = [0]
    for raw in raws:
        ends.append(ends[-1] + raw.size_in_bytes)
    # Base offset and leader epoch lie outside the checksum; a flip there is found by the order of offsets only.
    for at in range(first_byte, len(data), 1 if damage == "cut" else 5):
        start = max(end for end in ends if end <= at)
        if damage == "flipped" and (at - start < 8 or 12 <= at - start < 16):
            continue
        left = {
            "cut": data[:at],
            "zeros": data[:at] + bytes(len(data) - at),
            "garbage": data[:at] + b"\xa5" * (len(data) - at + 7),
            "flipped": data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :],
        }[damage]
        copy = log.snapshot(tmp_path / f"{damage}{at}")
        (copy.folder / path.name).write_bytes(left)
        if damage == "flipped" and start < ends[-2]:
            # What follows is right: no write that was cut short leaves that.
            with pytest.raises(CorruptLogError, match=f"at byte {start}, and offsets {ends.index(start) + first} "):
                copy.open()
            continue
        killed = copy.open()
        state = killed.state()
        count = len(good.batches) - len(raws) + ends.index(start)
        assert state.batches == good.batches[:count], at
        assert killed.recovered.cut_bytes == len(left) - start
        kept = [file.read_bytes() for file in killed.folder.glob("*.cut-*")]
        assert kept == [left[start:]] * (any(left[start:]))
        assert state.offsets.log_end == count
        assert state.sequences == {1: [(i, i, i) for i in range(count - 5, count)]}
        assert killed.append(batch(1, producer=(1, 0, count), transactional=count > 7)) == count
        killed.drop()


def test_whole_batches_whose_offsets_dont_grow_are_no_torn_write(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for _ in range(4):
        log.append(batch(2))
    log.stop()
    path = log.files(".log")[0]
    data = path.read_bytes()
    one = len(data) // 4
    path.write_bytes(data + data[one : 2 * one])
    with pytest.raises(CorruptLogError):
        log.lead(clean=False)
    assert path.read_bytes() == data + data[one : 2 * one]
    repair(log.folder)
    assert log.lead(clean=False) == (0, 8, 4, 0)
    assert path.read_bytes() == data


def test_damage_in_the_middle_costs_nothing_else(tmp_path: Path) -> None:
    """The log isn't opened, nothing is changed; the repair sets aside what is damaged, and no more is lost."""
    log = busy(tmp_path / "a")
    before = log.state()
    copy = log.snapshot(tmp_path / "b")
    middle = sorted(copy.folder.glob("*.log"))[1]
    data = bytearray(middle.read_bytes())
    data[len(data) // 2] ^= 1
    middle.write_bytes(data)
    files = {path: path.read_bytes() for path in copy.folder.iterdir()}
    with pytest.raises(CorruptLogError, match="penstock log repair") as caught:
        copy.open()
    copy.folder = next(copy.root.glob("log*-0"))
    assert {copy.folder / path.name: data for path, data in files.items()} == {
        path: path.read_bytes() for path in copy.folder.iterdir()
    }
    assert f"{middle.name} is damaged at byte" in str(caught.value)
    (mended,) = repair(copy.folder)
    assert mended.set_aside is not None
    every = [split(one)[0] for one in before.batches]
    (lost,) = (raw for raw in every if raw.base_offset == mended.first_offset)
    assert (mended.next_offset, mended.size_bytes) == (lost.next_offset, lost.size_in_bytes)
    assert mended.set_aside.read_bytes() == bytes(data[mended.position : mended.position + mended.size_bytes])
    killed = copy.open()
    assert [bytes(raw) for raw in killed.read_all() if raw.record_count] == [bytes(raw) for raw in every if raw is not lost]
    assert killed.offsets().log_end == before.offsets.log_end
    assert repair(killed.folder) == []


def test_a_cut_takes_the_aborted_transactions_along(tmp_path: Path) -> None:
    """A power cut has taken an abort's marker, but not the index that lists it; the transaction is then committed."""
    log = Log(tmp_path / "a", flush_ms=0, retention_ms=-1)
    log.append(batch(1, producer=(2, 0, 0), transactional=True))
    end = log.files(".log")[0].stat().st_size
    log.mark(marker(False, 2, 0, 0, NOW_MS))
    assert log.upkeep(int(time.time() * 1000) + 1000).flushed and log.files(".txnindex")
    copy = log.snapshot(tmp_path / "b")
    os.truncate(copy.folder / log.files(".log")[0].name, end)
    killed = copy.open()
    killed.mark(marker(True, 2, 0, 0, NOW_MS))
    before = killed.state()
    assert before.aborted == []
    for _ in range(2):
        killed.restart()
        assert killed.state() == before


def test_a_segment_that_ends_where_the_last_flush_did(tmp_path: Path) -> None:
    """Its records were flushed, the last entries of its indexes weren't."""
    log = Log(tmp_path / "a", segment_bytes=600, index_interval_bytes=50, flush_messages=8)
    for sequence in range(2):
        log.append(batch(1, producer=(2, 0, sequence), transactional=True))
        log.mark(marker(False, 2, 0, 0, NOW_MS))
        if sequence == 0:
            log.flush()
    log.append(batch(6))  # flushed before the answer
    log.append(batch(6))  # in a segment of its own
    assert len(log.files(".log")) == 2
    LOGS.write_checkpoints()
    before = log.state()
    log.kill(tmp_path / "b")
    assert log.state() == before


def test_counts_that_lie_cant_make_a_segment_that_recovery_cuts(tmp_path: Path) -> None:
    """No client's count is believed so far, but a leader's batches are taken as they are."""

    def lying(count: int) -> bytes:
        raw = bytearray(batch(1, codec=1))
        struct.pack_into(">i", raw, 23, count - 1)
        struct.pack_into(">i", raw, 57, count)
        struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
        return bytes(raw)

    def at(offset: int, raw: bytes) -> bytes:
        return struct.pack(">q", offset) + raw[8:]

    log = Log(tmp_path / "a")
    most = (1 << 31) - 1
    log.append(batch(1))
    for append, records in (
        (LOGS.append_client, lying(most)),
        (LOGS.append_replica, at(1, lying(most)) + at(1 + most, lying(most))),
    ):
        with pytest.raises(KafkaError) as caught:
            append(log.topic, 0, records)
        assert caught.value.code == ErrorCode.INVALID_RECORD
    for records in (at(1, lying(most)), at(1 + most, batch(3)), at(4 + most, batch(3))):
        LOGS.append_replica(log.topic, 0, records)
    before = log.state()
    log.kill(tmp_path / "b")
    assert log.state() == before


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("checks", [True, False], ids=["checks", "no checks"])
@pytest.mark.parametrize("how", ["gone", "empty", "short", "half a batch"])
def test_records_that_are_missing_between_segments_are_no_silent_hole(
    tmp_path: Path, how: str, checks: bool, clean: bool
) -> None:
    log = Log(tmp_path / "a", segment_bytes=300, retention_ms=-1)
    for _ in range(8):
        log.append(batch(2))
    if clean:
        log.stop()
    else:
        log.upkeep(int(time.time() * 1000) + FLUSH_DUE_MS)
    LOGS.write_checkpoints()
    before = [bytes(raw) for path in log.files(".log") for raw in split(path.read_bytes())]
    copy = Killed(shutil.copytree(log.root, tmp_path / "b"), log)
    second = sorted(copy.folder.glob("*.log"))[1]
    data = second.read_bytes()
    lost = split(data)[-1] if how == "short" else split(data)[0]
    second.write_bytes({"gone": b"", "empty": b"", "short": data[: -lost.size_in_bytes], "half a batch": data[:50]}[how])
    for path in copy.folder.glob(f"{second.stem}.*" if how == "gone" else "none"):
        path.unlink()
    for path in [] if checks else list(copy.folder.glob("*.checks")):
        path.unlink()
    following = int(sorted(path for path in log.files(".log") if int(path.stem) > int(second.stem))[0].stem)
    with pytest.raises(CorruptLogError, match=f"offsets {lost.base_offset} to {following - 1} are missing"):
        copy.open(clean=clean)
    copy.folder = next(copy.root.glob("log*-0"))
    (mended,) = repair(copy.folder)
    assert (mended.first_offset, mended.next_offset) == (lost.base_offset, following)
    opened = copy.open(clean=clean)
    assert [bytes(raw) for raw in opened.read_all() if raw.record_count] == [
        data for data in before if not lost.base_offset <= int.from_bytes(data[:8], "big") < following
    ]
    assert opened.offsets().log_end == 16


@pytest.mark.parametrize("power_cut", [True, False], ids=["power cut", "kill"])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "gone"])
def test_records_that_are_missing_before_an_empty_segment_are_no_silent_hole(
    tmp_path: Path, zeros: bool, power_cut: bool
) -> None:
    log = Log(tmp_path / "a", segment_ms=1, retention_ms=-1)
    log.append(batch(2))
    log.append(batch(2))
    assert log.upkeep(1 << 50).rolled
    shutil.copytree(log.root, tmp_path / "b")
    log.drop()
    log.root = tmp_path / "b"
    (first, _) = log.files(".log")
    kept, lost = split(first.read_bytes())
    first.write_bytes(bytes(kept) + (bytes(len(bytes(lost))) if zeros else b""))
    if not power_cut:
        with pytest.raises(CorruptLogError, match="offsets 2 to 3 are missing"):
            log.lead(clean=False)
        return
    assert LOGS.lead(log.topic, TOPIC_ID, 0, 0, str(log.root), log.config, power_cut=True).log_end == 2
    assert log.append(batch(1)) == 2
    assert log.restart().log_end == 3


def test_what_lies_before_a_missing_transaction_is_still_read(tmp_path: Path) -> None:
    """The batch that the last stable offset names is gone, as a bad disk may have it; the transaction is still open."""
    log = Log(tmp_path / "a", segment_bytes=200, cleanup_compact=1)  # where holes are no damage
    log.append(batch(1))
    log.append(batch(1, producer=(2, 0, 0), transactional=True))
    log.append(batch(1))
    log.upkeep()
    LOGS.write_checkpoints()
    copy = log.snapshot(tmp_path / "b")
    known, sums = parse_offsets((copy.root / OURS).read_bytes())
    compacted = [format_line(key, row._replace(first_dirty=0)) for key, row in known.items()]
    (copy.root / OURS).write_bytes(format_offsets(compacted, sums))
    first = copy.folder / log.files(".log")[0].name
    kept, lost = split(first.read_bytes())
    os.truncate(first, kept.size_in_bytes)
    first.with_suffix(".checks").unlink()  # which would miss it
    killed = copy.open()
    assert killed.offsets().last_stable == lost.base_offset == 1
    assert [raw.base_offset for raw in killed.read_all(isolation=1)] == [0]
    killed.mark(marker(True, 2, 0, 0, NOW_MS))
    assert [raw.base_offset for raw in killed.read_all(isolation=1)] == [0, 2, 3]


def test_leftovers_and_strangers_in_the_folder(tmp_path: Path) -> None:
    log = busy(tmp_path)
    before = log.state()
    log.stop()
    for name in ("00000000000000000009.log.deleted", "00000000000000000009.index.cleaned", "x.tmp"):
        (log.folder / name).write_bytes(b"left")
    for name in ("notes.txt", "9.log", "0000000000000000000x.log", "99999999999999999999.log"):
        (log.folder / name).write_bytes(b"kept")
    (log.folder / "00000000000000009999.snapshot").write_bytes(b"later than the log end")
    log.lead(clean=False)
    assert log.state() == before
    assert not list(log.folder.glob("*.deleted")) + list(log.folder.glob("*.cleaned")) + list(log.folder.glob("x.tmp"))
    assert len(list(log.folder.glob("notes.txt"))) == 1
    assert not (log.folder / "00000000000000009999.snapshot").exists()


def test_a_marker_that_lies_is_found_out(tmp_path: Path) -> None:
    """The clean-stop marker is there, but the last segment has a torn end, and nothing says where it ended."""
    log = busy(tmp_path)
    before = log.state()
    log.stop()
    path = log.files(".log")[-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match=f"ended at offset {before.offsets.log_end} or later"):
        log.lead(clean=True)
    LOGS.drop_checkpoints(log.topic, 0, str(log.root))
    recovered = log.lead(clean=True)
    assert recovered.cut_bytes > 0 and recovered.batches_checked > 0
    assert log.state().batches == before.batches[:-1]


def test_an_empty_last_segment(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_ms=1, retention_ms=-1)
    log.append(batch(3, producer=(1, 0, 0)))
    assert log.upkeep(1 << 50).rolled
    before = log.state()
    for clean in (True, False):
        log.stop()
        assert log.lead(clean=clean)[:2] == (0, 3)
        assert log.state() == before
    assert log.append(batch(1, producer=(1, 0, 3))) == 3


def test_old_message_sets_are_recovered_and_read(tmp_path: Path) -> None:
    """A folder from before Kafka 0.11: magic 1, one message a batch."""
    messages = b""
    for offset in range(6):
        body = struct.pack(">bbqi", 1, 0, NOW_MS + offset, -1) + struct.pack(">i", 3) + b"old"
        message = struct.pack(">I", zlib.crc32(body)) + body
        messages += struct.pack(">qi", offset, len(message)) + message
    log = Log(tmp_path)
    log.stop()
    path = log.files(".log")[0]
    path.write_bytes(messages)
    assert log.lead(clean=False) == (0, 6, 6, 0)
    assert [raw.base_offset for raw in split(LOGS.read(log.topic, 0, 2, 1000))] == [2, 3, 4, 5]
    assert LOGS.offset_for_timestamp(log.topic, 0, NOW_MS + 3) == (3, NOW_MS + 3)
    assert log.append(batch(1)) == 6
    path.write_bytes(messages[:-1])
    log.drop()


def test_epochs_of_old_messages_are_not_said_to_be_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which carry none: those of the batches beside them are held against the file alone."""
    log = Log(tmp_path, message_magic=1)
    for epoch in range(4):
        for old in (epoch % 2 == 0, epoch == 3):
            data = pack_set(1, [Message(0, None, b"old", NOW_MS)]) if old else batch(1)
            log.append(data)
        log.stop()
        log.lead(clean=True, leader_epoch=epoch + 1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [LOGS.offset_for_epoch(log.topic, 0, epoch)[1] for epoch in range(4)] == [2, 4, 6, 8]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import itertools
from support import logs
from support.logs import Log, batch
logs._numbers = itertools.count(10**9)  # a name that the reading process doesn't use
log = Log(Path(sys.argv[2]), segment_bytes=4000, index_interval_bytes=300)
print(log.topic, flush=True)
for i in range(1_000_000):
    log.append(batch(2, producer=(1, 0, 2 * i)))
    print(i, flush=True)
    if i % 50 == 49:
        log.upkeep()
"""


def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tests, str(tmp_path / "logs")], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        topic = writer.stdout.readline().strip()
        acknowledged = -1
        while acknowledged < 333:
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout.read().splitlines():
            acknowledged = int(line)
    log = Log.__new__(Log)
    log.root, log.topic, log.config = tmp_path / "logs", topic, {}
    recovered = log.lead(clean=False)
    assert recovered.cut_bytes == 0
    assert recovered.log_end in (2 * acknowledged + 2, 2 * acknowledged + 4)
    assert [raw.base_sequence for raw in log.read_all()] == list(range(0, recovered.log_end, 2))
    assert log.append(batch(2, producer=(1, 0, 2 * acknowledged))) == 2 * acknowledged
