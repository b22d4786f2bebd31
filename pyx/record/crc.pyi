"""CRC32C, the checksum of record batches of magic 2 (and of the mirror's rewritten headers)."""

from typing_extensions import Buffer

WAYS: list[str]
"""How this machine can count it, the quickest first: `folding` (AVX-512 and VPCLMULQDQ), `instruction` (SSE4.2), `tables`."""

def crc32c(data: Buffer, crc: int = 0, *, way: str = "") -> int:
    """Give the CRC32C of `data`, going on from `crc`; in the quickest way if none of WAYS is given. Raises ValueError."""

def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """Give the CRC32C of A followed by B from the CRCs of both and the length of B in bytes, in O(log length)."""
