"""Consumers of librdkafka as members of groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.harness import BrokerProcess


def create(broker: BrokerProcess, name: str, partitions: int) -> str:
    """A topic for them; its name."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = client.create_topics([NewTopic(name, partitions, 1)]).values()
    future.result()
    return name


@contextmanager
def member(broker: BrokerProcess, topic: str, group: str, **properties: object) -> Iterator[Consumer]:
    """A consumer that has subscribed."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **properties,
        }
    )
    client.subscribe([topic])
    try:
        yield client
    finally:
        client.close()
