"""Common clients: librdkafka through a small C program, and the performance tools that Apache Kafka brings."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field

from penstock.bench.apache_kafka import LOG4J, kafka_classpath
from penstock.bench.case import Case, Sample
from penstock.bench.clusters import Cluster
from penstock.bench.programs import ProgramError, Programs, ended
from penstock.bench.sides import Broker
from penstock.bench.world import GB, RECYCLED_TOPIC, Skipped, World

PARTITIONS = 4
LARGE = {"batch.size": "131072", "linger.ms": "10"}
SMALL = {"batch.size": "16384", "linger.ms": "5"}
QUEUE = {"queue.buffering.max.kbytes": "262144", "queue.buffering.max.messages": "500000", "batch.num.messages": "100000"}
JAVA_LIMIT_S = 600.0


def rdkafka(
    programs: Programs, mode: str, broker: Broker, topic: str, count: int, size: int, properties: dict[str, str]
) -> subprocess.Popen[str]:
    """Start programs/rdkafka.c. Raises Skipped when librdkafka isn't there."""
    try:
        programs.path("rdkafka")
    except ProgramError as error:
        raise Skipped(str(error)) from None
    given = [f"{name}={value}" for name, value in {"log_level": "2", **properties}.items()]
    return programs.start("rdkafka", mode, broker.bootstrap, topic, str(count), str(size), *given)


@dataclass
class RdProduce(Case):
    """librdkafka produces as fast as it can; the client, not the broker, is the limit on few cores."""

    name: str
    title: str
    records: float
    properties: dict[str, str]
    record_bytes: int = 1024
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        self._topics[side] = world.topic(world.broker(side), self.name, PARTITIONS, RECYCLED_TOPIC)

    def run(self, world: World, side: str) -> Sample:
        broker, count = world.broker(side), world.scaled(self.records, least=1000)
        given = {"acks": "1", **QUEUE, **self.properties}

        def produce() -> dict[str, float]:
            return ended(rdkafka(world.programs, "produce", broker, self._topics[side], count, self.record_bytes, given))[-1]

        done, cpu_s = world.measured(broker, produce)
        return throughput(count, self.record_bytes, done["seconds"], cpu_s, done["client_cpu_s"])

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            world.drop(world.broker(side), self._topics[side])


@dataclass
class RdConsume(Case):
    """librdkafka consumes a topic from its start, each consumer all of it."""

    name: str
    title: str
    records: float
    consumers: int
    record_bytes: int = 1024
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        broker = world.broker(side)
        topic = world.topic(broker, self.name, PARTITIONS)
        self._topics[side] = topic
        given = {"acks": "1", **QUEUE, **LARGE}
        count = world.scaled(self.records, least=1000)
        ended(rdkafka(world.programs, "produce", broker, topic, count, self.record_bytes, given))

    def run(self, world: World, side: str) -> Sample:
        broker, topic, count = world.broker(side), self._topics[side], world.scaled(self.records, least=1000)

        def consume() -> list[dict[str, float]]:
            running = [rdkafka(world.programs, "consume", broker, topic, count, 0, {}) for _ in range(self.consumers)]
            return [ended(process)[-1] for process in running]

        done, cpu_s = world.measured(broker, consume)
        seconds = max(one["seconds"] for one in done)
        client_cpu_s = sum(one["client_cpu_s"] for one in done)
        return throughput(count * self.consumers, self.record_bytes, seconds, cpu_s, client_cpu_s)

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            world.drop(world.broker(side), self._topics[side])


def throughput(records: int, size: int, seconds: float, cpu_s: float, client_cpu_s: float | None = None) -> Sample:
    """What all of these say; GB are those of record values."""
    gb = records * size / GB
    sample = {
        "cpu_s_per_gb": cpu_s / gb,
        "mb_per_s": gb * 1e3 / seconds,
        "records_per_s": records / seconds,
        "cpu_s": cpu_s,
    }
    return sample if client_cpu_s is None else {**sample, "client_cpu_s": client_cpu_s}


# Java

_SENT = re.compile(r"(\d+) records sent, ([\d.]+) records/sec.*?([\d.]+) ms avg latency, ([\d.]+) ms max latency")
_PERCENTILES = re.compile(r"([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th")


def java(world: World, *arguments: str) -> subprocess.Popen[str]:
    """Start one of Kafka's programs with a heap of 512 MiB. Raises Skipped without Java or the jars."""
    if shutil.which("java") is None:
        raise Skipped("`java` is not installed")
    quiet = world.folder / "log4j2.yaml"
    if not quiet.exists():
        # Only what the tool itself has to say may come on standard output.
        quiet.write_text(LOG4J.replace("name: STDOUT,", "name: STDOUT, target: SYSTEM_ERR,"), encoding="utf-8")
    options = ["-Xmx512m", "-XX:+UseG1GC", "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={quiet}"]
    command = ["java", *options, "-cp", kafka_classpath(), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    """What a Java program printed at its end. Raises ProgramError when it failed."""
    try:
        out, complained = process.communicate(timeout=JAVA_LIMIT_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode != 0:
        raise ProgramError(f"{process.args[-1]!r}: {(complained or out).strip()[-500:]}")  # type: ignore[index]
    return out


def java_produce(
    world: World, broker: Broker | Cluster, topic: str, records: int, size: int, properties: dict[str, str]
) -> dict[str, float]:
    """ProducerPerformance: records, records_per_s, and latencies in ms as it counts them."""
    given = [f"{name}={value}" for name, value in properties.items()]
    out = said(
        java(
            world,
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", str(records)),
            *("--record-size", str(size), "--throughput", "-1"),
            *(("--command-property", *given) if given else ()),
        )
    )
    last = out.strip().splitlines()[-1]
    sent, percentiles = _SENT.search(last), _PERCENTILES.search(last)
    if sent is None or percentiles is None or int(sent[1]) != records:
        raise ProgramError(f"ProducerPerformance said: {out[-500:]}")
    return {
        "seconds": records / float(sent[2]),
        "p50_ms": float(percentiles[1]),
        "p99_ms": float(percentiles[3]),
        "p999_ms": float(percentiles[4]),
    }


def java_consume(world: World, broker: Broker, topic: str, records: int, consumers: int) -> dict[str, float]:
    """ConsumerPerformance, so many side by side, each in a group of its own: seconds of fetching of the slowest.

    The time that a group takes to form is left out, as the tool reports it apart.
    """
    running = [
        java(
            world,
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", str(records)),
            *("--timeout", "60000", "--group", f"{topic}-{world.path('group').name}", "--hide-header"),
        )
        for _ in range(consumers)
    ]
    outs = [said(process) for process in running]
    fetch_ms, got = 0.0, 0
    for out in outs:
        columns = [column.strip() for column in out.strip().splitlines()[-1].split(",")]
        got += int(columns[4])
        fetch_ms = max(fetch_ms, float(columns[7]))
    if got < records * consumers:
        raise ProgramError(f"ConsumerPerformance got {got} of {records * consumers} records")
    return {"seconds": max(fetch_ms, 1.0) / 1e3, "records": float(got)}


@dataclass
class JavaProduce(Case):
    """Kafka's own producer tool. Its client is by far the limit."""

    name: str
    title: str
    records: float
    record_bytes: int
    properties: dict[str, str]

    def run(self, world: World, side: str) -> Sample:
        broker, count = world.broker(side), world.scaled(self.records, least=1000)
        topic = world.topic(broker, self.name, PARTITIONS, RECYCLED_TOPIC)
        try:
            done, cpu_s = world.measured(
                broker, lambda: java_produce(world, broker, topic, count, self.record_bytes, self.properties)
            )
        finally:
            world.drop(broker, topic)
        sample = throughput(count, self.record_bytes, done.pop("seconds"), cpu_s)
        return {**sample, **done}


@dataclass
class JavaConsume(Case):
    """Kafka's own consumer tool."""

    name: str
    title: str
    records: float
    record_bytes: int
    consumers: int
    _topics: dict[str, str] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        broker, count = world.broker(side), world.scaled(self.records, least=1000)
        topic = world.topic(broker, self.name, PARTITIONS)
        self._topics[side] = topic
        java_produce(world, broker, topic, count, self.record_bytes, {"acks": "1", **LARGE})

    def run(self, world: World, side: str) -> Sample:
        broker, count = world.broker(side), world.scaled(self.records, least=1000)
        done, cpu_s = world.measured(broker, lambda: java_consume(world, broker, self._topics[side], count, self.consumers))
        return throughput(int(done["records"]), self.record_bytes, done["seconds"], cpu_s)

    def finish(self, world: World, side: str) -> None:
        if side in self._topics:
            world.drop(world.broker(side), self._topics[side])


CASES: list[Case] = [
    RdProduce("rdkafka-produce-128k", "librdkafka produces 1 KiB records, 128 KB batches", 1_000_000, LARGE),
    RdProduce("rdkafka-produce-16k", "librdkafka produces 1 KiB records, 16 KB batches", 500_000, SMALL),
    RdProduce(
        "rdkafka-produce-lz4",
        "librdkafka produces 1 KiB records of letters, 128 KB batches, lz4",
        500_000,
        {**LARGE, "compression.codec": "lz4"},
    ),
    RdConsume("rdkafka-consume-1", "librdkafka, 1 consumer, 1 KiB records", 400_000, 1),
    RdConsume("rdkafka-consume-4", "librdkafka, 4 consumers, 1 KiB records", 400_000, 4),
    JavaProduce(
        "java-produce-128k",
        "kafka-producer-perf-test, 1 KiB records, 128 KB batches, acks=all, idempotent",
        500_000,
        1024,
        {"acks": "all", **LARGE},
    ),
    JavaConsume("java-consume-1", "kafka-consumer-perf-test, 1 consumer, 1 KiB records", 400_000, 1024, 1),
]
