"""Source clusters, a target, and a ledger of what was sent: what the mirror's tests are made of.

The ledger is the truth: it has the ids and the compressed bytes of every batch that was committed at a source. Ids
are read back from the target by an independent client; the bytes of batches by ours, which alone gives them raw.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import confluent_kafka

from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch
from support.harness import BrokerProcess, topic_name
from support.stages import StageProcess, write_properties

T = TypeVar("T")
LIMIT_S = 150.0
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
HEADER_BYTES = 61


class Cluster(Protocol):
    """A broker of ours or Apache Kafka."""

    @property
    def bootstrap(self) -> str: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """One asynchronous step of a test."""
    return asyncio.run(work)


class World:
    """One topic, copied from some sources into one target by a mirror named like the topic."""

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, Cluster],
        target: Cluster,
        *,
        partitions: int = 2,
        source_configs: Mapping[str, str] | None = None,
        target_configs: Mapping[str, str] | None = None,
        **properties: object,
    ) -> None:
        self.sources = dict(sources)
        self.target = target
        self.topic = topic_name("flights")
        self.partitions = partitions
        self.ids: dict[TopicPartition, list[str]] = defaultdict(list)  # (source, partition) -> committed ids
        self.payloads: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self._numbers = itertools.count()
        self._random = random.Random(self.topic)
        folder.mkdir(parents=True, exist_ok=True)
        self.properties: dict[str, object] = {
            "bootstrap.servers": target.bootstrap,
            **{f"source.{name}.bootstrap.servers": source.bootstrap for name, source in sources.items()},
            "topics": self.topic,
            "penstock.mirror.name": self.topic,
            "penstock.watch.ms": 200,
            "penstock.mirror.http.listen": "127.0.0.1:0",
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        self.config = write_properties(folder / "pipeline.properties", self.properties)
        for source in self.sources.values():
            self.create(source, source_configs)
        if target_configs is not None:
            self.create(target, target_configs)
        self.mirror = StageProcess("mirror", self.config)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exception: object) -> None:
        self.mirror.kill()

    def configure(self, **properties: object) -> None:
        """Change properties in the pipeline's file, `_` for each dot; a mirror takes them at its next start."""
        self.properties |= {name.replace("_", "."): value for name, value in properties.items()}
        write_properties(self.config, self.properties)

    def create(self, cluster: Cluster, configs: Mapping[str, str] | None = None) -> None:
        """Create the topic at a cluster."""
        topics = {self.topic: self.partitions}
        self.admin(cluster, lambda admin: admin.create_topics(topics, configs=configs))

    def admin(self, cluster: Cluster, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Ask a cluster something."""

        async def ask() -> T:
            async with Admin(cluster.bootstrap) as admin:
                return await work(admin)

        return run(ask())

    def batch(
        self, source: str, partition: int, codec: str, count: int = 10, size: int = 100, age_ms: int = 0
    ) -> tuple[BatchBuilder, list[str]]:
        """A batch of records with new ids, as old as that by their timestamps."""
        builder = BatchBuilder(CODECS[codec])
        ids = [f"{source}-{partition}-{next(self._numbers)}" for _ in range(count)]
        for word in ids:
            value = self._random.randbytes(size // 2) + bytes(size - size // 2)
            assert builder.append(word.encode(), value, time.time_ns() // 1_000_000 - age_ms)
        return builder, ids

    def fill(self, batches: int = 10, codec: str = "lz4", sources: list[str] | None = None, **shape: int) -> None:
        """Send batches to each partition of the sources."""

        async def send(name: str) -> None:
            async with Admin(self.sources[name].bootstrap) as admin:
                sender = Sender(admin, idempotent=False)
                for partition in range(self.partitions):
                    for _ in range(batches):
                        builder, ids = self.batch(name, partition, codec, **shape)
                        data = builder.build()
                        await sender.submit((self.topic, partition), [data])
                        self._note(name, partition, ids, data)

        for name in sources or self.sources:
            run(send(name))

    def resend(self, source: str) -> None:
        """Send the first batch of a source once more, as a producer does that got no answer."""

        async def send(admin: Admin) -> None:
            batch = await admin.batch_at((self.topic, 0), 0)
            assert batch is not None
            await Sender(admin, idempotent=False).submit((self.topic, 0), [bytes(batch)])

        self.admin(self.sources[source], send)

    def fill_transactions(self, outcomes: str, codec: str = "lz4", sources: list[str] | None = None) -> None:
        """Send a transaction of two batches to each partition for each letter: c(ommit) or a(bort)."""

        async def send(name: str) -> None:
            async with Admin(self.sources[name].bootstrap) as admin:
                sender = TransactionalSender(admin, f"{self.topic}-{name}")
                await sender.init()
                for outcome in outcomes:
                    await self._transaction(sender, name, codec, outcome == "c")
                await sender.close()

        for name in sources or self.sources:
            run(send(name))

    async def _transaction(self, sender: TransactionalSender, name: str, codec: str, commit: bool) -> None:
        await sender.begin()
        sent = []
        for partition in range(self.partitions):
            tp = self.topic, partition
            for _ in range(2):
                builder, ids = self.batch(name, partition, codec)
                sequence = sender.next_sequence(tp, len(ids))
                data = builder.build(sender.producer_id, sender.producer_epoch, sequence, transactional=True)
                await sender.send_raw(tp, [data])
                sent.append((partition, ids, data))
        if not commit:
            await sender.abort()
            return
        await sender.commit()
        for partition, ids, data in sent:
            self._note(name, partition, ids, data)

    def _note(self, source: str, partition: int, ids: list[str], data: bytes) -> None:
        self.ids[source, partition] += ids
        self.payloads[source, partition].append(data[HEADER_BYTES:])

    def operate(self, *words: object, code: int | None = 0) -> str:
        """Run `penstock mirror WORDS...` as an operator would; what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "mirror", *map(str, words), "--config", str(self.config)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        assert code in (None, done.returncode) and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done.stdout + done.stderr if done.returncode else done.stdout

    def begin(self, source: str, lane: str = "", at: object = "earliest") -> str:
        """Let the lanes of a source (or one of them) begin."""
        return self.operate("begin", source, lane or self.topic, "--at", at, "--because", "the test says so")

    def status(self, code: int | None = 0) -> dict[tuple[str, int], dict[str, Any]]:
        """What `penstock mirror status` says of each lane."""
        rows = json.loads(self.operate("status", "--json", code=code).splitlines()[0])
        return {(row["source"], row["partition"]): row for row in rows}

    def replace(self, older: StageProcess) -> None:
        """Let the mirror take over from a paused one, which then goes on and must end without any effect."""
        self.fill(2)
        self.mirror.start()
        self.await_copied()
        assert "took over" in older.wait_replaced(lambda: self.fill(1))
        self.fill(2)
        self.await_copied()

    # What the target has

    def group(self, source: str) -> str:
        """The group of the mirror's positions in a source."""
        return f"penstock-mirror.{self.topic}.{source}"

    def positions(self, source: str) -> dict[int, tuple[int, str] | None]:
        """The committed positions by partition."""
        tps = [(self.topic, partition) for partition in range(self.partitions)]
        found = self.admin(self.target, lambda admin: admin.committed(self.group(source), tps))
        return {partition: value for (_, partition), value in found.items()}

    def ends(self, source: str) -> dict[int, int]:
        """The source's last stable offsets."""
        tps = {(self.topic, partition): LATEST for partition in range(self.partitions)}
        found = self.admin(self.sources[source], lambda admin: admin.list_offsets(tps, "read_committed"))
        return {partition: at.offset for (_, partition), at in found.items()}

    def await_copied(self, sources: list[str] | None = None, partitions: list[int] | None = None) -> None:
        """Wait until the positions are at the sources' last stable offsets."""
        deadline = time.monotonic() + LIMIT_S
        for name in sources or self.sources:
            wanted = {p: end for p, end in self.ends(name).items() if partitions is None or p in partitions}
            while True:
                positions = self.positions(name)
                if all(positions[p] is not None and positions[p][0] == end for p, end in wanted.items()):  # type: ignore[index]  # just seen
                    break
                assert self.mirror.running, f"the mirror ended:\n{self.mirror.text()}"
                assert time.monotonic() < deadline, f"{positions} is not {wanted}:\n{self.mirror.text()}"
                time.sleep(0.05)

    def batches(self) -> dict[int, list[RawBatch]]:
        """The committed batches of the target by partition, raw."""

        async def read() -> dict[int, list[RawBatch]]:
            found: dict[int, list[RawBatch]] = {p: [] for p in range(self.partitions)}
            tps = [(self.topic, partition) for partition in found]
            async with Admin(self.target.bootstrap) as admin:
                ends = await admin.list_offsets(dict.fromkeys(tps, LATEST), "read_committed")
                fetcher = Fetcher(admin, max_wait_ms=100)
                fetcher.assign(dict.fromkeys(tps, 0))
                while any(fetcher.position(tp) < ends[tp].offset for tp in tps):
                    for fetched in await fetcher.fetch():
                        assert fetched.error is None, fetched.error
                        found[fetched.partition] += fetched.batches
                await fetcher.close()
            return found

        return run(read())

    def check_ids(self) -> None:
        """Every id of the ledger is on the target once, in order of its source, and nothing else is."""
        for partition in range(self.partitions):
            found = list(self._read_ids(partition))
            wanted = [word for (_, p), ids in self.ids.items() if p == partition for word in ids]
            lost = Counter(wanted) - Counter(found)
            more = Counter(found) - Counter(wanted)
            assert not lost and not more, f"partition {partition}: lost {lost}, twice or not sent {more}"
            for name in self.sources:
                assert [word for word in found if word.startswith(f"{name}-")] == self.ids[name, partition]

    def _read_ids(self, partition: int) -> Iterator[str]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.target.bootstrap,
                "group.id": "check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(self.topic, partition, 0)])
        try:
            while True:
                message = consumer.poll(LIMIT_S)
                assert message is not None, "the target gave nothing"
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return
                yield message.key().decode()
        finally:
            consumer.close()

    def run_once(self) -> None:
        """The mirror, until it has copied everything; it stops as asked."""
        self.mirror.start()
        self.await_copied()
        assert self.mirror.stop() == 0, self.mirror.text()

    def finish(self) -> None:
        """All is copied, the mirror stops as asked, and the target is exact."""
        self.await_copied()
        assert self.mirror.stop() == 0
        self.check()

    def check(self) -> None:
        """Ids and bytes."""
        self.check_ids()
        self.check_payloads()

    def check_payloads(self) -> None:
        """The compressed bytes of every batch are those of the source, batch for batch, in its order."""
        for partition, batches in self.batches().items():
            left = {name: list(self.payloads[name, partition]) for name in self.sources}
            for batch in batches:
                payload = bytes(batch)[HEADER_BYTES:]
                owner = next((name for name, waiting in left.items() if waiting and waiting[0] == payload), None)
                assert owner is not None, f"a batch at {batch.base_offset} is nobody's next one"
                left[owner].pop(0)
            assert not any(left.values()), f"partition {partition} lacks batches"


@contextlib.contextmanager
def brokers(folder: Path, *names: str, **properties: object) -> Iterator[dict[str, BrokerProcess]]:
    """Brokers by name, all fresh."""
    small = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
    made = {name: BrokerProcess(folder / name, small) for name in names}
    try:
        for broker in made.values():
            broker.start()
        yield made
    finally:
        for broker in made.values():
            broker.close()


@contextlib.contextmanager
def alone(folder: Path, *sources: str, **properties: object) -> Iterator[tuple[World, dict[str, BrokerProcess]]]:
    """A world with brokers of its own, which a test may kill."""
    with (
        brokers(folder, *sources, "target") as clusters,
        World(folder / "w", {name: clusters[name] for name in sources}, clusters["target"], **properties) as made,  # type: ignore[arg-type]  # of the pipeline's file
    ):
        yield made, clusters
