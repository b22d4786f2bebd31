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
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from penstock import log
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import Position
from penstock.dedupe.quarantine import keep_aside
from penstock.dedupe.repair import REPAIRED, missing_topic, repair
from penstock.dedupe.sift import Sifted, sift
from penstock.failpoints import declare, failpoint
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.batches import prepare, send
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.fetcher import Fetched
from penstock.pipeline.lanes import OperatorNeeded, take_identity
from penstock.pipeline.transaction import TransactionalSender
from penstock.pyx.rocks import IdStore, RocksError

P = ParamSpec("P")
T = TypeVar("T")

FENCED = declare("dedupe.fenced", "the identity is taken, the store is not repaired yet")
SIFTED = declare("dedupe.sifted", "repeats are left out, nothing was published")
PUBLISHED = declare("dedupe.published", "the output is sent, the position is not")
OFFSETS_SENT = declare("dedupe.offsets_sent", "output and position are sent, not committed")
COMMITTED = declare("dedupe.committed", "the transaction is committed, the ids are not in the store")
ADDED = declare("dedupe.added", "the ids are in the store's memory")
FILE_WRITTEN = declare("dedupe.file_written", "a sorted file of ids is written, the database does not know it")
FILE_INGESTED = declare("dedupe.file_ingested", "the database has the file, memory was emptied")


class Worker:
    """Dedupes one partition: `take()` fences and repairs, `start()` gives the position, `turn()` is one transaction."""

    def __init__(
        self,
        stage: str,
        group: str,
        tp: TopicPartition,
        output: TopicPartition,
        admin: Admin,
        source: IdSource,
        folder: Path,
        max_bytes: int,
        memory_max_ids: int,
        max_batch_bytes: int,
    ) -> None:
        self.tp = tp
        self.output = output
        self.position = Position(0, "")
        self.store: IdStore | None = None
        self._group = group
        self._transactional_id = f"penstock-dedupe.{stage}.{tp[0]}-{tp[1]}"
        self._admin = admin
        self._source = source
        self._folder = folder / f"{tp[0]}-{tp[1]}"
        self._quarantine = folder / "quarantine"
        self._max_bytes = max_bytes
        self._memory_max_ids = memory_max_ids
        self._max_batch_bytes = max_batch_bytes
        self._sender: TransactionalSender | None = None
        self._work: asyncio.Future[Any] | None = None
        self._log = log.get("dedupe", topic=tp[0], partition=tp[1])

    async def take(self) -> None:
        """Fence the forerunner, then make the store complete, then learn the position, in this order.

        Raises Fenced, OperatorNeeded, KafkaError.
        """
        self._sender = await take_identity(self._admin, self._transactional_id, self._sender)
        failpoint(FENCED)
        await self._repair()
        failpoint(REPAIRED)
        found = (await self._admin.committed(self._group, [self.tp]))[self.tp]
        topic_id = await self._topic_id()
        if found is not None:
            self.position = Position.parse(*found)
            return
        end = (await self._admin.list_offsets({self.output: LATEST}))[self.output].offset
        if end > 0:
            raise OperatorNeeded(
                f"`{self.output[0]}` partition {self.output[1]} has data (end offset {end}), but group `{self._group}` "
                "has no input position; commit the offset to go on from, or begin with an empty output topic"
            )
        start = (await self._admin.list_offsets({self.tp: EARLIEST}))[self.tp].offset
        await self._commit(Position(start, topic_id))

    async def _repair(self) -> None:
        """A store that this process has already open may have ids beyond what was committed, so it is opened anew."""
        self._close_store()
        try:
            self.store = await self._in_thread(IdStore, str(self._folder), self._max_bytes, self._memory_max_ids)
            await repair(self._admin, self.output, self.store, self._source, self._spill_if_full)
        except RocksError as error:
            raise OperatorNeeded(
                f"{error}; if another worker of this stage uses the folder, stop it; if the database is damaged, "
                "remove its folder: it is rebuilt from the output topic"
            ) from None

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
        topic_id = await self._topic_id()
        if topic_id != self.position.topic_id:
            raise OperatorNeeded(
                f"the input topic was created anew (id {topic_id}, read so far {self.position.topic_id}); commit the "
                "offset to go on from, or begin with an empty output topic and a new group"
            )

    async def _topic_id(self) -> str:
        """The input topic's id. Raises OperatorNeeded when input and output differ in their partitions."""
        cluster = await self._admin.metadata([self.tp[0], self.output[0]], refresh=True)
        for topic in (self.tp[0], self.output[0]):
            if topic not in cluster.topics:
                raise missing_topic(topic)
        counts = [len(cluster.topics[topic].partitions) for topic in (self.tp[0], self.output[0])]
        if counts[0] != counts[1]:
            raise OperatorNeeded(
                f"`{self.tp[0]}` has {counts[0]} partitions and `{self.output[0]}` {counts[1]}; they must have the "
                "same number, since an id must always meet the same worker"
            )
        return cluster.topics[self.tp[0]].topic_id.hex()

    async def refresh(self) -> None:
        """Commit the position again, so that an idle one doesn't expire."""
        await self._commit(self.position)

    async def _commit(self, position: Position) -> None:
        assert self._sender is not None, "take the identity first"
        await self._sender.begin()
        await self._sender.send_offsets(self._group, {self.tp: (position.offset, position.metadata())})
        await self._sender.commit()
        self.position = position

    async def turn(self, fetched: Sequence[Fetched]) -> None:
        """Dedupe what was fetched in one transaction, then note its ids. Raises Fenced, KafkaError, OperatorNeeded."""
        assert self.store is not None, "take the identity first"
        batches = [batch for part in fetched for batch in part.batches]
        sifted = await self._in_thread(sift, batches, self.store, self._source)
        for batch in sifted.rotten:
            path = keep_aside(self._quarantine, *self.tp, batch)
            self._log.error(f"input batch at offset {batch.base_offset} can't be opened: kept aside as `{path}`")
        failpoint(SIFTED)
        complete_to = await self._publish(sifted, fetched[-1].next_offset)
        failpoint(COMMITTED)
        if sifted.ids is not None:
            ids = sifted.ids
            self.store.add(ids.data, ids.starts, ids.null, complete_to, time.time_ns() // 1_000_000)
        failpoint(ADDED)
        await self._spill_if_full()

    async def _publish(self, sifted: Sifted, next_offset: int) -> int:
        """Output and input position in one transaction; the output offset up to which its ids are complete then."""
        sender, before = self._sender, self.position
        assert sender is not None, "take the identity first"
        prepared = prepare(sifted.batches, 0, self._max_batch_bytes)
        rotten = sum(batch.record_count for batch in sifted.rotten)
        after = Position(
            next_offset,
            before.topic_id,
            before.read + sifted.read + rotten,
            before.written + sifted.written,
            before.dropped + sifted.dropped,
            before.quarantined + rotten,
            before.without_id + sifted.without_id,
        )
        await sender.begin()
        complete_to = await send(sender, self.output, prepared.batches)
        failpoint(PUBLISHED)
        await sender.send_offsets(self._group, {self.tp: (after.offset, after.metadata())})
        failpoint(OFFSETS_SENT)
        await sender.commit()
        self.position = after
        return complete_to

    async def _spill_if_full(self) -> None:
        store = self.store
        if store is None or not store.is_full():
            return
        await self._in_thread(store.write_file)
        failpoint(FILE_WRITTEN)
        await self._in_thread(store.ingest_file)
        failpoint(FILE_INGESTED)
        self._log.info(f"the store: {store.stats()}")

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
