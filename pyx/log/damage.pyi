from typing import NamedTuple

class CorruptRange(NamedTuple):
    """Bytes of a segment that are no right batch, from `position` to `end` (equal: nothing is there, offsets are missing)."""

    position: int
    end: int
    first_offset: int
    next_offset: int
    """The offset of the batch that follows; -1: none follows."""
    leader_epoch: int
    """Of the batch before."""

def corrupt_ranges(
    path: str, base_offset: int, dense: bool, limit: int = -1, known_end: int = -1
) -> tuple[list[CorruptRange], int, int, int]:
    """Every damaged range of a .log file, the offset after its last right batch, the leader epoch of that, and the
    position where right batches end. Room ahead is no damage.

    limit: all offsets lie below it; -1: nobody knows one. known_end: where the log ended; -1: unknown.

    dense: the log was never compacted, so that offsets which are missing are damage, too. Raises OSError.
    """
