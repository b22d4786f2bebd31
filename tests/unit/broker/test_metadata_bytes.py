"""Metadata keeps the bytes of a topic: they are always those of its present state."""

from collections.abc import Callable

import pytest

from penstock.broker.api.metadata import _encoded, describe
from penstock.broker.topic import PartitionState, Topic
from penstock.errors import ErrorCode
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


def test_version_0_names_no_replica_that_is_not_among_the_brokers() -> None:
    """A client of 0.8 fails where it can't look a replica up. Kafka's brokers say that some are left out."""
    partitions = [PartitionState(0, 1, 0, [1, 2, 3], [1, 2]), PartitionState(1, -1, 0, [2, 3], [2], away=[3])]
    topic = Topic("t", b"\x01" * 16, partitions)

    def told(live: tuple[int, ...]) -> list[tuple[int, int, list[int], list[int]]]:
        response = MetadataResponse(topics=[_encoded(topic, 0, operations=False, live=live)])
        (entry,) = MetadataResponse.decode(response.encode(0), 0).topics
        return [(one.error_code, one.leader_id, list(one.replica_nodes), list(one.isr_nodes)) for one in entry.partitions]

    away = int(ErrorCode.LEADER_NOT_AVAILABLE)
    whole = [(0, 1, [1, 2, 3], [1, 2]), (away, -1, [2, 3], [2])]
    assert told((1, 2, 3)) == whole
    assert told((1, 2)) == [(int(ErrorCode.REPLICA_NOT_AVAILABLE), 1, [1, 2], [1, 2]), (away, -1, [2], [2])]
    assert told((1, 2, 3)) == whole
