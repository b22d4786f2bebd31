"""Tests that are about today or yesterday run within one day."""

from __future__ import annotations

import time

DAY_S = 86_400
LONGEST_S = 600
"""How long such a test may take."""


def wait_s(now_s: float) -> float:
    """For how long a test that begins now has to wait, so that no midnight (UTC) comes before its end."""
    left_s = DAY_S - now_s % DAY_S
    return left_s if left_s <= LONGEST_S else 0.0


def begin() -> None:
    """Wait so long."""
    time.sleep(wait_s(time.time()))
