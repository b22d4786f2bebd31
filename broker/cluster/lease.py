"""The lease: for how long a broker may believe that its ZooKeeper session lives.

The broker writes to ZooKeeper every sixth of the session's time. A write that was answered proves that the session lived when
it was *sent*: the lease lasts from that moment for two thirds of the session's time. Reads and pings prove nothing, since a
ZooKeeper server that is cut off from its ensemble answers them for longer than a session lasts. The clock is CLOCK_BOOTTIME,
which counts through suspend; no wall clock decides anything.

The lease is about acks=0/1, stale reads and coordinators, never about acks=all: R1 to R5 hold without it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.errors import ErrorCode

RENEWALS = 6  # in a session's time
SILENCE_MS = 2_000  # a member of MAX that hasn't fetched for this long counts as gone, once the lease is over


@dataclass(slots=True)
class Lease:
    """One broker's lease. With `penstock.lease.enable=false` nobody asks it."""

    session_ms: int
    until_ms: int = 0

    @property
    def renew_ms(self) -> int:
        """How often the broker has to write."""
        return self.session_ms // RENEWALS

    def holds(self, now_ms: int) -> bool:
        """Whether the session surely lives. The clock must have been read after what the lease is asked for."""
        return now_ms < self.until_ms


def renew(lease: Lease, sent_ms: int) -> None:
    """A write was answered: the session lived when that write was sent."""
    lease.until_ms = max(lease.until_ms, sent_ms + lease.session_ms * 2 // 3)


def produce_error(is_held: bool, acks: int, broker: int, members: Collection[int], elr: Collection[int], silent_ms: int) -> int:
    """What a leader answers a produce that it has appended. `members` is MAX; silent_ms: since the most silent member fetched.

    - A partition that nobody else can be elected for is served on.
    - acks=0/1 fail once the lease is over: a successor may cut what this broker appends.
    - acks=all go on, so that an outage of ZooKeeper alone stops no producer; but not while a member is silent, since a client
      of a broker that is cut off would wait for its whole timeout.
    """
    if is_held or (set(members) == {broker} and not elr):
        return ErrorCode.NONE
    if acks != -1 or silent_ms > SILENCE_MS:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE
