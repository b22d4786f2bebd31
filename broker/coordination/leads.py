"""The partitions of a coordinator's internal topic that this broker leads: their names are coordinated here.

    elected ─► loading: the log is read ─► waiting until all of it is committed ─► loaded ─► resigned
                 ▲       └─ it can't be read ─► unreadable ───────────────────────────────────┘
                 └── in a cluster, some seconds later, unless it is corrupt ─┘

A lead bears the leader epoch in which it began. What is appended for a machine is refused by the log unless this broker has
led since that epoch without a pause; so what a coordinator decides on what it has loaded is never appended after another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from penstock.broker.coordination.machines import Appended
from penstock.broker.coordination.timers import Entry, Machine

M = TypeVar("M", bound=Machine)


class LeadState(Enum):
    """What this broker can say of the names of a partition that it leads."""

    LOADING = "loading"
    LOADED = "loaded"
    UNREADABLE = "unreadable"  # its disk has failed, descriptors have run out, or a record is corrupt


@dataclass(slots=True)
class Pending(Generic[M]):
    """An append that is in the log and not in all in-sync replicas yet; nothing takes it back, its lead is lost with it."""

    needed: int  # the high watermark at which it is committed
    entry: Entry[M]
    event: Appended


@dataclass(slots=True, eq=False)
class Lead(Generic[M]):
    """One partition, from an election to the resignation that follows it."""

    epoch: int
    state: LeadState = LeadState.LOADING
    unclean_epoch: int = -1
    """The newest leader epoch that an unclean election began: the log may lack records that it had before. -1: none."""
    is_corrupt: bool = False
    """It is unreadable for good."""
    readings: int = 0
    """How often it couldn't be read before, in this lead."""
    pending: deque[Pending[M]] = field(default_factory=deque)
    """In the order of the log. What a machine's refused append is answered stands behind those of its that are pending."""
    is_settling: bool = False
    """Somebody waits for the first of those."""
    missed: list[Callable[[], None]] = field(default_factory=list)
    """What the machines have to hear once they are loaded."""
    entries: dict[str, Entry[M]] = field(default_factory=dict)
    """Those of the coordinator's whose log this is."""


@dataclass(slots=True, eq=False)
class Loading(Generic[M]):
    """Machines as they come out of the log, before anybody can ask them."""

    partition: int = -1  # that is being read
    end: int = 0  # of what is read of it
    entries: dict[str, Entry[M]] = field(default_factory=dict)
