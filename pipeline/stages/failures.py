"""What a failure of a stage calls for: another try after a pause, a start from the output cluster's position, or an
operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock import log, notify
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.backoff import Backoff
from penstock.pipeline.clients.transaction import Fenced
from penstock.pyx.record.rawbatch import BatchError

T = TypeVar("T")

BACKOFF_MIN_MS = 100.0
BACKOFF_MAX_MS = 5000.0
TRANSIENT = (KafkaError, OSError, TimeoutError)


class StartsOver(Exception):
    """What a worker knew of its partition isn't so any more: its lane takes the identity and starts again at once."""


class OperatorNeeded(Exception):
    """Something that a stage must not decide by itself: the lane stops, the text says what to do."""


class OtherLog(OperatorNeeded):
    """The log is another one than was read up to the position: it was recreated, cut back, or put back from a copy."""


# Final for one transaction, producer or fetch position, not for the partition: the lane takes its identity again and
# starts over, and `LaneWorker.start` finds words for what can't be mended.
STARTS_OVER = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)


def needs_operator(error: Exception) -> bool:
    """Whether trying again can't mend it."""
    if isinstance(error, KafkaError):
        return not error.retriable and error.code not in STARTS_OVER and not isinstance(error, Fenced)
    return isinstance(error, (OperatorNeeded, BatchError))


def backoff_of_stages() -> Backoff:
    """A new sequence of pauses, of a lane or of a stage that waits for a cluster."""
    return Backoff(BACKOFF_MIN_MS, BACKOFF_MAX_MS)


async def patiently(work: Callable[[], Awaitable[T]], what: str, logger: log.Fields) -> T:
    """Do work until it succeeds; says once what it waits for. Raises what trying again can't mend."""
    backoff, said = backoff_of_stages(), False
    while True:
        try:
            return await work()
        except TRANSIENT as error:
            if isinstance(error, Fenced) or needs_operator(error):
                raise
            if not said:
                logger.warning("waits to %s: %s", what, error)
                notify.status(f"waits to {what}: {error}")
                said = True
            await backoff.wait()
