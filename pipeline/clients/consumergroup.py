"""A consumer's membership of a group of the consumer protocol (KIP-848): the coordinator shares out, heartbeats say it all."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence

from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.groupmember import GroupMember
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2  # epochs with a meaning of their own
FIRST_INTERVAL_S = 1.0  # between heartbeats until the coordinator says how long


class ConsumerGroupMembership(GroupMember):
    """One member of one group. Its generation is the member's epoch.

    A share that the coordinator has sent counts once a `join` has given it out. What the consumer has to give back it reports
    as its own until the next `join`, which others wait for. A static member that leaves says that it may come back.
    """

    LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})

    def __init__(self, client: Admin, group: str, config: Config) -> None:
        super().__init__(client, group, config, member_id=uuid.uuid4().hex, generation_id=JOINING)
        self._topics: list[str] = []
        self._owned: list[TopicPartition] = []
        self._may_be_known = False  # to the coordinator: a join has no answer yet
        self._losses = 0  # how often the membership ended: the member's id stays the same
        self._share: list[TopicPartition] | None = None  # as the coordinator sent it last
        self._pause_s = FIRST_INTERVAL_S
        self._beating = asyncio.Lock()  # heartbeats go one by one: an answer belongs to what was said

    @property
    def is_known(self) -> bool:
        """Whether it has an epoch."""
        return self.generation_id > JOINING

    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """That the member still owns them: an epoch may change while they stay."""
        return self._losses, set(tps) & set(self._owned)

    async def _take_part(self, topics: list[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Join, or say what the consumer still owns, until the coordinator has a share for it."""
        self._topics, self._owned = topics, list(owned)
        await self._heartbeat()
        while self._share is None:
            await asyncio.sleep(self._pause_s)
            await self._heartbeat()
        share = [tp for tp in self._share if tp[0] in topics]
        if set(owned) <= set(share):
            self._owned = share
        return share

    def _forget(self, error: KafkaError | None = None) -> None:
        self._losses += 1
        self._may_be_known = False
        self.generation_id = JOINING
        self._share = None

    @property
    def _interval_s(self) -> float:
        return self._pause_s

    async def _heartbeat(self) -> None:
        """Say all and take what the coordinator answers."""
        async with self._beating:
            form = ConsumerGroupHeartbeatRequest.TopicPartitions
            owned = [
                form(topic_id=self._client.topic_id(topic) or bytes(16), partitions=numbers)
                for topic, numbers in by_topic(self._owned if self.is_known else [], number)
            ]
            request = ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.generation_id,
                instance_id=self.group_instance_id,
                rack_id=self._config["client.rack"],
                rebalance_timeout_ms=self._config["max.poll.interval.ms"],
                subscribed_topic_names=self._topics,
                server_assignor=self._config["group.remote.assignor"],
                topic_partitions=owned,
            )
            self._may_be_known = True
            try:
                answer: ConsumerGroupHeartbeatResponse = await self._client.ask_coordinator(self.group, "group", request)
            except KafkaError as error:
                self._may_be_known = error.retriable
                raise
            self.generation_id = answer.member_epoch
            self._pause_s = answer.heartbeat_interval_ms / 1000 or self._pause_s
            if answer.assignment is not None:
                share = await self._named(answer.assignment.topic_partitions)
                if share != self._share:
                    self._share, self.joined = share, False

    async def _named(self, parts: Iterable[ConsumerGroupHeartbeatResponse.TopicPartitions]) -> list[TopicPartition]:
        """Partitions by their topics' names. Those of a topic that nobody knows by now are none."""
        listed = [(bytes(part.topic_id), n) for part in parts for n in part.partitions]
        cluster = await self._client.metadata(self._topics)
        names = {info.topic_id: name for name, info in cluster.topics.items()}
        if any(topic_id not in names for topic_id, _ in listed):
            cluster = await self._client.metadata(self._topics, refresh=True)
            names = {info.topic_id: name for name, info in cluster.topics.items()}
        return [(names[topic_id], n) for topic_id, n in listed if topic_id in names]

    def _farewell(self) -> Message | None:
        if not self.is_known and not self._may_be_known:
            return None
        epoch = LEAVING if self.group_instance_id is None else LEAVING_FOR_A_WHILE
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, instance_id=self.group_instance_id
        )
