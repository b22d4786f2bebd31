"""Where each log of a log folder ends, for the start after a kill -9: `penstock-log-ends`. endslots.pxd has its form."""

NAME: str
SLOT_BYTES: int
CHUNK_BYTES: int
"""By which the file grows."""
END_MAX: int
"""The largest end that a slot can hold."""

def read_ends(folder: str) -> dict[bytes, tuple[bytes, int]]:
    """Topic ids and ends of the logs in a log folder, by `key_of`; nothing of another start of the machine, and nothing that
    isn't right by its checksums."""

def key_of(topic: str, partition: int) -> bytes:
    """The key of a log in the answer of `read_ends`."""

def slots_lost() -> bool:
    """Whether slots of this process were lost since the last call: a disk failed under their file, or somebody cut it."""
