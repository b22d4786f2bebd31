"""Which log folders count as full: a folder does until its disk has had room for a while.

Without that pause, a disk with little room would be full, have room and be full again with each batch that a follower appends.
Each time the controller would hear of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class FullDisks:
    """Of one broker."""

    settle_ms: int
    seen_ms: dict[str, int] = field(default_factory=dict)  # folder -> when its disk was seen full last


def on_look(disks: FullDisks, full: Collection[str], now_ms: int) -> frozenset[str]:
    """The folders that count as full. full: those whose disks are full now, by the data plane."""
    disks.seen_ms.update(dict.fromkeys(full, now_ms))
    disks.seen_ms = {
        path: seen_ms for path, seen_ms in disks.seen_ms.items() if path in full or now_ms - seen_ms < disks.settle_ms
    }
    return frozenset(disks.seen_ms)
