"""The quarantine topic takes what any stage sets aside, however small the batches were for which it was made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.broker import Broker
from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.stages.quarantine import HEADERS_BYTES, TOPIC, Quarantine


def test_a_larger_topic_that_comes_later_makes_room(tmp_path: Path) -> None:
    async def limits(bootstrap: str) -> list[int]:
        async with Admin(bootstrap) as admin:
            found = []
            for max_batch_bytes in (1 << 20, 8 << 20, 0):
                quarantine = Quarantine(admin, max_batch_bytes)
                assert await quarantine.place(3) == (TOPIC, 0)
                known = (await admin.describe_configs(TOPIC_RESOURCE, TOPIC))["max.message.bytes"]
                assert known == str(quarantine.limit)
                found.append(quarantine.limit)
            return found

    broker = Broker(tmp_path)
    broker.start()
    try:
        first, larger, later = asyncio.run(limits(broker.bootstrap))
    finally:
        broker.stop()
    assert (first, larger) == ((1 << 20) + HEADERS_BYTES, (8 << 20) + HEADERS_BYTES)
    assert later == larger, "nobody takes room away from the others"
