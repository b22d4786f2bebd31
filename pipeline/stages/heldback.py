"""Logs that are held back: what lies behind an open transaction can't be read committed until that ends."""

from __future__ import annotations

import time

from penstock.hints import quoted
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.opentransactions import OpenTransaction


def age_ms(found: OpenTransaction) -> int:
    """How long it has been open; -1: no coordinator knows of it."""
    return -1 if found.began_ms < 0 else max(0, time.time_ns() // 1_000_000 - found.began_ms)


def words(tp: TopicPartition, found: OpenTransaction) -> str:
    """What holds a partition back, and what ends it."""
    where = f"`{tp[0]}` partition {tp[1]} at offset {found.offset}"
    what = f"waits for an open transaction of producer id {found.producer_id} in {where}"
    if found.began_ms < 0:
        place = f"--topic {quoted(tp[0])} --partition {quoted(tp[1])} --start-offset {quoted(found.offset)}"
        return f"{what}, of which no coordinator knows: `kafka-transactions.sh abort {place}` ends it"
    return (
        f"{what}: transactional id `{found.transactional_id}` has had it open for {age_ms(found) // 1000} s; its producer "
        "ends it, or its coordinator after the producer's `transaction.timeout.ms`"
    )


class Watch:
    """Notes since when one log's last stable offset stands still before its end, and says so once."""

    def __init__(self) -> None:
        self._at = -1  # the last stable offset that it stands at
        self._since = 0.0
        self._said = False

    def is_due(self, position: int, stable: int, end: int, now: float, limit_s: float) -> bool:
        """Whether it has stood still for so long, with nothing left to read before it, and nobody has said so. `now` is the
        loop's time."""
        if position < stable or stable >= end:
            self._at, self._said = -1, False
            return False
        if self._at != stable:
            self._at, self._since, self._said = stable, now, False
        due = not self._said and now - self._since >= limit_s
        self._said |= due
        return due
