"""Logs that are held back: what lies behind an open transaction can't be read committed until that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client, TopicPartition
from penstock.pipeline.clients.opentransactions import ONGOING, OpenTransaction, open_transactions

LONG_AGO_MS = 1 << 62
UNNAMED = "waits for an open transaction, whose producer this cluster can't name (Kafka can since 3.0)"


class Hold(NamedTuple):
    """How long a transaction has held a partition back, by its coordinator, and in words, whose it is and what ends it. Of a
    hanging one nobody knows the age, and it won't end by itself."""

    age_ms: int
    words: str


async def look(client: Client, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Hold]:
    """What holds partitions back; those whose transaction has ended just now are left out. Raises KafkaError."""
    try:
        found = await open_transactions(client, tps)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {tp: Hold(0, f"{UNNAMED}: `{tp[0]}` partition {tp[1]}") for tp in tps}
    return {tp: Hold(_age_ms(one), _words(tp, one)) for tp, one in found.items()}


def _age_ms(found: OpenTransaction) -> int:
    return LONG_AGO_MS if found.began_ms < 0 else max(0, time.time_ns() // 1_000_000 - found.began_ms)


def _words(tp: TopicPartition, found: OpenTransaction) -> str:
    where = f"`{tp[0]}` partition {tp[1]} at offset {found.offset}"
    what = f"waits for an open transaction of producer id {found.producer_id} in {where}"
    if not found.state:
        return (
            f"{what}, of which no coordinator tells us: if `kafka-transactions.sh find-hanging` names it, too, the `abort` of "
            "that tool ends it"
        )
    begun = f"{what}: transactional id `{found.transactional_id}` has had it open for {_age_ms(found) // 1000} s"
    if found.state != ONGOING:
        return f"{begun} and has ended it ({found.state}); its coordinator writes the marker"
    return f"{begun}; its producer ends it, or its coordinator after the producer's `transaction.timeout.ms`"


class HoldWatch:
    """Notes since when one log's last stable offset stands still before its end, what holds it back, and whether that was
    said."""

    def __init__(self) -> None:
        self._at = -1  # the last stable offset that it stands at
        self._since = 0.0
        self._hold: Hold | None = None
        self._looked_at_ms = 0
        self.is_said = False

    def stood_s(self, position: int, stable: int, end: int, now: float) -> float:
        """How long it has stood still so, with nothing left to read before it; 0: it doesn't. `now` is the loop's time."""
        if position < stable or stable >= end:
            self._at, self._hold, self.is_said = -1, None, False
            return 0.0
        if self._at != stable:
            self._at, self._since, self._hold, self.is_said = stable, now, None, False
        return now - self._since

    def note(self, hold: Hold | None) -> None:
        """What holds it back was looked up now."""
        self._hold, self._looked_at_ms = hold, time.time_ns() // 1_000_000

    def hold(self) -> Hold | None:
        """What holds it back, as old as that is by now; None: nothing does, or nobody has looked yet."""
        if self._hold is None:
            return None
        return self._hold._replace(age_ms=self._hold.age_ms + time.time_ns() // 1_000_000 - self._looked_at_ms)
