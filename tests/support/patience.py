"""Waiting for what another thread or process makes true."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 150.0


def until(condition: Callable[[], bool], what: str, detail: Callable[[], str] = str, every_s: float = 0.01) -> None:
    """Wait for a condition, which is looked at so often; fails, saying for what and in what state, when it has not come true in
    LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}\n{detail()}"
        time.sleep(every_s)
