"""The clock by which things grow old: what is deleted because of its age doesn't come back.

Records, committed offsets, transactional ids, producer ids and tombstones go when the wall clock says that they are old
enough. A wall clock that is set a month ahead, be it for seconds (NTP, a restored VM, a typing error), would delete all of
them at once. So their age is counted by a clock that follows the wall clock but doesn't jump ahead with it: after a jump
it goes on as time really passes, until the wall clock is back, or has agreed with that passing for
`penstock.clock.settle.ms` and is believed. Then a machine that was suspended for days deletes what is due, an hour later.

A start can't tell a wrong clock from days without a running broker. So it goes on from the latest time that the last run knew
(`lasttime.py`), and a wall clock that is more than an hour ahead of that is one that has jumped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock import log

JUMP_MS = 3_600_000
"""So far the wall clock may get ahead of the time that has passed since it was last read."""

_log = log.get(__name__)


class AgeClock:
    """Milliseconds since 1970, for ages only. Any thread may ask; one has to now and then, so that jumps are seen."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int], config: Mapping[str, Any]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._config = config
        self._lock = threading.Lock()
        # How far the wall clock is ahead of the monotonic one: as it is believed, and as it is since a jump.
        self._believed_ms = wall_ms() - monotonic_ms()
        self._doubted_ms: int | None = None
        self._doubted_since_ms = 0
        self.jumps = 0
        """How often the wall clock has jumped ahead."""

    def begin(self, last_ms: int) -> None:
        """Go on from the latest time that an earlier run knew."""
        with self._lock:
            monotonic_ms, wall_ms = self._monotonic_ms(), self._wall_ms()
            if wall_ms - last_ms <= JUMP_MS:
                return
            self._believed_ms = last_ms - monotonic_ms
            self._doubted_ms, self._doubted_since_ms = wall_ms - monotonic_ms, monotonic_ms
            _log.warning(
                "the wall clock says %s, and the last run of this broker ended at %s: the clock may be wrong. Nothing is "
                "deleted because of its age until the clock has run evenly for %d s (penstock.clock.settle.ms)",
                _text(wall_ms), _text(last_ms), self._settle_ms // 1000,
            )  # fmt: skip

    def now_ms(self) -> int:
        """The time; that of the wall clock unless it has jumped ahead."""
        with self._lock:
            return self._look() + self._believed_ms

    @property
    def is_settled(self) -> bool:
        """Whether the wall clock is believed, as it is now: nobody may have asked for the time since it jumped."""
        with self._lock:
            self._look()
            return self._doubted_ms is None

    def _look(self) -> int:
        """See where the wall clock stands; the monotonic clock's time."""
        monotonic_ms = self._monotonic_ms()
        offset_ms = self._wall_ms() - monotonic_ms
        if offset_ms - self._believed_ms <= JUMP_MS:
            if self._doubted_ms is not None:
                _log.warning("the wall clock is right again: what is old enough is deleted as ever")
            self._believed_ms, self._doubted_ms = offset_ms, None
        elif self._doubted_ms is None or abs(offset_ms - self._doubted_ms) > JUMP_MS:
            self._doubted_ms, self._doubted_since_ms = offset_ms, monotonic_ms
            self.jumps += 1
            _log.warning(
                "the wall clock has jumped ahead: it says %s, and by the time that has passed it should be %s (jump %d since "
                "the start). Nothing is deleted because of its age until the clock is right again, or has run evenly for %d s",
                _text(monotonic_ms + offset_ms), _text(monotonic_ms + self._believed_ms), self.jumps, self._settle_ms // 1000,
            )  # fmt: skip
        elif monotonic_ms - self._doubted_since_ms >= self._settle_ms:
            _log.warning(
                "the wall clock has run evenly for %d s since it was found ahead, and is believed: %s",
                self._settle_ms // 1000, _text(monotonic_ms + offset_ms),
            )  # fmt: skip
            self._believed_ms, self._doubted_ms = offset_ms, None
        return monotonic_ms

    @property
    def _settle_ms(self) -> int:
        settle_ms: int = self._config["penstock.clock.settle.ms"]
        return settle_ms


def _text(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"
