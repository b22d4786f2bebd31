"""A topic copied from one broker to another, exactly once: by our mirror and by MirrorMaker 2."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from penstock import tasks
from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.mirrormaker import mirror_maker
from penstock.bench.sides import KAFKA, MIRROR_MAKER, PENSTOCK, WITHOUT, Broker
from penstock.bench.stages import Done, Output, Stage, penstock_stage, through
from penstock.bench.world import GB, MIB, World
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.sender import Sender
from penstock.pyx.wire import requests

RECORD_BYTES = 1024
LARGE, SMALL = 131_072, 20_480
# What a round leaves makes room for the next one. A partition's part of a round is far less.
TOPIC = {"segment.bytes": str(64 * MIB), "retention.bytes": str(256 * MIB)}


def mirror_stage(world: World, side: str, source: Broker, target: Broker, topic: str, **more: object) -> Stage:
    """Our mirror, not started; `_` for `.` in the names of more properties."""
    properties = {
        "bootstrap.servers": target.bootstrap,
        "source.site.bootstrap.servers": source.bootstrap,
        "topics": topic,
        "penstock.mirror.name": topic,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return penstock_stage(world, side, "mirror", properties)


class Copy:
    """A topic of a source and of a target, what is put into the former, and the stage that copies it."""

    def __init__(
        self,
        world: World,
        hint: str,
        source: Broker,
        target: Broker,
        stage_of: Callable[[str], Stage],
        *,
        partitions: int,
        batch_bytes: int,
    ) -> None:
        self._world = world
        self._brokers = source, target
        self.topic = world.topic(source, hint, partitions, TOPIC)
        requests.create_topic(target.bootstrap, self.topic, partitions, TOPIC)
        self.output = Output(target.bootstrap, self.topic, partitions)
        self.partitions = partitions
        self.load = frames.produce(
            world.path(hint),
            self.topic,
            partitions,
            batch_bytes=batch_bytes,
            record_bytes=RECORD_BYTES,
            codec="lz4",
            payloads=2,
            values=frames.doubled,
        )
        self.stage = stage_of(self.topic)

    def fill(self, batches: int) -> None:
        """Put so many batches into the source's topic."""
        self._world.requests(self._brokers[0], self.load, in_flight=4, requests=batches)

    def begin(self) -> float:
        """Start the stage with a batch for each partition at the source; seconds until the first record is on the target."""
        before = self.output.end()
        self.fill(self.partitions)
        started = time.monotonic()
        self.stage.launch()
        self.output.grown(self.stage, before + 1)
        first_s = time.monotonic() - started
        self.output.grown(self.stage, before + self.partitions * self.load.records)
        return first_s

    def pass_on(self, gb: float) -> tuple[float, Done]:
        """Copy so many GB of values (about): how many they were, and what that took."""
        batches = max(1, round(gb * GB / self.load.value_bytes / self.partitions)) * self.partitions
        done = through(self.stage, self.output, batches * self.load.records, lambda: self.fill(batches))
        return batches * self.load.value_bytes / GB, done

    def end(self) -> None:
        """Stop the stage and drop the topics."""
        self.stage.stop()
        for broker in self._brokers:
            self._world.drop(broker, self.topic)
        self.load.path.unlink(missing_ok=True)


@dataclass
class Mirror(Case):
    """What waits at the source is copied: CPU of the mirror's process alone, and the rate."""

    name: str
    title: str
    brokers: str  # source and target are two of this kind
    batch_bytes: int
    gb: float = 0.6
    partitions: int = 4
    sides: tuple[str, ...] = (PENSTOCK, MIRROR_MAKER)
    _copies: dict[str, Copy] = field(default_factory=dict)

    def _target(self, world: World, side: str) -> Broker:
        return world.broker(self.brokers, "target")

    def _copy(self, world: World, side: str) -> Copy:
        source, target = world.broker(self.brokers, "source"), self._target(world, side)

        def stage_of(topic: str) -> Stage:
            if side == MIRROR_MAKER:
                return mirror_maker(world, source.bootstrap, target.bootstrap, topic, min(self.partitions, 4))
            return mirror_stage(world, side, source, target, topic)

        return Copy(
            world, f"{self.name}-{side}", source, target, stage_of, partitions=self.partitions, batch_bytes=self.batch_bytes
        )

    def prepare(self, world: World, side: str) -> None:
        self._copies[side] = copy = self._copy(world, side)
        copy.begin()

    def run(self, world: World, side: str) -> Sample:
        copy = self._copies[side]
        gb, done = copy.pass_on(self.gb * world.scale)
        return {
            "cpu_s_per_gb_copied": done.cpu_s / gb,
            "mb_per_s": gb * 1e3 / done.seconds,
            "mb_per_transaction": gb * 1e3 / max(done.transactions, 1),
            "rss_mib": copy.stage.rss_mib(),
        }

    def finish(self, world: World, side: str) -> None:
        if side in self._copies:
            self._copies.pop(side).end()


@dataclass
class MirrorStart(Mirror):
    """Started again and again: from exec to the first record on the target, and memory after all partitions' records."""

    warm: bool = False

    def prepare(self, world: World, side: str) -> None:
        super().prepare(world, side)
        self._copies[side].stage.stop()

    def run(self, world: World, side: str) -> Sample:
        copy = self._copies[side]
        first_record_s = copy.begin()
        copy.pass_on(self.gb * world.scale)
        sample = {"first_record_s": first_record_s, "rss_mib": copy.stage.rss_mib()}
        copy.stage.stop()
        return sample


@dataclass
class Trickle(Case):
    """Records that come to many partitions one by one: how many transactions they are, and how late they arrive.

    Beside it ours without lingering, and with as many transactions a second as it likes.
    """

    name: str = "mirror-trickle"
    title: str = "100 partitions, 20 records a second each; without: lingering, and a bound of transactions"
    partitions: int = 100
    rate: float = 2_000.0
    seconds: float = 15.0
    sides: tuple[str, ...] = (PENSTOCK, WITHOUT)
    _stages: dict[str, tuple[str, Stage]] = field(default_factory=dict)

    def _brokers(self, world: World, side: str) -> tuple[Broker, Broker]:
        """Source and target."""
        return world.broker(PENSTOCK, "source"), world.broker(PENSTOCK, "target")

    def _properties(self, side: str) -> dict[str, object]:
        """Those of the mirror; `_` for `.` in their names."""
        return {"penstock_mirror_linger_ms": 0, "penstock_mirror_transactions_max": 1_000_000} if side == WITHOUT else {}

    def prepare(self, world: World, side: str) -> None:
        source, target = self._brokers(world, side)
        topic = world.topic(source, f"{self.name}-{side}", self.partitions)
        requests.create_topic(target.bootstrap, topic, self.partitions)
        stage = mirror_stage(world, PENSTOCK, source, target, topic, **self._properties(side))
        self._stages[side] = topic, stage
        stage.launch()

    def run(self, world: World, side: str) -> Sample:
        topic, stage = self._stages[side]
        source, target = (broker.bootstrap for broker in self._brokers(world, side))
        count = max(self.partitions, int(self.rate * world.seconds(self.seconds)))
        output = Output(target, topic, self.partitions)
        before, cpu_s, started = output.end(), stage.cpu_s(), time.monotonic()
        late_s = sorted(asyncio.run(trickle(source, target, topic, self.partitions, self.rate, count)))
        seconds = time.monotonic() - started
        stage.check()
        return {
            "transactions_per_s": (output.end() - before - count) / seconds,
            "p50_ms": late_s[len(late_s) // 2] * 1e3,
            "p99_ms": late_s[int(len(late_s) * 0.99)] * 1e3,
            "cpu_us_per_record": (stage.cpu_s() - cpu_s) / count * 1e6,
        }

    def finish(self, world: World, side: str) -> None:
        if side in self._stages:
            topic, stage = self._stages.pop(side)
            stage.stop()
            for broker in self._brokers(world, side):
                world.drop(broker, topic)


async def trickle(source: str, target: str, topic: str, partitions: int, rate: float, count: int) -> list[float]:
    """Send records by the clock to partitions in turn; seconds of each from its acknowledgement to its arrival as committed."""
    tps = [(topic, number) for number in range(partitions)]
    acknowledged: dict[int, list[float]] = defaultdict(list)
    arrived: dict[int, list[float]] = defaultdict(list)
    async with Admin(source) as ours, Admin(target) as theirs:
        ends = await theirs.list_offsets(dict.fromkeys(tps, LATEST))
        fetcher = Fetcher(theirs, max_wait_ms=100)
        fetcher.assign({tp: at.offset for tp, at in ends.items()})
        sending = asyncio.ensure_future(_send(Sender(ours, idempotent=False), tps, rate, count, acknowledged))
        try:
            while sum(map(len, arrived.values())) < count:
                for fetched in await fetcher.fetch():
                    if fetched.error is not None:
                        raise fetched.error
                    came = sum(batch.record_count for batch in fetched.batches)
                    arrived[fetched.partition] += [time.monotonic()] * came
                if sending.done():
                    await sending
        finally:
            await tasks.end(sending)
            await fetcher.close()
    pairs = itertools.chain.from_iterable(
        zip(acknowledged[number], arrived[number], strict=False) for number in range(partitions)
    )
    return [max(0.0, came - acked) for acked, came in pairs]


async def _send(
    sender: Sender, tps: list[tuple[str, int]], rate: float, count: int, acknowledged: dict[int, list[float]]
) -> None:
    body, started, futures = frames.batch([b"x" * 100]), time.monotonic(), []

    def note(into: list[float], future: object) -> None:
        into.append(time.monotonic())

    for number in range(count):
        ahead_s = started + number / rate - time.monotonic()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        topic, partition = tps[number % len(tps)]
        future = sender.submit((topic, partition), [body])
        future.add_done_callback(partial(note, acknowledged[partition]))
        futures.append(future)
    await asyncio.gather(*futures)


CASES: list[Case] = [
    Mirror("mirror-128k", "copies between two Kafka brokers, 128 KB batches of 1 KiB records, lz4", KAFKA, LARGE),
    Mirror("mirror-20k", "the same, 20 KB batches", KAFKA, SMALL, gb=0.3),
    Mirror("mirror-own", "copies between two of our brokers, 128 KB batches, lz4", PENSTOCK, LARGE),
    MirrorStart(
        "mirror-start",
        "started with 100 partitions between two of our brokers, 20 KB batches",
        PENSTOCK,
        SMALL,
        gb=0.1,
        partitions=100,
    ),
    Trickle(),
]
