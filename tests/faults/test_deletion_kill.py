"""Killed while it deletes a topic, the broker has nothing of it left after the next start: no committed offset either."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.pyx.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from support.asking import create, delete_topics, killed_by
from support.harness import BrokerProcess, WireConnection


def commit(broker: BrokerProcess, topic: str) -> int:
    """Commit offset 7 for the group `g`: the error."""
    kind = OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    with WireConnection(broker.bootstrap) as wire:
        asked = kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=[part])])
        return int(wire.ask(asked, 9).topics[0].partitions[0].error_code)


def committed(broker: BrokerProcess) -> dict[str, int]:
    """What the group `g` has committed for partition 0 of each topic."""
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
    return {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}


@pytest.mark.parametrize("step", ["topics.marked", "topics.emptied"])
def test_offsets_of_a_deleted_topic_are_not_those_of_the_next(make_broker: Callable[..., BrokerProcess], step: str) -> None:
    broker = make_broker(environment={"PENSTOCK_FAILPOINTS": f"{step}=kill"})
    create(broker, "t", "other")
    assert commit(broker, "t") == commit(broker, "other") == 0
    killed_by(broker, *delete_topics("t"))
    assert committed(broker) == {"other": 7}
    assert create(broker, "t").topics[0].error_code == 0
    assert committed(broker) == {"other": 7}
