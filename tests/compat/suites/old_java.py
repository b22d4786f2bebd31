"""Kafka's own console programs of every age, 0.8.2 (Scala clients) to 3.9: what one writes it reads, in each codec."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

from suite import Check, Outcome, Run, each, expect, tool

from penstock.pipeline.etl import maven

NEEDS = "java, mvn"
VERSIONS = {
    "0.8.2.2": "kafka_2.11",
    "0.9.0.1": "kafka_2.11",
    "0.10.2.2": "kafka_2.11",
    "0.11.0.3": "kafka_2.11",
    "1.1.1": "kafka_2.11",
    "2.8.2": "kafka_2.13",
    "3.9.1": "kafka_2.13",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ZSTD_SINCE = (2, 1)
VALUES = [f"value {number} value" for number in range(200)]
MOVED = "org.apache.kafka.tools.consumer.ConsoleConsumer"  # where 3.8 and later have it
LIMIT_S = 120


@functools.cache
def classpath(version: str) -> str:
    """The class path of a version's programs, fetched through Maven."""
    jar = maven.Jar(f"org.apache.kafka:{VERSIONS[version]}:{version}", True)
    tools = [maven.Jar(f"org.apache.kafka:kafka-tools:{version}", True)] if numbers(version) >= (3, 5) else []
    return ":".join(str(path) for path in maven.fetch([jar, *tools]))


def numbers(version: str) -> tuple[int, ...]:
    """A version that compares."""
    return tuple(int(word) for word in version.split("."))


def java(version: str, program: str, *words: str, stdin: str = "") -> str:
    """Standard output of a program, which must succeed."""
    command = [tool("java"), "-Xmx128M", "-XX:TieredStopAtLevel=1", "-cp", classpath(version), program, *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(done.returncode == 0, program, done.stderr[-1500:])
    return done.stdout


def write(run: Run, version: str, topic: str, codec: str) -> None:
    """The values, a line each."""
    to = ["--broker-list", run.bootstrap, "--topic", topic, "--compression-codec", codec]
    java(version, "kafka.tools.ConsoleProducer", *to, stdin="".join(f"{value}\n" for value in VALUES))


def read(run: Run, version: str, topic: str) -> list[str]:
    """All values, in no order (0.8's reader has no groups without ZooKeeper: it reads each partition)."""
    if numbers(version) < (0, 9):
        out = ""
        for partition in ("0", "1", "2"):
            of = ["--broker-list", run.bootstrap, "--topic", topic, "--partition", partition, "--offset", "-2"]
            out += java(version, "kafka.tools.SimpleConsumerShell", *of, "--no-wait-at-logend")
    else:
        new = ["--new-consumer"] if numbers(version) < (1, 0) else []
        program = (
            "kafka.tools.ConsoleConsumer" if numbers(version) < (3, 8) else "org.apache.kafka.tools.consumer.ConsoleConsumer"
        )
        of = ["--bootstrap-server", run.bootstrap, "--topic", topic, "--from-beginning"]
        out = java(version, program, *new, *of, "--max-messages", str(len(VALUES)))
    return sorted(line for line in out.splitlines() if line.startswith("value "))


def round_trip(run: Run, version: str, codec: str) -> None:
    topic = f"java-{version}-{codec}-{uuid4().hex[:8]}"
    write(run, version, topic, codec)
    expect(read(run, version, topic) == sorted(VALUES), "what was read isn't what was written")


CHECKS: dict[str, Check] = {
    f"round_trip_{version}_{codec}": partial(round_trip, version=version, codec=codec)
    for version in VERSIONS
    for codec in CODECS
    if codec != "zstd" or numbers(version) >= ZSTD_SINCE
}


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of all checks, in order."""
    yield from each(run, CHECKS)
