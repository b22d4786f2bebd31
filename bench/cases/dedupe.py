"""The dedupe stage with many ids in its store, and the store alone."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.bench import frames, process
from penstock.bench.case import Case, Sample
from penstock.bench.sides import PENSTOCK, WITHOUT, Broker
from penstock.bench.stages import Output, Stage, penstock_stage, through
from penstock.bench.world import MIB, World
from penstock.dedupe.folder import StoreFolder
from penstock.pyx.ids.store import IdStore
from penstock.pyx.record.columns import Column
from penstock.pyx.wire import requests

ID_BYTES = 16
CHUNK = 100_000  # ids that are made at a time
MANY, FEW = 100_000_000, 1_000_000
SIZE_MAX_BYTES, MEMORY_MAX_IDS = 8 << 30, 1_000_000  # the stage's own defaults
BATCH_BYTES = 131_072
REPEATS = 0.006
QUIET_S = 2.0  # files that don't change for so long are merged
CPU_GRAIN_S = 0.01  # of what the kernel counts
TOPIC = {"segment.bytes": str(64 * MIB), "retention.bytes": str(1024 * MIB)}


def ids(chunk: int, count: int = CHUNK) -> bytes:
    """The ids of a chunk, one behind the other: always the same ones, unlike those of any other chunk."""
    return np.random.Generator(np.random.PCG64(chunk)).bytes(count * ID_BYTES)


def column(data: bytes) -> Column:
    """Ids as the store takes them."""
    count = len(data) // ID_BYTES
    starts = np.arange(count + 1, dtype=np.int64) * ID_BYTES
    return Column(np.frombuffer(data, dtype=np.uint8), starts, np.zeros(count, dtype=np.bool_))


def chunks(first: int, count: int) -> Iterator[bytes]:
    """The ids of chunk `first` and those behind it, so many."""
    for number in range(-(-count // CHUNK)):
        yield ids(first + number, min(CHUNK, count - number * CHUNK))


def spill(store: IdStore) -> None:
    """Make a file of what is in memory."""
    store.write_file()
    store.ingest_file()


def add(store: IdStore, data: bytes) -> None:
    """Add ids as the stage does, as if no output had come of them."""
    taken, given = 0, column(data)
    while taken < len(given.null):
        taken = store.add(*given, 0, time.time_ns() // 1_000_000, taken)
        if store.is_full():
            spill(store)


class Stores:
    """Databases that were filled, by how many ids they have: filled once, then given out as copies."""

    def __init__(self) -> None:
        self._filled: dict[tuple[Path, int], Path] = {}

    def copy(self, world: World, count: int, to: Path) -> None:
        """Put a database with so many ids there; its files of ids are links, since nobody changes them."""
        key = world.folder, count
        if key not in self._filled:
            path = self._filled[key] = world.path("ids")
            store = IdStore(str(path), SIZE_MAX_BYTES, MEMORY_MAX_IDS)
            for data in chunks(0, count):
                add(store, data)
            spill(store)
            _merged(path)
            store.close()
        shutil.copytree(self._filled[key], to, copy_function=_link_or_copy)


def _merged(database: Path) -> None:
    """Wait until files are merged no more: the CPU of that would be taken for the look-ups'."""

    def files() -> list[tuple[str, int]]:
        return sorted((path.name, path.stat().st_size) for path in database.glob("*.sst"))

    before = files()
    while True:
        time.sleep(QUIET_S)
        if before == (before := files()):
            return


def _link_or_copy(source: str, to: str) -> str:
    if source.endswith(".sst"):
        os.link(source, to)
        return to
    return str(shutil.copy2(source, to))


STORES = Stores()


@dataclass
class Load:
    """Messages for a partition, as Produce requests: events of 300 bytes under ids, of which few were there before."""

    world: World
    topic: str
    known: int  # ids that the store has from the beginning
    chunk: int = 1 << 32  # of the next new ids
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def write(self, count: int) -> Path:
        """A file of requests with so many messages."""
        keys = [data[at : at + ID_BYTES] for data in chunks(self.chunk, count) for at in range(0, len(data), ID_BYTES)]
        self.chunk += -(-count // CHUNK)
        old = ids(int(self.chance.integers(0, max(1, self.known // CHUNK))))
        for place in self.chance.choice(count, self.repeats(count), replace=False):
            at = int(self.chance.integers(0, min(self.known, CHUNK))) * ID_BYTES
            keys[place] = old[at : at + ID_BYTES]
        values, each = frames.events(), BATCH_BYTES // (frames.EVENT_BYTES + frames.RECORD_OVERHEAD)
        asked = []
        for first in range(0, count, each):
            some = keys[first : first + each]
            body = frames.batch((values[(first + number) % len(values)] for number in range(len(some))), "lz4", some)
            asked.append((requests.produce_request(self.topic, {0: body}), requests.PRODUCE_VERSION))
        path = self.world.path("messages")
        frames.write(path, asked)
        self.batches = len(asked)
        return path

    def repeats(self, count: int) -> int:
        """How many of so many messages have an id that was there before."""
        return int(count * REPEATS)


class Worked:
    """A dedupe stage of one partition on a broker, with so many ids in its store before it reads anything."""

    def __init__(self, world: World, hint: str, broker: Broker, known: int, data: Path, **more: object) -> None:
        self._world, self._broker = world, broker
        self.topic = world.topic(broker, hint, 1, TOPIC)
        deduped = f"{self.topic}.deduped"
        requests.create_topic(broker.bootstrap, deduped, 1, TOPIC)
        self.output = Output(broker.bootstrap, deduped, 1)
        self.load = Load(world, self.topic, known)
        properties = {
            "bootstrap.servers": broker.bootstrap,
            "topics": self.topic,
            "penstock.dedupe.name": self.topic,
            "penstock.dedupe.data": data,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        self.stage: Stage = penstock_stage(world, PENSTOCK, "dedupe", properties)
        # A first start makes the folder and the first position; then the store is put in place of its own.
        self.back(1)
        self.stage.stop()
        database = StoreFolder.of(data, (self.topic, 0)).database
        shutil.rmtree(database)
        STORES.copy(world, known, database)
        self.back(1)

    def back(self, count: int) -> float:
        """Start the stage with so many messages waiting; seconds until the first of them is published."""
        before, path = self.output.end(), self.load.write(count)
        self.fill(path)
        started = time.monotonic()
        self.stage.launch()
        self.output.grown(self.stage, before + 1)
        seconds = time.monotonic() - started
        self.output.grown(self.stage, before + count - self.load.repeats(count))
        return seconds

    def fill(self, path: Path) -> None:
        """Put messages into the input."""
        self._world.requests(self._broker, path, in_flight=4, requests=self.load.batches)
        path.unlink()

    def pass_on(self, count: int) -> Sample:
        """Dedupe so many messages that wait."""
        path = self.load.write(count)
        done = through(self.stage, self.output, count - self.load.repeats(count), lambda: self.fill(path))
        return {
            "messages_per_s_a_core": count / max(done.cpu_s, CPU_GRAIN_S),
            "cpu_us_per_record": done.cpu_s / count * 1e6,
            "messages_per_s": count / done.seconds,
            "mb_per_s": count * frames.EVENT_BYTES / done.seconds / 1e6,
        }

    def end(self) -> None:
        """Stop the stage and drop the topics."""
        self.stage.stop()
        for topic in (self.topic, f"{self.topic}.deduped"):
            self._world.drop(self._broker, topic)


@dataclass
class Dedupe(Case):
    """What waits in the input is deduped, from fetch to commit; then kill -9, and a start with some more messages."""

    name: str = "dedupe-100m"
    title: str = "the stage with 100 M ids (scaled), 0.6 % repeats; without: a hundredth of the ids"
    messages: int = 1_000_000
    messages_after_kill: int = 10_000
    sides: tuple[str, ...] = (PENSTOCK, WITHOUT)
    _works: dict[str, Worked] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        known = world.scaled(MANY if side == PENSTOCK else FEW, least=1000)
        self._begin(world, side, world.broker(PENSTOCK), known)

    def _begin(self, world: World, side: str, broker: Broker, known: int) -> None:
        self._works[side] = Worked(world, f"{self.name}-{side}", broker, known, world.path("data"))

    def run(self, world: World, side: str) -> Sample:
        work = self._works[side]
        sample = work.pass_on(world.scaled(self.messages, least=1000))
        sample["rss_mib"] = work.stage.rss_mib()
        work.stage.kill()
        sample["restart_s"] = work.back(world.scaled(self.messages_after_kill, least=100))
        return sample

    def finish(self, world: World, side: str) -> None:
        if side in self._works:
            self._works.pop(side).end()


@dataclass
class Store(Case):
    """The store in a process of its own: look-ups of ids that it doesn't have, and its memory."""

    name: str
    title: str
    known: int
    lookups: int = 1_000_000
    sides: tuple[str, ...] = (PENSTOCK,)
    _paths: dict[str, Path] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        self._paths[side] = world.path(self.name)
        STORES.copy(world, world.scaled(self.known, least=1000), self._paths[side])

    def run(self, world: World, side: str) -> Sample:
        known = world.scaled(self.known, least=1000)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(look_up, str(self._paths[side]), known, self.lookups).result()

    def finish(self, world: World, side: str) -> None:
        if side in self._paths:
            shutil.rmtree(self._paths.pop(side), ignore_errors=True)


def look_up(path: str, known: int, lookups: int) -> Sample:
    """Of a database: CPU of a look-up that finds nothing and of an id that is added; bytes of memory an id takes."""
    pid = os.getpid()
    new = [column(data) for data in chunks(1 << 40, lookups)]
    empty_mib = process.rss_mib(pid)
    store = IdStore(path, SIZE_MAX_BYTES, MEMORY_MAX_IDS)
    try:
        store.unseen(*new[0])  # reads the filters
        spent = time.process_time_ns()
        for given in new:
            store.unseen(*given)
        unseen_us = (time.process_time_ns() - spent) / 1e3 / lookups
        in_files_mib = process.rss_mib(pid) - empty_mib
        before_mib, spent = process.rss_mib(pid), time.process_time_ns()
        held = 0
        for given in new:
            held += store.add(*given, 0, 1)
            if store.is_full():
                break
        add_us = (time.process_time_ns() - spent) / 1e3 / held
        return {
            "unseen_us": unseen_us,
            "add_us": add_us,
            "bytes_an_id_held": (process.rss_mib(pid) - before_mib) * MIB / held,
            "bytes_of_memory_an_id_in_files": in_files_mib * MIB / known,
            "files": float(store.stats()["files"]),
        }
    finally:
        store.close()


CASES: list[Case] = [
    Store("id-store-1m", "the id store alone, 1 M ids (scaled) in files", FEW),
    Store("id-store-100m", "the id store alone, 100 M ids (scaled) in files", MANY),
    Dedupe(),
]
