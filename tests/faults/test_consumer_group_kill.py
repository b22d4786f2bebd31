"""kill -9 before and after the appends of a consumer group: what a member was told is so after the restart."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from support.harness import BrokerProcess, WireConnection

Heartbeat = ConsumerGroupHeartbeatRequest
GROUP, PARTITIONS, ROUNDS, PATIENCE_S = "group", 4, 6, 120.0


class Client:
    """A member on the wire that believes what it is told, and asks again when nobody answers."""

    def __init__(self, member: str, topic: str, topic_id: bytes) -> None:
        self.member, self.topic, self.topic_id = member, topic, topic_id
        self.epoch, self.owned, self.committed = 0, set[int](), -1

    def beat(self, wire: WireConnection) -> None:
        owned = [Heartbeat.TopicPartitions(topic_id=self.topic_id, partitions=sorted(self.owned))] if self.owned else []
        request = Heartbeat(
            group_id=GROUP,
            member_id=self.member,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[self.topic],
            topic_partitions=owned if self.epoch else [],
        )
        answer = wire.ask(request, 1)
        assert answer.error_code == ErrorCode.NONE, answer
        assert answer.member_epoch >= self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {p for part in answer.assignment.topic_partitions for p in part.partitions}

    def commit(self, wire: WireConnection, offset: int) -> None:
        if not self.owned:
            return
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=min(self.owned), committed_offset=offset)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=self.topic_id, partitions=[part])
        request = OffsetCommitRequest(
            group_id=GROUP, member_id=self.member, generation_id_or_member_epoch=self.epoch, topics=[topic]
        )
        assert wire.ask(request, 10).topics[0].partitions[0].error_code == ErrorCode.NONE
        self.committed = offset


@pytest.mark.parametrize("point", ["before", "after"])
def test_what_members_were_told_survives_kill_9(make_broker: Callable[..., BrokerProcess], point: str) -> None:
    broker = make_broker(**{"group.consumer.assignment.interval.ms": 0, "offsets.topic.num.partitions": 1})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (made,) = admin.create_topics([NewTopic("topic", PARTITIONS, 1)]).values()
    made.result()
    (described,) = admin.describe_topics(TopicCollection(["topic"])).values()
    topic_id = base64.urlsafe_b64decode(f"{described.result().topic_id}==")
    clients = [Client(name, "topic", topic_id) for name in ("one", "two", "three")]
    # Each life ends at its second append, so that every step of the way is cut off once and done again.
    broker.environment["PENSTOCK_FAILPOINTS"] = f"coordinator.{point}_append=kill@2"
    kills, deadline, offset = 0, time.monotonic() + PATIENCE_S, 0
    broker.restart()
    while True:
        assert time.monotonic() < deadline, [(one.member, one.epoch, one.owned) for one in clients]
        try:
            with WireConnection(broker.bootstrap) as wire:
                for client in clients[: 1 + kills // 2]:
                    client.beat(wire)
                    offset += 1
                    client.commit(wire, offset)
        except (OSError, EOFError):
            broker.close()
            kills += 1
            if kills == ROUNDS:
                break
            broker.start()
    broker.environment.clear()
    broker.start()
    with WireConnection(broker.bootstrap) as wire:
        for _ in range(6):
            for client in clients:
                client.beat(wire)
        assert sorted(p for client in clients for p in client.owned) == list(range(PARTITIONS))
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups
        assert group.group_state == "Stable" and len(group.members) == len(clients)
        fetch = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP)
        fetch.topics = None
        (fetched,) = wire.ask(OffsetFetchRequest(groups=[fetch]), 10).groups
        newest = max(part.committed_offset for topic in fetched.topics for part in topic.partitions)
        assert newest >= max(client.committed for client in clients)
