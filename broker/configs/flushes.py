"""Which transactions are flushed: what `penstock.transaction.flush` says."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from penstock.groupnames import is_stage


class Flushes(IntEnum):
    """Of two values the lower one is true of what both have written."""

    NONE = 0
    STAGES = 1
    """Those of mirror and dedupe."""
    ALL = 2

    @classmethod
    def of(cls, text: str) -> Self:
        """The property's value."""
        return cls(("false", "stages", "true").index(text))

    def covers(self, transactional_id: str) -> bool:
        """Whether the transactions of that id are among them."""
        return self is Flushes.ALL or (self is Flushes.STAGES and is_stage(transactional_id))
