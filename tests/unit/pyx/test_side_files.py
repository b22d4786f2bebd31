"""Every file beside the batches in a partition's folder, damaged in every way: what a reader, a consumer of committed
records, a search by time, a producer and retention see is as before.

The log is rich in what those files hold: segments, aborted transactions across them, producers, leader epochs. Each case
opens a copy of it by a `LogManager` of its own, as a new process would.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

import pytest

from penstock.broker.uuids import uuid_text
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.rawbatch import marker, records, split
from support.logs import FLUSH_DUE_MS, TOPIC_ID, batch

TOPIC = "beside"
HOUR_MS = 3_600_000
CONFIG = {"segment_bytes": 1500, "index_interval_bytes": 150, "retention_ms": 24 * HOUR_MS}
ROUNDS = 14
ABORTS = 7
COMMITTED = 1
_copies = itertools.count()


class Seen(NamedTuple):
    """What can be seen of a log through its public doors."""

    batches: list[bytes]
    committed: list[tuple[int, bytes | None]]
    log_end: int
    last_stable: int
    aborted: dict[tuple[int, int], list[tuple[int, int]]]
    by_time: dict[int, tuple[int, int] | None]
    newest: tuple[int, int] | None
    epochs: list[tuple[int, int]]
    producers: list[tuple[int, ...]]
    sequences: dict[int, list[tuple[int, int, int]]]


def read_all(logs: LogManager, isolation: int = 2) -> list[bytes]:
    """Every batch, each found by its offset."""
    found, offset = [], logs.offsets(TOPIC, 0).log_start
    while data := logs.read(TOPIC, 0, offset, 1, isolation):
        for raw in split(data):
            raw.check()
            found.append(bytes(raw))
            offset = raw.next_offset
    return found


def committed(logs: LogManager) -> list[tuple[int, bytes | None]]:
    """What a consumer of committed records takes, by the list of each answer, as clients do."""
    found, offset = [], logs.offsets(TOPIC, 0).log_start
    while data := logs.read(TOPIC, 0, offset, 1000, COMMITTED):
        raws = split(data)
        aborted = sorted(logs.aborted(TOPIC, 0, offset, raws[-1].next_offset), key=lambda entry: entry[1])
        gone: set[int] = set()
        for raw in raws:
            while aborted and aborted[0][1] <= raw.last_offset:
                gone.add(aborted.pop(0)[0])
            if raw.is_control:
                gone.discard(raw.producer_id)
            elif raw.producer_id not in gone or not raw.is_transactional:
                found += [(record.offset, record.value) for record in records(raw)]
        offset = raws[-1].next_offset
    return found


def seen(logs: LogManager, times: list[int]) -> Seen:
    offsets = logs.offsets(TOPIC, 0)
    producers = logs.producers(TOPIC, 0)
    end = offsets.log_end
    ranges = [(0, end), *((at, min(at + 7, end)) for at in range(0, end, 5))]
    return Seen(
        read_all(logs),
        committed(logs),
        end,
        offsets.last_stable,
        {each: logs.aborted(TOPIC, 0, *each) for each in ranges},
        {at: logs.offset_for_timestamp(TOPIC, 0, at) for at in times},
        logs.max_timestamp(TOPIC, 0),
        [logs.offset_for_epoch(TOPIC, 0, epoch) for epoch in range(6)],
        [tuple(producer) for producer in producers],
        {producer.producer_id: logs.sequences(TOPIC, 0, producer.producer_id) for producer in producers},
    )


class Original(NamedTuple):
    """The files as a clean stop and as a kill left them, and what was to be seen."""

    clean: Path
    killed: Path
    times: list[int]
    seen: Seen


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    root = tmp_path_factory.mktemp("original")
    now_ms = int(time.time() * 1000)
    first_ms = now_ms - 10 * ROUNDS
    logs = LogManager()
    for i in range(ROUNDS):
        if i in (0, 4, 9):
            logs.lead(TOPIC, TOPIC_ID, 0, i, str(root), CONFIG)
        at = first_ms + 10 * (i ^ 1)  # Some batches are older than the one before.
        logs.append_client(TOPIC, 0, batch(2, producer=(1, 0, 2 * i), timestamp_ms=at))
        logs.append_client(TOPIC, 0, batch(1, producer=(7, i, 0), transactional=True, timestamp_ms=at + 1, size=40))
        logs.append_client(TOPIC, 0, batch(3, timestamp_ms=at + 2))
        if i % 2:
            logs.append_client(TOPIC, 0, batch(2, producer=(8, i, 0), transactional=True, timestamp_ms=at + 3))
            logs.append(TOPIC, 0, marker(i % 4 == 1, 8, i, 0, at + 4))
        logs.append_client(TOPIC, 0, batch(1, producer=(7, i, 1), transactional=True, timestamp_ms=at + 5, size=60))
        logs.append(TOPIC, 0, marker(i % 3 != 0, 7, i, 0, at + 6))
    logs.append_client(TOPIC, 0, batch(2, producer=(9, 0, 0), transactional=True, timestamp_ms=now_ms))
    logs.append_client(TOPIC, 0, batch(2, timestamp_ms=now_ms + 1))
    times = [0, first_ms - 1, *range(first_ms, now_ms + 5, 3), now_ms + HOUR_MS]
    before = seen(logs, times)
    while logs.flush_rolled(now_ms + FLUSH_DUE_MS):
        pass
    logs.write_checkpoints()
    killed = tmp_path_factory.mktemp("killed") / "logs"
    shutil.copytree(root, killed)
    logs.stop(TOPIC, 0)
    logs.write_checkpoints()
    assert len(list((root / f"{TOPIC}-0").glob("*.log"))) > 4
    assert len(before.aborted[0, before.log_end]) == ABORTS + 1
    return Original(root, killed, times, before)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: random.Random(len(data)).randbytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + data[-12:],
    "high bits cleared": lambda data: bytes(byte & 0x0F for byte in data),
}
FILES = (".index", ".timeindex", ".txnindex", ".snapshot", ".sequences", ".checks", "leader-epoch-checkpoint")


def opened(original: Original, root: Path, *, clean: bool) -> tuple[LogManager, Path]:
    """A copy of the files, ready to be damaged, and logs to open it by."""
    copy = root / str(next(_copies))
    shutil.copytree(original.clean if clean else original.killed, copy)
    return LogManager(), copy


def check(original: Original, logs: LogManager, copy: Path, *, clean: bool, what: str, again: bool = True) -> None:
    """Open the copy: retention takes nothing, everything is as it was; it can be written, and opened `again`."""
    now_ms = int(time.time() * 1000)
    logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, clean)
    assert logs.upkeep(TOPIC, 0, now_ms + HOUR_MS).segments_deleted == 0, what
    assert seen(logs, original.times) == original.seen, what
    if not again:
        return
    logs.append_client(TOPIC, 0, batch(1, producer=(1, 0, 2 * ROUNDS), timestamp_ms=now_ms))
    logs.stop(TOPIC, 0)
    logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, True)
    assert read_all(logs)[:-1] == original.seen.batches, what
    logs.delete(TOPIC, 0)


def beside(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


@pytest.fixture(params=[True, False], ids=["clean stop", "kill"])
def clean(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_undamaged_nothing_is_said(original: Original, tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    logs, copy = opened(original, tmp_path, clean=clean)
    check(original, logs, copy, clean=clean, what="undamaged")
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("suffix", "how"),
    [(suffix, how) for suffix in FILES for how in ("gone", *DAMAGES) if (suffix, how) != (".sequences", "gone")],
)
def test_damage_to_all_files_of_a_kind(original: Original, tmp_path: Path, clean: bool, suffix: str, how: str) -> None:
    logs, copy = opened(original, tmp_path, clean=clean)
    for path in beside(copy / f"{TOPIC}-0", suffix):
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[how](path.read_bytes()))
    check(original, logs, copy, clean=clean, what=f"{suffix} {how}")


def test_without_older_sequences_a_broker_knows_what_kafka_does(original: Original, tmp_path: Path, clean: bool) -> None:
    """Each producer's last batch, of which the snapshot speaks: Kafka writes no `.sequences`, so nobody can miss one."""
    logs, copy = opened(original, tmp_path, clean=clean)
    for path in beside(copy / f"{TOPIC}-0", ".sequences"):
        path.unlink()
    logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, clean)
    found = seen(logs, original.times)
    assert {name: known[-1] for name, known in found.sequences.items()} == {
        name: known[-1] for name, known in original.seen.sequences.items()
    }
    assert found._replace(sequences={}) == original.seen._replace(sequences={})
    logs.stop(TOPIC, 0)


@pytest.mark.parametrize("suffix", FILES)
def test_one_bit(original: Original, tmp_path: Path, clean: bool, suffix: str) -> None:
    """In each byte of two files of a kind, one flip at a time."""
    root = original.clean if clean else original.killed
    for path in beside(root / f"{TOPIC}-0", suffix)[1:4:2] or beside(root / f"{TOPIC}-0", suffix):
        for at in range(path.stat().st_size):
            logs, copy = opened(original, tmp_path, clean=clean)
            data = bytearray(path.read_bytes())
            data[at] ^= 1 << (at * 5 % 8)
            (copy / f"{TOPIC}-0" / path.name).write_bytes(data)
            check(original, logs, copy, clean=clean, what=f"{path.name} byte {at}", again=False)
            shutil.rmtree(copy)


@pytest.mark.parametrize("how", ["gone", *DAMAGES])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_damage_where_nobody_kept_checks(original: Original, tmp_path: Path, clean: bool, suffix: str, how: str) -> None:
    """A folder of Apache Kafka's, or of an older broker: only the batches can say what is right."""
    logs, copy = opened(original, tmp_path, clean=clean)
    for path in beside(copy / f"{TOPIC}-0", ".checks"):
        path.unlink()
    for path in beside(copy / f"{TOPIC}-0", suffix):
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[how](path.read_bytes()))
    check(original, logs, copy, clean=clean, what=f"{suffix} {how}")


@pytest.mark.parametrize("how", ["gone", *DAMAGES])
def test_the_topic_id_file(original: Original, tmp_path: Path, clean: bool, how: str) -> None:
    """What is no id is written again."""
    logs, copy = opened(original, tmp_path, clean=clean)
    path = copy / f"{TOPIC}-0" / "partition.metadata"
    good = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(DAMAGES[how](good))
    check(original, logs, copy, clean=clean, what=how)


def test_one_bit_of_the_topic_id_file(original: Original, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each bit of it: the log is opened, and what reads as another id is written again and said."""
    logs, copy = opened(original, tmp_path, clean=True)
    path = copy / f"{TOPIC}-0" / "partition.metadata"
    good = path.read_bytes()
    assert good == f"version: 0\ntopic_id: {uuid_text(TOPIC_ID)}\n".encode()
    of_the_id = range(good.index(b"topic_id: ") + len("topic_id: "), len(good) - 1)
    for at in range(len(good)):
        for bit in range(8):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            caplog.clear()
            logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, True)
            logs.stop(TOPIC, 0)
            if at in of_the_id:
                assert path.read_bytes() == good
                assert f"`{path}` was damaged" in caplog.text
    path.write_bytes(good)
    check(original, logs, copy, clean=True, what="every bit")


def test_another_topics_folder_is_refused(original: Original, tmp_path: Path) -> None:
    """One sentence names the file and the ways on; a file that is removed as it says is written again."""
    logs, copy = opened(original, tmp_path, clean=True)
    path = copy / f"{TOPIC}-0" / "partition.metadata"
    good = path.read_bytes()
    path.write_bytes(good.replace(uuid_text(TOPIC_ID).encode(), uuid_text(bytes(range(60, 76))).encode()))
    with pytest.raises(ValueError, match="belongs to a topic with the id") as refusal:
        logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, True)
    assert "partition.metadata" in str(refusal.value) and "remove it and start again" in str(refusal.value)
    path.unlink()
    check(original, logs, copy, clean=True, what="removed")


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_what_was_wrong_is_said_once_a_segment(
    original: Original, tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs, copy = opened(original, tmp_path, clean=True)
    folder = copy / f"{TOPIC}-0"
    damaged = 0
    for path in beside(folder, suffix):
        data = bytearray(path.read_bytes())
        if data:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            damaged += 1
    check(original, logs, copy, clean=True, what=suffix)
    lines = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert len(lines) == damaged == logs.rebuilt_indexes
    assert len(set(lines)) == damaged and all("rebuilt" in line and f"{TOPIC}-0" in line for line in lines)


def test_what_one_thread_has_mended_another_finds_right(original: Original, tmp_path: Path) -> None:
    """All threads come upon the damage at once: whoever is second looks again instead of answering an error."""
    threads = 3

    def keep_the_gil(done: Event) -> None:
        while not done.is_set():  # So that a thread that has seen the damage goes on after another has mended it.
            pass

    with ThreadPoolExecutor(2 * threads) as pool:
        for _ in range(20):
            logs, copy = opened(original, tmp_path, clean=True)
            for suffix in (".timeindex", ".checks"):
                for path in beside(copy / f"{TOPIC}-0", suffix):
                    path.write_bytes(DAMAGES["garbage"](path.read_bytes()))
            logs.lead(TOPIC, TOPIC_ID, 0, 9, str(copy), CONFIG, True)
            done = Event()
            for _ in range(threads):
                pool.submit(keep_the_gil, done)
            try:
                looks = [pool.submit(logs.offset_for_timestamp, TOPIC, 0, original.times[0]) for _ in range(threads)]
                assert all(look.result() == original.seen.by_time[original.times[0]] for look in looks)
            finally:
                done.set()
            logs.delete(TOPIC, 0)


def old_log(root: Path, timestamp_ms: int) -> tuple[LogManager, Path]:
    """Ten segments, stopped cleanly."""
    logs = LogManager()
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(root), {"segment_bytes": 400, "index_interval_bytes": 100})
    for i in range(40):
        logs.append_client(TOPIC, 0, batch(1, timestamp_ms=timestamp_ms + i, size=20))
    logs.stop(TOPIC, 0)
    logs.write_checkpoints()
    return LogManager(), root / f"{TOPIC}-0"


@pytest.mark.parametrize("checks", [True, False])
def test_retention_by_time_deletes_what_the_batches_prove(tmp_path: Path, checks: bool) -> None:
    now_ms = int(time.time() * 1000)
    logs, folder = old_log(tmp_path, now_ms - 3 * HOUR_MS)
    for path in beside(folder, ".checks") if not checks else []:
        path.unlink()
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(tmp_path), {"retention_ms": HOUR_MS, "segment_bytes": 400}, True)
    segments = len(logs.segments(TOPIC, 0))
    deleted = logs.upkeep(TOPIC, 0, now_ms).segments_deleted
    assert deleted == segments and logs.offsets(TOPIC, 0).log_start == 40


def test_a_time_index_that_says_too_late_a_time_keeps_nothing(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    logs, folder = old_log(tmp_path, now_ms - 3 * HOUR_MS)
    for path in beside(folder, ".timeindex"):
        data = bytearray(path.read_bytes())
        data[-12:-4] = struct.pack(">q", now_ms + 10_000 * HOUR_MS)
        path.write_bytes(data)
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(tmp_path), {"retention_ms": HOUR_MS}, True)
    while logs.upkeep(TOPIC, 0, now_ms).segments_deleted:
        pass
    assert logs.offsets(TOPIC, 0).log_start == 40


def test_a_segment_whose_batches_cant_be_read_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now_ms = int(time.time() * 1000)
    logs, folder = old_log(tmp_path, now_ms - 3 * HOUR_MS)
    for path in beside(folder, ".checks"):
        path.unlink()
    log = beside(folder, ".log")[2]
    data = bytearray(log.read_bytes())
    data[8:17] = b"\xff" * 9
    log.write_bytes(data)
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(tmp_path), {"retention_ms": HOUR_MS}, True)
    for _ in range(3):
        logs.upkeep(TOPIC, 0, now_ms)
    assert logs.segments(TOPIC, 0)[0].path == str(log)
    said = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    assert len(said) == 1 and log.name in said[0] and "isn't deleted" in said[0]


def snapshots_said(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    return (line.getMessage() for line in caplog.records if "snapshot" in line.getMessage())


@pytest.mark.parametrize("suffix", [".snapshot", ".sequences"])
def test_a_producer_snapshot_that_cant_be_read_is_said(
    original: Original, tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs, copy = opened(original, tmp_path, clean=True)
    newest = beside(copy / f"{TOPIC}-0", suffix)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    check(original, logs, copy, clean=True, what=suffix)
    (line,) = snapshots_said(caplog)
    assert newest.stem in line


def test_checks_go_with_their_segments(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    logs, folder = old_log(tmp_path, now_ms)
    assert [path.stem for path in beside(folder, ".checks")] == [path.stem for path in beside(folder, ".log")]
    stray = folder / f"{999:020d}.checks"
    shutil.copy(beside(folder, ".checks")[0], stray)
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(tmp_path), {"retention_bytes": 900, "file_delete_delay_ms": 0}, True)
    assert not stray.exists()
    assert logs.upkeep(TOPIC, 0, now_ms).segments_deleted > 2
    logs.upkeep(TOPIC, 0, now_ms + 1)
    assert [path.stem for path in beside(folder, ".checks")] == [path.stem for path in beside(folder, ".log")]
