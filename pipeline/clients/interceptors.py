"""A chain of interceptors around what a producer sends (KIP-42).

An interceptor that raises loses no record and stops neither the chain nor the producer: that is logged, and the next
interceptor gets what the last one that went well gave.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock import log
from penstock.pipeline.clients.producerrecord import ProducerRecord, RecordMetadata


class Interceptor:
    """Base of interceptors; each method may be left as it is."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """In the thread that sends, before serializers, ids and partitioner; gives the record that goes on, maybe another."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """The record is stored, or has failed: its offset, and maybe its partition, is then -1. Called before the record's own
        callback, in the producer's thread, which it must not hold up; in the sender's thread where `send` raises."""

    def close(self) -> None:
        """The producer was closed."""


class Interceptors:
    """The chain. Raises TypeError for what is no interceptor."""

    def __init__(self, chain: Sequence[Interceptor], client_id: str) -> None:
        for interceptor in chain:
            if not isinstance(interceptor, Interceptor):
                raise TypeError(
                    f"`interceptors` are objects of classes made out of Interceptor, not {type(interceptor).__name__}"
                )
        self._chain = tuple(chain)
        self._log = log.get(__name__, client_id=client_id)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """What the chain makes of a record."""
        for interceptor in self._chain:
            try:
                given = interceptor.on_send(record)
                if not isinstance(given, ProducerRecord):
                    raise TypeError(f"on_send gave no ProducerRecord but {type(given).__name__}")
                record = given
            except Exception:  # noqa: BLE001  users' code raises anything
                self._log.exception("on_send of the interceptor %s failed: the record goes on without it", _name(interceptor))
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Tell the chain what became of a record."""
        for interceptor in self._chain:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:  # noqa: BLE001  users' code raises anything
                self._log.exception("on_acknowledgement of the interceptor %s failed", _name(interceptor))

    def close(self) -> None:
        """Tell the chain that the producer was closed."""
        for interceptor in self._chain:
            try:
                interceptor.close()
            except Exception:  # noqa: BLE001  users' code raises anything
                self._log.exception("close of the interceptor %s failed", _name(interceptor))


def _name(interceptor: Interceptor) -> str:
    return type(interceptor).__qualname__
