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
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.sourcelog import SourceLog

Row = dict[str, Any]
"""A partition, with its `state` and `why` among what is shown of it."""

STATES = (
    *("stopped", "stalled", "silent", "lost", "waiting", "unreachable"),
    *("no position", "no topic", "not copied", "not begun", "no ids"),
)
"""The states in which a partition doesn't go on."""

LONGEST_STEP_MS = 60_000  # the output cluster's limit for a transaction: the steps of a stage are over before
SOON_MS = 10_000  # a partition that is behind for longer says so beside its state
PASSING = ("silent", "lost", "waiting", "no topic")  # a stage that goes on meanwhile may look so for a moment
LOOK_AGAIN_S = 2.0  # beyond the linger: within that a stage that runs has read something of what waits


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


class Reading(NamedTuple):
    """A log that a partition's stage reads: the position in it, and what it has."""

    tp: TopicPartition
    log: SourceLog
    position: StagePosition
    ahead: Ahead


async def look_ahead(cluster: Admin, tps: Sequence[TopicPartition], silent_ms: int) -> dict[TopicPartition, Ahead]:
    """What the logs of partitions have; those that aren't there, or have no leader, are left out. Raises KafkaError."""
    known = await cluster.metadata(list({topic for topic, _ in tps}), refresh=True)
    # One without a leader would hold up the answer for all.
    infos = {tp: known.topics[tp[0]].partitions.get(tp[1]) for tp in tps if tp[0] in known.topics}
    there = [tp for tp, info in infos.items() if info is not None and info.leader >= 0]
    # The end first: what comes between the two must not look as if it were held back.
    ends = await cluster.list_offsets(dict.fromkeys(there, LATEST))
    stable = await cluster.list_offsets(dict.fromkeys(there, LATEST), "read_committed")
    since_ms = max(0, time.time_ns() // 1_000_000 - silent_ms)
    young = await cluster.list_offsets(dict.fromkeys(there, since_ms))
    return {tp: Ahead(stable[tp].offset, ends[tp].offset, at.offset if at.offset >= 0 else None) for tp, at in young.items()}


async def look_twice(look: Callable[[], Awaitable[list[Row]]], linger_ms: int = 0) -> list[Row]:
    """The rows that a look gives. If one stands still by what was seen in passing, it looks again: records may be older than
    their arrival, and a stage may have started, or gone on, just now."""
    rows = await look()
    if any(row["state"] in PASSING for row in rows):
        await asyncio.sleep(linger_ms / 1000 + LOOK_AGAIN_S)
        rows = await look()
    return rows


def noted_state(position: StagePosition) -> dict[str, str]:
    """The state that a position notes, and why; empty where the partition goes on by what it says."""
    if position.stopped:
        return {"state": "stopped", "why": position.stopped}
    return {"state": "stalled", "why": position.stalled} if position.stalled else {}


async def state_of(
    cluster: Admin, position: StagePosition, inputs: Sequence[Reading], silent_ms: int, stage: str, going: str
) -> dict[str, str]:
    """The state of a partition with such a position, `going` if nothing holds it, and why. `inputs` are the logs of a cluster
    that it reads. Raises KafkaError."""
    if noted := noted_state(position):
        return noted
    for each in inputs:
        try:
            await each.log.check(each.position)
        except OperatorNeeded as error:
            return {"state": "lost", "why": str(error)}
    is_silent, why = _silence(inputs, position.committed_ms, silent_ms, stage)
    if is_silent:
        return {"state": "silent", "why": why}
    held = [each.tp for each in inputs if each.ahead.stable <= each.position.offset and each.ahead.stable < each.ahead.end]
    for hold in (await heldback.look(cluster, held) if held else {}).values():
        return {"state": "waiting" if hold.age_ms > silent_ms else going, "why": hold.words}
    return {"state": going, "why": why}


def show(call: Invocation, rows: Sequence[Row], shown: Callable[[Row], Row] = dict) -> None:
    """Show the rows, as a table with what is `shown` of each, and exit with 1 if a partition stands still."""
    call.show(rows if call.as_json else [shown(row) for row in rows], "partitions")
    if any(row["state"] in STATES or row.get("store_error") for row in rows):
        sys.exit(1)


def _silence(inputs: Sequence[Reading], committed_ms: int, silent_ms: int, stage: str) -> tuple[bool, str]:
    """Whether a partition is silent, and what there is to say of it. `committed_ms` is when its position was committed last;
    -1: an earlier version did, so nobody knows.

    It is silent when records have waited for so long without a commit. The caller has read the positions before the logs' ends.
    """
    waiting = [(each.position.offset, each.ahead) for each in inputs if each.ahead.stable > each.position.offset]
    quiet_ms = time.time_ns() // 1_000_000 - committed_ms
    if not waiting or committed_ms < 0:
        return False, ""
    words = f"no commit for {quiet_ms // 1000} s while {sum(ahead.stable - offset for offset, ahead in waiting)} records wait"
    # A young record that was read already had a clock that was ahead, and tells nothing of those that wait.
    if quiet_ms > silent_ms and any(ahead.young != offset for offset, ahead in waiting):
        return True, f"{words}: does the {stage} run?"
    return False, f"{words}; the partition is silent after {silent_ms // 1000} s" if quiet_ms > SOON_MS else ""
