"""A consumer's membership of a group of the classic protocol (KIP-62): members join and sync, one of them shares out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import assignors
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.groupmember import GroupMember
from penstock.pipeline.clients.racks import partition_racks
from penstock.pipeline.clients.stickiness import Member
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

JOIN_SLACK_MS = 5_000  # the coordinator answers a join when the rebalance timeout is over at the latest
NO_GENERATION = -1


class Membership(GroupMember):
    """One member of one group. A static member that leaves only stops its heartbeats, so that it may come back."""

    LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})

    def __init__(self, client: Admin, group: str, config: Config) -> None:
        super().__init__(client, group, config, member_id="", generation_id=NO_GENERATION)
        self._assignors = assignors.chosen(config["partition.assignment.strategy"])
        self.is_cooperative = assignors.are_cooperative(self._assignors)
        self._session_s = config["session.timeout.ms"] / 1000
        self._share: Sequence[TopicPartition] = ()  # the last assignment, and of which generation it was
        self._share_generation = NO_GENERATION

    @property
    def is_known(self) -> bool:
        """Whether it has a member id and a generation."""
        return bool(self.member_id) and self.generation_id != NO_GENERATION

    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """The generation: each one shares all partitions out again."""
        return self.member_id, self.generation_id

    async def _take_part(self, topics: list[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        joined = await self._join(topics, owned)
        self._share = share = await self._sync(joined)
        self._share_generation = self.generation_id
        return share

    def _forget(self, error: KafkaError | None = None) -> None:
        if error is None or error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self.generation_id = NO_GENERATION

    def _metadata(self, name: str, topics: list[str], owned: Sequence[TopicPartition]) -> bytes:
        """What a member says to the assignor of this name."""
        kept = self._share if name == assignors.STICKY else owned
        return assignors.encode_subscription(name, topics, kept, self._share_generation, self._config["client.rack"])

    async def _join(self, topics: list[str], owned: Sequence[TopicPartition]) -> JoinGroupResponse:
        rebalance_ms = self._config["max.poll.interval.ms"]
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._config["session.timeout.ms"],
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol(name=name, metadata=self._metadata(name, topics, owned)) for name in self._assignors],
        )
        while True:
            answer: JoinGroupResponse = await self._client.ask_coordinator(
                self.group,
                "group",
                request,
                timeout_ms=rebalance_ms + JOIN_SLACK_MS,
                accept=frozenset({ErrorCode.MEMBER_ID_REQUIRED}),
            )
            self.member_id = request.member_id = answer.member_id
            if not answer.error_code:
                self.generation_id = answer.generation_id
                return answer

    async def _sync(self, joined: JoinGroupResponse) -> list[TopicPartition]:
        """The leader sends each member's share, each member receives its own."""
        shares: Mapping[str, list[TopicPartition]] = {}
        name = joined.protocol_name or ""
        if joined.leader == self.member_id:
            shares = await self._share_out(joined, name)
        request = SyncGroupRequest(
            group_id=self.group,
            **self.identity(),
            protocol_type=PROTOCOL_TYPE,
            protocol_name=name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignors.encode_assignment(tps))
                for member_id, tps in shares.items()
            ],
        )
        timeout_ms = self._config["max.poll.interval.ms"] + JOIN_SLACK_MS
        answer: SyncGroupResponse = await self._client.ask_coordinator(self.group, "group", request, timeout_ms=timeout_ms)
        return assignors.decode_assignment(answer.assignment)

    async def _share_out(self, joined: JoinGroupResponse, name: str) -> Mapping[str, list[TopicPartition]]:
        members = [self._wishes(member, name) for member in joined.members]
        topics = sorted({topic for member in members for topic in member.topics})
        cluster = await self._client.metadata(topics, refresh=True)
        counts = {topic: len(info.partitions) for topic, info in cluster.topics.items()}
        return self._assignors[name](counts, members, partition_racks(cluster))

    def _wishes(self, member: JoinGroupResponse.JoinGroupResponseMember, name: str) -> Member:
        try:
            return assignors.decode_subscription(member.metadata, member.member_id, member.group_instance_id, name)
        except WireError as error:  # one bad member must not stop the group: it gets nothing
            self._log.warning("the subscription of `%s` is malformed: %s", member.member_id, error)
            return Member(member.member_id, (), member.group_instance_id)

    @property
    def _interval_s(self) -> float:
        return float(self._config["heartbeat.interval.ms"]) / 1000

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(group_id=self.group, **self.identity())
        answer: HeartbeatResponse = await self._client.ask_coordinator(
            self.group, "group", request, accept=frozenset({ErrorCode.REBALANCE_IN_PROGRESS})
        )
        if answer.error_code:
            self.joined = False

    def _farewell(self) -> Message | None:
        if not self.member_id or self.group_instance_id is not None:
            return None
        return LeaveGroupRequest(group_id=self.group, members=[LeaveGroupRequest.MemberIdentity(member_id=self.member_id)])
