"""What users of a producer see of what they send: a record, where it was stored, a batch of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class ProducerRecord(NamedTuple):
    """A record that is about to be sent. For interceptors key and value are what `send` was given, before any serializer."""

    topic: str
    key: Any = None
    value: Any = None
    timestamp_ms: int | None = None
    headers: Headers = ()
    partition: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record was stored. `offset` is -1 where the broker did not say (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class QueuedBatch(NamedTuple):
    """Records of one partition. `size_bytes` are those in the queue, or, of a request, those that go to the broker."""

    topic: str
    partition: int
    records: int
    size_bytes: int
