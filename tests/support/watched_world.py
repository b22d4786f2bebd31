"""A pipeline that shows its figures: two brokers, mirror, dedupe, nights, all of it under the eyes of a real Prometheus."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.ports import hold_ports
from support.etl_world import WarmJvm
from support.harness import BrokerProcess
from support.patience import LIMIT_S
from support.prometheus import Exporter
from support.stages import StageProcess, write_properties

TOPIC, STORMY = "flights", "stormy"
BROKER: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "log.retention.ms": -1,
}
# Of the generator, for rules that can fire within a test.
BOUNDS = ("--missing", "20m", "--window", "1h", "--hangs", "20m")


class World:
    """Datacenter ewr, and the aggregate with all that runs there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        parts = ("ewr", "hub", "mirror", "dedupe")
        self.addresses = {part: f"127.0.0.1:{port}" for part, port in zip(parts, hold_ports(len(parts)), strict=True)}
        self.brokers = {
            name: BrokerProcess(folder / name, {**BROKER, "penstock.http.listen": self.addresses[name]}).start()
            for name in ("ewr", "hub")
        }
        self.exporter = Exporter(folder)
        self._properties = self._described()
        self.config = write_properties(folder / "pipeline.properties", self._properties)
        self.mirror = StageProcess("mirror", self.config)
        self.dedupe = StageProcess("dedupe", self.config)
        self.admin = AdminClient({"bootstrap.servers": self.brokers["ewr"].bootstrap})
        self.create(TOPIC, 2)
        self.create(STORMY)
        self._sent = 0
        self._jvm: WarmJvm | None = None

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic at the source."""
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)

    def configure(self, **properties: object) -> None:
        """Change properties of the pipeline, for the next start of a part."""
        self._properties |= properties
        write_properties(self.config, self._properties)

    def _described(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self.brokers["hub"].bootstrap,
            "source.EWR.bootstrap.servers": self.brokers["ewr"].bootstrap,
            "topics": f"{TOPIC},{STORMY}",
            "penstock.watch.ms": 200,
            "session.timeout.ms": 2000,
            "penstock.dedupe.input.topic": TOPIC,
            "penstock.dedupe.data": self.folder / "dedupe",
            "penstock.dedupe.spill.ms": 2000,
            "penstock.etl.table": self.folder / "table",
            "penstock.etl.schema": "id STRING NOT NULL, day DATE NOT NULL",
            "penstock.etl.event.day": "day",
            "penstock.etl.wait.seconds": 0,
            "penstock.etl.textfile": self.exporter.textfile,
            "penstock.mirror.http.listen": self.addresses["mirror"],
            "penstock.dedupe.http.listen": self.addresses["dedupe"],
            "spark.driver.memory": "512m",
        }

    def close(self) -> None:
        """End all that was started."""
        for stage in (self.mirror, self.dedupe):
            stage.kill()
        for broker in self.brokers.values():
            broker.close()
        self.exporter.close()

    @property
    def targets(self) -> list[tuple[str, str, str, str]]:
        """What Prometheus is to scrape, as `Prometheus.watch` takes it."""
        return [
            ("broker", "ewr", "ewr-1", self.addresses["ewr"]),
            ("broker", "aggregate", "aggregate-1", self.addresses["hub"]),
            ("mirror", "aggregate", "aggregate-1", self.addresses["mirror"]),
            ("dedupe", "aggregate", "aggregate-1", self.addresses["dedupe"]),
            ("etl", "aggregate", "aggregate-1", self.exporter.address),
        ]

    def send(self, count: int, *, topic: str = TOPIC, bad: int = 0, keyed: bool = True, again: int = 0) -> None:
        """Records with ids, `again` of them twice, and some that are no rows."""
        producer = Producer(
            {"bootstrap.servers": self.brokers["ewr"].bootstrap, "partitioner": "murmur2_random", "acks": "all"}
        )
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for number in range(count + bad):
            identity = f"id-{self._sent}"
            self._sent += 1
            value = json.dumps({"id": identity, "day": today}) if number < count else "no row"
            for _ in range(2 if number < again else 1):
                producer.produce(topic, value, key=identity if keyed else None)
        assert producer.flush(LIMIT_S) == 0

    def commit(self, group: str, offset: int, topic: str = TOPIC) -> None:
        """A group's position at the source."""
        consumer = Consumer({"bootstrap.servers": self.brokers["ewr"].bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    def penstock(self, *words: object, code: int | None = 0, environment: Mapping[str, str] | None = None) -> str:
        """What a command says; it must end with this code."""
        command = [sys.executable, "-m", "penstock", *map(str, words), "--config", str(self.config)]
        inherited = os.environ | dict(environment or {})
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False, env=inherited)
        assert code is None or done.returncode == code, f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def night(self, days_ago: int, code: int | None = 0) -> str:
        """Load a night; the JVM is kept for the next one."""
        night = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=days_ago)
        self._jvm = self._jvm or WarmJvm(self.config, self.folder / "spark")
        try:
            return self.penstock("etl", "--night", night.isoformat(), code=code, environment=self._jvm.environment)
        finally:
            self._jvm.clear()
