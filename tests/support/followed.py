"""A follower's log beside a leader's: batches of one record with epoch and offset, and a life of the log that can be killed."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, records, split
from support.logs import NOW_MS, TOPIC_ID

TOPIC = "followed"
KEY = (TOPIC, 0)
BROKER_EPOCH = 7
Batch = tuple[int, int]
"""Leader epoch and the record's number."""


def sent(offset: int, batches: Iterable[Batch]) -> bytes:
    """The bytes that a leader sends from an offset on."""
    return b"".join(placed(build(number), offset + i, epoch) for i, (epoch, number) in enumerate(batches))


def build(number: int, count: int = 1, *, producer: tuple[int, int, int] = (-1, -1, -1), transactional: bool = False) -> bytes:
    """A batch whose records have numbers from this one on; `producer` is (id, epoch, first sequence)."""
    builder = BatchBuilder()
    for one in range(number, number + count):
        assert builder.append(None, b"%d" % one, NOW_MS + one)
    producer_id, epoch, sequence = producer
    return builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)


def placed(batch: bytes, offset: int, epoch: int) -> bytes:
    """The batch as the log of its leader has it."""
    return struct.pack(">q", offset) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]


class Follower:
    """The log of a replica, through several lives of its process."""

    def __init__(self, root: Path, **config: int) -> None:
        self.root = root
        self.config = {"segment_bytes": 400, "retention_ms": -1, "index_interval_bytes": 100, **config}
        self.lives = 0
        self.open(clean=False)

    @property
    def home(self) -> Path:
        """The log folder of this life."""
        return self.root / str(self.lives)

    @property
    def folder(self) -> Path:
        return self.home / f"{TOPIC}-0"

    def open(self, *, clean: bool, power_cut: bool = False) -> None:
        """As the next process does: with a role of nobody's."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.logs = LogManager()
        self.logs.open_replica(TOPIC, TOPIC_ID, 0, str(self.home), self.config, clean=clean, power_cut=power_cut)

    def kill(self, *, power_cut: bool = False) -> None:
        """Go on with a copy of what a kill -9 leaves; power_cut: of what was flushed, as far as the checkpoints say."""
        before = self.home
        self.lives += 1
        shutil.copytree(before, self.home)
        self.logs.delete(*KEY)
        shutil.rmtree(before)
        self.open(clean=False, power_cut=power_cut)

    def stop(self) -> None:
        """Stop cleanly and start again."""
        self.logs.stop(*KEY)
        self.logs.write_checkpoints()
        self.open(clean=True)

    def follow(self, leader: int, epoch: int, unclean_epoch: int = -1, partition_epoch: int = 0) -> None:
        """The controller says who leads."""
        assert self.logs.set_follower(
            *KEY,
            broker_epoch=BROKER_EPOCH,
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=partition_epoch,
            unclean_epoch=unclean_epoch,
        )

    def raws(self) -> list[RawBatch]:
        """All batches, each checked."""
        offsets = self.logs.offsets(*KEY)
        found: list[RawBatch] = []
        offset = offsets.log_start
        while data := self.logs.read(*KEY, offset, 1 << 20):
            for raw in split(data):
                raw.check()
                found.append(raw)
                offset = raw.next_offset
        return found

    def content(self) -> list[Batch]:
        """Epoch and number of each record."""
        return [(raw.leader_epoch, int(records(raw)[0].value or b"-1")) for raw in self.raws()]
