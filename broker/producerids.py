"""Producer ids: numbers that are never given twice, taken from the store in blocks.

`/latest_producer_id_block` holds the last block that any broker took, as JSON like Kafka's:
`{"version":1,"broker":1,"block_start":"0","block_end":"999"}`. A block is written before its first id is
given; what is left of it when the broker stops is not used again.
"""

from __future__ import annotations

import asyncio
import json

from penstock import log
from penstock.broker.store.base import BadVersionError, NodeExistsError, NoNodeError, Store, StoreError, paths
from penstock.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1000
_LAST = (1 << 63) - 1

_log = log.get("broker.producerids")


class ProducerIds:
    """Hands out producer ids."""

    def __init__(self, store: Store, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._next = 0
        self._end = 0  # one past the last id of our block
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody has. Waits for the store once in a thousand. Raises KafkaError when there is none, or the
        store refuses.
        """
        if self._next == self._end:
            async with self._taking:
                if self._next == self._end:
                    try:
                        self._next = await self._take_block()
                    except StoreError as error:
                        _log.error("no producer ids: %s", error)
                        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
                    self._end = self._next + BLOCK_SIZE
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> int:
        while True:
            try:
                data, stat = await self._store.get(paths.PRODUCER_IDS)
            except NoNodeError:
                start, version = 0, -1
            else:
                start, version = int(json.loads(data)["block_end"]) + 1, stat.version
            if start > _LAST - BLOCK_SIZE:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            block = self._block(start)
            try:
                if version < 0:
                    await self._store.create(paths.PRODUCER_IDS, block, parents=True)
                else:
                    await self._store.set(paths.PRODUCER_IDS, block, version)
            except (NodeExistsError, BadVersionError):
                continue  # Another broker took that block.
            _log.info("producer ids from %d to %d", start, start + BLOCK_SIZE - 1)
            return start

    def _block(self, start: int) -> bytes:
        end = start + BLOCK_SIZE - 1
        content = {"version": 1, "broker": self._node_id, "block_start": str(start), "block_end": str(end)}
        return json.dumps(content, separators=(",", ":")).encode()
