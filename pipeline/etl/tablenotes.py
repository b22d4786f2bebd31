"""What the aggregate cluster notes for the nights: a topic of one partition, compacted, whose records the broker stamps.

The stamp of a record is the cluster's own clock, also where nobody has produced anything for days. A machine whose clock is
wrong would load nights that aren't over, and nothing in its table would say so.
"""

from __future__ import annotations

from penstock.hints import quoted
from penstock.pipeline.etl.clusterview import ClusterView
from penstock.pipeline.etl.errors import Refused

TOPIC = "penstock.tables"
CONFIGS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
CLOCK = b"clock"  # the key of records that are only appended for their stamp


class TableNotes:
    """The notes of a cluster, whose topic the first record makes."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def clock_ms(self) -> int:
        """The cluster's clock, ms since 1970. Raises Refused where the topic doesn't show it, Unreachable."""
        shown = await self._cluster.append(TOPIC, CONFIGS, CLOCK, b"{}")
        if shown < 0:
            raise Refused(
                f"{self._cluster.name} doesn't stamp the records of `{TOPIC}`, so that nobody knows its clock\n"
                f"hint: `penstock configs set topic {quoted(TOPIC)} message.timestamp.type=LogAppendTime`"
            )
        return shown
