"""Consume from the page cache, by clients that copy the bytes out and open no record; and a cold reader beside others."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.cases.latency import Paced
from penstock.bench.disk import slow_disk
from penstock.bench.sides import FLOOR, KAFKA, PENSTOCK, Broker, Server
from penstock.bench.world import GB, World

RECORD_BYTES = 1024
BATCH_BYTES = 131_072
CHUNK_BYTES = 1 << 20


@dataclass
class Filled:
    """A topic of one partition that holds equal batches."""

    topic: str
    batches: int
    records_each: int
    batch_bytes: int
    frame: Path  # a Fetch request for it
    offset_at: int

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.batches * self.records_each

    @property
    def value_bytes(self) -> int:
        """Of all records."""
        return self.end * RECORD_BYTES


def fill(world: World, broker: Broker, hint: str, gb: float) -> Filled:
    """Produce so many GB (scaled) into a new topic."""
    topic = world.topic(broker, hint, 1)
    load = frames.produce(world.path(hint), topic, 1, batch_bytes=BATCH_BYTES, record_bytes=RECORD_BYTES)
    count = world.scaled(gb * GB / load.value_bytes, least=4)
    world.requests(broker, load, in_flight=4, requests=count)
    load.path.unlink()
    frame = world.path("fetch")
    offset_at = frames.fetch(frame, topic, CHUNK_BYTES)
    return Filled(topic, count, load.records, load.batch_bytes, frame, offset_at)


class BareSender:
    """A process that answers fetches of a file with a bare sendfile, until `stop`."""

    def __init__(self, world: World, filled: Filled, file: Path) -> None:
        self._answer = world.path("answer")
        self._answer.write_bytes(fetch_answer(filled.topic))
        self.server = world.floor(
            "send",
            answer=self._answer,
            file=file,
            bytes=filled.batches * filled.batch_bytes,
            offset_at=filled.offset_at,
            batch=filled.batch_bytes,
            records=filled.records_each,
            chunk=CHUNK_BYTES,
        )

    def stop(self) -> None:
        """End the process."""
        self.server.stop()
        self._answer.unlink()


@dataclass
class Consume(Case):
    """Consumers that each read the whole topic several times. The floor is a bare sendfile of the same bytes."""

    name: str
    title: str
    consumers: int
    recv_bytes: int
    gb: float = 4.0  # read by all together
    kept_gb: float = 0.4
    sides: tuple[str, ...] = (PENSTOCK, KAFKA, FLOOR)
    _filled: dict[str, Filled] = field(default_factory=dict)
    _floor: BareSender | None = None

    def prepare(self, world: World, side: str) -> None:
        if side != FLOOR:
            self._filled[side] = fill(world, world.broker(side), self.name, self.kept_gb)
            return
        # The floor sends the very file that one of the brokers wrote: a copy would lie in the page cache in larger pieces, as
        # it is written in larger pieces, and larger pieces are cheaper to send.
        source, filled = next(iter(self._filled.items()))
        (segment,) = world.broker(source).log_folder(filled.topic, 0).glob("*.log")
        self._filled[FLOOR] = filled
        self._floor = BareSender(world, filled, segment)

    def run(self, world: World, side: str) -> Sample:
        server: Server = self._floor.server if side == FLOOR and self._floor else world.broker(side)
        filled = self._filled[side]
        times = max(1, round(self.gb / self.kept_gb / self.consumers))
        done, cpu_s = world.measured(
            server,
            lambda: world.fetch(
                server,
                self.consumers,
                filled.frame,
                offset_at=filled.offset_at,
                until=filled.end,
                times=times,
                recv=self.recv_bytes,
            ),
        )
        gb = done["records"] * RECORD_BYTES / GB
        return {
            "cpu_s_per_gb": cpu_s / gb,
            "mb_per_s": gb * 1e3 / done["seconds"],
            "records_per_s": done["records"] / done["seconds"],
            "cpu_us_per_request": cpu_s / done["requests"] * 1e6,
        }

    def finish(self, world: World, side: str) -> None:
        if side == FLOOR:
            if self._floor:
                self._floor.stop()
        elif side in self._filled:
            world.drop(world.broker(side), self._filled[side].topic)


def fetch_answer(topic: str) -> bytes:
    """The bytes before the records in an answer to Fetch of version 4, its size in front."""
    head = struct.pack(">iii", 0, 0, 1) + struct.pack(">h", len(topic)) + topic.encode()
    partition = struct.pack(">iihqqii", 1, 0, 0, 0, 0, -1, 0)
    return struct.pack(">i", len(head) + len(partition)) + head + partition


@dataclass
class Cold(Case):
    """A producer and a consumer at the end of one topic, alone and then beside a consumer that reads from the disk.

    What is asked is whether the others wait for the disk. A disk that is faster than SATA leaves no time to wait and only
    takes the processors from everybody, so there is a limit on what the broker reads. The floor: our broker has the
    producer and the consumer at the end, and a process of its own sends a copy of the cold bytes with a bare sendfile,
    which is what the bytes' way through the machine costs the others in itself.
    """

    name: str
    title: str
    disk_mb_per_s: int = 0  # no more than that from the disk; 0: as much as it gives
    gb: float = 0.5
    seconds: float = 10.0
    warm: bool = False
    sides: tuple[str, ...] = (PENSTOCK, KAFKA, FLOOR)
    _filled: dict[str, Filled] = field(default_factory=dict)
    _floor: tuple[BareSender, Path] | None = None

    def prepare(self, world: World, side: str) -> None:
        if side == FLOOR:
            filled = self._filled[PENSTOCK]
            copy = world.path("cold-copy")
            shutil.copytree(world.broker(PENSTOCK).log_folder(filled.topic, 0), copy)
            (segment,) = copy.glob("*.log")
            self._filled[FLOOR] = filled
            self._floor = BareSender(world, filled, segment), copy
            drop_pages(copy)
            return
        broker = world.broker(side)
        self._filled[side] = fill(world, broker, self.name, self.gb)
        drop_pages(broker.log_folder(self._filled[side].topic, 0))  # so that none is written while others are measured

    def run(self, world: World, side: str) -> Sample:
        if side == FLOOR and self._floor:
            server: Server = self._floor[0].server
            folder = self._floor[1]
            busy = PENSTOCK
        else:
            server = world.broker(side)
            folder = world.broker(side).log_folder(self._filled[side].topic, 0)
            busy = side
        reader = ColdReader(world, server, self._filled[side], folder)
        limit = self.disk_mb_per_s * 1_000_000
        with slow_disk(server.pid, folder, limit) if limit else nullcontext():
            return self._measure(world, busy, reader)

    def _measure(self, world: World, side: str, reader: ColdReader) -> Sample:
        paced = Paced("cold-reader", "", rate=2_000, seconds=self.seconds, tail=True)
        alone = paced.run(world, side)
        reader.start()
        try:
            beside = paced.run(world, side)
        finally:
            reader.end()
        sample = {f"{name}_beside": value for name, value in beside.items() if name.endswith("_ms")}
        sample.update({f"{name}_alone": value for name, value in alone.items() if name.endswith("_ms")})
        growth = {name: beside[name] / max(alone[name], 1e-6) for name in ("p99_ms", "tail_p99_ms")}
        return {
            "ack_p99_growth": growth["p99_ms"],
            "end_to_end_p99_growth": growth["tail_p99_ms"],
            "cold_mb_per_s": reader.mb_per_s,
            **sample,
        }

    def finish(self, world: World, side: str) -> None:
        if side == FLOOR:
            if self._floor:
                self._floor[0].stop()
                shutil.rmtree(self._floor[1])
        elif side in self._filled:
            world.drop(world.broker(side), self._filled[side].topic)


class ColdReader(threading.Thread):
    """Drops the pages of the log in a folder and reads it from the disk, again and again until `end`.

    Its client gives way to the others', and copies little at a time, since the kernel lets nobody else run meanwhile.
    """

    def __init__(self, world: World, server: Server, filled: Filled, folder: Path) -> None:
        super().__init__(name="cold-reader", daemon=True)
        self._world, self._server, self._filled, self._folder = world, server, filled, folder
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self.mb_per_s = 0.0

    def run(self) -> None:
        filled = self._filled
        try:
            while not self._ended.is_set():
                drop_pages(self._folder)
                done = self._world.fetch(
                    self._server,
                    1,
                    filled.frame,
                    idle=True,
                    offset_at=filled.offset_at,
                    until=filled.end,
                    recv=16_384,
                )
                self.mb_per_s = done["bytes"] / 1e6 / done["seconds"]
        except Exception as error:  # noqa: BLE001 - raised by `end` in the thread that measures
            self._failure = error

    def end(self) -> None:
        """Wait until the last reading is over. Raises what stopped the reader."""
        self._ended.set()
        self.join()
        if self._failure is not None:
            raise self._failure


def drop_pages(folder: Path) -> None:
    """Make a log's bytes come from the disk at their next use."""
    for path in folder.glob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


CASES: list[Case] = [
    Consume("consume-1", "consume, 1 consumer, warm, recv of 64 KB", 1, 65_536),
    Consume("consume-1-recv-1m", "consume, 1 consumer, warm, recv of 1 MB", 1, 1 << 20),
    Consume("consume-4", "consume, 4 consumers, warm, recv of 64 KB", 4, 65_536),
    Cold(
        "cold-reader",
        "a consumer of pages that were dropped (disk of 250 MB/s), beside a tail consumer and a producer (2,000 a second)",
        disk_mb_per_s=250,
    ),
    Cold("cold-reader-fast-disk", "the same with all that the disk gives", sides=(PENSTOCK, KAFKA)),
]
