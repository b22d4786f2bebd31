"""Metadata keeps the bytes of a topic: they are always those of its present state."""

from collections.abc import Callable

import pytest

from penstock.broker.api.metadata import _encoded, describe
from penstock.broker.topic import PartitionState, Topic
from penstock.pyx.wire.messages import MetadataResponse


@pytest.mark.parametrize("version", [0, 1, 8, 9, 12, 13])
def test_kept_bytes_follow_the_topic(version: int) -> None:
    topic = Topic("t", b"\x01" * 16, [PartitionState(index, 1, 0, [1], [1]) for index in range(3)])

    def same() -> bytes:
        told = MetadataResponse(topics=[_encoded(topic, version, operations=False)] * 2).encode(version)
        assert told == MetadataResponse(topics=[describe(topic)] * 2).encode(version)
        return told

    first = same()
    assert same() == first
    changes: tuple[Callable[[], None], ...] = (
        lambda: topic.partitions.append(PartitionState(3, 1, 0, [1], [1])),
        lambda: setattr(topic.partitions[1], "leader_epoch", 4),
        lambda: setattr(topic.partitions[1], "leader", -1),
        lambda: setattr(topic.partitions[1], "offline", True),
        lambda: topic.partitions[0].isr.append(2),
    )
    for change in changes:
        change()
        same()
    assert same() != first
    if version >= 8:
        entry = describe(topic)
        entry.topic_authorized_operations = 0xDF8
        with_operations = MetadataResponse(topics=[_encoded(topic, version, operations=True)]).encode(version)
        assert with_operations == MetadataResponse(topics=[entry]).encode(version)
