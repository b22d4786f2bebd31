"""A coordinator's records are in its log all or none, however small the segments of that log are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from support.asking import create, shrink_segments
from support.harness import BrokerProcess

Make = Callable[..., BrokerProcess]
WAIT_S = 120.0
METADATA = "m" * 4000


@pytest.mark.parametrize(("segment_bytes", "partitions"), [(14, 1), (1_500_000, 500)])
def test_a_commit_that_no_segment_has_room_for_is_taken(make_broker: Make, segment_bytes: int, partitions: int) -> None:
    """The second is several batches: each of them has room in a segment, all together haven't."""
    broker = make_broker(**{"offsets.topic.num.partitions": 1})
    shrink_segments(broker, "__consumer_offsets", segment_bytes)
    assert create(broker, "t", partitions=partitions).topics[0].error_code == 0
    places = [TopicPartition("t", index) for index in range(partitions)]
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    for offset in (3, 4):
        wanted = [TopicPartition("t", place.partition, offset, METADATA) for place in places]
        assert all(one.error is None for one in group.commit(offsets=wanted, asynchronous=False) or ())
    group.close()
    broker.kill()
    broker.start()
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    found = group.committed(places, WAIT_S)
    group.close()
    assert {(one.offset, one.metadata) for one in found} == {(4, METADATA)}
