"""Kafka's compression codecs for whole payloads, in the framings that its clients use."""

from typing_extensions import Buffer

CODEC_IDS: dict[str, int]
"""Kafka's `compression.type` names and the ids that batches carry: none 0, gzip 1, snappy 2, lz4 3, zstd 4."""

class CodecError(ValueError):
    """The codec is unknown, the data isn't what it takes, or it inflates to more than the limit."""

def compress(codec: int, data: Buffer, level: int = -1) -> bytes:
    """Compress `data`. `level` -1 is the codec's default; others are brought into the codec's range."""

def decompress(codec: int, data: Buffer, limit_bytes: int = ...) -> bytes:
    """Inflate `data` to at most `limit_bytes` (256 MiB). Raises CodecError, never gives a part."""
