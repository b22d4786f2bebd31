"""What `penstock.transaction.flush` costs mirror and dedupe: their rate with it and without, on ext4 and on XFS, and on a disk
whose flushes take as long as a rotating one's: there also of a trickle, whose transactions are many and small.

The disk is a file that a loop device mounts, so a flush goes through two file systems to the disk below. Both brokers are on
it; the one that isn't measured is idle, and what it wrote is on the disk before the other is measured.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench.case import Case, Sample
from penstock.bench.cases.dedupe import FEW, Dedupe
from penstock.bench.cases.mirror import LARGE, Mirror, Trickle
from penstock.bench.disk import own_disk
from penstock.bench.sides import PENSTOCK, WITHOUT, Broker, Penstock
from penstock.bench.world import RECYCLING, World

DISK_BYTES = 6 << 30
SLOW_MS = 8  # a rotating disk's flush


@dataclass
class Disk:
    """A disk of its own, there from its first broker until `close`."""

    kind: str
    flush_ms: int = 0
    _path: Path | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _brokers: dict[str, Penstock] = field(default_factory=dict)

    def broker(self, world: World, side: str) -> Penstock:
        """Our broker on the disk, with flushes or without."""
        if side not in self._brokers:
            if self._path is None:
                folder = world.path("disk")
                folder.mkdir()
                self._path = self._open.enter_context(own_disk(folder, self.kind, DISK_BYTES, self.flush_ms))
            flush = {"penstock.transaction.flush": "stages" if side == PENSTOCK else "false"}
            broker = Penstock(self._path / side, {**RECYCLING[PENSTOCK], **flush})
            self._open.callback(broker.stop)
            broker.start()
            self._brokers[side] = broker
        return self._brokers[side]

    def close(self, side: str) -> None:
        """Once all sides are done the brokers end and the disk goes."""
        self._brokers.pop(side, None)
        if not self._brokers:
            self._open.close()
            self._path = None


@dataclass
class MirrorFlush(Mirror):
    """The mirror's target is on the disk."""

    disk: Disk = field(default_factory=lambda: Disk("ext4"))
    sides: tuple[str, ...] = (PENSTOCK, WITHOUT)

    def _target(self, world: World, side: str) -> Broker:
        return self.disk.broker(world, side)

    def run(self, world: World, side: str) -> Sample:
        os.sync()
        return super().run(world, side)

    def finish(self, world: World, side: str) -> None:
        super().finish(world, side)
        self.disk.close(side)


@dataclass
class TrickleFlush(Trickle):
    """The mirror's target is on the disk. Both sides linger."""

    disk: Disk = field(default_factory=lambda: Disk("ext4", SLOW_MS))

    def _brokers(self, world: World, side: str) -> tuple[Broker, Broker]:
        return world.broker(PENSTOCK, "source"), self.disk.broker(world, side)

    def _properties(self, side: str) -> dict[str, object]:
        return {}

    def finish(self, world: World, side: str) -> None:
        super().finish(world, side)
        self.disk.close(side)


@dataclass
class DedupeFlush(Dedupe):
    """Input and output are on the disk."""

    disk: Disk = field(default_factory=lambda: Disk("ext4"))

    def prepare(self, world: World, side: str) -> None:
        self._begin(world, side, self.disk.broker(world, side), world.scaled(FEW, least=1000))

    def run(self, world: World, side: str) -> Sample:
        os.sync()
        return self._works[side].pass_on(world.scaled(self.messages, least=1000))

    def finish(self, world: World, side: str) -> None:
        super().finish(world, side)
        self.disk.close(side)


WITH = "each transaction flushed"
CASES: list[Case] = [
    *(
        MirrorFlush(f"mirror-flush-{kind}", f"the mirror into {kind}, {WITH}; without", PENSTOCK, LARGE, disk=Disk(kind))
        for kind in ("ext4", "xfs")
    ),
    MirrorFlush(
        "mirror-flush-slow",
        f"the mirror onto a disk whose flush takes {SLOW_MS} ms more, {WITH}; without",
        PENSTOCK,
        LARGE,
        disk=Disk("ext4", SLOW_MS),
    ),
    TrickleFlush(
        "trickle-flush-slow",
        f"100 partitions, 20 records a second each, onto such a disk, {WITH}; without",
    ),
    DedupeFlush(
        "dedupe-flush-slow",
        f"dedupe on a disk whose flush takes {SLOW_MS} ms more, {WITH}; without",
        disk=Disk("ext4", SLOW_MS),
    ),
    *(DedupeFlush(f"dedupe-flush-{kind}", f"dedupe on {kind}, {WITH}; without", disk=Disk(kind)) for kind in ("ext4", "xfs")),
]
