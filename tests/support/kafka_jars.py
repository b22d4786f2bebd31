"""Apache Kafka for tests: one KRaft node with small settings, so that many fit beside each other."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from penstock.bench import apache_kafka
from penstock.bench.apache_kafka import KAFKA_VERSION, ApacheCluster, kafka_classpath
from support.class_archive import archived
from support.harness import output

__all__ = ["KAFKA_VERSION", "ApacheCluster", "ApacheKafka", "classes", "java", "jvm", "kafka_classpath"]

HEAP = ["-Xmx384M", "-Xms128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]

PROPERTIES = {
    "num.network.threads": "2",
    "num.io.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
}


@functools.cache
def classes() -> list[str]:
    """A JVM's options for the archive of the newest Kafka's classes."""
    return archived("kafka", kafka_classpath(), _run_once)


def jvm(version: str = KAFKA_VERSION) -> list[str]:
    """A JVM's options for Kafka's programs. The newest version's are the ones that start often: their classes are archived."""
    return HEAP + (classes() if version == KAFKA_VERSION else [])


def _run_once(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
        node = apache_kafka.ApacheKafka(Path(folder), PROPERTIES, jvm=HEAP)
        node.jvm.append(f"-XX:ArchiveClassesAtExit={archive}")
        node.start()
        node.stop()


def java(tool: str, *arguments: str, version: str = KAFKA_VERSION, stdin: str = "") -> str:
    """What one of Kafka's programs printed, by the name of its class."""
    return output(["java", *jvm(version), "-cp", kafka_classpath(version), tool, *arguments], stdin=stdin)


class ApacheKafka(apache_kafka.ApacheKafka):
    """One node, started. Topics aren't made by themselves; retention is off."""

    def __init__(self, folder: Path, version: str = KAFKA_VERSION, **properties: str) -> None:
        """Format a node in folder and start it. Keywords are more properties, `_` for `.` in their names."""
        more = {name.replace("_", "."): value for name, value in properties.items()}
        super().__init__(folder, {**PROPERTIES, **more}, version=version, jvm=jvm(version))
        self.start()
