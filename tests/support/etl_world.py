"""A small pipeline for the load's tests: topics on a broker, with the mirror's and dedupe's positions set by hand.

One cluster plays source and aggregate, unless a source of its own is given: the mirror's group then stands on the very topic
that dedupe reads.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.etl import places, session
from penstock.pipeline.etl.jvm import JVM
from penstock.pipeline.etl.load import Load, Outcome
from penstock.pipeline.etl.night import Consent, Night
from penstock.pipeline.etl.storage import Storage

# In the order in which a night with rejects passes them, and then a reload that replaces rejects.
IN_A_NIGHT = [
    "etl.before_plan",
    "etl.plan_aside",
    "etl.after_plan",
    "etl.rows_written",
    "etl.reject_file_written",
    "etl.rejects_written",
    "etl.before_commit",
    "etl.after_commit",
    "etl.ready_aside",
    "etl.after_ready",
]
IN_A_RELOAD = ["etl.table_noted", "etl.rejects_cleaned"]

NUMBERS = itertools.count()
PARTITIONS = 2
SCHEMA = "id STRING NOT NULL, day DATE, seconds INT, note STRING"


def day_ms(day: str) -> int:
    """Noon of a day, ms since 1970."""
    noon = datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time(12), datetime.UTC)
    return int(noon.timestamp() * 1000)


@dataclass
class World:
    """Topics `flights-N` and `flights-N.deduped`, a configuration file, and what was sent."""

    bootstrap: str
    folder: Path
    source: str = ""
    place: str = ""  # of the table; a folder unless it is given
    properties: dict[str, str] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)  # of the topics
    topic: str = field(default_factory=lambda: f"flights-{os.getpid()}-{next(NUMBERS)}")
    sent: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._there: list[tuple[Producer, list[str]]] = []
        self._committed: Counter[int] = Counter()
        self.source_admin = self.admin = self._open(self.bootstrap, [self.topic, f"{self.topic}.deduped"])
        if self.source:
            self.source_admin = self._open(self.source, [self.topic])
        self.write_config()

    def _open(self, bootstrap: str, topics: list[str]) -> AdminClient:
        """Make topics at a cluster, which from now on gets what is sent."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, config=self.configs) for name in topics]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": self.topic, "linger.ms": 5})
        producer.init_transactions(30)
        self._there.append((producer, topics))
        return admin

    @property
    def table(self) -> str:
        """The table's folder or URI."""
        return self.place or str(self.folder / "table")

    @property
    def storage(self) -> Storage:
        """The files of the table."""
        config = job.load(self.config)
        return places.at(config["penstock.etl.table"], config)

    @property
    def config(self) -> Path:
        """The configuration's file."""
        return self.folder / "pipeline.properties"

    def write_config(self, **changes: str) -> None:
        """Write the configuration; keywords replace properties (`_` for `.`)."""
        properties = {
            "bootstrap.servers": self.bootstrap,
            "source.one.bootstrap.servers": self.source or self.bootstrap,
            "topics": self.topic,
            "penstock.dedupe.data": str(self.folder / "dedupe"),
            "penstock.etl.table": self.table,
            "penstock.etl.schema": SCHEMA,
            "penstock.etl.event.day": "day",
            "penstock.etl.clock": "records",
            "penstock.etl.wait.seconds": "0",
            "spark.driver.memory": "512m",
            **self.properties,
        }
        properties |= {name.replace("_", "."): value for name, value in changes.items()}
        self.config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def send(
        self,
        day: str,
        values: list[bytes | None],
        *,
        stamp: str | None = None,
        abort: bool = False,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Send values (alternating partitions) as one transaction, as the day's records, to input and output."""
        for producer, topics in self._there:
            producer.begin_transaction()
            for number, value in enumerate(values):
                for topic in topics:
                    place = {"partition": number % PARTITIONS, "timestamp": day_ms(stamp or day)}
                    producer.produce(topic, value, key=b"k", headers=headers, **place)
            # librdkafka drops what it hasn't sent when it aborts: without any of it there is no transaction to end.
            assert producer.flush(30) == 0
            (producer.abort_transaction if abort else producer.commit_transaction)(30)
        self._committed.update({} if abort else Counter(number % PARTITIONS for number in range(len(values))))

    def events(self, day: str, count: int, start: int = 0) -> None:
        """Send good events of a day."""
        numbers = range(start, start + count)
        self.send(day, [json.dumps({"id": f"{day}/{n}", "day": day, "seconds": n}).encode() for n in numbers])

    def _ends(self, admin: AdminClient, topic: str, isolation: IsolationLevel) -> list[int]:
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        deadline = time.monotonic() + 120
        while True:
            futures = admin.list_offsets(asked, isolation_level=isolation).values()
            try:
                return [future.result(30).offset for future in futures]
            except KafkaException as error:
                # Apache Kafka answers that a topic is created before its leaders lead.
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def ends(self, topic: str, admin: AdminClient | None = None) -> list[int]:
        """The end offset of each partition, once it is stable (a commit is answered before its markers are)."""
        admin = admin or self.admin
        while True:
            ends = self._ends(admin, topic, IsolationLevel.READ_UNCOMMITTED)
            if self._ends(admin, topic, IsolationLevel.READ_COMMITTED) == ends:
                return ends

    def commit(self, group: str, offsets: list[int], topic: str = "", *counters: str) -> None:
        """Commit positions in the input topic (or another one) under a group; these counters say that all was counted."""
        positions = {
            (topic or self.topic, p): (offset, json.dumps(dict.fromkeys(counters, self._committed[p])) if counters else "")
            for p, offset in enumerate(offsets)
        }

        async def commit() -> None:
            async with Admin(self.bootstrap) as admin:
                await admin.commit(group, positions)

        asyncio.run(commit())

    def describe_raw(self, **changes: str) -> None:
        """Add a table `raw` to the configuration: of the input topic, which is loaded after the mirror."""
        raw = {"topic": self.topic, "table": self.raw_table, "schema": SCHEMA, "event.day": "day", "after": "mirror"}
        self.write_config(**changes)
        with self.config.open("a") as file:
            file.writelines(f"etl.raw.{name}={value}\n" for name, value in raw.items())

    @property
    def raw_table(self) -> str:
        """The folder of the table `raw`."""
        return str(self.folder / "raw")

    def delete_records_before(self, offset: int, topic: str = "") -> None:
        """Delete the first records of the output topic (or another one)."""
        topic = topic or f"{self.topic}.deduped"
        before = [TopicPartition(topic, partition, offset) for partition in range(PARTITIONS)]
        for future in self.admin.delete_records(before).values():
            future.result(30)

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Set a config of a topic at the aggregate."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def arrive(self, less: int = 0) -> None:
        """Let mirror and dedupe have passed all that was sent, but for the last `less` offsets."""
        self.ends(f"{self.topic}.deduped")
        mirrored = [end - less for end in self.ends(self.topic, self.source_admin)]
        self.commit("penstock-mirror.mirror.one", mirrored, "", "records")
        self.commit("penstock-dedupe.dedupe", [end - less for end in self.ends(self.topic)], "", "read", "written")

    def audit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `penstock audit`."""
        command = [sys.executable, "-m", "penstock", "audit", *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)

    def etl(self, *arguments: str, failpoints: str = "", jvm: WarmJvm | None = None) -> subprocess.CompletedProcess[str]:
        """Run `penstock etl` as a process of its own, with its own JVM or a warm one."""
        command = [sys.executable, "-m", "penstock", "etl", "--config", str(self.config), "--json", *arguments]
        environment = os.environ | {"PENSTOCK_FAILPOINTS": failpoints} | (jvm.environment if jvm else {})
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
        if jvm:
            jvm.clear()
        return done


class WarmJvm:
    """Spark's JVM, kept over several processes that use it one after the other (a start costs many CPU seconds).

    A killed process leaves its Spark context behind, as a process that dies leaves its JVM for a moment.
    """

    def __init__(self, config: Path, folder: Path) -> None:
        self._spark = session.start(job.load(config), "UTC", folder)
        gateway = self._spark.sparkContext._gateway
        self._jvm = gateway.jvm
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
            "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        }
        self._spark.stop()

    def close(self) -> None:
        """End it, so that the next one of this process may have other jars and classes."""
        JVM.end()
        JVM.forget()

    def clear(self) -> None:
        """Stop the Spark context that the last process left, if it did, and forget what it knew of tables."""
        contexts = getattr(getattr(self._jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        left = contexts.getActive()
        if left.isDefined():
            left.get().stop()
        self._jvm.org.apache.spark.sql.classic.SparkSession.clearDefaultSession()
        self._jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()
        self._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


class Loading:
    """A load of nights on a loop of its own, for tests that have none."""

    def __init__(self, config: Config, **options: Any) -> None:
        self._load = Load(config, **options)
        self._runner = asyncio.Runner()

    def night(self, night: Night, *, reload: bool = False, **consent: Any) -> Outcome:
        """Load a night."""
        return self._runner.run(self._load.night(night, reload=reload, consent=Consent(**consent)))

    def next_night(self, first: Night) -> tuple[Night, bool]:
        """The night that the table takes next."""
        return self._runner.run(self._load.next_night(first))

    def take_back(self) -> Outcome | None:
        """Take back the nights that aren't over."""
        return self._runner.run(self._load.take_back())

    def close(self) -> None:
        """Close it, and the loop."""
        with self._runner as runner:
            runner.run(self._load.close())
