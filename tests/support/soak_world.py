"""A pipeline of processes to which `soak_events.py` lets everything happen, and its ledger.

Two sources, a mirror, an aggregate cluster, dedupe and two tables. Writers send ids, some of them again and again, over both
sources. Commands are run as an operator runs them, and what they answer is checked.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
import deltalake

from penstock.errors import KafkaError
from penstock.pipeline import job
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.etl import session
from support.clock import Clock
from support.harness import BrokerProcess
from support.lossy_disk import LossyDisk
from support.small_disk import SmallDisk
from support.soak_ledger import Ledger, TableLedger
from support.stages import StageProcess, write_properties

T = TypeVar("T")
SOURCES = ("EWR", "JFK")
CALM, STORMY, GROWING = "calm", "stormy", "growing"
DEDUPED = (CALM, STORMY)
PARTITIONS = 3
BURST = 300  # records that a writer sends in a round, about
REPEATED = 0.2
LIMIT_S = 240.0  # for what must come on any machine
NIGHT_LIMIT_S = 900.0  # for a command that starts Spark
TRIES = 5
NIGHTS = 60  # so many may be loaded before the last one
STALLED_MS = 3000
OFTEN_MS = 1000
DAY_S = 86_400
MONTH_S = 31 * DAY_S
RETENTION_MS = 7 * DAY_S * 1000
BROKER: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "penstock.ballast.bytes": 64 << 20,  # as by default: positions have to be committed while a disk is full
    # What is old goes at once, so that a wrong clock that isn't noticed does its harm while it is wrong.
    "log.retention.ms": RETENTION_MS,
    "log.initial.task.delay.ms": OFTEN_MS,
    "log.retention.check.interval.ms": OFTEN_MS,
    "offsets.retention.check.interval.ms": OFTEN_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": OFTEN_MS,
}


class Wrong(AssertionError):
    """Something that must not be."""


class Soak:
    """One run in a folder of its own. Raises Wrong."""

    def __init__(self, folder: Path, seed: int, disk: LossyDisk | None, small: Mapping[str, SmallDisk]) -> None:
        """`disk` is the aggregate's, `small` are those of the first source and of dedupe's stores, by name."""
        self.folder = folder
        self.dice = random.Random(seed)
        self.disk = disk
        self.disks = {**small, "hub": SmallDisk(disk.path)} if disk else {**small}
        self.ledger = Ledger()
        self.tables = {topic: TableLedger() for topic in DEDUPED}
        self.nights = (self.yesterday + datetime.timedelta(days=number - NIGHTS) for number in range(NIGHTS))
        self.restored: set[str] = set()
        """Topics of which the aggregate has lost records that were read before: the audit parts there."""
        self.last_night: datetime.date | None = None
        self.topics = [CALM, STORMY, GROWING]
        self.partitions = dict.fromkeys(self.topics, PARTITIONS)
        self.events: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()  # stages that ended by themselves and were started again, as their units do
        self.sources = {name: BrokerProcess((small[name].path if name in small else folder) / name, BROKER) for name in SOURCES}
        self.hub = BrokerProcess((disk.path if disk else folder) / "hub", BROKER)
        self.brokers = {**self.sources, "hub": self.hub}
        for name, broker in self.brokers.items():
            broker.log_path = folder / f"{name}.log"
        for broker in (*self.sources.values(), self.hub):
            broker.start()
        for source in self.sources.values():
            self.ask(source, lambda admin: admin.create_topics(dict.fromkeys(self.topics, PARTITIONS)))
        self.properties: dict[str, object] = {
            "bootstrap.servers": self.hub.bootstrap,
            **{f"source.{name}.bootstrap.servers": one.bootstrap for name, one in self.sources.items()},
            "topics": ",".join(DEDUPED),
            "topics.include": f"{GROWING}.*",
            "penstock.watch.ms": 500,
            "penstock.stalled.after.ms": STALLED_MS,
            "session.timeout.ms": 2000,
            "penstock.dedupe.data": (small["dedupe"].path if "dedupe" in small else folder) / "dedupe",
            "penstock.dedupe.memory.max.ids": 2000,
            "penstock.dedupe.spill.ms": 5000,
        }
        for topic in DEDUPED:
            self.properties |= {
                f"etl.{topic}.topic": f"{topic}.deduped",
                f"etl.{topic}.table": self.table(topic),
                f"etl.{topic}.schema": "id STRING NOT NULL, day DATE NOT NULL",
                f"etl.{topic}.event.day": "day",
            }
        config = write_properties(folder / "pipeline.properties", self.properties)
        self.mirror = StageProcess("mirror", config)
        self.second = StageProcess("mirror", config, "mirror2")
        self.dedupe = StageProcess("dedupe", config)
        self._numbers = iter(range(1 << 62))
        self._number_lock = threading.Lock()

    # --- what runs ------------------------------------------------------------------------------------------
    def ask(self, broker: BrokerProcess, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Ask a broker something."""

        async def one() -> T:
            async with Admin(broker.bootstrap) as admin:
                return await work(admin)

        return asyncio.run(one())

    def keep_going(self) -> None:
        """What a unit does: a stage that ended is started again."""
        for stage in (self.mirror, self.dedupe):
            if not stage.running:
                self.ended[stage.command] += 1
                stage.start(await_started=False)

    def close(self) -> None:
        """End all that was started."""
        for stage in (self.mirror, self.second, self.dedupe):
            if stage.running:
                stage.signal(signal.SIGCONT)
            stage.kill()
        for broker in self.brokers.values():
            broker.close()
        if "spark" in vars(self):
            self.spark.stop()

    # --- writers --------------------------------------------------------------------------------------------
    def write(self, source: str, seed: int) -> None:
        """One writer's share of a round."""
        dice = random.Random(seed)
        settings: dict[str, Any] = {
            "bootstrap.servers": self.sources[source].bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(LIMIT_S * 1000),
            "linger.ms": dice.choice((0, 5, 50)),
            "compression.type": dice.choice(("none", "gzip", "snappy", "lz4", "zstd")),
            # librdkafka's own default puts ids elsewhere than Java's clients do: dedupe has to bring them together.
            "partitioner": dice.choice(("murmur2_random", "consistent_random")),
        }
        producer = confluent_kafka.Producer(settings)
        try:
            for topic in self.topics:
                self._burst(producer, dice, topic, source)
        finally:
            producer.flush(LIMIT_S)

    def writers(self) -> list[threading.Thread]:
        """A writer for each source, at work."""
        seeds = {name: self.dice.randrange(1 << 30) for name in SOURCES}
        made = [threading.Thread(target=self.write, args=one, name=one[0]) for one in seeds.items()]
        for writer in made:
            writer.start()
        return made

    def write_everywhere(self) -> None:
        """A share of a round for each source."""
        for writer in self.writers():
            writer.join()

    def _burst(self, producer: confluent_kafka.Producer, dice: random.Random, topic: str, source: str) -> None:
        before = self.ledger.some(topic, 50) if topic in DEDUPED else []
        for _ in range(dice.randrange(BURST)):
            if before and dice.random() < REPEATED:
                word = dice.choice(before)
            else:
                with self._number_lock:
                    word = f"{source}-{next(self._numbers)}"

            def told(error: Any, _message: Any, word: str = word) -> None:
                if error is None:
                    self.ledger.acknowledge(topic, source, [word])
                else:
                    self.ledger.give_up(topic, [word])

            value = json.dumps({"id": word, "day": str(self.yesterday)})
            noon_ms = int(datetime.datetime.combine(self.yesterday, datetime.time(12), datetime.UTC).timestamp() * 1000)
            producer.produce(topic, value, word, timestamp=noon_ms, on_delivery=told)
            producer.poll(0)

    @functools.cached_property
    def yesterday(self) -> datetime.date:
        """The night that is loaded in the end: the day before the run began."""
        return datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)

    # --- the operator -----------------------------------------------------------------------------------------
    def operate(self, source: str, why: str) -> None:
        """Do for each partition of a source that stops what the words say, until all have gone on."""
        end = time.monotonic() + LIMIT_S
        while not self.is_copied(STORMY):
            self.keep_going()
            for row in self.lanes():
                if row["state"] != "stopped":
                    continue
                if (row["source"], row["topic"]) != (source, STORMY):
                    raise Wrong(f"{row} stopped, though nothing happened to it")
                if "penstock mirror begin" not in row["why"]:
                    raise Wrong(f"the words give no way on: {row['why']}")
                self.events["partitions that an operator let go on"] += 1
                lane = f"{STORMY}:{row['partition']}"
                self.run("mirror", "begin", source, lane, "--at", "earliest", "--because", why)
            if time.monotonic() > end:
                raise Wrong(f"{source}/{STORMY} did not go on: {self.lanes()}\n{self.mirror.text()[-4000:]}")
            time.sleep(0.3)
        for name in SOURCES:
            self.ledger.copied(STORMY, name)

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run `penstock WORDS... --config FILE`, which has to end with one of the codes; what it said on standard output."""
        return self.tried(*words, codes=codes).stdout

    def tried(
        self, *words: str, codes: tuple[int, ...], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The same; all that it said."""
        command = [sys.executable, "-m", "penstock", *words, "--config", str(self.mirror.config)]
        for _ in range(TRIES):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=NIGHT_LIMIT_S if words[0] == "etl" else LIMIT_S,
                check=False,
                env={**os.environ, **(environment or {})},
            )
            # A stage took its identity back meanwhile: the sentence says what to do, and an operator does it.
            if "run this again" not in done.stderr:
                break
            self.events["commands that a stage overtook"] += 1
        if done.returncode not in codes or "Traceback" in done.stderr:
            raise Wrong(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done

    def set_config(self, broker: BrokerProcess, topic: str, change: str) -> None:
        """Change a topic's config."""
        command = [sys.executable, "-m", "penstock", "configs", "set", "topic", topic, change, "-b", broker.bootstrap]
        subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)

    def lanes(self) -> list[dict[str, Any]]:
        lines = self.run("mirror", "status", "--json", codes=(0, 1)).splitlines()
        rows: list[dict[str, Any]] = json.loads(lines[0]) if lines else []
        return rows

    def starts(self, source: str, topic: str) -> dict[int, int]:
        """Where a source's logs of a topic begin, by partition."""
        starts = self.log_starts(self.sources[source])
        return {partition: starts[topic, partition] for partition in range(self.partitions[topic])}

    def ends(self, broker: str, topic: str) -> dict[int, int]:
        """Where a broker's logs of a topic end."""
        tps = {(topic, partition): LATEST for partition in range(self.partitions[topic])}
        found = self.ask(self.brokers[broker], lambda admin: admin.list_offsets(tps, "read_committed"))
        return {partition: at.offset for (_, partition), at in found.items()}

    def is_copied(self, topic: str) -> bool:
        for source in SOURCES:
            tps = [(topic, partition) for partition in range(self.partitions[topic])]
            group = f"penstock-mirror.mirror.{source}"
            try:
                ends = self.ends(source, topic)
                at = self.ask(self.hub, lambda admin: admin.committed(group, tps))  # noqa: B023 - used at once
            except KafkaError:
                return False
            for (_, partition), position in at.items():
                if position is None or position[0] != ends[partition]:
                    return False
                if json.loads(position[1]).get("stopped"):
                    return False
        return True

    def await_copied(self, topic: str) -> None:
        self.wait_for(lambda: self.is_copied(topic), f"{topic} to be copied")
        for source in SOURCES:
            self.ledger.copied(topic, source)

    def wait_for(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            self.keep_going()
            if time.monotonic() > end:
                texts = "\n".join(stage.text()[-3000:] for stage in (self.mirror, self.dedupe))
                raise Wrong(f"waited in vain for {what}\n{self.lanes()}\n{texts}")
            time.sleep(0.2)

    # --- the end ----------------------------------------------------------------------------------------------
    def deduped(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("dedupe", "status", "--json", codes=(0, 1)).splitlines()[0])
        return rows

    def is_deduped(self, allowed: str = "") -> bool:
        """Whether dedupe has read all; `allowed` is the topic in which it may stand still."""
        rows = self.deduped()
        standing = [row for row in rows if row["state"] in ("stopped", "lost")]
        if any(row["topic"] != allowed for row in standing):
            raise Wrong(f"dedupe stopped, though nothing happened to it: {standing}")
        return not standing and all(row.get("lag") == 0 for row in rows) and len(rows) >= PARTITIONS * len(DEDUPED)

    def read(self, topic: str) -> list[str]:
        """The ids of a topic's committed records, read by librdkafka."""
        settings = {
            "bootstrap.servers": self.hub.bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        consumer = confluent_kafka.Consumer(settings)
        count = self.partitions[topic.removesuffix(".deduped")]
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(count)])
        found, ends = [], 0
        while ends < count:
            message = consumer.poll(LIMIT_S)
            if message is None:
                raise Wrong(f"{topic} gave nothing more before its end")
            error = message.error()
            if error is None:
                found.append(message.key().decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ends += 1
            else:
                raise Wrong(f"{topic}: {error}")
        consumer.close()
        return found

    # --- tables -----------------------------------------------------------------------------------------------
    @functools.cached_property
    def spark(self) -> Any:
        """The session of the tables' owner."""
        return session.start(job.load(self.mirror.config), "UTC", self.folder / "spark-log")

    def table(self, topic: str) -> Path:
        """Where the table of a topic lies."""
        return self.folder / "tables" / topic

    def rows(self, topic: str) -> list[str]:
        """The ids of the rows that a table has, read by another maker's library."""
        ids: list[str] = deltalake.DeltaTable(self.table(topic)).to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return ids

    def settle(self) -> None:
        """Wait until all that was sent is copied and deduplicated."""
        for topic in self.topics:
            self.await_copied(topic)
        self.wait_for(self.is_deduped, "dedupe to be done")

    def covering(self, night: datetime.date | None) -> list[str]:
        """The options by which a person lets a night (None: any) take those along that are missing before it."""
        if self.last_night is None:
            return []
        first = self.last_night + datetime.timedelta(days=1)
        return [] if first == night else ["--covering-since", str(first)]

    def load(self, night: datetime.date) -> None:
        """Load a night into both tables, with all that has arrived; compare tables and audit with the ledger."""
        self.settle()
        self.run("etl", "--night", str(night), "--wait-seconds", "60", *self.covering(night))
        self.last_night = night
        for topic, ledger in self.tables.items():
            ledger.load(str(night), self.read(f"{topic}.deduped"))
        self.compare(is_loaded=True)

    def compare(self, *, is_loaded: bool = False) -> None:
        """Tables have what the ledger says, and the audit says "complete" of what is complete, and of nothing else.

        Unless all `is_loaded`, records may be on their way.
        """
        wrong = [words for topic, ledger in self.tables.items() for words in ledger.judge(topic, self.rows(topic))]
        answers = [json.loads(line) for line in self.run("audit", "--json", codes=(0, 1, 3, 4)).splitlines()]
        for answer in answers:
            topic = answer["table"]
            lost = self.ledger.lost_for_good(topic, self.read(f"{topic}.deduped"))
            what = "complete" if answer["complete"] else "parts" if answer["parts_at"] else "untold" if answer["untold"] else ""
            self.events[f"audits of {topic}: {what or 'on its way'}"] += 1
            if lost and what == "complete":
                wrong.append(f"the audit calls {topic} complete, and {len(lost)} ids are lost, such as {sorted(lost)[:3]}")
            if not lost and what == "parts" and topic not in self.restored:
                wrong.append(f"the audit of {topic} parts, though nothing is lost: {json.dumps(answer)}")
            if (topic == CALM and what == "untold") or (is_loaded and not what):
                wrong.append(f"the audit of {topic} is not complete: {json.dumps(answer)}")
            named = Counter[str]()
            for change in answer["hops"][-1]["changes"]:
                named.update(change["nights"])
            if +named != self.tables[topic].named:
                wrong.append(f"the audit names {dict(named)} deleted rows of {topic}, not {dict(self.tables[topic].named)}")
        if len(answers) != len(DEDUPED):
            wrong.append(f"{len(answers)} of {len(DEDUPED)} tables were audited")
        if wrong:
            raise Wrong("\n".join(wrong))

    # --- clocks -----------------------------------------------------------------------------------------------
    @functools.cached_property
    def clock(self) -> Clock:
        """That of the part whose clock is wrong."""
        return Clock(self.folder)

    def log_starts(self, broker: BrokerProcess) -> dict[tuple[str, int], int]:
        """Where each log of the pipeline's topics begins."""

        async def starts(admin: Admin) -> dict[tuple[str, int], int]:
            topics = (await admin.metadata([*self.topics, *(f"{topic}.deduped" for topic in DEDUPED)], refresh=True)).topics
            tps = [(name, partition) for name, info in topics.items() for partition in info.partitions]
            return {tp: at.offset for tp, at in (await admin.list_offsets(dict.fromkeys(tps, EARLIEST))).items()}

        return self.ask(broker, starts)

    def leader_epochs(self, broker: BrokerProcess) -> dict[tuple[str, int], int]:
        """The epoch of each partition's leader."""
        topics = self.ask(broker, lambda admin: admin.metadata([*DEDUPED], refresh=True)).topics
        return {(name, number): one.leader_epoch for name, info in topics.items() for number, one in info.partitions.items()}
