"""An input topic, a ledger of what was sent to it, and a dedupe stage: what the dedupe stage's tests are made of.

The ledger is the truth: each record's value is a number of its own, so what the output must be is known record for
record: the first of each id, and all without one, in their order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.producer import Delivery, Producer
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.job import moved_topic
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, Record, records
from support.harness import topic_name
from support.stages import StageProcess, write_properties

T = TypeVar("T")
LIMIT_S = 150.0
CODECS = (0, 1, 2, 3, 4)
QUARANTINE = "penstock.quarantine"


class Cluster(Protocol):
    """A broker of ours or Apache Kafka."""

    @property
    def bootstrap(self) -> str: ...


class World:
    """One topic, deduplicated by a stage named like it, unless `penstock.dedupe.name` is given."""

    def __init__(self, folder: Path, cluster: Cluster, *, partitions: int = 1, **properties: object) -> None:
        self.cluster = cluster
        self.folder = folder
        self.topic = topic_name("events")
        self.output = f"{self.topic}.deduped"
        self.partitions = partitions
        self.sent: dict[int, list[tuple[str | None, int]]] = defaultdict(list)  # (id, value) by partition
        self.corrupt: dict[int, int] = defaultdict(int)  # records of batches that can't be opened
        self.random = random.Random(7)
        self._numbers = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)
        self.properties: dict[str, object] = {
            "bootstrap.servers": cluster.bootstrap,
            "topics": self.topic,
            "penstock.dedupe.name": self.topic,
            "penstock.dedupe.data": folder / "data",
            "penstock.watch.ms": 200,
            "penstock.dedupe.http.listen": "127.0.0.1:0",
            "penstock.dedupe.misplaced": "pass",  # ids come from a partition's own numbers
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        self.moved = moved_topic(self.topic, str(self.properties["penstock.dedupe.name"]))
        self.config = write_properties(folder / "pipeline.properties", self.properties)
        self.admin(lambda admin: admin.create_topics({self.topic: partitions}))
        self.stage = StageProcess("dedupe", self.config)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.stage.running:
            self.stage.signal(signal.SIGCONT)
            self.stage.kill()

    def other(self, name: str, **properties: object) -> StageProcess:
        """Another process of the same stage, with other properties."""
        changed = {**self.properties, **{name.replace("_", "."): value for name, value in properties.items()}}
        return StageProcess("dedupe", write_properties(self.folder / f"{name}.properties", changed), name)

    def ask(self, command: str, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`penstock dedupe COMMAND ... --config FILE`, to its end."""
        words = [sys.executable, "-m", "penstock", "dedupe", command, *arguments, "--config", str(config or self.config)]
        return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def answer(self, command: str, *arguments: str) -> Any:
        """What a command answers with `--json`; it must succeed."""
        done = self.ask(command, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def database(self) -> Path:
        """The folder of partition 0's worker."""
        return self.folder / "data" / f"{self.topic}-0"

    def admin(self, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Ask the cluster something."""

        async def ask() -> T:
            async with Admin(self.cluster.bootstrap) as admin:
                return await work(admin)

        return asyncio.run(ask())

    # Input

    def batch(
        self, partition: int, ids: Sequence[str | None], codec: int, header: str = "", note: bool = True, age_ms: int = 0
    ) -> bytes:
        """A batch of records with these ids as keys (or in a header), as old as that, noted in the ledger."""
        builder = BatchBuilder(codec)
        for word in ids:
            number = next(self._numbers)
            raw = None if word is None else word.encode()
            headers = [(header, raw)] if header and raw is not None else []
            key = b"the same" if header else raw
            assert builder.append(key, b"%d" % number, time.time_ns() // 1_000_000 - age_ms, headers)
            if note:
                self.sent[partition].append((word, number))
        return builder.build()

    def send(self, partition: int, batches: Sequence[bytes], topic: str = "") -> None:
        """Send batches as they are, to the input or another topic."""

        async def send(admin: Admin) -> None:
            sender = Sender(admin, idempotent=False)
            for batch in batches:
                await sender.submit((topic or self.topic, partition), [batch])

        self.admin(send)

    def some_ids(self, partition: int, count: int, repeats: float = 0.2) -> list[str | None]:
        """New ids with repeats among them: of these very ones, and of all that was sent before."""
        before = [word for word, _ in self.sent[partition] if word is not None]
        ids: list[str | None] = []
        for _ in range(count):
            if before and self.random.random() < repeats:
                word = self.random.choice(before)
            else:
                word = f"{partition}-{next(self._numbers)}-{self.random.getrandbits(64):x}"
            ids.append(word)
            before.append(word)
        return ids

    def fill(self, batches: int = 5, count: int = 100, repeats: float = 0.2, codecs: Sequence[int] = CODECS) -> None:
        """Send batches with repeats to every partition, in all codecs one after the other."""
        for partition in range(self.partitions):
            codec = itertools.cycle(codecs)
            made = [self.batch(partition, self.some_ids(partition, count, repeats), next(codec)) for _ in range(batches)]
            self.send(partition, made)

    def produce(self, count: int = 100, repeats: float = 0.2) -> None:
        """Send records with repeats to every partition by an idempotent producer: each is stored once, whoever is killed."""
        sent = list[Delivery]()
        with Producer(self.cluster.bootstrap) as producer:
            for partition in range(self.partitions):
                for word in self.some_ids(partition, count, repeats):
                    number, key = next(self._numbers), None if word is None else word.encode()
                    sent.append(producer.send(self.topic, key=key, value=b"%d" % number, partition=partition))
                    self.sent[partition].append((word, number))
            producer.flush(LIMIT_S)
        for delivery in sent:
            delivery.result()

    def mix(self, words: Sequence[str], count: int = 150, codecs: Sequence[int] = (0, 3, 4)) -> None:
        """Send a batch for each codec to every partition, of some of these ids, wherever they belong."""
        for codec in codecs:
            for partition in range(self.partitions):
                self.send(partition, [self.batch(partition, self.random.sample(words, count), codec)])

    # Output

    def exists(self, topic: str) -> bool:
        """Whether the cluster has a topic."""
        return topic in self.admin(lambda admin: admin.metadata([topic], refresh=True)).topics

    def position(self, partition: int = 0, topic: str = "") -> tuple[int, dict[str, Any]]:
        """The committed offset in the input (or another topic) and what is beside it; -1 while there is none."""
        tp = topic or self.topic, partition
        group = f"penstock-dedupe.{self.properties['penstock.dedupe.name']}"
        found = self.admin(lambda admin: admin.committed(group, [tp], require_stable=False))[tp]
        return (-1, {}) if found is None else (found[0], json.loads(found[1]))

    def end(self, topic: str, partition: int = 0) -> int:
        """A partition's last stable offset."""
        return self.admin(lambda admin: admin.end_offset((topic, partition), "read_committed"))

    def await_done(self, partitions: Sequence[int] | None = None, stage: StageProcess | None = None) -> None:
        """Wait until the positions are at the input's end."""
        stage = stage or self.stage
        deadline = time.monotonic() + LIMIT_S
        chosen = list(range(self.partitions) if partitions is None else partitions)
        for topic in (self.topic, self.moved):  # what moves has moved once the input is read
            for partition in chosen if topic == self.topic or self.exists(topic) else ():
                end = self.end(topic, partition)
                while self.position(partition, topic)[0] != end:
                    at = self.position(partition, topic)
                    assert stage.running, f"dedupe ended:\n{stage.text()}"
                    assert time.monotonic() < deadline, f"{at} is not at {end} of {topic}:\n{stage.text()}"
                    time.sleep(0.03)

    def batches(self, topic: str, partition: int = 0) -> list[RawBatch]:
        """The committed batches of a partition, raw."""
        tp: TopicPartition = (topic, partition)

        async def read(admin: Admin) -> list[RawBatch]:
            end = await admin.end_offset(tp, "read_committed")
            found: list[RawBatch] = []
            fetcher = Fetcher(admin, max_wait_ms=100)
            fetcher.assign({tp: 0})
            while fetcher.position(tp) < end:
                for fetched in await fetcher.fetch():
                    assert fetched.error is None, fetched.error
                    found += fetched.batches
            await fetcher.close()
            return found

        return self.admin(read)

    def records(self, partition: int = 0) -> list[Record]:
        """The committed records of the output."""
        return [record for batch in self.batches(self.output, partition) for record in records(batch)]

    @property
    def sets_aside(self) -> bool:
        """Whether records without an id go to the quarantine topic instead of the output."""
        return self.properties.get("penstock.dedupe.without.id") == "quarantine"

    def expected(self, partition: int = 0) -> list[int]:
        """The values that the output must have, in this order. An empty id is none."""
        seen: set[str] = set()
        values = []
        for word, value in self.sent[partition]:
            if word not in seen and (word or not self.sets_aside):
                values.append(value)
            if word:
                seen.add(word)
        return values

    def quarantined(self, partition: int = 0) -> list[Record]:
        """The committed records of the quarantine topic that came from a partition of this input."""
        found = [record for batch in self.batches(QUARANTINE) for record in records(batch)]
        came = {"topic": self.topic.encode(), "partition": b"%d" % partition}
        theirs = [record for record in found if came.items() <= dict(record.headers).items()]
        return [record for record in theirs if "byte" not in dict(record.headers)]  # else it is a batch's bytes

    def corrupt_aside(self, partition: int = 0) -> dict[int, bytes]:
        """The batches in the quarantine topic that came from a partition of this input, by offset."""
        found: dict[int, bytes] = {}
        for batch in self.batches(QUARANTINE):
            for record in records(batch):
                headers = {name: (value or b"").decode() for name, value in record.headers}
                if "byte" in headers and (headers["topic"], headers["partition"]) == (self.topic, str(partition)):
                    data = found.setdefault(int(headers["offset"]), b"")
                    assert int(headers["byte"]) == len(data)
                    found[int(headers["offset"])] = data + (record.value or b"")
        return found

    def run_once(self) -> None:
        """The stage, until it has read everything; it stops as asked."""
        self.stage.start()
        self.await_done()
        assert self.stage.stop() == 0, self.stage.text()

    def finish(self) -> None:
        """All is read, the stage stops as asked, and the output is exact."""
        self.await_done()
        assert self.stage.stop() == 0
        self.check()

    def check(self, partitions: Sequence[int] | None = None) -> None:
        """The output is the first of each id, in order; the committed counters are the logs' counts."""
        for partition in range(self.partitions) if partitions is None else partitions:
            wanted = self.expected(partition)
            assert [int(record.value or b"") for record in self.records(partition)] == wanted
            sent = self.sent[partition]
            counters = self.position(partition)[1]
            bad = self.corrupt[partition]
            assert (counters["read"], counters["written"]) == (len(sent) + bad, len(wanted))
            without = [value for word, value in sent if not word]
            aside = without if self.sets_aside else []
            if self.sets_aside:
                assert [int(record.value or b"") for record in self.quarantined(partition)] == aside
            assert counters["quarantined"] == bad + len(aside)
            assert counters["dropped"] == len(sent) - len(wanted) - len(aside)
            assert counters["without_id"] == len(without)

    def check_homes(self, home: Mapping[str, int]) -> int:
        """Each id is in the output once, in its home, and so is all without one; how many records that are."""
        sent = [entry for partition in range(self.partitions) for entry in self.sent[partition]]
        word_of = {value: word for word, value in sent if word}
        found = {p: [int(record.value or b"") for record in self.records(p)] for p in range(self.partitions)}
        words = {p: sorted(word_of[value] for value in values if value in word_of) for p, values in found.items()}
        met = set(word_of.values())
        assert words == {p: sorted(word for word in met if home[word] == p) for p in range(self.partitions)}
        without = sorted(value for word, value in sent if not word)
        assert sorted(value for values in found.values() for value in values if value not in word_of) == without
        return len(met) + len(without)

    def check_moved(self, home: Mapping[str, int]) -> None:
        """The same, and the counters of both inputs are the logs' counts."""
        written, totals = self.check_homes(home), defaultdict[str, int](int)
        for topic in (self.topic, self.moved):
            for partition in range(self.partitions):
                at = self.position(partition, topic)[1]
                assert at["read"] == at["written"] + at["dropped"] + at["quarantined"] + at["moved"]
                for name in ("read", "written", "moved"):
                    totals[f"{name} {topic}"] += at[name]
        assert totals[f"read {self.topic}"] == sum(map(len, self.sent.values()))
        assert totals[f"moved {self.topic}"] == totals[f"read {self.moved}"] > 0
        assert totals[f"moved {self.moved}"] == 0
        assert totals[f"written {self.topic}"] + totals[f"written {self.moved}"] == written

    def check_counters(self, partition: int = 0) -> None:
        """`check` where the beginning of the output has expired: by the committed counters alone."""
        counters = self.position(partition)[1]
        sent, wanted = len(self.sent[partition]), len(self.expected(partition))
        assert (counters["read"], counters["written"], counters["dropped"]) == (sent, wanted, sent - wanted)

    def expire_output(self, partition: int = 0, before: int = -1) -> None:
        """Remove the output's records before an offset (-1: all), as retention does."""
        self.admin(lambda admin: admin.delete_records({(self.output, partition): before}))

    def await_file(self, partition: int = 0, *, all_ids: bool = True) -> None:
        """Wait until ids of a partition (all that its output has, or any) are in files that the database knows of.

        A file that lies in the folder isn't enough: RocksDB links it before its manifest has it.
        """
        deadline = time.monotonic() + LIMIT_S
        while True:
            row = self.answer("status")[partition]
            if row["files"] and not (all_ids and row["only_in_memory"]):
                return
            assert time.monotonic() < deadline, f"{row}\n{self.stage.text()}"
