"""The classic consumer protocol in a group of the new one: what its members send, and what they are sent."""

from __future__ import annotations

from penstock.broker.coordination.consumergroups.state import Catalog, Partitions
from penstock.pyx.wire import consumerprotocol
from penstock.pyx.wire.header import encode_versioned
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription


class Malformed(Exception):
    """Bytes that aren't of the consumer protocol, or that would be lost; the text says which."""


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A member's subscription. Raises Malformed."""
    try:
        return consumerprotocol.read_subscription(metadata)
    except WireError:
        raise Malformed("the embedded consumer protocol is malformed") from None


def read_assignment(assignment: bytes, catalog: Catalog) -> Partitions:
    """A member's partitions, those of topics that are there. Raises Malformed."""
    try:
        message = consumerprotocol.read_assignment(assignment)
    except WireError:
        raise Malformed("the embedded consumer protocol is malformed") from None
    if message.user_data:
        raise Malformed("an unsupported custom assignor is in use")
    return by_id([(part.topic, part.partitions) for part in message.assigned_partitions], catalog)


def by_id(parts: list[tuple[str, list[int]]], catalog: Catalog) -> dict[bytes, frozenset[int]]:
    """Partitions of named topics by topic id; topics that aren't there are left out."""
    found: dict[bytes, frozenset[int]] = {}
    for name, partitions in parts:
        topic = catalog.get(name)
        if topic is not None:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(partitions)
    return found


def write_assignment(target: Partitions, version: int, catalog: Catalog) -> bytes:
    """Partitions as a ConsumerProtocolAssignment; topics that aren't there any more are left out."""
    names = {topic_id: catalog.name_of(topic_id) for topic_id in target}
    parts = [
        ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(target[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), version)
