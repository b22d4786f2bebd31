"""Messages of magic 0 and 1: opened and counted. Source: KIP-31, KIP-32, KAFKA-3160."""

from penstock.pyx.batch import RawBatch, Record

def messages(raw: RawBatch, limit_bytes: int = ...) -> list[Record]:
    """Give the message, or those inside of a wrapper with their absolute offsets; inflated to at most 256 MiB.

    `batch.records` calls it for old messages. Raises BatchError.
    """

def count(raw: RawBatch, limit_bytes: int = ...) -> int:
    """Count the records of a batch or message exactly; a wrapper is opened for it, without objects. Raises BatchError."""
