"""Members of groups at a coordinator whose answers a test makes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.assignors import decode_assignment, encode_assignment, encode_subscription
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.consumergroup import ConsumerGroupMembership
from penstock.pipeline.clients.membership import Membership
from penstock.pipeline.clients.metadata import Broker, Cluster, PartitionInfo, TopicInfo
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

RACKS = ("r1", "r2")


class LedGroup(Admin):
    """A client whose member leads a group of two, in a cluster of a broker a rack. `t` has a partition on each broker."""

    def __init__(self, name: str, other: str) -> None:
        super().__init__("127.0.0.1:1")
        self.shares: dict[str, list[TopicPartition]] = {}
        self._name = name
        self._other = JoinGroupResponse.JoinGroupResponseMember(
            member_id="b", metadata=encode_subscription(name, ["t"], rack=other)
        )

    async def metadata(self, topics: list[str] | None, refresh: bool = False) -> Cluster:
        brokers = {number: Broker(number, "127.0.0.1", 1, rack) for number, rack in enumerate(RACKS)}
        parts = {number: PartitionInfo(number, 0, (number,), (number,)) for number in brokers}
        return Cluster(brokers, {"t": TopicInfo("t", b"t" * 16, parts)})

    async def ask_coordinator(self, key: str, kind: Any, request: Message, **options: Any) -> Any:
        if isinstance(request, JoinGroupRequest):
            own = JoinGroupResponse.JoinGroupResponseMember(member_id="a", metadata=request.protocols[0].metadata)
            return JoinGroupResponse(
                generation_id=1, protocol_name=self._name, leader="a", member_id="a", members=[own, self._other]
            )
        if isinstance(request, LeaveGroupRequest):
            return LeaveGroupResponse()
        assert isinstance(request, SyncGroupRequest)
        self.shares = {one.member_id: decode_assignment(one.assignment) for one in request.assignments}
        return SyncGroupResponse(assignment=encode_assignment(self.shares["a"]))


def shares(name: str, own: str, other: str) -> dict[str, list[TopicPartition]]:
    """What the leader `a` sends each member, whose racks are these."""

    async def work() -> dict[str, list[TopicPartition]]:
        client = LedGroup(name, other)
        given = {"group.id": "g", "client.rack": own, "partition.assignment.strategy": name}
        member = Membership(client, "g", properties.load(properties.CONSUMER, given))
        try:
            assert await member.join(["t"]) == client.shares["a"]
        finally:
            await member.leave()
            await client.close()
        return client.shares

    return asyncio.run(work())


def test_a_leader_gives_each_member_what_is_in_its_rack() -> None:
    for name in ("range", "sticky", "cooperative-sticky"):
        assert shares(name, "r1", "r2") == {"a": [("t", 0)], "b": [("t", 1)]}, name
        assert shares(name, "r2", "r1") == {"a": [("t", 1)], "b": [("t", 0)]}, name


class Coordinated(Admin):
    """A client whose coordinator answers heartbeats of the newer protocol until it refuses them with these codes in turn."""

    def __init__(self, *codes: ErrorCode) -> None:
        super().__init__("127.0.0.1:1", **{"retry.backoff.ms": 1, "retry.backoff.max.ms": 1})
        self.asked: list[ConsumerGroupHeartbeatRequest] = []
        self._codes = list(codes)

    async def metadata(self, topics: list[str] | None, refresh: bool = False) -> Cluster:
        return Cluster({}, {"t": TopicInfo("t", b"t" * 16, {0: PartitionInfo(0)})})

    async def ask_coordinator(self, key: str, kind: Any, request: Message, **options: Any) -> Any:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        self.asked.append(request)
        own = ConsumerGroupHeartbeatResponse
        if request.member_epoch < 0:
            return own(member_epoch=request.member_epoch)
        if len(self.asked) > 1 and self._codes:
            raise KafkaError(self._codes.pop(0), "refused")
        share = own.Assignment(topic_partitions=[own.TopicPartitions(topic_id=b"t" * 16, partitions=[0])])
        return own(member_epoch=1, heartbeat_interval_ms=1, assignment=share)


async def static_member(client: Admin) -> ConsumerGroupMembership:
    given = {"group.id": "g", "group.protocol": "consumer", "group.instance.id": "one"}
    member = ConsumerGroupMembership(client, "g", properties.load(properties.CONSUMER, given))
    assert await member.join(["t"]) == [("t", 0)]
    return member


def test_a_static_member_that_leaves_says_that_it_may_come_back() -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            client = Coordinated()
            member = await static_member(client)
            await member.leave()
            assert (client.asked[-1].member_epoch, client.asked[-1].instance_id) == (-2, "one")
            await client.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("codes", "did"),
    [
        ([ErrorCode.FENCED_INSTANCE_ID], "has joined"),
        ([ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNRELEASED_INSTANCE_ID], "is in"),
    ],
)
def test_a_static_member_that_another_process_replaced_says_so(codes: list[ErrorCode], did: str) -> None:
    """The coordinator knows of both, or has dropped this one before the other one came."""

    async def work() -> None:
        async with asyncio.timeout(60):
            client = Coordinated(*codes)
            member = await static_member(client)
            assert member._heart is not None
            await member._heart
            assert member.lost
            if member.failure is None:
                with pytest.raises(KafkaError) as caught:
                    await member.join(["t"])
                failure = caught.value
            else:
                failure = member.failure
            assert failure.code == codes[-1]
            assert f"another process {did} group `g` as static member `one`" in str(failure)
            await member.leave()
            await client.close()

    asyncio.run(work())
