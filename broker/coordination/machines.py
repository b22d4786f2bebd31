"""What the coordinators' pure state machines share: time as a value, and the actions and events that all of
them know.

A machine is a function `step(state, event, now) -> (state, actions)`. It owns `state` while it runs and may
change it in place; it never touches a socket, a file, a clock or a random number. Its feeder (the
asyncio shell in `shell.py`, or the simulator) keeps these rules:

- actions are carried out in order;
- an `Append` is answered by one `Appended` event, and those of one partition arrive in the order of the log;
- a `Reply` goes to the request that brought its token, once;
- the machine is fed a `Tick` no later than its `wake_at_ms` (monotonic), or any time earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import ErrorCode

NEVER = 1 << 62  # A deadline that does not come.

TopicPartition = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Now:
    """One moment on both clocks, milliseconds: timers use the monotonic one, records and answers the wall
    clock.
    """

    mono_ms: int
    wall_ms: int


@dataclass(slots=True)
class Reply:
    """Action: answer the request that brought the token."""

    token: object
    result: object


@dataclass(slots=True)
class Append:
    """Action: write records as one batch to the machine's partition of the internal topic, then feed
    `Appended`.

    With a producer id the batch is a transactional one of that producer.
    """

    id: int
    records: Sequence[object]
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(slots=True)
class Appended:
    """Event: the append with this id is in the log at base_offset (error 0), or it is not (Kafka's error
    code).
    """

    id: int
    error: int
    base_offset: int = -1


@dataclass(slots=True)
class Tick:
    """Event: time has passed."""


@dataclass(slots=True)
class InFlight:
    """The appends of one machine that are not answered yet, by id, with what is to be done then."""

    waiting: dict[int, object] = field(default_factory=dict)
    last_id: int = 0

    def add(self, continuation: object) -> int:
        """Remember what follows an append; the id that the append has to carry."""
        self.last_id += 1
        self.waiting[self.last_id] = continuation
        return self.last_id


def append_error(error: int) -> int:
    """What a client is told when a coordinator's record could not be stored: what it tries again, as from Kafka."""
    if error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error
