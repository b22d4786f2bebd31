"""`penstock mirror status` and `penstock dedupe status`: what positions and logs say of each partition now.

No process of the stage is asked, so it works from any host, also while none runs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import Invocation
from penstock.pipeline.stages import heldback
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.outlook import look_at_ends
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.sourcelog import SourceLog
from penstock.pipeline.stages.state import STANDING, Ahead, Sight, noted_state

Row = dict[str, Any]
"""A partition, with its `state` and `why` among what is shown of it."""

PASSING = ("silent", "lost", "waiting", "no topic")  # a stage that goes on meanwhile may look so for a moment
LOOK_AGAIN_S = 2.0  # beyond the linger: within that a stage that runs has read something of what waits


class Reading(NamedTuple):
    """A log that a partition's stage reads: the position in it, and what it has."""

    tp: TopicPartition
    log: SourceLog
    position: StagePosition
    ahead: Ahead


async def look_at(cluster: Admin, position: StagePosition, inputs: Sequence[Reading]) -> Sight:
    """What there is to see of a partition with such a position. `inputs` are the logs of a cluster that it reads. Raises
    KafkaError."""
    if noted_state(position):
        return Sight(position)
    for each in inputs:
        try:
            await each.log.check(each.position)
        except OperatorNeeded as error:
            return Sight(position, lost=str(error))
    held = [each.tp for each in inputs if each.ahead.is_held_back(each.position.offset)]
    holds = await heldback.look(cluster, held) if held else {}
    return Sight(position, [(each.position.offset, each.ahead) for each in inputs], hold=next(iter(holds.values()), None))


async def look_ahead(cluster: Admin, tps: Sequence[TopicPartition], silent_ms: int) -> dict[TopicPartition, Ahead]:
    """What the logs of partitions have; those that aren't there, or have no leader, are left out. Raises KafkaError."""
    ends = await look_at_ends(cluster, tps)
    since_ms = max(0, time.time_ns() // 1_000_000 - silent_ms)
    young = await cluster.list_offsets(dict.fromkeys(ends, since_ms))
    return {tp: Ahead(*ends[tp], at.offset if at.offset >= 0 else None) for tp, at in young.items()}


async def look_twice(look: Callable[[], Awaitable[list[Row]]], linger_ms: int = 0) -> list[Row]:
    """The rows that a look gives. If one stands still by what was seen in passing, it looks again: records may be older than
    their arrival, and a stage may have started, or gone on, just now."""
    rows = await look()
    if any(row["state"] in PASSING for row in rows):
        await asyncio.sleep(linger_ms / 1000 + LOOK_AGAIN_S)
        rows = await look()
    return rows


def show(call: Invocation, rows: Sequence[Row], shown: Callable[[Row], Row] = dict) -> None:
    """Show the rows, as a table with what is `shown` of each, and exit with 1 if a partition stands still."""
    call.show(rows if call.as_json else [shown(row) for row in rows], "partitions")
    if any(row["state"] in STANDING or row.get("store_error") for row in rows):
        sys.exit(1)
