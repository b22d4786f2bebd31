"""A record on its way into a producer's queue: checks, its partition, the batch of that."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, final

from penstock.pyx.producer.partitioning import Choice
from penstock.pyx.producer.recordqueue import RecordQueue, SentRecord

RECORD_OVERHEAD_BYTES: int
"""What a record is taken to need besides key, value and headers."""

_R = TypeVar("_R", bound=SentRecord)
_Headers = Sequence[tuple[str, bytes | None]]

@final
class TopicPartitions:
    """How many partitions a topic has, and which of them have a leader; known until a time (monotonic seconds)."""

    def __init__(self, count: int, available: Sequence[int], expires_at: float) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def available(self) -> Sequence[int]: ...
    @property
    def expires_at(self) -> float: ...
    def check(self, topic: str, partition: int) -> None:
        """Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION unless there is such a partition."""

@final
class Enqueuer(Generic[_R]):
    """Puts records into a queue. What it gives back for them are objects of `kind`, a class made out of SentRecord.

    `topics` are the partitions that are known; `look_up` asks for those of a topic, until a time (monotonic seconds), and notes
    them there. `give_id` gives a record's key and headers with an id, and that id. `watching` gets a record's size and its
    fields; what it gives surrounds the record's way into the queue.
    """

    block_s: float
    """How long a record waits for metadata and room, at most."""

    def __init__(
        self,
        queue: RecordQueue[Any],
        choice: Choice,
        kind: type[_R],
        topics: dict[str, TopicPartitions],
        look_up: Callable[[str, float], TopicPartitions],
        *,
        key_serializer: Callable[[Any], bytes | None] | None,
        value_serializer: Callable[[Any], bytes | None] | None,
        give_id: Callable[[bytes | None, _Headers], tuple[bytes | None, _Headers, bytes]] | None,
        watching: Callable[..., AbstractContextManager[None]] | None,
        block_s: float,
        record_bytes: int,
    ) -> None: ...
    def enqueue(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp_ms: int | None,
        headers: _Headers,
        partition: int | None,
        on_delivery: Callable[..., None] | None,
        bulk: Any = None,
    ) -> _R:
        """Put a record into the queue, waiting for metadata and room; gives its SentRecord.

        A record of a `send_many`, its `bulk`, is serialized already. Raises TypeError or ValueError for a bad record, and
        KafkaError.
        """

    def check_size(self, size: int, topic: str) -> None:
        """Raise KafkaError MESSAGE_TOO_LARGE for a record of so many bytes, if that is too large."""
