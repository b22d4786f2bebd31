"""`penstock mirror status` and `penstock dedupe status`: the state of each partition, by its position and by its logs.

No process of the stage is asked, so it works from any host, also while none runs. A process that doesn't run says nothing: the
position and the log that is read tell after a while that nobody reads there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from penstock.config import Config
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import Invocation
from penstock.pipeline.stages.position import StagePosition

Row = dict[str, Any]
"""A partition, with its `state` and `why` among what is shown of it."""

STATES = ("stopped", "stalled", "silent", "no position", "not copied", "not begun")
"""The states in which a partition doesn't go on."""

LONGEST_STEP_MS = 60_000  # the output cluster's limit for a transaction: the steps of a stage are over before
SOON_MS = 10_000  # a partition that is behind for longer says so beside its state
LOOK_AGAIN_S = 2.0  # beyond the linger: within that a stage that runs has read something of what waits


def silent_after_ms(config: Config, linger_ms: int = 0) -> int:
    """How long records wait at most for a stage that runs: by then it has committed something of their partition, or the
    position says that it is stalled or stopped. A partition that another process took is left to that one for a session before.
    """
    return LONGEST_STEP_MS + linger_ms + sum(int(config[name]) for name in ("penstock.stalled.after.ms", "session.timeout.ms"))


class Ahead(NamedTuple):
    """What a partition's log has: its last stable offset, and the first offset whose record is younger than the time in which
    a stage that runs has read or told a record (None: there is no such record).
    """

    end: int
    young: int | None


async def look_ahead(cluster: Admin, tps: Sequence[TopicPartition], silent_ms: int) -> dict[TopicPartition, Ahead]:
    """What the logs of partitions have; those that aren't there are left out. Raises KafkaError."""
    known = await cluster.metadata(list({topic for topic, _ in tps}), refresh=True)
    there = [tp for tp in tps if tp[0] in known.topics and tp[1] in known.topics[tp[0]].partitions]
    ends = await cluster.list_offsets(dict.fromkeys(there, LATEST), "read_committed")
    since_ms = max(0, time.time_ns() // 1_000_000 - silent_ms)
    young = await cluster.list_offsets(dict.fromkeys(there, since_ms))
    return {tp: Ahead(ends[tp].offset, at.offset if at.offset >= 0 else None) for tp, at in young.items()}


async def look_twice(look: Callable[[], Awaitable[list[Row]]], linger_ms: int = 0) -> list[Row]:
    """The rows that a look gives. If one is silent it looks again: records may be older than their arrival, and a stage may
    have started just now."""
    rows = await look()
    if any(row["state"] == "silent" for row in rows):
        await asyncio.sleep(linger_ms / 1000 + LOOK_AGAIN_S)
        rows = await look()
    return rows


def state_of(
    position: StagePosition, inputs: Sequence[tuple[int, Ahead]], silent_ms: int, stage: str, going: str
) -> dict[str, str]:
    """The state of a partition with such a position, `going` if nothing holds it, and why. `inputs` are the logs that it reads,
    each with the offset that comes next."""
    if position.stopped:
        return {"state": "stopped", "why": position.stopped}
    if position.stalled:
        return {"state": "stalled", "why": position.stalled}
    is_silent, why = _silence(inputs, position.committed_ms, silent_ms, stage)
    return {"state": "silent" if is_silent else going, "why": why}


def show(call: Invocation, rows: Sequence[Row], shown: Callable[[Row], Row] = dict) -> None:
    """Show the rows, as a table with what is `shown` of each, and exit with 1 if a partition stands still."""
    call.show(rows if call.as_json else [shown(row) for row in rows], "partitions")
    if any(row["state"] in STATES or row.get("store_error") for row in rows):
        sys.exit(1)


def _silence(inputs: Sequence[tuple[int, Ahead]], committed_ms: int, silent_ms: int, stage: str) -> tuple[bool, str]:
    """Whether a partition is silent, and what there is to say of it. `committed_ms` is when its position was committed last;
    -1: an earlier version did, so nobody knows.

    It is silent when records have waited for so long without a commit, and when a log ends before the position, because a stage
    that reads it would have said that. The caller has read the positions before the logs' ends.
    """
    for offset, ahead in inputs:
        if ahead.end < offset:
            return True, (
                f"its input ends at {ahead.end}, before the position {offset}; a {stage} that runs would have stopped and said "
                "the way on: does it run?"
            )
    waiting = [(offset, ahead) for offset, ahead in inputs if ahead.end > offset]
    quiet_ms = time.time_ns() // 1_000_000 - committed_ms
    if not waiting or committed_ms < 0:
        return False, ""
    words = f"no commit for {quiet_ms // 1000} s while {sum(ahead.end - offset for offset, ahead in waiting)} records wait"
    # A young record that was read already had a clock that was ahead, and tells nothing of those that wait.
    if quiet_ms > silent_ms and any(ahead.young != offset for offset, ahead in waiting):
        return True, f"{words}: does the {stage} run?"
    return False, f"{words}; the partition is silent after {silent_ms // 1000} s" if quiet_ms > SOON_MS else ""
