"""Differences that a person has accepted with `penstock audit accept`, since nothing explains them and nobody can mend them;
and logs that were left for others, of which nobody can tell whether all was copied.

They stand in the compacted topic `penstock.audit` of the aggregate cluster: a record a difference. What is accepted is exact:
so many records more or fewer at one place of one hop. With a record more or fewer the place is a difference again.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config import Config
from penstock.pipeline.audit.counts import CLIENT_ID
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages import smalltopic
from penstock.pipeline.stages.stagetopics import make_topic
from penstock.pyx.record.builder import BatchBuilder

TOPIC = "penstock.audit"


@dataclass(frozen=True)
class Accepted:
    """How many records more (or, below 0, fewer) a place may have than it should, why, and since when."""

    difference: int
    because: str
    at_ms: int


AcceptedOfHop = Mapping[str, Accepted]
"""By the place in the hop, such as `partition 3`."""


async def read(config: Config, timeouts: Timeouts) -> dict[str, AcceptedOfHop]:
    """What was accepted, by the hops' keys. Raises KafkaError."""
    async with timeouts.admin(config["bootstrap.servers"], CLIENT_ID) as admin:
        latest = await smalltopic.newest(admin, TOPIC)
    hops: defaultdict[str, dict[str, Accepted]] = defaultdict(dict)
    for key, value in latest.items():
        if (decoded := _decoded(key, value)) is not None:
            hop, place, accepted = decoded
            hops[hop][place] = accepted
    return dict(hops)


def _decoded(key: bytes, value: bytes | None) -> tuple[str, str, Accepted] | None:
    """What a record says; None for what was taken back, and for what no audit of ours wrote: it accepts nothing."""
    try:
        hop, place = json.loads(key)
        said = json.loads(value or b"null")
        return str(hop), str(place), Accepted(int(said["difference"]), str(said["because"]), int(said["at_ms"]))
    except (ValueError, KeyError, TypeError):
        return None


async def write(config: Config, timeouts: Timeouts, differences: Mapping[tuple[str, str], int], because: str) -> None:
    """Accept differences, by the hop's key and the place; one of 0 takes back what was accepted there before. Raises
    KafkaError."""
    now_ms = time.time_ns() // 1_000_000
    async with timeouts.admin(config["bootstrap.servers"], CLIENT_ID) as admin:
        await make_topic(admin, TOPIC, 1, {"cleanup.policy": "compact"})
        sender = Sender(admin, idempotent=False)
        for place, difference in differences.items():
            said = {"difference": difference, "because": because, "at_ms": now_ms}
            builder = BatchBuilder(0)
            builder.append(json.dumps(place).encode(), json.dumps(said).encode() if difference else None, now_ms)
            await sender.submit((TOPIC, 0), [builder.build()])
