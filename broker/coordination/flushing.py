"""Flushes that transactions wait for, shared by all transactions that wait for one log at the same time.

An fsync takes milliseconds, on a disk that turns about ten. So a log has at most one flush under way and one that
follows it: who comes while one is under way may have appended after it began, and waits for the next, with all the others
that come until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.pyx.log.logmanager import LogManager

THREADS = 64
"""Flushes of one folder's logs at the same time. The file system's journal and the kernel's queue of a disk make one of those
that wait there: the more wait at once, the more transactions a disk whose flush takes milliseconds completes."""


class LogFlusher:
    """Of one broker's logs. Used on the loop; the flushes themselves are done in threads, until `stop`."""

    def __init__(self, logs: LogManager, folder_of: Callable[[TopicPartition], str]) -> None:
        """`folder_of` names the folder that a log lies in: a disk that hangs holds up flushes of its own logs alone."""
        self._logs = logs
        self._folder_of = folder_of
        self._threads = FolderThreads("transaction-flush", THREADS)
        self._under_way: dict[TopicPartition, asyncio.Task[None]] = {}
        self._next: dict[TopicPartition, asyncio.Task[None]] = {}

    async def flush(self, partitions: Iterable[TopicPartition]) -> None:
        """What these logs have now is on the disk afterwards. Raises KafkaError for a log that isn't open, OSError for one
        whose folder is offline, after all were tried."""
        flushes = [asyncio.shield(self._flush_of(partition)) for partition in partitions]
        for result in await asyncio.gather(*flushes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _flush_of(self, partition: TopicPartition) -> asyncio.Task[None]:
        """The flush that begins after this call."""
        under_way = self._under_way.get(partition)
        if under_way is None:
            task = self._under_way[partition] = asyncio.create_task(self._flush(partition))
            return task
        if partition not in self._next:
            self._next[partition] = asyncio.create_task(self._flush_after(under_way, partition))
        return self._next[partition]

    async def _flush_after(self, under_way: asyncio.Task[None], partition: TopicPartition) -> None:
        await asyncio.wait([under_way])
        self._under_way[partition] = self._next.pop(partition)
        await self._flush(partition)

    async def _flush(self, partition: TopicPartition) -> None:
        try:
            await self._threads.run(self._folder_of(partition), self._logs.flush, *partition)
        finally:
            if partition not in self._next:
                del self._under_way[partition]

    async def stop(self) -> None:
        """Wait for what is under way; nobody may call `flush` any more."""
        running = [*self._under_way.values(), *self._next.values()]
        await asyncio.gather(*running, return_exceptions=True)
        await self._threads.stop()
