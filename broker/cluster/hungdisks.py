"""Whether a broker has to leave its cluster since one of its disks hangs, and when it may come back.

A broker whose disk hangs still has a session: it keeps its leads, and answers no producer. After `hang_ms` it leaves, as one
that has died: others lead, control and coordinate in its place. It comes back after `settle_ms` without a slow write.

Two looks in a row have to see the write: a process that stood still itself (SIGSTOP) sees an old write at its first look.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOW = 6
"""A write that is out for one part in so many of `hang_ms` is slow: one second of six."""


@dataclass(slots=True)
class HungDisks:
    """Of one broker."""

    hang_ms: int
    settle_ms: int
    is_out: bool = False  # it has left, or has to
    is_suspected: bool = False  # by the last look
    slow_ms: int = 0  # when a write was seen last that was slow


def on_look(hung: HungDisks, write_ms: int, may_leave: bool, now_ms: int) -> None:
    """write_ms: for how long the longest write is out. may_leave: others can lead in this broker's place."""
    hangs = write_ms >= hung.hang_ms
    if hangs and hung.is_suspected and may_leave:
        hung.is_out = True
    hung.is_suspected = hangs
    if write_ms * SLOW >= hung.hang_ms:
        hung.slow_ms = now_ms
    elif now_ms - hung.slow_ms >= hung.settle_ms:
        hung.is_out = False
