"""Members of groups at a coordinator whose answers a test makes."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.assignors import decode_assignment, encode_assignment, encode_subscription
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.membership import Membership
from penstock.pipeline.clients.metadata import Broker, Cluster, PartitionInfo, TopicInfo
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
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
