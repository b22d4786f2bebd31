"""Logs that are held back: what lies behind an open transaction can't be read committed until that ends."""

from __future__ import annotations

import time

from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.opentransactions import ONGOING, OpenTransaction

LONG_AGO_MS = 1 << 62
UNNAMED = "waits for an open transaction, whose producer this cluster can't name (Kafka can since 3.0)"


def age_ms(found: OpenTransaction) -> int:
    """How long it has been open, by its coordinator; of a hanging one nobody knows, and it won't end by itself."""
    return LONG_AGO_MS if found.began_ms < 0 else max(0, time.time_ns() // 1_000_000 - found.began_ms)


def words(tp: TopicPartition, found: OpenTransaction) -> str:
    """What holds a partition back, and what ends it."""
    where = f"`{tp[0]}` partition {tp[1]} at offset {found.offset}"
    what = f"waits for an open transaction of producer id {found.producer_id} in {where}"
    if not found.state:
        return (
            f"{what}, of which no coordinator tells us: if `kafka-transactions.sh find-hanging` names it, too, the `abort` of "
            "that tool ends it"
        )
    begun = f"{what}: transactional id `{found.transactional_id}` has had it open for {age_ms(found) // 1000} s"
    if found.state != ONGOING:
        return f"{begun} and has ended it ({found.state}); its coordinator writes the marker"
    return f"{begun}; its producer ends it, or its coordinator after the producer's `transaction.timeout.ms`"


class Watch:
    """Notes since when one log's last stable offset stands still before its end, and whether that was said."""

    def __init__(self) -> None:
        self._at = -1  # the last stable offset that it stands at
        self._since = 0.0
        self.is_said = False

    def is_due(self, position: int, stable: int, end: int, now: float, limit_s: float) -> bool:
        """Whether it has stood still for so long, with nothing left to read before it, and nobody has said so. `now` is the
        loop's time."""
        if position < stable or stable >= end:
            self._at, self.is_said = -1, False
            return False
        if self._at != stable:
            self._at, self._since, self.is_said = stable, now, False
        return not self.is_said and now - self._since >= limit_s
