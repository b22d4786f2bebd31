"""One input partition, deduplicated exactly once.

A turn: open the batches, leave out repeats, publish the rest and the input position in one transaction, then put the
ids into the store. A crash before the commit leaves nothing; a crash after it leaves a store that lacks ids which the
output has, and the next start repairs it before it looks at the input. So an id that is read again after a crash is
told from a duplicate: its record is in the output or it is not, and the position says from where to read on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from penstock import log
from penstock.dedupe.folder import StoreFolder
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import Position
from penstock.dedupe.quarantine import keep_aside
from penstock.dedupe.repair import REPAIRED, missing_topic, repair
from penstock.dedupe.sift import Sifted, sift
from penstock.failpoints import declare, failpoint
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.batches import send
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.fetcher import Fetched
from penstock.pipeline.lanes import OperatorNeeded, take_identity
from penstock.pipeline.transaction import TransactionalSender
from penstock.pyx.record.columns import Column
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.rocks import IdStore, RocksError

P = ParamSpec("P")
T = TypeVar("T")

REPORT_S = 10.0  # how often a busy worker says where it is

FENCED = declare("dedupe.fenced", "the identity is taken, the store is not repaired yet")
KEPT_ASIDE = declare("dedupe.kept_aside", "a rotten batch is in quarantine, the position is still before it")
SIFTED = declare("dedupe.sifted", "repeats are left out, nothing was published")
PUBLISHED = declare("dedupe.published", "the output is sent, the position is not")
OFFSETS_SENT = declare("dedupe.offsets_sent", "output and position are sent, not committed")
COMMITTED = declare("dedupe.committed", "the transaction is committed, the ids are not in the store")
FILE_WRITTEN = declare("dedupe.file_written", "a sorted file of ids is written, the database does not know it")
FILE_INGESTED = declare("dedupe.file_ingested", "the database has the file, memory was emptied")
ADDED = declare("dedupe.added", "all ids of the transaction are in the store")


@dataclass(frozen=True)
class Settings:
    """What all workers of a stage share. Sizes are bytes; `max_batch_bytes` is what the output topic takes."""

    stage: str
    group: str
    output_topic: str
    data: Path
    size_max_bytes: int
    memory_max_ids: int
    turn_bytes: int
    max_batch_bytes: int


class Topics(NamedTuple):
    """Input and output topic as the cluster has them: their ids (hexadecimal) and how many partitions both have."""

    input_id: str
    output_id: str
    partitions: int


class Worker:
    """Dedupes one partition: `take()` fences and repairs, `start()` gives the position, `turn()` is one transaction."""

    def __init__(self, tp: TopicPartition, settings: Settings, admin: Admin, source: IdSource) -> None:
        self.tp = tp
        self.output = settings.output_topic, tp[1]
        self.position = Position(0, "", "")
        self.folder = StoreFolder(settings.data / f"{tp[0]}-{tp[1]}")
        self.store: IdStore | None = None
        self._settings = settings
        self._admin = admin
        self._source = source
        self._sender: TransactionalSender | None = None
        self._work: asyncio.Future[Any] | None = None
        self._reported = time.monotonic()
        self._log = log.get("dedupe", topic=tp[0], partition=tp[1])

    async def take(self) -> None:
        """Fence the forerunner, learn the position, and make the store complete, before any input is looked at.

        The folder must be locked. Raises Fenced, OperatorNeeded, KafkaError, OSError.
        """
        topics = await self._topics()
        identity = f"penstock-dedupe.{self._settings.stage}.{self.tp[0]}-{self.tp[1]}"
        self._sender = await take_identity(self._admin, identity, self._sender)
        failpoint(FENCED)
        found = (await self._admin.committed(self._settings.group, [self.tp]))[self.tp]
        if found is not None:
            self.position = Position.parse(*found)
            self._check_topics(topics)
        else:
            await self._begin(topics)
        await self._repair()
        failpoint(REPAIRED)

    async def _begin(self, topics: Topics) -> None:
        """The first position, allowed only while the output is empty and with as many partitions as the others began."""
        end = (await self._admin.list_offsets({self.output: LATEST}))[self.output].offset
        if end > 0:
            raise OperatorNeeded(
                f"`{self.output[0]}` partition {self.output[1]} has data (end offset {end}), but group "
                f"`{self._settings.group}` has no input position; nothing is guessed: begin with an empty output topic"
            )
        for (topic, _), found in (await self._admin.all_committed(self._settings.group)).items():
            if topic == self.tp[0]:
                self._check_count(Position.parse(*found).partitions, topics.partitions)
        start = (await self._admin.list_offsets({self.tp: EARLIEST}))[self.tp].offset
        await self._commit(Position(start, topics.input_id, topics.output_id, partitions=topics.partitions))

    async def _repair(self) -> None:
        """A store that this process has already open may have ids beyond what was committed, so it is opened anew."""
        self._close_store()
        owner = f"`{self.output[0]}` {self.position.output_id} partition {self.output[1]}, {self._source}\n"
        try:
            self.folder.claim(owner)
            store = await self._in_thread(self._open_store)
            await repair(self._admin, self.output, store, self._source, self._note, self._settings.turn_bytes)
        except RocksError as error:
            raise self._store_failed(error) from None

    def _open_store(self) -> IdStore:
        settings = self._settings
        self.store = IdStore(str(self.folder.database), settings.size_max_bytes, settings.memory_max_ids)
        return self.store

    def _store_failed(self, error: RocksError) -> OperatorNeeded:
        return OperatorNeeded(
            f"the store failed: {error}; if the disk is full, make room and start again; if the database is damaged, "
            f"remove `{self.folder.path}`, and it is rebuilt from the output topic"
        )

    async def start(self) -> int:
        """The input offset to read from. Raises OperatorNeeded when the input is not the one of the position."""
        await self.check()
        start = (await self._admin.list_offsets({self.tp: EARLIEST}))[self.tp].offset
        end = (await self._admin.list_offsets({self.tp: LATEST}))[self.tp].offset
        if not start <= self.position.offset <= end:
            raise OperatorNeeded(
                f"the position {self.position.offset} is outside the input's log ({start} to {end}); nothing is "
                "skipped silently: commit the offset to go on from once you know what is missing"
            )
        self._log.info(f"reads from offset {self.position.offset}")
        return self.position.offset

    async def check(self) -> None:
        """Look whether input and output are still the topics that they were. Raises OperatorNeeded, KafkaError."""
        self._check_topics(await self._topics())

    def _check_topics(self, topics: Topics) -> None:
        self._check_input(topics.input_id)
        if topics.output_id != self.position.output_id:
            raise OperatorNeeded(
                f"the output topic was created anew (its id is {topics.output_id}, {self.position.output_id} was "
                f"written so far), so what was written is gone; delete group `{self._settings.group}` to dedupe the "
                "input again"
            )
        self._check_count(self.position.partitions, topics.partitions)

    def _check_count(self, began_with: int, partitions: int) -> None:
        if began_with not in (0, partitions):
            raise OperatorNeeded(
                f"`{self.tp[0]}` and `{self.output[0]}` had {began_with} partitions when the stage began and have "
                f"{partitions} now, so that ids meet other workers than before; begin with an empty output topic and a "
                "new `penstock.dedupe.name`"
            )

    def _check_input(self, topic_id: str) -> None:
        if topic_id != self.position.topic_id:
            raise OperatorNeeded(
                f"the input topic was created anew (its id is {topic_id}, {self.position.topic_id} was read so far); "
                "begin with an empty output topic and a new `penstock.dedupe.name`"
            )

    async def _topics(self) -> Topics:
        """Input and output topic as they are. Raises OperatorNeeded when they differ in their partitions, KafkaError."""
        cluster = await self._admin.metadata([self.tp[0], self.output[0]], refresh=True)
        for topic in (self.tp[0], self.output[0]):
            if topic not in cluster.topics:
                raise missing_topic(topic)
        read, written = cluster.topics[self.tp[0]], cluster.topics[self.output[0]]
        if len(read.partitions) != len(written.partitions):
            raise OperatorNeeded(
                f"`{self.tp[0]}` has {len(read.partitions)} partitions and `{self.output[0]}` "
                f"{len(written.partitions)}; they must have the same number, since an id must always meet the same "
                "worker"
            )
        return Topics(read.topic_id.hex(), written.topic_id.hex(), len(read.partitions))

    async def refresh(self) -> None:
        """Commit the position again, so that an idle one doesn't expire."""
        await self._commit(self.position)

    async def _commit(self, position: Position) -> None:
        assert self._sender is not None, "take the identity first"
        await self._sender.begin()
        await self._sender.send_offsets(self._settings.group, {self.tp: (position.offset, position.metadata())})
        await self._sender.commit()
        self.position = position

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Dedupe what was fetched in one transaction, then note its ids. Raises Fenced, KafkaError, OperatorNeeded."""
        assert self.store is not None, "take the identity first"
        for part in fetched:
            if part.topic_id is not None:
                self._check_input(part.topic_id.hex())
        batches = [batch for part in fetched for batch in part.batches]
        try:
            sifted = await self._in_thread(
                sift, batches, self.position.offset, self.store, self._source, self._settings.max_batch_bytes
            )
            for batch in sifted.rotten:
                self._keep_aside(batch)
            failpoint(SIFTED)
            complete_to = await self._publish(sifted, fetched[-1].next_offset)
            failpoint(COMMITTED)
            await self._note(sifted.ids, complete_to)
        except RocksError as error:
            raise self._store_failed(error) from None
        failpoint(ADDED)
        self._report(fetched[-1].last_stable_offset)

    def _keep_aside(self, batch: RawBatch) -> None:
        path = keep_aside(self._settings.data / "quarantine", *self.tp, batch)
        self._log.error(f"the input batch at offset {batch.base_offset} can't be opened: kept aside as `{path}`")
        failpoint(KEPT_ASIDE)

    async def _publish(self, sifted: Sifted, next_offset: int) -> int:
        """Output and input position in one transaction; the output offset up to which its ids are complete then."""
        sender, before = self._sender, self.position
        assert sender is not None, "take the identity first"
        rotten = sum(batch.record_count if batch.magic == 2 else 1 for batch in sifted.rotten)
        after = Position(
            next_offset,
            before.topic_id,
            before.output_id,
            before.read + sifted.read + rotten,
            before.written + sifted.written,
            before.dropped + sifted.dropped,
            before.quarantined + rotten,
            before.without_id + sifted.without_id,
            before.partitions,
        )
        await sender.begin()
        complete_to = await send(sender, self.output, sifted.batches)
        failpoint(PUBLISHED)
        await sender.send_offsets(self._settings.group, {self.tp: (after.offset, after.metadata())})
        failpoint(OFFSETS_SENT)
        await sender.commit()
        self.position = after
        return complete_to

    async def _note(self, ids: Column, complete_to: int) -> None:
        """Put ids of committed output into the store, which is complete to that output offset then."""
        store = self.store
        assert store is not None, "take the identity first"
        taken = 0
        while True:
            now_ms = time.time_ns() // 1_000_000
            taken = await self._in_thread(store.add, ids.data, ids.starts, ids.null, complete_to, now_ms, taken)
            if store.is_full():
                await self._in_thread(store.write_file)
                failpoint(FILE_WRITTEN)
                await self._in_thread(store.ingest_file)
                failpoint(FILE_INGESTED)
            if taken == len(ids.null):
                return

    def _report(self, input_end: int) -> None:
        """Say now and then what was done so far (DED-8)."""
        if self.store is None or time.monotonic() - self._reported < REPORT_S:
            return
        self._reported = time.monotonic()
        stats, at = self.store.stats(), self.position
        window_s = max(0, time.time_ns() // 1_000_000 - stats["oldest_ms"]) // 1000 if stats["oldest_ms"] else 0
        self._log.info(
            f"read {at.read}, dropped {at.dropped}, without id {at.without_id}, quarantined {at.quarantined}, "
            f"behind {input_end - at.offset}; ids {stats['ids_in_memory'] + stats['ids_in_files']}, "
            f"database {stats['size_bytes']} bytes in {stats['files']} files, window {window_s} s"
        )

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on the store in a thread. A cancelled worker leaves it running: `close` waits for it."""
        future = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        self._work = future
        return await asyncio.shield(future)

    def _close_store(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None

    async def close(self) -> None:
        """Close the store; ids in memory are read again from the output topic at the next start."""
        if self._work is not None:
            await asyncio.wait([self._work])
        self._close_store()
        self.folder.unlock()
