"""Stored batches as message sets for old clients. Source: KIP-31, KIP-32, KIP-98."""

from typing_extensions import Buffer

OPENED_ENOUGH_BYTES: int
"""Of records; an answer to an old client that has taken so much holds no further batch."""

def down(batches: Buffer, to_magic: int, from_offset: int = 0) -> bytes:
    """Convert whole stored batches to messages of at most `to_magic` (0 or 1); see convert.pxd.

    Headers and control batches are left out, and records below `from_offset` of what is converted. Raises BatchError with
    Kafka's code: 2 (unreadable), 10 (inflates to over 64 MiB), 76 (zstd).
    """
