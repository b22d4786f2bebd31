"""CRC32C, the checksum of record batches of magic 2 (and of the mirror's rewritten headers)."""

from typing_extensions import Buffer

def crc32c(data: Buffer, crc: int = 0, *, tables: bool = False) -> int:
    """Give the CRC32C of `data`, going on from `crc`. `tables` takes the portable way even where there is hardware."""

def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """Give the CRC32C of A followed by B from the CRCs of both and the length of B in bytes, in O(log length)."""
