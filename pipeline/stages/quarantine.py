"""The topic of what doesn't go on: batches and records that a stage sets aside, and what operators decided.

Each stands there in the transaction that moves the stage's position over it: what is set aside was passed, and what was
passed is here. Headers say where it came from and why. Bytes of batches come in records of at most `CHUNK_BYTES`, whose
headers `byte` and `bytes` say which part each is of how many: joined they are what the log had.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from penstock import log
from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages.stagetopics import make_topic
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch

TOPIC = "penstock.quarantine"
CHUNK_BYTES = 512 << 10
HEADERS_BYTES = 64 << 10  # what the topic takes beyond a record as it came, for headers of ours
MAX_BATCH_BYTES = 1 << 20  # at least
_log = log.get(__name__)


class Quarantine:
    """The quarantine topic of a cluster, made by the first who needs it, for records of batches of so many bytes."""

    def __init__(self, admin: Admin, max_batch_bytes: int = 0) -> None:
        self._admin = admin
        self._room = max(max_batch_bytes, MAX_BATCH_BYTES) + HEADERS_BYTES
        self._partitions: list[int] = []
        self.limit = 0
        """The bytes that the topic allows a batch; known after `place`."""

    def forget(self) -> None:
        """Look at the topic again before it is used next: it may be gone, or take more."""
        self._partitions = []

    async def place(self, partition: int) -> TopicPartition:
        """Where what comes from a partition goes. Raises KafkaError."""
        if not self._partitions:
            configs = {"retention.ms": "-1", "max.message.bytes": str(self._room)}
            await make_topic(self._admin, TOPIC, 1, configs)
            made = (await self._admin.metadata([TOPIC], refresh=True)).topic(TOPIC, f"`{TOPIC}`")
            self.limit = await self._made_room()
            self._partitions = sorted(made.partitions)
        return TOPIC, self._partitions[partition % len(self._partitions)]

    async def _made_room(self) -> int:
        """The bytes that the topic allows a batch: raised where it was made for smaller ones."""
        limit = int((await self._admin.describe_configs(TOPIC_RESOURCE, TOPIC))["max.message.bytes"] or 0)
        if limit >= self._room:
            return limit
        await self._admin.alter_configs(TOPIC_RESOURCE, TOPIC, {"max.message.bytes": str(self._room)})
        _log.info("`%s` takes batches of %d bytes now, %d before: a topic has larger ones", TOPIC, self._room, limit)
        return self._room


def came(tp: TopicPartition, offset: int, reason: str) -> dict[str, str]:
    """Headers that say where something came from and why it is here."""
    return {"topic": tp[0], "partition": str(tp[1]), "offset": str(offset), "reason": reason}


def encoded(headers: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """Headers as records have them."""
    return [(name, text.encode()) for name, text in headers.items()]


def note(value: bytes | None, headers: Mapping[str, str], key: bytes | None = None) -> RawBatch:
    """One record of the topic, as a batch."""
    builder = BatchBuilder(0, max_bytes=4 * CHUNK_BYTES)
    builder.append(key, value, time.time_ns() // 1_000_000, encoded(headers))
    return RawBatch(builder.build())


def chunks(data: bytes, headers: Mapping[str, str], key: bytes | None = None) -> Iterator[RawBatch]:
    """Bytes as records of the topic, each as a batch."""
    for place in range(0, len(data), CHUNK_BYTES):
        part = {**headers, "byte": str(place), "bytes": str(len(data))}
        yield note(data[place : place + CHUNK_BYTES], part, key)
