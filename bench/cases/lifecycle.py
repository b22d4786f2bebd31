"""A broker's life: starting, memory, coming back after kill -9, many partitions."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.bench import frames, process
from penstock.bench.case import Case, Sample
from penstock.bench.sides import PENSTOCK, Broker
from penstock.bench.world import GB, World
from penstock.pyx.wire import messages, requests
from penstock.pyx.wire.connection import WireConnection
from penstock.pyx.wire.header import encode_request

RECORD_BYTES = 1024
BATCH_BYTES = 131_072
PARTITIONS = 6
API_VERSIONS_VERSION = 2


def first_produce(broker: Broker, topic: str) -> None:
    """Create a topic and produce one record, as early as the broker lets anybody."""

    def attempt() -> None:
        requests.create_topic(broker.bootstrap, topic, 1)
        with WireConnection(broker.bootstrap) as connection:
            requests.produce(connection, topic, {0: frames.batch([b"first"])})

    requests.patiently(attempt)


def first_fetch(broker: Broker, topic: str, partition: int) -> None:
    """Fetch the first record of a partition, as early as the broker lets anybody."""

    def attempt() -> None:
        with WireConnection(broker.bootstrap) as connection:
            answer = connection.ask(requests.fetch_request(topic, partition, 0, 1 << 20), requests.FETCH_VERSION)
            got = answer.responses[0].partitions[0]
            if got.error_code or not got.records:
                raise ConnectionError(f"not there yet, error {got.error_code}")

    requests.patiently(attempt)


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


@dataclass
class Start(Case):
    """From exec to the first acknowledged produce, in an empty folder that is formatted where that is needed."""

    name: str = "start"
    title: str = "exec to the first acknowledged produce"
    warm: bool = False

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side) as broker:
            started = time.monotonic()
            broker.launch()
            first_produce(broker, "first")
            return {"start_s": time.monotonic() - started, "start_cpu_s": broker.cpu_s()}


@dataclass
class InProcess(Case):
    """`with Broker() as b` in this process: from the call to the first acknowledged produce, imports aside."""

    name: str = "start-in-process"
    title: str = "a broker inside this process, to its first acknowledged produce"
    sides: tuple[str, ...] = (PENSTOCK,)

    def run(self, world: World, side: str) -> Sample:
        from penstock.broker import Broker  # here, as nothing else of the benchmarks runs a broker inside its process

        started = time.monotonic()
        with Broker() as broker:
            requests.create_topic(broker.bootstrap, "first", 1)
            with WireConnection(broker.bootstrap) as connection:
                requests.produce(connection, "first", {0: frames.batch([b"first"])})
            started_s = time.monotonic() - started
            stop_from = time.monotonic()
        return {"start_s": started_s, "stop_s": time.monotonic() - stop_from}


@dataclass
class Memory(Case):
    """Resident memory when idle, of each idle connection, and after a load; CPU when idle."""

    name: str = "memory"
    title: str = "memory and CPU at rest, after a load, and of idle connections"
    warm: bool = False
    rounds_max: int = 1
    connections: int = 5_000
    load_gb: float = 0.5

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side) as broker:
            broker.start()
            first_produce(broker, "first")
            time.sleep(world.seconds(10))
            idle_mib, idle_s = broker.rss_mib(), world.seconds(5, least=0.5)
            _, cpu_s = world.measured(broker, lambda: time.sleep(idle_s))
            each_kib = self._connections(world, broker)
            self._load(world, broker)
            return {
                "rss_idle_mib": idle_mib,
                "rss_after_load_mib": broker.rss_mib(),
                "rss_each_connection_kib": each_kib,
                "idle_cpu_percent": cpu_s / idle_s * 100,
            }

    def _connections(self, world: World, broker: Broker) -> float:
        """Resident memory of the broker that each of many connections takes once its first request is answered."""
        count = world.scaled(self.connections, least=20)
        process.allow_files(count + 1000)
        host, _, port = broker.bootstrap.rpartition(":")
        request = encode_request(messages.ApiVersionsRequest(), API_VERSIONS_VERSION, 1, frames.CLIENT_ID)
        before = broker.rss_mib()
        idle: list[socket.socket] = []
        try:
            for _ in range(count):
                idle.append(socket.create_connection((host, int(port)), timeout=30))
                idle[-1].sendall(struct.pack(">i", len(request)) + request)
                if not idle[-1].recv(65_536):
                    raise ConnectionError(f"the broker closed connection {len(idle)}")
            time.sleep(0.5)
            return (broker.rss_mib() - before) * 1024 / count
        finally:
            for one in idle:
                one.close()

    def _load(self, world: World, broker: Broker) -> None:
        for batch_bytes in (16_384, 1_000_000):
            topic = world.topic(broker, self.name, PARTITIONS)
            path = world.path(self.name)
            load = frames.produce(path, topic, PARTITIONS, batch_bytes=batch_bytes, record_bytes=RECORD_BYTES)
            count = world.scaled(self.load_gb / 2 * GB / load.value_bytes, least=4)
            world.requests(broker, load, connections=8, in_flight=4, requests=count)
            path.unlink()
            frame = world.path("fetch")
            at = frames.fetch(frame, topic)
            end = max(1, count // PARTITIONS // 8) * load.records
            world.fetch(broker, 4, frame, offset_at=at, until=end)
            frame.unlink()


@dataclass
class Recovery(Case):
    """kill -9 after a load on logs that grow; from exec to the first fetch that is answered."""

    name: str = "recovery"
    title: str = "kill -9 after 2 GB (scaled), to the first fetch"
    warm: bool = False
    rounds_max: int = 3
    gb: float = 2.0

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side) as broker:
            broker.start()
            topic = world.topic(broker, self.name, PARTITIONS)
            path = world.path(self.name)
            load = frames.produce(path, topic, PARTITIONS, batch_bytes=BATCH_BYTES, record_bytes=RECORD_BYTES)
            count = world.scaled(self.gb * GB / load.value_bytes, least=PARTITIONS)
            world.requests(broker, load, in_flight=4, requests=count)
            path.unlink()
            broker.kill()
            started = time.monotonic()
            broker.launch()
            first_fetch(broker, topic, PARTITIONS - 1)
            return {"to_first_fetch_s": time.monotonic() - started, "recovery_cpu_s": broker.cpu_s()}


@dataclass
class Partitions(Case):
    """A topic of many partitions: created, one record in each, restarted, restarted after kill -9."""

    name: str = "partitions-1000"
    title: str = "1,000 partitions (scaled) with a record in each"
    warm: bool = False
    rounds_max: int = 3
    partitions: int = 1_000

    def run(self, world: World, side: str) -> Sample:
        count = world.scaled(self.partitions, least=4)
        body = frames.batch([b"one"])
        with world.own_broker(side, many_files=True) as broker:
            broker.start()
            first_produce(broker, "first")
            started, cpu_s = time.monotonic(), broker.cpu_s()
            requests.create_topic(broker.bootstrap, "many", count)
            created_s = time.monotonic() - started
            with WireConnection(broker.bootstrap, 60) as connection:
                requests.produce(connection, "many", dict.fromkeys(range(count), body))
            sample = {"create_and_produce_s": time.monotonic() - started, "create_s": created_s}
            sample["create_and_produce_cpu_s"] = broker.cpu_s() - cpu_s
            sample["rss_mib"] = broker.rss_mib()
            sample["stop_s"] = timed(broker.stop)
            sample["clean_restart_s"] = timed(lambda: self._back(broker, count))
            broker.kill()
            sample["restart_after_kill_s"] = timed(lambda: self._back(broker, count))
            return sample

    def _back(self, broker: Broker, count: int) -> None:
        broker.launch()
        for partition in (count - 1, 0):
            first_fetch(broker, "many", partition)


CASES: list[Case] = [Start(), InProcess(), Memory(), Recovery(), Partitions()]
