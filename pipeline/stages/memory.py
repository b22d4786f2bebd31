"""What the lanes of a process hold: fetched, and not yet in a transaction that has ended.

Who fetches waits for room, so that memory doesn't grow with the number of partitions. A lane whose turn takes long - a leader
at the target hangs - is left out of the count, so that the others go on; so are more of them until all lanes together hold
`MOST_BYTES`. A turn that fails gives back what it held, so that no lane keeps it for longer than a transaction may last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROOM_BYTES = 16 << 20  # from here on nothing more is fetched
MOST_BYTES = 128 << 20  # the same, with the lanes whose turns take long
SLOW_TURN_S = 5.0


class Share:
    """What one lane holds."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._bytes = 0
        self._is_slow = False

    def add(self, count: int) -> None:
        """Something was fetched."""
        self._bytes += count
        self._held.count(count, count if self._is_slow else 0)

    def remove(self, count: int) -> None:
        """Something is in a transaction that has ended, or was dropped."""
        self.add(-count)

    def set_slow(self, slow: bool) -> None:
        """Leave the lane out of the count, or count it again."""
        if slow != self._is_slow:
            self._is_slow = slow
            self._held.count(0, self._bytes if slow else -self._bytes)


class Held:
    """The sum of all shares."""

    def __init__(self) -> None:
        self._all = 0
        self._slow = 0
        self._less = asyncio.Event()

    @property
    def bytes(self) -> int:
        """What all lanes hold."""
        return self._all

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be fetched now."""
        return self._all - self._slow >= ROOM_BYTES or self._all >= MOST_BYTES

    def count(self, more: int, slow: int) -> None:
        """All lanes together, and the slow ones among them, hold so much more."""
        self._all += more
        self._slow += slow
        if not self.is_full:
            self._less.set()

    async def room(self, hurry: Callable[[], None]) -> None:
        """Wait for room; `hurry` lets go what only waits for more."""
        while self.is_full:
            hurry()
            self._less.clear()
            await self._less.wait()
