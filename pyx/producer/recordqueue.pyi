"""A producer's queue: records that are appended to the open batch of their partition, and the memory that they take.

Threads may share a queue: a lock guards it. A RecordQueue appends; its `keeper` does what happens once a batch.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, final

from penstock.pyx.record.builder import BatchBuilder

_B = TypeVar("_B", bound=ProducerBatch)
_R = TypeVar("_R")

class SentRecord:
    """A record on its way: where it stands in which batch. Base of what `send` returns."""

    def __init__(self, timestamp_ms: int, on_delivery: Callable[..., None] | None, record_id: bytes | None) -> None: ...
    @property
    def _batch(self) -> Any:
        """The batch that has taken it, of the class that the queue's keeper makes."""

    @property
    def _index(self) -> int:
        """Its place there."""

    @property
    def timestamp_ms(self) -> int: ...
    @property
    def _on_delivery(self) -> Callable[..., None] | None: ...
    @property
    def record_id(self) -> bytes | None:
        """With `record.id`: the id that the record had or was given."""

class ProducerBatch:
    """Records of one partition. `heard` are those of which somebody wants to hear what became of them: all with `hears_all`."""

    size: int
    """Bytes that its records take in the queue."""
    @property
    def tp(self) -> tuple[str, int]: ...
    @property
    def builder(self) -> BatchBuilder: ...
    @property
    def heard(self) -> list[Any]: ...
    def __init__(self, tp: tuple[str, int], builder: BatchBuilder, hears_all: bool) -> None: ...

class Line(Generic[_B]):
    """The batches of a partition: the open one, and closed ones in their order."""

    open: _B | None
    @property
    def tp(self) -> tuple[str, int]: ...
    @property
    def closed(self) -> deque[_B]: ...
    def __init__(self, tp: tuple[str, int]) -> None: ...

class _Keeper(Protocol[_B]):
    """Opens and closes a queue's batches. All of its methods are called with the lock held."""

    def reserve(self, size: int, block_until: float) -> None:
        """Wait for room until a time (monotonic seconds). Raises KafkaError."""

    def open_batch(self, line: Line[_B]) -> _B:
        """Give a partition its open batch, a ProducerBatch."""

    def close_batch(self, line: Line[_B]) -> None:
        """Close the open batch of a partition."""

    def drop_batch(self, line: Line[_B]) -> None:
        """Forget the open batch of a partition, which is empty."""

class _Lock(Protocol):
    """What guards the queue."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...

@final
class RecordQueue(Generic[_B]):
    """Appends records. A batch is full with `batch_bytes` or `batch_records`; the queue with `memory_limit` bytes or
    `queue_limit` records. `check_open` raises where no record may be added now."""

    memory_bytes: int
    """Bytes of records that are neither stored nor failed."""
    queued: int
    """How many these are."""
    closed: bool
    @property
    def batch_bytes(self) -> int: ...
    @property
    def batch_records(self) -> int: ...
    @property
    def memory_limit(self) -> int: ...
    @property
    def queue_limit(self) -> int: ...
    @property
    def lines(self) -> dict[tuple[str, int], Line[_B]]: ...
    def __init__(
        self,
        keeper: _Keeper[_B],
        lock: _Lock,
        check_open: Callable[[], None] | None,
        *,
        batch_bytes: int,
        batch_records: int,
        memory_limit: int,
        queue_limit: int,
    ) -> None: ...
    def line(self, tp: tuple[str, int]) -> Line[_B]:
        """Give the line of a partition, a new one if it has none."""

    def append(
        self,
        line: Line[_B],
        record: SentRecord,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size: int,
        block_until: float,
        bulk: Any = None,
    ) -> bool:
        """Add a record, maybe one of a `send_many`, waiting for room. Gives whether that filled a batch.

        Raises KafkaError when the queue is closed or full, ValueError and TypeError for a bad record, RuntimeError as `change`.
        """

    def change(self, work: Callable[..., _R], *args: Any) -> _R:
        """Call what changes the queue, with the lock held. Raises RuntimeError where this thread is changing it already: a
        signal handler, a destructor or a log handler has interrupted it, and sends."""

    def is_full(self, batch: _B) -> bool:
        """Whether a batch takes no more."""

    def check(self) -> None:
        """Raise KafkaError where no record may be added now."""
