"""The cleaner's table of keys and their newest offsets, for tests."""

from typing import Literal

class KeyOffsets:
    """A table of at most buffer_bytes; new keys find room up to the load factor."""

    def __init__(self, buffer_bytes: int, load_factor: float = 0.9) -> None: ...
    def __len__(self) -> int: ...
    def put(self, key: bytes, offset: int) -> bool:
        """Take the key's newest offset; False when the key is new and there is no room."""
    def get(self, key: bytes) -> int:
        """The key's newest offset, -1 if it isn't there."""
    def clear(self) -> None:
        """Empty it and give its memory back."""
    @property
    def size_bytes(self) -> int:
        """Bytes of the table as it is now."""

def siphash(secret: bytes, data: bytes, size: Literal[8, 16] = 16) -> bytes:
    """SipHash-2-4 with so many bytes of output, for comparison with its published values. Raises ValueError."""
