"""A pipeline that runs for an hour while everything happens to it that an operator's year has: `make soak SOAK=3600 SEED=7`.

Two sources, a mirror, an aggregate cluster whose disk loses its power (as root; else it is killed), dedupe, a night and the
audit, all processes. Clients of librdkafka send ids, some of them again and again, over both sources. A round is an event
under load, or an operator's day: then the writers rest, something that only an operator can decide happens to the topic
`stormy`, its partitions must stop with words, and what the words advise is done. In the end all is compared with the ledger,
by a client of another maker; of `calm`, which meets kills and pauses alone, the audit must say that it is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka

from penstock.errors import KafkaError
from penstock.pipeline.clients.admin import LATEST, Admin
from support.harness import BrokerProcess
from support.logs import put_back
from support.lossy_disk import LossyDisk
from support.soak_ledger import Ledger
from support.stages import StageProcess, write_properties

T = TypeVar("T")
SOURCES = ("EWR", "JFK")
CALM, STORMY, GROWING = "calm", "stormy", "growing"
DEDUPED = (CALM, STORMY)
PARTITIONS = 3
BURST = 300  # records that a writer sends in a round, about
REPEATED = 0.2
LIMIT_S = 240.0  # for what must come on any machine
TRIES = 5
BROKER: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "log.retention.ms": -1,
}


class Wrong(AssertionError):
    """Something that must not be."""


class Soak:
    """One run in a folder of its own. Raises Wrong."""

    def __init__(self, folder: Path, seed: int, disk: LossyDisk | None) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.disk = disk
        self.ledger = Ledger()
        self.topics = [CALM, STORMY, GROWING]
        self.partitions = dict.fromkeys(self.topics, PARTITIONS)
        self.events: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()  # stages that ended by themselves and were started again, as their units do
        self.sources = {name: BrokerProcess(folder / name, BROKER) for name in SOURCES}
        self.hub = BrokerProcess((disk.path if disk else folder) / "hub", BROKER)
        self.hub.log_path = folder / "hub.log"
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
            "session.timeout.ms": 2000,
            "penstock.dedupe.data": folder / "dedupe",
            "penstock.dedupe.memory.max.ids": 2000,
            "penstock.dedupe.spill.ms": 5000,
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
        for broker in (*self.sources.values(), self.hub):
            broker.close()

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

            value = json.dumps({"id": word, "day": str(self.yesterday())})
            noon_ms = int(datetime.datetime.combine(self.yesterday(), datetime.time(12), datetime.UTC).timestamp() * 1000)
            producer.produce(topic, value, word, timestamp=noon_ms, on_delivery=told)
            producer.poll(0)

    def yesterday(self) -> datetime.date:
        """The night that is loaded in the end: the day before the run began."""
        if not hasattr(self, "_yesterday"):
            self._yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
        return self._yesterday

    def round(self) -> None:
        """An event, under load or while the writers rest."""
        writers = [
            threading.Thread(target=self.write, args=(name, self.dice.randrange(1 << 30)), name=name) for name in SOURCES
        ]
        for writer in writers:
            writer.start()
        quiet = self.dice.random() < 0.35
        if not quiet:
            time.sleep(self.dice.random())
            self._do(self.dice.choice(UNDER_LOAD))
        for writer in writers:
            writer.join()
        if quiet:
            self._do(self.dice.choice(AT_REST))
        self.keep_going()

    def _do(self, event: Callable[[Soak], None]) -> None:
        name = event.__name__.strip("_")
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        event(self)
        self.events[name] += 1

    # --- events under load -----------------------------------------------------------------------------------
    def _kill_a_source(self) -> None:
        source = self.sources[self.dice.choice(SOURCES)]
        source.kill()
        source.start()

    def _kill_the_hub(self) -> None:
        self.hub.kill()
        self.hub.start()

    def _cut_the_power(self) -> None:
        if self.disk is None:
            self._kill_the_hub()
            return
        self.disk.cut()
        self.hub.kill()
        self.disk.unmount()
        self.disk.mount()
        lock = self.hub.data / ".lock"
        if lock.exists() and len(lines := lock.read_text().splitlines()) == 3:
            process, boot_id, flushed = lines
            lock.write_text(f"{process}\n{boot_id[::-1]}\n{flushed}\n")  # as if another start of the machine had left it
        self.hub.start()

    def _kill_a_stage(self) -> None:
        stage = self.dice.choice((self.mirror, self.dedupe))
        stage.kill()
        stage.start(await_started=False)

    def _stop_a_stage(self) -> None:
        stage = self.dice.choice((self.mirror, self.dedupe))
        if stage.running:
            stage.signal(signal.SIGTERM)
            code = stage.wait()
            if code == -signal.SIGTERM and not stage.text():
                self.events["stopped before it could attend to signals"] += 1
            elif code not in (0, 1):
                raise Wrong(f"{stage.command} ended with {code}:\n{stage.text()[-3000:]}")
        stage.start(await_started=False)

    def _pause(self) -> None:
        every: list[StageProcess | BrokerProcess] = [self.mirror, self.dedupe, self.hub, *self.sources.values()]
        paused = self.dice.choice(every)
        if isinstance(paused, StageProcess) and not paused.running:
            return
        paused.signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.5, 6))
        paused.signal(signal.SIGCONT)

    def _run_two_mirrors(self) -> None:
        self.second.start(await_started=False)
        time.sleep(self.dice.uniform(1, 8))
        self.second.kill()

    # --- what happens while the writers rest ------------------------------------------------------------------
    def _add_a_topic(self) -> None:
        name = f"{GROWING}-{len(self.topics)}"
        source = self.sources[self.dice.choice(SOURCES)]
        for one in [source] if self.dice.random() < 0.5 else list(self.sources.values()):
            self.ask(one, lambda admin: admin.create_topics({name: PARTITIONS}))
        for one in self.sources.values():  # a writer would make it with the broker's default
            found = self.ask(one, lambda admin: admin.metadata([name], refresh=True))
            if name not in found.topics:
                self.ask(one, lambda admin: admin.create_topics({name: PARTITIONS}))
        self.topics.append(name)
        self.partitions[name] = PARTITIONS

    def _grow_a_topic(self) -> None:
        """Its lanes wait for the target's topic to have as many partitions; the operator grows all of them."""
        topic = self.dice.choice([one for one in self.topics if one.startswith(GROWING)])
        self._await_copied(topic)
        count = self.partitions[topic] = self.partitions[topic] + 1
        for broker in (*self.sources.values(), self.hub):
            self.ask(broker, lambda admin: admin.create_partitions({topic: count}))

    def _delete_and_create(self) -> None:
        """Half of the time before all of it was copied."""
        source = self.dice.choice(SOURCES)
        if self.dice.random() < 0.5:
            self._await_copied(STORMY)
        self._copied_so_far(STORMY, source)
        self.ask(self.sources[source], lambda admin: admin.delete_topics([STORMY]))
        lost = self.ledger.lost(STORMY, source)
        self.ask(self.sources[source], lambda admin: admin.create_topics({STORMY: PARTITIONS}))
        self._operate(source, f"the topic was recreated, {lost} ids with it")

    def _let_retention_overtake(self) -> None:
        """The mirror is away for longer than the source keeps records."""
        source = self.dice.choice(SOURCES)
        self._await_copied(STORMY)
        self.mirror.kill()
        self.write(source, self.dice.randrange(1 << 30))
        every = {(STORMY, partition): -1 for partition in range(PARTITIONS)}
        self.ask(self.sources[source], lambda admin: admin.delete_records(every))
        lost = self.ledger.lost(STORMY, source)
        self.mirror.start(await_started=False)
        self._operate(source, f"{lost} ids went by retention")

    def _restore_a_source(self) -> None:
        """Yesterday's copy takes the place of the topic's log: what was sent since is gone there, but was copied.

        Half of the time it grows beyond the mirror's positions before the mirror sees it again.
        """
        source = self.dice.choice(SOURCES)
        broker = self.sources[source]
        if broker.stop() != 0:
            raise Wrong(f"{source} did not stop well:\n{broker.log_text()[-3000:]}")
        kept = self.folder / "yesterday"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(broker.data, kept)
        broker.start()
        self.write(source, self.dice.randrange(1 << 30))
        for topic in self.topics:
            self._await_copied(topic)
        ends = self._ends(source, STORMY)
        broker.stop()
        outgrown = self.dice.random() < 0.5
        if outgrown:
            self.mirror.kill()
        for partition in range(PARTITIONS):
            put_back(kept / f"{STORMY}-{partition}", broker.data)
        broker.start()
        while outgrown and any(self._ends(source, STORMY)[partition] <= end for partition, end in ends.items()):
            self.write(source, self.dice.randrange(1 << 30))
        self._operate(source, f"the source was restored from a copy{' and has outgrown it' if outgrown else ''}")

    def _trim_under_dedupe(self) -> None:
        """Dedupe is away for longer than the aggregate keeps records."""
        self._await_copied(STORMY)
        self._await(self._is_deduped, "dedupe to be done")
        self.dedupe.kill()
        read = self.ledger.safe(STORMY)
        for source in SOURCES:
            self.write(source, self.dice.randrange(1 << 30))
        end = time.monotonic() + LIMIT_S
        while not self._is_copied(STORMY) and time.monotonic() < end:  # not `_await`, which would start dedupe
            time.sleep(0.2)
        for source in SOURCES:
            self.ledger.copied(STORMY, source)
        self.ask(self.hub, lambda admin: admin.delete_records({(STORMY, p): -1 for p in range(PARTITIONS)}))
        lost = self.ledger.trimmed(STORMY, read)
        self.dedupe.start(await_started=False)
        while not self._is_deduped(allowed=STORMY):
            self.keep_going()
            for row in self._deduped():
                if row["state"] == "stopped":
                    if "are gone before they were read" not in row["why"] or "penstock dedupe position" not in row["why"]:
                        raise Wrong(f"the words don't say what happened, or give no way on: {row['why']}")
                    self.events["partitions of dedupe that an operator let go on"] += 1
                    place, why = f"{STORMY}:{row['partition']}", f"{lost} ids went by retention"
                    self.run("dedupe", "position", place, "--at", "earliest", "--because", why)
            if time.monotonic() > end + LIMIT_S:
                raise Wrong(f"dedupe did not go on: {self._deduped()}\n{self.dedupe.text()[-4000:]}")
            time.sleep(0.3)

    # --- the operator -----------------------------------------------------------------------------------------
    def _operate(self, source: str, why: str) -> None:
        """Do for each partition of a source that stops what the words say, until all have gone on."""
        end = time.monotonic() + LIMIT_S
        while not self._is_copied(STORMY):
            self.keep_going()
            for row in self._lanes():
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
                raise Wrong(f"{source}/{STORMY} did not go on: {self._lanes()}\n{self.mirror.text()[-4000:]}")
            time.sleep(0.3)
        for name in SOURCES:
            self.ledger.copied(STORMY, name)

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run `penstock WORDS... --config FILE`; what it said on standard output."""
        command = [sys.executable, "-m", "penstock", *words, "--config", str(self.mirror.config)]
        for _ in range(TRIES):
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False
            )
            # A stage took its identity back meanwhile: the sentence says what to do, and an operator does it.
            if "run this again" not in done.stderr:
                break
            self.events["commands that a stage overtook"] += 1
        if done.returncode not in codes or "Traceback" in done.stderr:
            raise Wrong(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def _lanes(self) -> list[dict[str, Any]]:
        lines = self.run("mirror", "status", "--json", codes=(0, 1)).splitlines()
        rows: list[dict[str, Any]] = json.loads(lines[0]) if lines else []
        return rows

    def _ends(self, source: str, topic: str) -> dict[int, int]:
        tps = {(topic, partition): LATEST for partition in range(self.partitions[topic])}
        found = self.ask(self.sources[source], lambda admin: admin.list_offsets(tps, "read_committed"))
        return {partition: at.offset for (_, partition), at in found.items()}

    def _is_copied(self, topic: str) -> bool:
        for source in SOURCES:
            tps = [(topic, partition) for partition in range(self.partitions[topic])]
            group = f"penstock-mirror.mirror.{source}"
            try:
                ends = self._ends(source, topic)
                at = self.ask(self.hub, lambda admin: admin.committed(group, tps))  # noqa: B023 - used at once
            except KafkaError:
                return False
            for (_, partition), position in at.items():
                if position is None or position[0] != ends[partition]:
                    return False
                if json.loads(position[1]).get("stopped"):
                    return False
        return True

    def _copied_so_far(self, topic: str, source: str) -> None:
        if self._is_copied(topic):
            self.ledger.copied(topic, source)

    def _await_copied(self, topic: str) -> None:
        self._await(lambda: self._is_copied(topic), f"{topic} to be copied")
        for source in SOURCES:
            self.ledger.copied(topic, source)

    def _await(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            self.keep_going()
            if time.monotonic() > end:
                texts = "\n".join(stage.text()[-3000:] for stage in (self.mirror, self.dedupe))
                raise Wrong(f"waited in vain for {what}\n{self._lanes()}\n{texts}")
            time.sleep(0.2)

    # --- the end ----------------------------------------------------------------------------------------------
    def _deduped(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("dedupe", "status", "--json", codes=(0, 1)).splitlines()[0])
        return rows

    def _is_deduped(self, allowed: str = "") -> bool:
        """Whether dedupe has read all; `allowed` is the topic in which it may stand still."""
        rows = self._deduped()
        standing = [row for row in rows if row["state"] in ("stopped", "lost")]
        if any(row["topic"] != allowed for row in standing):
            raise Wrong(f"dedupe stopped, though nothing happened to it: {standing}")
        return not standing and all(row.get("lag") == 0 for row in rows) and len(rows) >= PARTITIONS * len(DEDUPED)

    def finish(self) -> list[str]:
        """All is copied, deduplicated, loaded and compared; what is wrong."""
        for topic in self.topics:
            self._await_copied(topic)
        self._await(self._is_deduped, "dedupe to be done")
        wrong = []
        for topic in self.topics:
            wrong += self.ledger.judge(topic, self._read(f"{topic}.deduped" if topic in DEDUPED else topic))
        one = {**self.properties, "topics": CALM, "penstock.etl.table": self.folder / "table"}
        one |= {"penstock.etl.schema": "id STRING NOT NULL, day DATE NOT NULL", "penstock.etl.event.day": "day"}
        self.mirror.kill()
        self.dedupe.kill()
        del one["topics.include"]
        write_properties(self.mirror.config, one)
        self.run("etl", "--night", str(self.yesterday()))
        try:
            self.run("audit")
        except Wrong as error:
            wrong.append(f"the audit of `{CALM}`: {error}")
        return wrong

    def _read(self, topic: str) -> list[str]:
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


UNDER_LOAD = (
    Soak._kill_a_source, Soak._kill_the_hub, Soak._cut_the_power, Soak._kill_a_stage, Soak._stop_a_stage, Soak._pause,
    Soak._run_two_mirrors,
)  # fmt: skip
AT_REST = (
    Soak._add_a_topic, Soak._grow_a_topic, Soak._delete_and_create, Soak._let_retention_overtake, Soak._restore_a_source,
    Soak._trim_under_dedupe,
)  # fmt: skip


def play(folder: Path, seconds: float, seed: int, disk: LossyDisk | None) -> int:
    """A whole run; 0 when nothing is wrong."""
    soak = Soak(folder, seed, disk)
    end = time.monotonic() + seconds
    try:
        soak.mirror.start()
        soak.dedupe.start(await_started=False)
        while time.monotonic() < end:
            soak.round()
        wrong = soak.finish()
    except AssertionError as error:
        wrong = [str(error)]
    finally:
        soak.close()
    for what, count in sorted((soak.events + soak.ended).items()):
        print(f"{what:45} {count}")
    print(f"{'records acknowledged':45} {sum(soak.ledger.acknowledged.values())}, {soak.ledger.unknown} of unknown fate")
    for one in wrong:
        print(f"WRONG: {one}")
    print("nothing is wrong" if not wrong else f"{len(wrong)} things are wrong; the logs are in {folder}")
    return 1 if wrong else 0


def main() -> int:
    """The command behind `make soak`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {seed}, folder {folder}", flush=True)
    with contextlib.ExitStack() as stack:
        lacking = LossyDisk.why_not("xfs")
        if lacking:
            print(f"{lacking}: the aggregate is killed instead", flush=True)
        disk = None if lacking else stack.enter_context(LossyDisk(folder, "xfs"))
        failed = play(folder, given.seconds, seed, disk)
    if not failed:
        shutil.rmtree(folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
