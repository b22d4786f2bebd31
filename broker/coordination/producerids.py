"""Producer ids: numbers that are never given twice, taken from the store in blocks.

`/latest_producer_id_block` holds the last block that any broker took, as JSON like Kafka's:
`{"version":1,"broker":1,"block_start":"0","block_end":"999"}`. A block is written before its first id is
given; what is left of it when the broker stops is not used again.

The store alone isn't believed: it may be lost and made again, or be yesterday's copy. A producer that got an id which
another one had would have its first batches taken for repeats of the other's: acknowledged, and never written. So a
block begins above every id that a log or a transactional id knows, and no producer gets an id before all logs are open.

The logs may be yesterday's copy, too, while producers live on that got later ids. So a block begins at the clock, by
`IDS_PER_MS` ids a millisecond, which outgrows what was given before. If the clock is behind the last block, it is wrong
now or was wrong then, and the first block of a start leaves out a random number of ids.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable

from penstock import log
from penstock.broker.epochs import SINCE_MS
from penstock.broker.store.base import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    Store,
    StoreError,
    paths,
)
from penstock.broker.store.values import Fields
from penstock.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000
_LAST = (1 << 63) - 1
IDS_PER_MS = 1024
"""So many ids a millisecond of the clock: more than any broker gives."""
SKIPPED = 1 << 40
"""A start whose clock is behind the last block leaves out less than so many ids."""
BELIEVED = 1 << 62
"""Ids in a log from here on don't count: a client has made them up, and there must be some left for the others."""

STORE_WAIT_S = 5.0
"""So long an id waits for the store. A broker that is cut off from ZooKeeper then sends its client to another one."""
FIRST_RETRY_S = 0.5
"""How often a broker tries to take its first block."""

_log = log.get(__name__)


class ProducerIds:
    """Hands out producer ids.

    highest_known: the largest id below BELIEVED that is remembered anywhere but in the store, -1 if there is none; raises
    KafkaError COORDINATOR_LOAD_IN_PROGRESS as long as it can't be known. now_ms: the wall clock, since 1970.
    """

    def __init__(
        self, store: Store, node_id: int, highest_known: Callable[[], Awaitable[int]], now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._node_id = node_id
        self._highest_known = highest_known
        self._now_ms = now_ms
        self._next = 0
        self._end = 0  # one past the last id of our block
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """An id that no producer has. Waits for the store once in a thousand. Raises KafkaError when there is none, or the
        store refuses, or gives no answer for STORE_WAIT_S.
        """
        if self._next == self._end:
            try:
                await self._fill()
            except KafkaError as error:
                if error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    _log.error("no producer ids: %s", error)
                raise
        self._next += 1
        return self._next - 1

    async def take_first_block(self) -> None:
        """Take a block before a producer asks for an id, as Kafka's ZkProducerIdManager does: a broker that is cut off from the
        store later has ids left. Tries until the logs are open and the store answers.
        """
        while self._next == self._end:
            try:
                await self._fill()
            except KafkaError as error:
                _log.debug("no producer ids yet: %s", error)
                await asyncio.sleep(FIRST_RETRY_S)

    async def _fill(self) -> None:
        """Take a block if none is left. Raises KafkaError."""
        try:
            async with asyncio.timeout(STORE_WAIT_S), self._taking:
                if self._next == self._end:
                    self._next = await self._take_block()
                    self._end = self._next + BLOCK_SIZE
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"the metadata store gives no answer for {STORE_WAIT_S:g} s"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why) from error

    async def _take_block(self) -> int:
        highest = await self._highest_known()
        while True:
            start, version = await _after_last(self._store)
            if start <= highest:
                _log.warning(
                    "the metadata store would give producer id %d next, but ids up to %d are known from the logs: it was "
                    "lost or is an old copy, or a client has made ids up",
                    start, highest,
                )  # fmt: skip
                start = highest + BLOCK_SIZE  # The broker that had that id's block may have given its other ids, too.
            clock = (self._now_ms() - SINCE_MS) * IDS_PER_MS
            if start < clock < BELIEVED:
                start = clock
            elif self._end == 0 and start < BELIEVED:
                start += secrets.randbelow(SKIPPED)
            if start > _LAST - BLOCK_SIZE:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            block = _block(self._node_id, start)
            try:
                if version < 0:
                    await self._store.create(paths.PRODUCER_IDS, block, parents=True)
                else:
                    await self._store.set(paths.PRODUCER_IDS, block, version)
            except (NodeExistsError, BadVersionError):
                continue  # Another broker took that block.
            _log.info("producer ids from %d to %d", start, start + BLOCK_SIZE - 1)
            return start


async def check_ids(store: Store) -> None:
    """Raise BadValueError when the last block can't be: found at the start, not at the first producer."""
    await _after_last(store)


async def _after_last(store: Store) -> tuple[int, int]:
    """The id behind the last block that was taken, and the version of its node; 0 and -1 without one."""
    try:
        data, stat = await store.get(paths.PRODUCER_IDS)
    except NoNodeError:
        return 0, -1
    return Fields.read(paths.PRODUCER_IDS, data).number("block_end", 0, _LAST - 1) + 1, stat.version


def _block(node_id: int, start: int) -> bytes:
    end = start + BLOCK_SIZE - 1
    content = {"version": 1, "broker": node_id, "block_start": str(start), "block_end": str(end)}
    return json.dumps(content, separators=(",", ":")).encode()
