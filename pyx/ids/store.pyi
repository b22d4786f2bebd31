import numpy as np
import numpy.typing as npt

class RocksError(Exception):
    """RocksDB refused or failed; the text is its own, with the path."""

class RocksDiskError(RocksError):
    """The disk is full, read-only or failing: another try may succeed."""

class IdStore:
    """The ids that one dedupe worker has seen. One call at a time, others wait; the GIL is released around all work.

    Every method raises RocksError after `close()`. `max_bytes` bounds the files, oldest first; memory is full at
    `memory_max_ids` ids or a twenty-fourth of `max_bytes`. One id may be of any length below 2 GiB.
    """

    complete_to: int
    """Output offset below which the store lacks no id that is within the window."""
    reaches_to: int
    """Output offset from which on the store has no id."""
    kept_to: int
    """The same of its files alone: what a restart finds."""
    records_noted: int
    """Records added since the last file, with and without ids."""
    files: int
    """Files in the database that were written since, merged or not."""
    def __init__(self, path: str, max_bytes: int, memory_max_ids: int, read_only: bool = False) -> None:
        """`read_only`: what the files have now, also while a worker has the database open; nothing can become a file."""

    def unseen(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], null: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Which records carry an id that was never added: True for the first of its kind in this call.

        `data[starts[i]:starts[i + 1]]` is the id of record i; a record without an id (`null`) is always unseen.
        Nothing is added. Raises RocksError when a file can't be read.
        """

    def add(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        null: npt.NDArray[np.bool_],
        complete_to: int,
        now_ms: int,
        first: int = 0,
    ) -> int:
        """Add the ids of record `first` and those behind it; those already there are harmless.

        Gives how far it came: less than all records means that memory is full; write and ingest a file, then go on
        from there. Once all are added the store is complete up to output offset `complete_to`.
        """

    def is_full(self) -> bool:
        """Whether the ids in memory should become a file now."""

    def write_file(self) -> None:
        """Write the ids in memory, sorted, with the offset that they are complete to, into a file beside the database."""

    def ingest_file(self) -> None:
        """Give the written file to the database (one atomic step) and forget the ids in memory."""

    def stats(self) -> dict[str, int]:
        """`ids_in_memory`, `memory_bytes` (what these take), `ids_in_files`, `files`, `size_bytes`, `oldest_ms` (when the
        oldest id that is kept was added; 0: none)."""

    def close(self) -> None:
        """Close the database. Ids in memory are not written: they are read again from the output topic."""
