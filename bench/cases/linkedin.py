"""The rows that LinkedIn published in 2014 ("Benchmarking Apache Kafka: 2 million writes per second, on three cheap
machines"), under their own names, with the same tools: records of 100 bytes, 6 partitions.

Theirs were 50 million records on three brokers with six disks each, clients on three machines more, a network of 1 Gb/s. Ours
are 5 million (scaled) on one machine that also runs the clients: compare the two brokers here, not these with those.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.bench.case import Case, Sample
from penstock.bench.cases.clients import java, java_consume, java_produce, said, throughput
from penstock.bench.cases.cluster import replicated_topic
from penstock.bench.programs import ProgramError
from penstock.bench.world import RECYCLED_TOPIC, World

RECORD_BYTES = 100
PARTITIONS = 6
RECORDS = 5_000_000
PRODUCER = {"acks": "1", "buffer.memory": "67108864", "batch.size": "8196"}

# Name of the row -> what was published: records/s and MB/s (of 2^20 bytes).
PUBLISHED: dict[str, tuple[float, float]] = {
    "Single producer thread, no replication": (821_557, 78.3),
    "Single producer thread, 3x asynchronous replication": (786_980, 75.1),
    "Single producer thread, 3x synchronous replication": (421_823, 40.2),
    "Three producers, 3x async replication": (2_024_032, 193.0),
    "Single consumer": (940_521, 89.7),
    "Three consumers": (2_615_968, 249.5),
}
END_TO_END = "End-to-end latency"
END_TO_END_PUBLISHED_MS = {"p50_ms": 2.0, "p99_ms": 3.0, "p999_ms": 14.0}


@dataclass
class SingleProducer(Case):
    """One producer, a topic without replicas."""

    name: str = "linkedin-producer"
    title: str = "Single producer thread, no replication"

    def run(self, world: World, side: str) -> Sample:
        broker, count = world.broker(side), world.scaled(RECORDS, least=1000)
        topic = world.topic(broker, self.name, PARTITIONS, RECYCLED_TOPIC)
        try:
            done, cpu_s = world.measured(broker, lambda: java_produce(world, broker, topic, count, RECORD_BYTES, PRODUCER))
        finally:
            world.drop(broker, topic)
        sample = throughput(count, RECORD_BYTES, done["seconds"], cpu_s)
        return {"records_per_s": sample.pop("records_per_s"), **sample}


@dataclass
class Consumers(Case):
    """Consumers that read the whole topic each, from the page cache."""

    name: str
    title: str
    consumers: int
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        broker = world.broker(side)
        topic = world.topic(broker, self.name, PARTITIONS)
        self._topics[side] = topic
        count = world.scaled(RECORDS, least=1000)
        java_produce(world, broker, topic, count, RECORD_BYTES, {**PRODUCER, "batch.size": "131072"})

    def run(self, world: World, side: str) -> Sample:
        broker, count = world.broker(side), world.scaled(RECORDS, least=1000)
        done, cpu_s = world.measured(broker, lambda: java_consume(world, broker, self._topics[side], count, self.consumers))
        sample = throughput(int(done["records"]), RECORD_BYTES, done["seconds"], cpu_s)
        return {"records_per_s": sample.pop("records_per_s"), **sample}

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            world.drop(world.broker(side), self._topics[side])


@dataclass
class Replicated(Case):
    """So many producers, and a topic of three copies."""

    name: str
    title: str
    acks: str
    producers: int = 1

    def run(self, world: World, side: str) -> Sample:
        cluster, count = world.cluster(side), world.scaled(RECORDS / self.producers, least=1000)
        properties = {**PRODUCER, "acks": self.acks}
        with (
            replicated_topic(world, cluster, self.name, partitions=PARTITIONS, configs=RECYCLED_TOPIC) as name,
            ThreadPoolExecutor(self.producers) as threads,
        ):

            def produce(number: int) -> dict[str, float]:
                return java_produce(world, cluster, name, count, RECORD_BYTES, properties)

            done, cpu_s = world.measured(cluster, lambda: list(threads.map(produce, range(self.producers))))
        sample = throughput(count * self.producers, RECORD_BYTES, max(one["seconds"] for one in done), cpu_s)
        return {"records_per_s": sample.pop("records_per_s"), **sample}


_AVERAGE = re.compile(r"Avg latency: ([\d.]+) ms")
_PERCENTILES = re.compile(r"50th = ([\d.]+), 99th = ([\d.]+), 99.9th = ([\d.]+)")


@dataclass
class EndToEnd(Case):
    """One record at a time, from a producer through the broker to a consumer."""

    name: str = "linkedin-end-to-end"
    title: str = END_TO_END
    records: float = 10_000

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(side)
        topic = world.topic(broker, self.name, 1)
        count = world.scaled(self.records, least=100)
        arguments = (broker.bootstrap, topic, str(count), "1", str(RECORD_BYTES))
        try:
            out, cpu_s = world.measured(broker, lambda: said(java(world, "org.apache.kafka.tools.EndToEndLatency", *arguments)))
        finally:
            world.drop(broker, topic)
        average, percentiles = _AVERAGE.search(out), _PERCENTILES.search(out)
        if average is None or percentiles is None:
            raise ProgramError(f"EndToEndLatency said: {out[-500:]}")
        # The tool rounds percentiles to whole milliseconds; the average says more.
        return {
            "p50_ms": float(percentiles[1]),
            "p99_ms": float(percentiles[2]),
            "p999_ms": float(percentiles[3]),
            "average_ms": float(average[1]),
            "cpu_us_per_request": cpu_s / count * 1e6,
        }


CASES: list[Case] = [
    SingleProducer(),
    Consumers("linkedin-consumer", "Single consumer", 1),
    Consumers("linkedin-three-consumers", "Three consumers", 3),
    EndToEnd(),
]

CLUSTER_CASES: list[Case] = [
    Replicated("linkedin-async", "Single producer thread, 3x asynchronous replication", acks="1"),
    Replicated("linkedin-sync", "Single producer thread, 3x synchronous replication", acks="all"),
    Replicated("linkedin-three-producers", "Three producers, 3x async replication", acks="1", producers=3),
]
