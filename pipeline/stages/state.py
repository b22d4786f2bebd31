"""The state of a partition, by one rule: of `status`, which asks the clusters, and of a process, which watches them.

A process that doesn't run says nothing: the position and the log that is read tell after a while that nobody reads there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.config import Config
from penstock.pipeline.stages.heldback import Hold
from penstock.pipeline.stages.position import StagePosition

State = dict[str, str]
"""A `state`, and `why`."""

GOING = ("copying", "registered", "reading")
STANDING = (
    *("stopped", "stalled", "silent", "lost", "waiting", "unreachable"),
    *("no position", "no topic", "not copied", "not begun", "no ids"),
)
"""The states in which a partition doesn't go on."""

LONGEST_STEP_MS = 60_000  # the output cluster's limit for a transaction: the steps of a stage are over before
SOON_MS = 10_000  # a partition that is behind for longer says so beside its state


def silent_after_ms(config: Config, linger_ms: int = 0) -> int:
    """How long records wait at most for a stage that runs: by then it has committed something of their partition, or the
    position says that it is stalled or stopped. A partition that another process took is left to that one for a session before.
    """
    return LONGEST_STEP_MS + linger_ms + sum(int(config[name]) for name in ("penstock.stalled.after.ms", "session.timeout.ms"))


class Ahead(NamedTuple):
    """What a partition's log has: its last stable offset, the offset that it ends at, and the first offset whose record is
    younger than the time in which a stage that runs has read or told a record (None: there is no such record).
    """

    stable: int
    end: int
    young: int | None

    def is_held_back(self, offset: int) -> bool:
        """Whether an open transaction keeps all back that comes after an offset."""
        return self.stable <= offset and self.stable < self.end


class Sight(NamedTuple):
    """What is known of a partition: its position, and of each log that it reads the offset that comes next and what it has.
    Of the texts, each says in words what holds the partition up, or is empty; `hold` is what holds one of its logs back."""

    position: StagePosition
    logs: Sequence[tuple[int, Ahead]] = ()
    unreachable: str = ""
    no_topic: str = ""
    lost: str = ""
    hold: Hold | None = None


def state_of(sight: Sight, silent_ms: int, going: State) -> State:
    """The state of a partition, `going` if nothing holds it."""
    if noted := noted_state(sight.position):
        return noted
    for state, why in (("unreachable", sight.unreachable), ("no topic", sight.no_topic), ("lost", sight.lost)):
        if why:
            return {"state": state, "why": why}
    is_silent, words = _silence(sight, silent_ms)
    if is_silent:
        return {"state": "silent", "why": words}
    if sight.hold is not None:
        return {"state": "waiting" if sight.hold.age_ms > silent_ms else going["state"], "why": sight.hold.words}
    return {**going, "why": going["why"] or words}


def noted_state(position: StagePosition) -> State:
    """The state that a position notes, and why; empty where the partition goes on by what it says."""
    if position.stopped:
        return {"state": "stopped", "why": position.stopped}
    return {"state": "stalled", "why": position.stalled} if position.stalled else {}


def _silence(sight: Sight, silent_ms: int) -> tuple[bool, str]:
    """Whether a partition is silent, and what there is to say of it. Of a position that an earlier version committed nobody
    knows when that was.

    It is silent when records have waited for so long without a commit. The positions were read before the logs' ends.
    """
    waiting = [(offset, ahead) for offset, ahead in sight.logs if ahead.stable > offset]
    committed_ms = sight.position.committed_ms
    quiet_ms = time.time_ns() // 1_000_000 - committed_ms
    if not waiting or committed_ms < 0:
        return False, ""
    words = f"no commit for {quiet_ms // 1000} s while {sum(ahead.stable - offset for offset, ahead in waiting)} records wait"
    # A young record that was read already had a clock that was ahead, and tells nothing of those that wait.
    if quiet_ms > silent_ms and any(ahead.young != offset for offset, ahead in waiting):
        return True, f"{words}: does the {sight.position.stage} run?"
    return False, f"{words}; the partition is silent after {silent_ms // 1000} s" if quiet_ms > SOON_MS else ""
