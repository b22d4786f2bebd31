"""The ids that a worker has seen: those of its output, in memory and in the RocksDB of its folder.

The output is the truth. The worker reads the ids that the store lacks again from there, before it reads any input
(`repair.py`). It adds ids only after the transaction that carries their records is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from penstock.dedupe.folder import FolderError, StoreFolder, owner
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import DedupePosition
from penstock.dedupe.repair import expires_soon, repair
from penstock.dedupe.settings import Settings
from penstock.dedupe.sift import Rules, Sifted, sift
from penstock.errors import os_error_text
from penstock.failpoints import declare, failpoint
from penstock.log import Fields
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import BatchMark
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.failures import TRANSIENT, OperatorNeeded
from penstock.pipeline.stages.sourcelog import batch_before
from penstock.pyx.ids.store import IdStore, RocksDiskError, RocksError
from penstock.pyx.record.columns import Column
from penstock.pyx.record.rawbatch import RawBatch

P = ParamSpec("P")
T = TypeVar("T")

FILE_WRITTEN = declare("dedupe.file_written", "a sorted file of ids is written, the database does not know it")
FILE_INGESTED = declare("dedupe.file_ingested", "the database has the file, memory was emptied")


class StoreFailed(OSError):
    """The disk of a store is full, read-only or failing: its lane tries again, and goes on once the disk takes writes."""


class SeenIds:
    """Of one partition.

    Calls raise StoreFailed where the disk fails, OperatorNeeded where the database is damaged, AssertionError before
    `make_complete`. After an error `make_complete` opens the store again.
    """

    def __init__(self, tp: TopicPartition, output: TopicPartition, settings: Settings, source: IdSource) -> None:
        self.folder = StoreFolder.of(settings.data, tp)
        self._tp = tp
        self._output = output
        self._settings = settings
        self._source = source
        self._admin: Admin | None = None
        self._store: IdStore | None = None
        self._work: asyncio.Future[Any] | None = None
        self._storing = asyncio.Lock()  # a file is written and ingested as one step, and no id comes in between
        self._memory_since = time.monotonic()  # memory holds ids that no file has for so long at most
        self._file_failed = False  # no file could be made of the ids in memory since
        self.known_stats: Mapping[str, int] | None = None
        """The store's figures as they were last taken, for whoever must not wait for a thread that works on it."""

    async def make_complete(self, admin: Admin, committed: DedupePosition, show_life: Callable[[], Awaitable[None]]) -> None:
        """Open the store, and read what it lacks from the output; `show_life` is called now and then.

        One that this process has open already may have ids beyond what was committed, so it is opened again.
        Raises StoreFailed, UnknownIds and other OperatorNeeded, KafkaError, OSError.
        """

        async def note(ids: Column, complete_to: int) -> None:
            await self._add(ids, complete_to)
            await show_life()

        async with self._storing:
            self._close_store()
            store = await self._in_thread(self._open, committed)
            self._memory_since = time.monotonic()
            begins_at = store.complete_to
            turn_bytes = self._settings.turn_bytes
            self._admin = admin
            last = await self._in_thread(self.folder.noted_output)
            await repair(admin, self._tp, self._output, store, self._source, note, turn_bytes, committed, last)
            await self._note_output(store.complete_to)
            # What was accepted once is not asked for again; and a disk that took no file is tried before any input is read.
            if self._file_failed or (committed.accepted and store.complete_to > begins_at):
                await self._spill()
            self.stats()

    def _open(self, committed: DedupePosition) -> IdStore:
        settings = self._settings
        if not self.folder.is_locked:  # the disk didn't let it at the start
            try:
                self.folder.lock("stop it")
            except FolderError as error:
                raise OperatorNeeded(str(error)) from None
        belongs_to = owner(self._output, committed.output_id, self._source, committed.losses)
        self.folder.claim(belongs_to, hints.to_rebuild(self._tp))
        self._store = IdStore(str(self.folder.database), settings.size_max_bytes, settings.memory_max_ids)
        return self._store

    @property
    def _opened(self) -> IdStore:
        assert self._store is not None, "take the identity first"
        return self._store

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (RocksDiskError, OSError) as error:
            # Without the file and the call, which are others at each try, so that the same failure is said once.
            why = str(error) if isinstance(error, RocksError) else os_error_text(error)
            raise StoreFailed(
                f"the disk of `{self.folder.path}` failed: {why.rpartition(': ')[2]}; the partition tries again, and goes on "
                f"by itself once the disk has room or is mended; if files are lost, {hints.to_rebuild(self._tp)}"
            ) from None
        except RocksError as error:
            raise OperatorNeeded(f"the store failed: {error}; if it is damaged, {hints.to_rebuild(self._tp)}") from None

    async def sift(self, batches: Sequence[RawBatch], offset: int, rules: Rules) -> Sifted:
        """Look the ids of batches up: which records go on. They are not added by this."""
        return await self._in_thread(sift, batches, offset, self._opened, rules)

    async def add(self, ids: Column, complete_to: int) -> None:
        """Ids of committed output; what was seen is complete to that output offset then."""
        async with self._storing:
            await self._add(ids, complete_to)

    async def _add(self, ids: Column, complete_to: int) -> None:
        store, taken = self._opened, 0
        while True:
            now_ms = time.time_ns() // 1_000_000
            taken = await self._in_thread(store.add, ids.data, ids.starts, ids.null, complete_to, now_ms, taken)
            if store.is_full() or self._is_due():
                await self._note_output(complete_to)
                await self._spill()
            if taken == len(ids.null):
                return

    def _is_due(self) -> bool:
        return time.monotonic() - self._memory_since >= self._settings.spill_ms / 1000

    async def spill_in_time(self, output_start: int) -> None:
        """Ids that only memory has become a file before their output is gone: after a while, or when the output's log
        start is as close to them as they are many offsets.
        """
        if self._store is None or self._storing.locked():
            return
        if expires_soon(self._store, output_start) or self._is_due():
            async with self._storing:
                await self._spill()

    async def _spill(self) -> None:
        """Make a file of what came since the last one, if anything did."""
        store = self._opened
        self._memory_since = time.monotonic()
        if store.reaches_to == store.kept_to and store.records_noted == 0:
            return
        self._file_failed = True
        await self._in_thread(store.write_file)
        failpoint(FILE_WRITTEN)
        await self._in_thread(store.ingest_file)
        failpoint(FILE_INGESTED)
        self._file_failed = False
        self.stats()

    async def _note_output(self, complete_to: int) -> None:
        """Note the output's batch right below an offset, by which a later start knows the log again. Where the cluster doesn't
        answer now, the one that was noted before serves, too."""
        assert self._admin is not None, "take the identity first"
        batch = None
        with contextlib.suppress(*TRANSIENT):
            start = await self._admin.start_offset(self._output)
            batch = await batch_before(self._admin, self._output, complete_to, start)
        if batch is not None and (mark := BatchMark.of(batch)) is not None:
            await self._in_thread(self.folder.note_output, mark)

    def stats(self) -> Mapping[str, int] | None:
        """The store's figures; None where it isn't open. No thread may be at work on it."""
        with self._failures():
            self.known_stats = None if self._store is None else self._store.stats()
        return self.known_stats

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on the store in a thread. A cancelled worker leaves it running: `close` waits for it."""
        future = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        self._work = future
        with self._failures():
            return await asyncio.shield(future)

    def _close_store(self) -> None:
        """Close the database. What its disk refuses then is of no account: the output has the ids that no file has."""
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(RocksError):
                store.close()

    async def close(self, logger: Fields) -> None:
        """Make a file of the ids in memory, close the store and let others into the folder; without that file the next start
        reads its ids from the output."""
        if self._work is not None:
            await asyncio.wait([self._work])
        if self._store is not None:
            try:
                await self._spill()
            except (StoreFailed, OperatorNeeded) as error:
                logger.warning("the ids in memory are not kept, the next start reads them from the output: %s", error)
        self._close_store()
        self.folder.unlock()
