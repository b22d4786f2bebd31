"""What the machines have to know of a replica's log. The data plane's log gives it, and so does the simulator's."""

from __future__ import annotations

from typing import Protocol


class Log(Protocol):
    """One replica's log, as it is at this moment (in the data plane: under the partition's lock)."""

    @property
    def end(self) -> int:
        """The log end offset."""
        ...

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch; NO_EPOCH if there is none. Epochs without a batch don't count."""
        ...

    @property
    def removed_below(self) -> int:
        """Tombstones and transaction markers below this offset may be missing: compaction has removed them here, or in the log
        that this one was copied from. It is never too low, and never above a high watermark of the partition.
        """
        ...

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of a batch up to this one, and the offset after that epoch's last batch."""
        ...
