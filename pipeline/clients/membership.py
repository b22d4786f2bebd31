"""A consumer's membership of its group: join, sync, heartbeats, leave (the classic protocol of KIP-62)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError, raise_for
from penstock.pipeline.clients import assignors
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.stickiness import Member
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

JOIN_SLACK_MS = 5_000  # the coordinator answers a join when the rebalance timeout is over at the latest
LEAVE_S = 5  # how long a member that leaves waits for the coordinator's answer
NO_GENERATION = -1
# The member is no longer what it was: it has to join again under a new id, and its partitions may have a new owner.
LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class Membership:
    """One member of one group. Lives on the client's loop; `poll_time` is set by the thread that polls (monotonic seconds).

    `joined` says whether there is an assignment that the coordinator stands by; `lost` whether it may be somebody
    else's by now. `failure` is an error that joining again does not cure (a static member that was replaced). A member that
    `is_cooperative` keeps its partitions while the group rebalances.
    """

    def __init__(self, client: Admin, group: str, config: Config) -> None:
        self.group = group
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.joined = False
        self.lost = False
        self.failure: KafkaError | None = None
        self.poll_time = time.monotonic()
        self.group_instance_id: str | None = config["group.instance.id"]
        self._client = client
        self._config = config
        self._assignors = assignors.chosen(config["partition.assignment.strategy"])
        self.is_cooperative = assignors.are_cooperative(self._assignors)
        self._share: Sequence[TopicPartition] = ()  # the last assignment, and of which generation it was
        self._share_generation = NO_GENERATION
        self._heart: asyncio.Task[None] | None = None
        self._joining = False
        self._log = log.get(__name__, group=group, client_id=config["client.id"])

    def identity(self) -> dict[str, Any]:
        """Generation, member and instance id, as commits want them."""
        return {
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.group_instance_id,
        }

    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """What a commit of these partitions stands on: while it is equal, one may be tried again with a new identity."""
        return self.member_id, self.generation_id

    async def join(self, topics: Iterable[str], owned: Sequence[TopicPartition] = ()) -> list[TopicPartition] | None:
        """Join (again) and give the new assignment, however long the others take. None: the partitions that the member
        `owned` meanwhile are lost, and it has to join without them. Raises KafkaError if it never can."""
        wanted = sorted(topics)
        self.joined = False
        self._joining = True
        try:
            return await self._join_until_done(wanted, owned)
        finally:
            self._joining = False

    async def _join_until_done(self, wanted: list[str], owned: Sequence[TopicPartition]) -> list[TopicPartition] | None:
        backoff = self._client.backoff()
        while True:
            try:
                joined = await self._join(wanted, owned)
                share = await self._sync(joined)
            except KafkaError as error:
                if not self._may_rejoin(error):
                    self._stop_heart()
                    self.lost = True  # without heartbeats the partitions that it keeps become others'
                    raise self._in_words(error) from error
                if owned and error.code in LOST:
                    self.lost = True
                    return None
                if error.code != ErrorCode.MEMBER_ID_REQUIRED:
                    self._log.debug("joining again: %s", error)
                    await asyncio.sleep(backoff.next_s())
                continue
            self.joined, self.lost = True, False
            self._share, self._share_generation = share, self.generation_id
            if self._heart is None or self._heart.done():
                self._heart = asyncio.create_task(self._beat())
            self._log.info("generation %d, assigned %s", self.generation_id, share)
            return share

    def _may_rejoin(self, error: KafkaError) -> bool:
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_member()
        curable = (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS, *LOST)
        return error.retriable or error.code in curable

    def _forget_member(self) -> None:
        self.member_id = ""
        self.generation_id = NO_GENERATION

    def _in_words(self, error: KafkaError) -> KafkaError:
        """An error that ends the membership, with what it means for a static member."""
        if error.code != ErrorCode.FENCED_INSTANCE_ID:
            return error
        instance = self.group_instance_id
        return KafkaError(error.code, f"another process has joined group `{self.group}` as static member `{instance}`")

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
        answer: JoinGroupResponse = await self._client.ask_coordinator(
            self.group,
            "group",
            request,
            timeout_ms=rebalance_ms + JOIN_SLACK_MS,
            accept=frozenset({ErrorCode.MEMBER_ID_REQUIRED}),
        )
        self.member_id = answer.member_id
        raise_for(answer.error_code, f"join group `{self.group}`")
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
        return self._assignors[name](counts, members)

    def _wishes(self, member: JoinGroupResponse.JoinGroupResponseMember, name: str) -> Member:
        try:
            return assignors.decode_subscription(member.metadata, member.member_id, member.group_instance_id, name)
        except WireError as error:  # one bad member must not stop the group: it gets nothing
            self._log.warning("the subscription of `%s` is malformed: %s", member.member_id, error)
            return Member(member.member_id, (), member.group_instance_id)

    # Heartbeats

    async def _beat(self) -> None:
        """Heartbeats until the member leaves or is lost. One that rebalances goes on beating until it joins again."""
        interval_s = self._config["heartbeat.interval.ms"] / 1000
        session_s = self._config["session.timeout.ms"] / 1000
        poll_s = self._config["max.poll.interval.ms"] / 1000
        heard = time.monotonic()
        while True:
            await asyncio.sleep(interval_s)
            if self._joining:  # the coordinator knows from the join itself that we live
                heard = time.monotonic()
                continue
            if time.monotonic() - self.poll_time > poll_s:
                self._log.warning("no poll for `max.poll.interval.ms`: leaving the group")
                await self.leave()
                return
            try:
                await self._heartbeat()
                heard = time.monotonic()
            except KafkaError as error:
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    heard = time.monotonic()
                    self.joined = False
                elif error.code in LOST or time.monotonic() - heard > session_s:
                    self._log.warning("lost the membership: %s", error)
                    if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                        self._forget_member()
                    self.joined, self.lost = False, True
                    return
                elif not error.retriable:
                    self.failure, self.joined, self.lost = self._in_words(error), False, True
                    return

    async def _heartbeat(self) -> None:
        await self._client.ask_coordinator(self.group, "group", HeartbeatRequest(group_id=self.group, **self.identity()))

    def _stop_heart(self) -> None:
        if self._heart is not None and self._heart is not asyncio.current_task():
            self._heart.cancel()
        self._heart = None

    async def leave(self) -> None:
        """Leave, so that the others need not wait for the session's end. A static member only stops its heartbeats."""
        self._stop_heart()
        self.joined, self.lost = False, True
        member_id = self.member_id
        if not member_id or self.group_instance_id is not None:
            return
        self._forget_member()
        request = LeaveGroupRequest(group_id=self.group, members=[LeaveGroupRequest.MemberIdentity(member_id=member_id)])
        limit_s = min(LEAVE_S, self._config["default.api.timeout.ms"] / 1000)
        try:
            async with asyncio.timeout(limit_s):
                await self._client.ask_coordinator(self.group, "group", request)
        except KafkaError as error:
            self._log.info("could not leave the group in order: %s", error)
        except TimeoutError:
            self._log.info("could not leave the group in order: its coordinator gave no answer within %.1f s", limit_s)
