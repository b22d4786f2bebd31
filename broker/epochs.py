"""Epochs that no two starts have, though one of them found a copy of older folders.

Each start is an election: it has an epoch that is higher than every one before it, and that logs and clients keep. A counter
that goes up by one a start can't be that: a folder that was restored from yesterday's copy reaches the same numbers once more,
with other records, and nothing that compares epochs tells the two histories apart. So an epoch is the number of seconds since
2025 at the start of the broker. It outgrows whatever was started before, also if this folder doesn't know of it.

If the clock isn't ahead of the last epoch, it is wrong now or was wrong at an earlier start. Then the epoch goes on by a
random step: a restored copy repeats an epoch in one of `STEPS` cases.
"""

from __future__ import annotations

import secrets

EPOCH_BELIEVED = 1 << 30
"""Epochs from here on are nobody's: a file is damaged, or a clock is wrong, as they begin in the year 2059. None is taken over
from a log, or from the clock, so that the 31 bits that Kafka has for an epoch last."""
STEPS = 256
SINCE_MS = 1_735_689_600_000
"""2025-01-01 UTC."""


def next_epoch(last: int, now_ms: int) -> int:
    """The epoch of a start after the one that had `last`, by a wall clock in milliseconds since 1970."""
    clock = (now_ms - SINCE_MS) // 1000
    if last < clock < EPOCH_BELIEVED:
        return clock
    return last + 1 + (secrets.randbelow(STEPS) if last < EPOCH_BELIEVED else 0)
