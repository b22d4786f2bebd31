"""Stored message sets as batches of magic 2, as Fetch 4 and later gets them."""

from typing_extensions import Buffer

def up(batches: Buffer) -> bytes:
    """Convert whole stored batches to magic 2; see upconvert.pxd. What is of magic 2 stays as it is.

    Raises BatchError with Kafka's code: 2 (unreadable), 10 (inflates to more than is ever taken).
    """
