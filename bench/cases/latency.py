"""How long an acknowledgement takes when the broker is not busy, when its control plane is, when memory is held, and next
to clients whose requests are expensive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.hoarders import Hoarders
from penstock.bench.programs import ended
from penstock.bench.scraper import HTTP, Scraper
from penstock.bench.sides import FLOOR, KAFKA, PENSTOCK, Broker, Penstock
from penstock.bench.world import RECYCLED_TOPIC, World
from penstock.pyx.wire import messages, requests

HEARTBEAT_VERSION = 2
OLD_FETCH_VERSION = 1  # its answers are message sets of magic 0


@dataclass
class Paced(Case):
    """One record of 1 KiB a request, by the clock; `tail` adds a consumer at the end that measures send to arrival.

    `busy` adds requests to a control plane. On the floor's side it is that of another broker, in a process of its own: so
    much of the growth comes of processors that are busy, whichever process keeps them so.
    """

    name: str
    title: str
    rate: int = 2_000
    seconds: float = 20.0
    record_bytes: int = 1024
    tail: bool = False
    busy: bool = False
    sides: tuple[str, ...] = (PENSTOCK, KAFKA)

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(PENSTOCK if side == FLOOR else side)
        topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
        load = frames.produce(world.path(self.name), topic, 1, batch_bytes=self.record_bytes, record_bytes=self.record_bytes)
        options: dict[str, object] = {"rate": self.rate, "requests": int(self.rate * world.seconds(self.seconds))}
        frame = world.path("tail")
        if self.tail:
            options.update(tail=frame, tail_offset_at=frames.fetch(frame, topic), tail_from=0)
        try:
            done, cpu_s = world.measured(broker, lambda: self._load(world, side, broker, load, topic, options))
        finally:
            world.drop(broker, topic)
            load.path.unlink()
            frame.unlink(missing_ok=True)
        names = ["p50", "p99", "p999", *(["tail_p50", "tail_p99", "tail_p999"] if self.tail else [])]
        sample = {f"{name}_ms": float(done[f"{name}_us"]) / 1e3 for name in names}
        if self.busy:
            sample["control_requests_per_s"] = float(done["control_requests_per_s"])
        else:
            sample["cpu_us_per_request"] = cpu_s / float(done["requests"]) * 1e6
        return sample

    def _load(
        self, world: World, side: str, broker: Broker, load: frames.Frames, topic: str, options: dict[str, object]
    ) -> dict[str, float]:
        if not self.busy:
            return world.requests(broker, load, **options)[-1]
        control = world.path("control")
        control_requests(control, topic)
        seconds = world.seconds(self.seconds) + 0.5
        with _asked(world, side, broker) as asked:
            other = world.programs.start_idle("requests", to=asked.bootstrap, frames=control, seconds=seconds)
            try:
                done = world.requests(broker, load, **options)[-1]
            finally:
                answered = ended(other)[-1]
                control.unlink()
        return {**done, "control_requests_per_s": answered["requests"] / answered["seconds"]}


@contextmanager
def _asked(world: World, side: str, measured: Broker) -> Iterator[Broker]:
    """Whose control plane is kept busy."""
    if side != FLOOR:
        yield measured
        return
    with world.own_broker(PENSTOCK) as other:
        other.start()
        yield other


def control_requests(path: Path, topic: str) -> None:
    """Metadata and Heartbeats, the requests that a control plane gets most."""
    heartbeat = messages.HeartbeatRequest(group_id="nobody", generation_id=1, member_id="none")
    metadata = requests.metadata_request(topic)
    frames.write(path, [(metadata, requests.METADATA_VERSION), *[(heartbeat, HEARTBEAT_VERSION)] * 9])


@dataclass
class Hoarded(Case):
    """A new producer's large requests by the clock, alone and then beside connections that begin requests and stall."""

    name: str
    title: str
    announced: int
    sent: int
    connections: int = 500
    rate: int = 50
    seconds: float = 10.0
    request_bytes: int = 400_000
    sides: tuple[str, ...] = (PENSTOCK,)
    warm: bool = False

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side) as broker:
            broker.start()
            topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
            load = frames.produce(world.path(self.name), topic, 1, batch_bytes=self.request_bytes, record_bytes=1024)
            options = {"rate": self.rate, "requests": max(20, int(self.rate * world.seconds(self.seconds)))}
            alone = world.requests(broker, load, **options)[-1]
            port = int(broker.bootstrap.rpartition(":")[2])
            with Hoarders(port, self.connections, self.announced, self.sent) as hoarders:
                beside = world.requests(broker, load, **options)[-1]
            load.path.unlink()
        return {
            "p99_growth": float(beside["p99_us"]) / float(alone["p99_us"]),
            "p99_beside_ms": float(beside["p99_us"]) / 1e3,
            "p99_alone_ms": float(alone["p99_us"]) / 1e3,
            "p50_beside_ms": float(beside["p50_us"]) / 1e3,
            "closed": float(hoarders.closed),
        }


@dataclass
class Scraped(Case):
    """Records of 1 KiB by the clock, alone and then while the broker, which has many partitions, is scraped each second."""

    name: str = "ack-latency-scraped"
    title: str = "acknowledgement, 2,000 a second, 1 KiB each, while 1,000 partitions are scraped each second"
    rate: int = 2_000
    seconds: float = 20.0
    partitions: int = 1_000
    sides: tuple[str, ...] = (PENSTOCK,)
    warm: bool = False

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side, HTTP) as broker:
            assert isinstance(broker, Penstock)
            broker.start()
            requests.create_topic(broker.bootstrap, f"{self.name}-crowd", world.scaled(self.partitions, least=2))
            topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
            load = frames.produce(world.path(self.name), topic, 1, batch_bytes=1024, record_bytes=1024)
            options = {"rate": self.rate, "requests": int(self.rate * world.seconds(self.seconds))}
            world.requests(broker, load, **options)
            alone = world.requests(broker, load, **options)[-1]
            with Scraper(broker.http) as scraper:
                beside = world.requests(broker, load, **options)[-1]
            load.path.unlink()
        return {
            "p99_growth": float(beside["p99_us"]) / float(alone["p99_us"]),
            "p50_growth": float(beside["p50_us"]) / float(alone["p50_us"]),
            "p99_scraped_ms": float(beside["p99_us"]) / 1e3,
            "p99_alone_ms": float(alone["p99_us"]) / 1e3,
            "scrapes": float(scraper.scrapes),
        }


@dataclass
class Neighbours(Case):
    """Records of 1 KiB by the clock, alone and then next to clients whose requests are expensive, each kind in turn.

    inflating: connections that keep produces of 30 KB in flight which inflate to 30 MiB. converting: the same with fetches
    of an old version, whose answers are converted. compressing: one producer to a topic of zstd at level 22.
    """

    name: str
    title: str
    rate: int = 500
    seconds: float = 10.0
    connections: int = 2
    in_flight: int = 32
    inflated_bytes: int = 30 << 20
    sides: tuple[str, ...] = (PENSTOCK,)  # Kafka 4 has no Fetch below 4
    warm: bool = False

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side) as broker:
            broker.start()
            topic = world.topic(broker, self.name, 1, RECYCLED_TOPIC)
            load = frames.produce(world.path(self.name), topic, 1, batch_bytes=1024, record_bytes=1024)
            sample: Sample = {}
            alone = self._measure(world, broker, load)
            for kind in ("inflating", "converting", "compressing"):
                path = world.path(kind)
                many = kind != "compressing"
                self._prepare(world, broker, kind, path)
                connections, in_flight = (self.connections, self.in_flight) if many else (1, 1)
                other = world.programs.start_idle(
                    "requests", to=broker.bootstrap, frames=path, connections=connections, in_flight=in_flight, seconds=3600
                )
                try:
                    beside = self._measure(world, broker, load)
                    if other.poll() is not None:
                        ended(other)  # raises what it complained of
                finally:
                    other.kill()  # what it has in flight may take long
                    other.communicate()
                    path.unlink()
                sample[f"p99_growth_{kind}"] = beside / alone
                sample[f"p99_{kind}_ms"] = beside
            load.path.unlink()
        growth = max(value for name, value in sample.items() if name.startswith("p99_growth"))
        worst = max(value for name, value in sample.items() if name.endswith("_ms"))
        return {"p99_growth": growth, "p99_worst_ms": worst, "p99_alone_ms": alone, **sample}

    def _measure(self, world: World, broker: Broker, load: frames.Frames) -> float:
        requests_count = max(100, int(self.rate * world.seconds(self.seconds)))
        return float(world.requests(broker, load, rate=self.rate, requests=requests_count)[-1]["p99_us"]) / 1e3

    def _prepare(self, world: World, broker: Broker, kind: str, path: Path) -> None:
        """Writes the requests, and the log that they need."""
        zstd_22 = {"compression.type": "zstd", "compression.zstd.level": "22"}
        configs = {**RECYCLED_TOPIC, **(zstd_22 if kind == "compressing" else {})}
        topic = world.topic(broker, kind, 1, configs)
        if kind == "compressing":
            frames.produce(path, topic, 1, batch_bytes=500_000, record_bytes=1024)
            return
        size = self.inflated_bytes
        load = frames.produce(path, topic, 1, batch_bytes=size, record_bytes=size, codec="gzip", payloads=1, values=zeros)
        if kind == "converting":
            world.requests(broker, load, requests=1)
            wanted = messages.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            one = messages.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])
            frames.write(path, [(messages.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[one]), OLD_FETCH_VERSION)])


def zeros(size: int, count: int) -> list[bytes]:
    """Values of which a codec leaves nearly nothing."""
    return [bytes(size)] * count


CASES: list[Case] = [
    Paced("ack-latency", "acknowledgement, 2,000 a second, 1 KiB each, with a consumer at the end", tail=True),
    Paced(
        "ack-latency-busy",
        "the same while Metadata and Heartbeats come as fast as they are answered on another connection",
        tail=True,
        busy=True,
        sides=(PENSTOCK, KAFKA, FLOOR),
    ),
    Hoarded(
        "ack-latency-hoarded",
        "requests of 400 KB, 50 a second, beside 500 connections that announce 100 MiB, send 4 MiB and stall",
        announced=100 << 20,
        sent=4 << 20,
    ),
    Hoarded(
        "ack-latency-hoarded-ordinary",
        "the same beside 500 that announce 900 KB, send 600 KB and stall",
        announced=900_000,
        sent=600_000,
    ),
    Scraped(),
    Neighbours(
        "expensive-neighbours",
        "acknowledgement, 500 a second, 1 KiB each, next to 2 x 32 produces of 30 KB that inflate to 30 MiB, 2 x 32 fetches"
        " that convert them, or a zstd-22 topic",
    ),
]
