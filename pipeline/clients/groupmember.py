"""One member of a group, whichever protocol the group has: its state, its heartbeats, how it joins and leaves."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from penstock import log
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pyx.wire.message import Message

LEAVE_S = 5  # how long a member that leaves waits for the coordinator's answer


class GroupMember(ABC):
    """One member of one group, from its first `join` to `leave`.

    Its methods belong to the client's loop, except `identity` and `standing`, which read only. The thread that polls sets
    `poll_time` (monotonic seconds), and `joined` to False when it wants the next `join`.
    """

    LOST: frozenset[int]
    """Refusals after which the member is no longer what it was: its partitions may have a new owner. It may join again."""

    def __init__(self, client: Admin, group: str, config: Config, *, member_id: str, generation_id: int) -> None:
        self.group = group
        self.member_id = member_id
        self.generation_id = generation_id
        self.group_instance_id: str | None = config["group.instance.id"]
        self.is_cooperative = True
        """Whether the member keeps its partitions while the group rebalances."""
        self.joined = False
        """Whether there is an assignment that the coordinator stands by."""
        self.lost = False
        """Whether the partitions may be another member's by now."""
        self.failure: KafkaError | None = None
        """An error that joining again does not cure, such as a static member's successor."""
        self.poll_time = time.monotonic()
        self._client = client
        self._config = config
        self._session_s = math.inf  # the membership is over after so long without an answer
        self._heart: asyncio.Task[None] | None = None
        self._joining = False
        self._log = log.get(__name__, group=group, client_id=config["client.id"])

    # As whom a commit goes out

    @property
    @abstractmethod
    def is_known(self) -> bool:
        """Whether the coordinator has given it a generation, and not taken it away since."""

    def identity(self) -> dict[str, Any]:
        """Generation, member and instance id, as commits want them. Raises KafkaError UNKNOWN_MEMBER_ID if it isn't known:
        the coordinator would take its commit for one from outside the group."""
        if not self.is_known:
            text = "the consumer left" if self.lost else "`poll` has not yet joined"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{text} group `{self.group}`")
        return {
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.group_instance_id,
        }

    @abstractmethod
    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """What a commit of these partitions stands on: while it is equal, no other member has got them, and the commit may be
        tried again with a new identity."""

    # Joining

    async def join(self, topics: Iterable[str], owned: Sequence[TopicPartition] = ()) -> list[TopicPartition] | None:
        """Join (again) and return the new assignment, however long the others take. None: the partitions that the member
        `owned` meanwhile are lost, and it has to join without them. Raises KafkaError if it never can."""
        wanted = sorted(topics)
        backoff = self._client.backoff()
        self.joined, self._joining = False, True
        try:
            while True:
                try:
                    share = await self._take_part(wanted, owned)
                    break
                except KafkaError as error:
                    if error.code in self.LOST:
                        self._forget(error)
                        if owned:
                            self.lost = True
                            return None
                    elif not error.retriable and error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                        self._stop_heart()
                        self.lost = True  # without heartbeats the partitions that it keeps become others'
                        raise self._in_words(error) from error
                    self._log.debug("joining again: %s", error)
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._joining = False
        self.joined, self.lost = True, False
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat())
        self._log.info("generation %d, assigned %s", self.generation_id, share)
        return share

    @abstractmethod
    async def _take_part(self, topics: list[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """One try to join; returns the member's share. Raises KafkaError."""

    @abstractmethod
    def _forget(self, error: KafkaError | None = None) -> None:
        """The membership ended, with this error or as the member leaves."""

    def _in_words(self, error: KafkaError) -> KafkaError:
        """An error that ends the membership, with what it means for a static member."""
        if error.code not in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            return error
        did = "has joined" if error.code == ErrorCode.FENCED_INSTANCE_ID else "is in"
        instance = self.group_instance_id
        return KafkaError(error.code, f"another process {did} group `{self.group}` as static member `{instance}`")

    # Heartbeats

    async def _beat(self) -> None:
        """Heartbeats until the member leaves or is lost. One that rebalances goes on beating until it joins again."""
        poll_s = self._config["max.poll.interval.ms"] / 1000
        heard = time.monotonic()
        while True:
            await asyncio.sleep(self._interval_s)
            if self._joining:  # the coordinator knows from the join itself that the member lives
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
                if error.code in self.LOST or time.monotonic() - heard > self._session_s:
                    self._log.warning("lost the membership: %s", error)
                    self._forget(error)
                    self.joined, self.lost = False, True
                    return
                if not error.retriable:
                    self.failure, self.joined, self.lost = self._in_words(error), False, True
                    return

    @property
    @abstractmethod
    def _interval_s(self) -> float:
        """The pause between heartbeats."""

    @abstractmethod
    async def _heartbeat(self) -> None:
        """One heartbeat. If the group rebalances the member is no longer `joined`. Raises KafkaError."""

    def _stop_heart(self) -> None:
        if self._heart is not None and self._heart is not asyncio.current_task():
            self._heart.cancel()
        self._heart = None

    # Leaving

    async def leave(self) -> None:
        """Leave, so that the others need not wait for the session's end, as far as the coordinator answers."""
        self._stop_heart()
        self.joined, self.lost = False, True
        farewell = self._farewell()
        if farewell is None:
            return
        self._forget()
        limit_s = min(LEAVE_S, self._config["default.api.timeout.ms"] / 1000)
        try:
            async with asyncio.timeout(limit_s):
                await self._client.ask_coordinator(self.group, "group", farewell)
        except KafkaError as error:
            self._log.info("could not leave the group in order: %s", error)
        except TimeoutError:
            self._log.info("could not leave the group in order: its coordinator gave no answer within %.1f s", limit_s)

    @abstractmethod
    def _farewell(self) -> Message | None:
        """The request that the member leaves with, if it sends one."""
