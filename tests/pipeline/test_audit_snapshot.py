"""Positions and the batches that they count are told apart from what comes after them, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline import job
from penstock.pipeline.audit import snapshot
from penstock.pipeline.audit.counts import stable_ends
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.stages.batches import send
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch
from support.harness import BrokerProcess, topic_name
from support.stages import write_properties


def batch(records: int) -> RawBatch:
    builder = BatchBuilder(0)
    for number in range(records):
        builder.append(b"%d" % number, b"", time.time_ns() // 1_000_000)
    return RawBatch(builder.build())


async def turn(sender: TransactionalSender, topic: str, records: int, group: str = "") -> int:
    """A lane's turn, with its position unless it is one that comes after the look; the end that it notes."""
    await sender.begin()
    _, end = await send(sender, (topic, 0), [batch(records)])
    noted = {"records": records, "target_end": end, "producer_id": sender.producer_id}
    if group:
        await sender.send_offsets(group, {(topic, 0): (records, json.dumps(noted))})
    await sender.commit()
    return end


def test_a_batch_counts_if_its_lanes_position_knows_it(
    shared_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's transaction that began before keeps the last stable offset below all of them for a while."""
    monkeypatch.setattr(snapshot, "PAUSE_S", 0.01)
    waits = asyncio.Event()

    async def note(*given: Any) -> dict[TopicPartition, int]:
        waits.set()  # Ends and positions have been looked at.
        return await stable_ends(*given)

    monkeypatch.setattr(snapshot, "stable_ends", note)
    topic, address = topic_name("flights"), shared_broker.bootstrap
    config = job.load(write_properties(tmp_path / "pipeline.properties", {
        "source.A.bootstrap.servers": address, "source.B.bootstrap.servers": address, "bootstrap.servers": address,
        "topics": topic, "penstock.mirror.name": topic, "penstock.dedupe.name": topic,
        "penstock.etl.table": tmp_path}), part="audit")  # fmt: skip

    async def scene() -> None:
        async with Admin(address) as admin:
            await admin.create_topics({topic: 1, f"{topic}.deduped": 1})
            stranger, a, b, c = (TransactionalSender(admin, f"{topic}-{name}") for name in "sabc")
            for sender in (stranger, a, b, c):
                await sender.init()
            await turn(a, topic, 1, f"penstock-mirror.{topic}.A")
            await stranger.begin()
            await send(stranger, (topic, 0), [batch(100)])
            await turn(a, topic, 3, f"penstock-mirror.{topic}.A")
            await turn(b, topic, 5, f"penstock-mirror.{topic}.B")
            await turn(a, topic, 10)  # after the look at A's position
            await turn(b, topic, 20, f"penstock-mirror.{topic}.B")
            await turn(b, topic, 50)
            looking = asyncio.ensure_future(snapshot.take(config))
            await waits.wait()
            waits.clear()
            await asyncio.sleep(0.1)
            assert not looking.done()  # nobody knows yet whether the stranger's batch counts
            await stranger.abort()
            stage = (await looking).mirror
            assert (stage.ends[0], stage.tail.total) == (2, 3 + 5 + 20)
            assert {name: marks[0].offset for name, marks in stage.marks.items()} == {"A": 3, "B": 20}

            # Somebody in the midst whom no position knows: a lane under a new identity, perhaps.
            await stranger.begin()
            await send(stranger, (topic, 0), [batch(100)])
            await turn(c, topic, 7)
            await turn(b, topic, 1, f"penstock-mirror.{topic}.B")
            looking = asyncio.ensure_future(snapshot.take(config))
            await waits.wait()
            await stranger.abort()
            stage = (await looking).mirror  # by now all is below the last stable offset
            assert (stage.ends[0], stage.tail.total) == (await admin.end_offset((topic, 0)), 0)

    asyncio.run(scene())
