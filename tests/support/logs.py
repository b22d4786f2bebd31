"""Partition logs inside the test process: batches to append, a log in a folder of its own, what there is to compare."""

from __future__ import annotations

import itertools
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

from penstock.broker.logs.folder import mark_clean, stop_text
from penstock.pyx.log.checkpoint import OURS, format_line, format_offsets, parse_offsets
from penstock.pyx.log.endslots import NAME
from penstock.pyx.log.logmanager import LogManager, Offsets, Producer, UpkeepResult
from penstock.pyx.log.logtable import Recovered
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import RawBatch, split

LOGS = LogManager()
"""The logs of this test process; topics have names of their own."""
TOPIC_ID = bytes(range(1, 17))
NOW_MS = 1_700_000_000_000
"""A time in the past, so that timestamps of tests are never in the future."""
FLUSH_DUE_MS = 1001
"""Longer than a sealed segment waits for its flush."""

_numbers = itertools.count()


def batch(
    count: int = 1,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    size: int = 10,
    codec: int = 0,
) -> bytes:
    """A batch of `count` records, one ms apart; `producer` is (id, epoch, first sequence)."""
    builder = BatchBuilder(codec=codec)
    for i in range(count):
        assert builder.append(b"k%d" % i, b"v" * size, timestamp_ms + i)
    producer_id, epoch, sequence = producer
    return builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)


def delete_records(topic: str, offset: int, partition: int = 0, topic_id: bytes = TOPIC_ID) -> int:
    """Move a log's start; answers the new one."""
    (outcome,) = LOGS.delete_records([(topic, topic_id, partition, offset)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class State(NamedTuple):
    """All that a restart must not change."""

    offsets: Offsets
    batches: list[bytes]
    producers: list[Producer]
    sequences: dict[int, list[tuple[int, int, int]]]
    aborted: list[tuple[int, int]]


class Log:
    """A partition with a topic name of its own. The folder is `<root>/<topic>-0`."""

    def __init__(self, root: Path, *, clean: bool = False, leader_epoch: int = 0, **config: int) -> None:
        self.root = root
        self.topic = f"log{next(_numbers)}"
        self.config = config
        self.root.mkdir(parents=True, exist_ok=True)
        self.recovered = self.lead(clean=clean, leader_epoch=leader_epoch)

    @property
    def folder(self) -> Path:
        return self.root / f"{self.topic}-0"

    def lead(self, *, clean: bool, leader_epoch: int = 0) -> Recovered:
        """Open the folder."""
        self.recovered = LOGS.lead(self.topic, TOPIC_ID, 0, leader_epoch, str(self.root), self.config, clean)
        return self.recovered

    def append(self, records: bytes) -> int:
        """As a client; the base offset."""
        return LOGS.append_client(self.topic, 0, records).base_offset

    def mark(self, records: bytes) -> int:
        """As a coordinator; the base offset."""
        return LOGS.append(self.topic, 0, records).base_offset

    def offsets(self) -> Offsets:
        return LOGS.offsets(self.topic, 0)

    def upkeep(self, now_ms: int = NOW_MS) -> UpkeepResult:
        return LOGS.upkeep(self.topic, 0, now_ms)

    def flush(self) -> None:
        """Flush all that it has, and note it in the checkpoints."""
        LOGS.flush(self.topic, 0)
        LOGS.write_checkpoints()

    def read_all(self, max_bytes: int = 1 << 20, isolation: int = 2) -> list[RawBatch]:
        """Every batch from the log start on, each checked."""
        found: list[RawBatch] = []
        offset = self.offsets().log_start
        while data := LOGS.read(self.topic, 0, offset, max_bytes, isolation):
            for raw in split(data):
                raw.check()
                found.append(raw)
                offset = raw.next_offset
        return found

    def state(self) -> State:
        offsets = self.offsets()
        producers = LOGS.producers(self.topic, 0)
        return State(
            offsets,
            [bytes(raw) for raw in self.read_all()],
            producers,
            {p.producer_id: LOGS.sequences(self.topic, 0, p.producer_id) for p in producers},
            LOGS.aborted(self.topic, 0, offsets.log_start, offsets.log_end),
        )

    def stop(self) -> None:
        LOGS.stop(self.topic, 0)

    def restart(self) -> Recovered:
        """Stop cleanly and start again."""
        self.stop()
        return self.lead(clean=True, leader_epoch=0)

    def snapshot(self, to: Path) -> Killed:
        """What a kill of the process would leave, as a folder that can be damaged and opened."""
        shutil.copytree(self.root, to)
        return Killed(to, self)

    def kill(self, to: Path) -> Recovered:
        """Go on with what a kill would have left: the log is then the recovered copy in `to`."""
        shutil.copytree(self.root, to)
        self.drop()
        self.root = to
        return self.lead(clean=False)

    def drop(self) -> None:
        """Close without the flush of a stop."""
        LOGS.delete(self.topic, 0)

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))


class Killed:
    """The files of a log whose process is gone."""

    def __init__(self, root: Path, log: Log) -> None:
        self.root = root
        self.folder = root / f"{log.topic}-0"
        self._log = log

    def open(self, *, clean: bool = False) -> Log:
        """Recover it, under a name of its own (the folder is renamed, its checkpoints follow)."""
        opened = Log.__new__(Log)
        opened.root = self.root
        opened.topic = f"log{next(_numbers)}"
        opened.config = self._log.config
        self.folder.rename(opened.folder)
        path = self.root / OURS
        if path.exists():
            offsets, sums = parse_offsets(path.read_bytes())
            names = {self._log.topic: opened.topic}
            lines = [format_line((names.get(topic, topic), i), known) for (topic, i), known in offsets.items()]
            path.write_bytes(format_offsets(lines, sums))
        opened.lead(clean=clean)
        return opened


def put_back(kept: Path, data: Path) -> None:
    """An older copy of a partition's folder in its place, in the data folder of a broker that was stopped.

    As if all of the data folder were that old, checkpoints and slots know nothing of what the log had since: a log that ends
    earlier than they say isn't opened.
    """
    shutil.rmtree(data / kept.name)
    shutil.copytree(kept, data / kept.name)
    topic, _, partition = kept.name.rpartition("-")
    (data / NAME).unlink(missing_ok=True)
    offsets, sums = parse_offsets((data / OURS).read_bytes())
    del offsets[topic, int(partition)]
    (data / OURS).write_bytes(format_offsets([format_line(key, known) for key, known in offsets.items()], sums))
    if stop_text(data):
        mark_clean(data)


def index_entries(path: Path, form: str) -> list[tuple[int, ...]]:
    """The entries of an index file; `form` is a struct format of one entry."""
    data = path.read_bytes()
    assert len(data) % struct.calcsize(form) == 0
    return list(struct.iter_unpack(form, data))


def write_earlier_checks(path: Path, version: int) -> None:
    """Cut a `.checks` down to version 1 or 2, as an earlier Penstock wrote it (checks.pxd)."""
    body = path.read_bytes()[6 : {1: 82, 2: 83}[version]]
    path.write_bytes(struct.pack(">hI", version, crc32c(body)) + body)
