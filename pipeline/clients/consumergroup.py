"""A consumer's membership of a group of the consumer protocol (KIP-848): the coordinator shares out, heartbeats say it all."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.membership import LEAVE_S
from penstock.pipeline.clients.partitionlists import by_topic, number
from penstock.pyx.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2  # epochs with a meaning of their own
LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
FIRST_INTERVAL_MS = 1_000  # between heartbeats until the coordinator says how long


class ConsumerGroupMembership:
    """One member of one group, with the same doors as `Membership`. Its generation is the member's epoch.

    A share that the coordinator has sent counts once a `join` has given it out. What the consumer has to give back it reports
    as its own until the next `join`, which others wait for.
    """

    is_cooperative = True

    def __init__(self, client: Admin, group: str, config: Config) -> None:
        self.group = group
        self.member_id = uuid.uuid4().hex
        self.generation_id = JOINING
        self.joined = False
        self.lost = False
        self.failure: KafkaError | None = None
        self.poll_time = time.monotonic()
        self.group_instance_id: str | None = config["group.instance.id"]
        self._client = client
        self._config = config
        self._topics: list[str] = []
        self._owned: list[TopicPartition] = []
        self._may_be_known = False  # to the coordinator: a join has no answer yet
        self._losses = 0  # how often the membership ended: the member's id stays the same
        self._share: list[TopicPartition] | None = None  # as the coordinator sent it last
        self._interval_ms = FIRST_INTERVAL_MS
        self._heart: asyncio.Task[None] | None = None
        self._joining = False
        self._beating = asyncio.Lock()  # heartbeats go one by one: an answer belongs to what was said
        self._log = log.get(__name__, group=group, client_id=config["client.id"])

    def identity(self) -> dict[str, Any]:
        """Epoch, member and instance id, as commits want them."""
        return {
            "generation_id": self.generation_id,
            "member_id": self.member_id if self.generation_id > JOINING else "",
            "group_instance_id": self.group_instance_id,
        }

    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """What a commit of these partitions stands on: while it is equal, one may be tried again with a new identity, since no
        other member has got them."""
        return self._losses, set(tps) & set(self._owned)

    async def join(self, topics: Iterable[str], owned: Sequence[TopicPartition] = ()) -> list[TopicPartition] | None:
        """Join, or say what the consumer still owns, and give the share that the coordinator has for it. None: the partitions
        that it owned are lost. Raises KafkaError if it can never join."""
        self._topics, self._owned = sorted(topics), list(owned)
        self._joining = True
        backoff = self._client.backoff()
        try:
            while True:
                try:
                    await self._heartbeat()
                except KafkaError as error:
                    if error.code in LOST:
                        self._forget()
                        if owned:
                            self.lost = True
                            return None
                    elif not error.retriable:
                        self._stop_heart()
                        self._may_be_known = False
                        self.lost = True  # without heartbeats the partitions that it keeps become others'
                        raise self._in_words(error) from error
                    self._log.debug("joining again: %s", error)
                    await asyncio.sleep(backoff.next_s())
                    continue
                if self._share is not None:
                    break
                await asyncio.sleep(self._interval_ms / 1000)
        finally:
            self._joining = False
        share = [tp for tp in self._share if tp[0] in self._topics]
        if set(self._owned) <= set(share):
            self._owned = share
        self.joined, self.lost = True, False
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat())
        self._log.info("epoch %d, assigned %s", self.generation_id, share)
        return share

    def _forget(self) -> None:
        self._losses += 1
        self._may_be_known = False
        self.generation_id = JOINING
        self._share = None

    def _in_words(self, error: KafkaError) -> KafkaError:
        """An error that ends the membership, with what it means for a static member."""
        if error.code not in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            return error
        instance = self.group_instance_id
        return KafkaError(error.code, f"another process is in group `{self.group}` as static member `{instance}`")

    async def _heartbeat(self) -> None:
        """Say all and take what the coordinator answers."""
        async with self._beating:
            form = ConsumerGroupHeartbeatRequest.TopicPartitions
            owned = [
                form(topic_id=self._client.topic_id(topic) or bytes(16), partitions=numbers)
                for topic, numbers in by_topic([] if self.generation_id == JOINING else self._owned, number)
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
            answer: ConsumerGroupHeartbeatResponse = await self._client.ask_coordinator(self.group, "group", request)
            self.generation_id = answer.member_epoch
            self._interval_ms = answer.heartbeat_interval_ms or self._interval_ms
            if answer.assignment is not None:
                self._share = await self._named(answer.assignment.topic_partitions)

    async def _named(self, parts: Iterable[ConsumerGroupHeartbeatResponse.TopicPartitions]) -> list[TopicPartition]:
        """Partitions by their topics' names. Those of a topic that nobody knows by now are none."""
        listed = [(bytes(part.topic_id), n) for part in parts for n in part.partitions]
        cluster = await self._client.metadata(self._topics)
        names = {info.topic_id: name for name, info in cluster.topics.items()}
        if any(topic_id not in names for topic_id, _ in listed):
            cluster = await self._client.metadata(self._topics, refresh=True)
            names = {info.topic_id: name for name, info in cluster.topics.items()}
        return [(names[topic_id], n) for topic_id, n in listed if topic_id in names]

    async def _beat(self) -> None:
        """Heartbeats until the member leaves or is lost."""
        poll_s = self._config["max.poll.interval.ms"] / 1000
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            if self._joining:
                continue
            if time.monotonic() - self.poll_time > poll_s:
                self._log.warning("no poll for `max.poll.interval.ms`: leaving the group")
                await self.leave()
                return
            before = self._share
            try:
                await self._heartbeat()
            except KafkaError as error:
                if error.code in LOST:
                    self._log.warning("lost the membership: %s", error)
                    self._forget()
                    self.joined, self.lost = False, True
                    return
                if not error.retriable:
                    self.failure, self.joined, self.lost = self._in_words(error), False, True
                    return
            if self._share != before:
                self.joined = False

    def _stop_heart(self) -> None:
        if self._heart is not None and self._heart is not asyncio.current_task():
            self._heart.cancel()
        self._heart = None

    async def leave(self) -> None:
        """Leave, so that the others need not wait for the session's end. A static member says that it may come back."""
        self._stop_heart()
        self.joined, self.lost = False, True
        if self.generation_id == JOINING and not self._may_be_known:
            return
        self._forget()
        epoch = LEAVING if self.group_instance_id is None else LEAVING_FOR_A_WHILE
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, instance_id=self.group_instance_id
        )
        limit_s = min(LEAVE_S, self._config["default.api.timeout.ms"] / 1000)
        try:
            async with asyncio.timeout(limit_s):
                await self._client.ask_coordinator(self.group, "group", request)
        except KafkaError as error:
            self._log.info("could not leave the group in order: %s", error)
        except TimeoutError:
            self._log.info("could not leave the group in order: its coordinator gave no answer within %.1f s", limit_s)
