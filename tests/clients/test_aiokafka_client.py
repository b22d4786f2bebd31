"""aiokafka works unchanged: idempotent and transactional producer, group consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from support.harness import BrokerProcess


def test_transaction_with_offsets(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    source, target, group = new_topic("source"), new_topic("target"), new_topic("group")

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap, enable_idempotence=True) as plain:
            for n in range(20):
                await plain.send_and_wait(source, b"v%d" % n)
        async with (
            AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap, transactional_id=new_topic("id")) as producer,
            AIOKafkaConsumer(
                source,
                bootstrap_servers=shared_broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
        ):
            copied = 0
            while copied < 20:
                batches = await asyncio.wait_for(consumer.getmany(timeout_ms=1000), 60)
                for partition, messages in batches.items():
                    async with producer.transaction():
                        for message in messages:
                            await producer.send(target, message.value)
                        offsets = {partition: messages[-1].offset + 1}
                        await producer.send_offsets_to_transaction(offsets, group)
                    copied += len(messages)
            assert await consumer.committed(TopicPartition(source, 0)) == 20
        async with AIOKafkaConsumer(
            target,
            bootstrap_servers=shared_broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as reader:
            values = [(await asyncio.wait_for(reader.getone(), 60)).value for _ in range(20)]
            assert values == [b"v%d" % n for n in range(20)]

    asyncio.run(run())
