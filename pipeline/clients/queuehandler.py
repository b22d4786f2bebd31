"""Hooks at each stage of a producer's queue, for logs, traces and figures of one's own.

A hook that raises loses no record and stops nothing: that is logged, and records go on as if there were no hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock import log
from penstock.pipeline.clients.producerrecord import ProducerRecord, QueuedBatch


class QueueHandler:
    """Base of handlers; each method may be left as it is. The first two run in the thread that sends, and make `send_many`
    go record by record; the others run in the producer's own thread, which they must not hold up."""

    def before_enqueue(self, record: ProducerRecord) -> None:
        """A record is about to enter the queue: serialized, with its partition."""

    def after_enqueue(self, record: ProducerRecord, accepted: bool) -> None:
        """It has entered, or was refused: the queue was full for `max.block.ms`, or the record is none."""

    def after_dequeue(self, batch: QueuedBatch) -> None:
        """A batch has left the queue for its leader; again if it went back because its sequence number was refused."""

    def before_request(self, batches: Sequence[QueuedBatch]) -> None:
        """A request with these batches is about to be sent, be it for another time."""

    def last_batch(self) -> Iterable[ProducerRecord]:
        """The producer is about to be closed, in the thread that closes it; what this gives is sent, too."""
        return ()

    def dropped(self, batch: QueuedBatch, error: Exception) -> None:
        """Records that will not be sent, or not again: their deliveries have failed, or `send` raises the error."""

    def close(self) -> None:
        """The producer was closed."""


class Hooks:
    """Calls a handler's hooks. Raises TypeError for what is no handler."""

    def __init__(self, handler: QueueHandler, client_id: str) -> None:
        if not isinstance(handler, QueueHandler):
            raise TypeError(f"`handler` is an object of a class made out of QueueHandler, not {type(handler).__name__}")
        self._handler = handler
        self._log = log.get(__name__, client_id=client_id)
        kind = type(handler)
        self.of_records = any(
            getattr(kind, name) is not getattr(QueueHandler, name) for name in ("before_enqueue", "after_enqueue")
        )
        """Whether there is a hook that wants each record."""

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook."""
        try:
            getattr(self._handler, hook)(*arguments)
        except Exception:  # noqa: BLE001  users' code raises anything
            self._log.exception("the hook %s failed: the records go on", hook)

    def last_records(self) -> list[ProducerRecord]:
        """What the handler wants to send at the very end."""
        try:
            return list(self._handler.last_batch())
        except Exception:  # noqa: BLE001  users' code raises anything
            self._log.exception("the hook last_batch failed: what it gave is not sent")
            return []
