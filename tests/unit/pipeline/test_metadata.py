"""What a client believes of a cluster's answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.metadata import OLDER_MAX, Cluster
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import MetadataResponse

TOPIC_ID = bytes(range(1, 17))


def answer(epoch: int, leader: int, topic_id: bytes = TOPIC_ID, brokers: tuple[int, ...] = ()) -> MetadataResponse:
    """One partition, with that leader since that epoch."""
    part = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=topic_id, partitions=[part])
    there = [MetadataResponse.MetadataResponseBroker(node_id=number, host="h", port=1) for number in brokers]
    return MetadataResponse(brokers=there, topics=[topic], controller_id=1, cluster_id="c")


def leader_after(known: Cluster, *answers: MetadataResponse) -> tuple[int, int]:
    """The leader and its epoch after these answers."""
    for each in answers:
        known = known.merge(each, whole=False)
    info = known.topics["t"].partitions[0]
    return info.leader, info.leader_epoch


def test_a_broker_that_lags_sends_nobody_back() -> None:
    known = Cluster().merge(answer(7, leader=2), whole=True)
    assert leader_after(known, *[answer(6, leader=1)] * OLDER_MAX) == (2, 7)
    assert leader_after(known, *[answer(6, leader=1)] * OLDER_MAX, answer(7, leader=2), answer(6, leader=1)) == (2, 7)
    assert leader_after(known, answer(8, leader=3)) == (3, 8)


def test_a_cluster_that_was_put_back_from_a_copy_is_believed_in_the_end() -> None:
    """It knows no later epochs: else nobody would find its leaders any more."""
    known = Cluster().merge(answer(7, leader=-1), whole=True)
    assert leader_after(known, *[answer(6, leader=1)] * (OLDER_MAX + 1)) == (1, 6)


def test_another_topic_of_the_name_begins_anew() -> None:
    known = Cluster().merge(answer(7, leader=2), whole=True)
    assert leader_after(known, answer(0, leader=1, topic_id=bytes(15) + b"x")) == (1, 0)


class CutOff(Client):
    """A client whose only open connection is one to broker 1, which its cluster has lost; broker 2 knows more."""

    def __init__(self, lost: MetadataResponse, newest: MetadataResponse) -> None:
        super().__init__("127.0.0.1:1")
        self._lost, self._newest = lost, newest

    def ready_connection(self, node_id: int, purpose: str) -> Any:
        return self if node_id == 1 else None

    async def send(self, node_id: int, request: Message, **options: Any) -> Any:
        return self._newest if node_id == 2 else self._lost


def leader_by(lost: MetadataResponse, newest: MetadataResponse, looks: int) -> int:
    """The leader after so many looks."""

    async def look() -> int:
        client = CutOff(lost, newest)
        await client.start()
        for _ in range(looks):
            found = await client.metadata(["t"], refresh=True)
        return found.topic("t").partitions[0].leader

    return asyncio.run(look())


def test_a_broker_that_is_cut_off_is_not_the_only_one_that_is_asked() -> None:
    assert leader_by(answer(5, leader=1, brokers=(1, 2)), answer(6, leader=2, brokers=(1, 2)), looks=10) == 2


def test_a_topic_is_unknown_only_if_another_broker_says_so_too() -> None:
    unknown = answer(0, leader=-1, brokers=(1, 2))
    unknown.topics = [MetadataResponse.MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert leader_by(unknown, answer(6, leader=2, brokers=(1, 2)), looks=1) == 2
    with pytest.raises(KafkaError) as missing:
        leader_by(unknown, unknown, looks=1)
    assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
