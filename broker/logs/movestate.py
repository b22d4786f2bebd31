"""What a partition's move between log folders is at, and what follows from what is asked and from what happens.

Nothing but these rules: no disk, no loop, no clock. `None` is a partition that doesn't move.

    None     -- ask(target) -->  COPYING      its files are copied while it serves
    COPYING  -- ask(another) ->  COPYING      the copy is given up for one in the other folder
    COPYING  -- ask(here) ---->  None         the copy is given up: `here` is where the partition lies
    COPYING  -- copied ------->  SWAPPING     the partition is closed, and opened where it then lies, whatever goes wrong
    SWAPPING -- ask(another) ->  SWAPPING     with `then`, which is seen to afterwards
    SWAPPING -- over --------->  None, or COPYING to `then` unless it lies there by now
    any      -- forget ------->  None (COPYING), SWAPPING without `then`

So a partition has one move at a time, and one whose names are being changed is never given up. This is how Apache Kafka
treats AlterReplicaLogDirs: the target that was named last is the one that counts, and naming the folder where the
partition lies cancels its move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

F = TypeVar("F")
"""A log folder; equal to itself alone."""


class Phase(Enum):
    """See above."""

    COPYING = "copying"
    SWAPPING = "swapping"


@dataclass(frozen=True)
class MoveState(Generic[F]):
    """Of a partition that moves to `target`. `then`: where it shall go after that, None = it stays there."""

    phase: Phase
    target: F
    then: F | None = None


def ask(state: MoveState[F] | None, here: F, target: F) -> MoveState[F] | None:
    """A client wants the partition, which lies `here`, to lie in `target`."""
    if state is not None and state.phase is Phase.SWAPPING:
        return replace(state, then=None if target is state.target else target)
    if target is here:
        return None
    if state is not None and state.target is target:
        return state
    return MoveState(Phase.COPYING, target)


def forget(state: MoveState[F] | None) -> MoveState[F] | None:
    """The partition shall move no more: its topic is deleted, or the broker stops."""
    return None if state is None or state.phase is Phase.COPYING else replace(state, then=None)


def copied(state: MoveState[F]) -> MoveState[F]:
    """The copy has what the log had a moment ago: from here on the move isn't given up."""
    return replace(state, phase=Phase.SWAPPING)


def over(state: MoveState[F], here: F | None) -> MoveState[F] | None:
    """The move has ended, well or not; the partition lies `here` now, None = it is gone."""
    if here is None or state.then is None or state.then is here:
        return None
    return MoveState(Phase.COPYING, state.then)
