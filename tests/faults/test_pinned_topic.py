"""What is sent to a topic by its id never gets into another topic of that name, whichever protocol carries it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pyx.record.builder import BatchBuilder
from support.harness import BrokerProcess, topic_name


async def send(sender: TransactionalSender, topic: str, value: bytes) -> None:
    builder = BatchBuilder(0)
    assert builder.append(b"key", value, 1_700_000_000_000)
    sequence = sender.next_sequence((topic, 0), 1)
    data = builder.build(sender.producer_id, sender.producer_epoch, sequence, transactional=True)
    await sender.send_raw((topic, 0), [data])


async def committed_values(admin: Admin, topic: str) -> int:
    fetcher = Fetcher(admin, max_wait_ms=200)
    fetcher.assign({(topic, 0): 0})
    found = sum(batch.record_count for part in await fetcher.fetch() for batch in part.batches)
    await fetcher.close()
    return found


@pytest.mark.parametrize("version2", [True, False], ids=["by_id", "by_name"])
def test_a_topic_that_is_recreated(shared_broker: BrokerProcess, version2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of Kafka's first transactions travel by name, as with all older brokers: there the commit looks."""

    async def scene() -> None:
        topic = topic_name("pinned")
        async with Admin(shared_broker.bootstrap) as admin, Admin(shared_broker.bootstrap) as other:
            if not version2:
                monkeypatch.setattr(admin, "feature", lambda name: 0)
            await other.create_topics({topic: 1})
            topic_id = (await admin.metadata([topic], refresh=True)).topics[topic].topic_id
            sender = TransactionalSender(admin, topic)
            await sender.init()
            sender.pin(topic, topic_id)
            await sender.begin()
            await send(sender, topic, b"one")
            await sender.commit()
            assert await committed_values(other, topic) == 1
            await sender.begin()
            await other.delete_topics([topic])
            await other.create_topics({topic: 1})
            with pytest.raises(KafkaError) as refused:
                await send(sender, topic, b"two")
                await sender.commit()
            assert refused.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
            await sender.abort()
            await sender.close()
            assert await committed_values(other, topic) == 0

    asyncio.run(scene())
