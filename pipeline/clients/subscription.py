"""The topics that a consumer subscribed to, and when it joins its group to get a share of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.config import Config, ConfigError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.background import BackgroundLoop, Question, UnderWay
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.consumergroup import ConsumerGroupMembership
from penstock.pipeline.clients.groupmember import GroupMember
from penstock.pipeline.clients.membership import Membership
from penstock.pipeline.clients.metadata import Cluster
from penstock.pipeline.clients.positions import StepTime

MISSING_TOPIC_S = 1.0
Revoked = Callable[[list[TopicPartition]], None]


class TopicFilter:
    """Topics by name: those whose whole name matches `allow` (None: all) and doesn't match `deny`. Raises ConfigError for what
    is no regular expression."""

    def __init__(self, allow: str | re.Pattern[str] | None = None, deny: str | re.Pattern[str] | None = None) -> None:
        try:
            self._allow = None if allow is None else re.compile(allow)
            self._deny = None if deny is None else re.compile(deny)
        except re.error as error:
            raise ConfigError(f"`{error.pattern!s}` is no regular expression: {error}") from None

    def matches(self, name: str) -> bool:
        """Whether it is one of them."""
        if self._deny is not None and self._deny.fullmatch(name):
            return False
        return self._allow is None or self._allow.fullmatch(name) is not None


Topics = Iterable[str] | re.Pattern[str] | TopicFilter


def checked_names(topics: Iterable[str]) -> frozenset[str]:
    """Names of topics. Raises TypeError for a single name, whose letters would be taken for topics, and made as such."""
    names = [topics] if isinstance(topics, str) else list(topics)
    wrong = topics if isinstance(topics, str) else next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f'topics are a list of names, such as ["events"], a pattern or a TopicFilter, not {wrong!r}')
    return frozenset(names)


class Subscription:
    """A consumer's part in its group, from `begin` to `end`."""

    def __init__(self, client: Admin, config: Config, background: BackgroundLoop) -> None:
        self.on_assigned: Revoked | None = None
        self.on_revoked: Revoked | None = None
        self.on_lost: Revoked | None = None
        self._client = client
        self._metadata_age_s = config["metadata.max.age.ms"] / 1000
        membership = ConsumerGroupMembership if config["group.protocol"] == "consumer" else Membership
        self._member: GroupMember = membership(client, config["group.id"], config)
        self._topics: frozenset[str] = frozenset()
        self._filter: TopicFilter | None = None
        self._shape: dict[str, int] = {}  # partition counts when the group last joined
        self._look_at = 0.0
        self._look: Question[Cluster] = Question(background)
        self._join: Question[list[TopicPartition] | None] = Question(background)
        self._joining: frozenset[str] = frozenset()  # for which topics

    @property
    def is_active(self) -> bool:
        """Whether there are topics, or a filter, that it is for."""
        return bool(self._topics) or self._filter is not None

    @property
    def is_lost(self) -> bool:
        """Whether the partitions may be another member's by now."""
        return self._member.lost

    def identity(self) -> dict[str, Any]:
        """Generation, member and instance id; see GroupMember."""
        return self._member.identity()

    def standing(self, tps: Iterable[TopicPartition]) -> object:
        """What a commit of these partitions stands on; see GroupMember."""
        return self._member.standing(tps)

    def begin(self, topics: Topics) -> None:
        """Take part for these topics, or for all of a pattern or filter. Raises TypeError for anything else."""
        if isinstance(topics, re.Pattern):
            topics = TopicFilter(topics)
        if isinstance(topics, TopicFilter):
            self._filter, self._topics = topics, frozenset()
        else:
            self._filter, self._topics = None, checked_names(topics)
        self._member.joined = False
        self._look_at = 0.0
        self._look.drop()

    async def end(self) -> None:
        """Leave the group, as far as its coordinator answers."""
        await self._member.leave()
        self._topics, self._filter = frozenset(), None

    def drop_join(self) -> None:
        """Do not wait for the others any more."""
        self._join.drop()

    def note_poll(self) -> None:
        """The consumer polls: it is alive."""
        self._member.poll_time = time.monotonic()

    @property
    def keeps_partitions(self) -> bool:
        """Whether the partitions are this member's while the group rebalances."""
        return self._member.is_cooperative and not self._member.lost

    def join_again(self) -> None:
        """Join with the next `join`: partitions were given back that others wait for."""
        self._member.joined = False

    def join(
        self, step_s: StepTime, revoke: Callable[[StepTime], None], assigned: Callable[[], list[TopicPartition]]
    ) -> list[TopicPartition] | None:
        """Join (again) if that is needed, once `revoke` has let the partitions go; if the member `keeps_partitions` those that
        are `assigned` stay. Gives the new share, None if nothing has changed. Raises UnderWay while others are waited for."""
        member = self._member
        if member.failure is not None:
            raise member.failure
        if not self._join.is_open:
            try:
                self._look_at_topics(0.0 if member.joined else step_s())
            except UnderWay:
                if not member.joined:
                    raise
            if member.joined:
                return None
            if not self.keeps_partitions:
                revoke(step_s)
            self._joining = self._topics
        owned = assigned()
        share = self._join.answer(step_s(), lambda: member.join(self._joining, owned))
        if self._joining != self._topics:  # the consumer subscribed again meanwhile: the share isn't of its topics
            member.joined = False
            return None
        return share

    def _look_at_topics(self, wait_s: float) -> None:
        """Once in `metadata.max.age.ms` (and before the first join): new topics of a filter, grown topics. While a
        topic is missing, each second. Raises UnderWay."""
        now = time.monotonic()
        if now < self._look_at:
            return
        chosen = self._filter
        wanted = None if chosen is not None else sorted(self._topics)
        cluster = self._look.answer(wait_s, lambda: self._client.metadata(wanted, refresh=True))
        if chosen is not None:
            self._topics = frozenset(
                name for name, info in cluster.topics.items() if not info.internal and chosen.matches(name)
            )
        shape = {name: len(info.partitions) for name, info in cluster.topics.items() if name in self._topics}
        missing = bool(self._topics - set(shape))
        self._look_at = now + (MISSING_TOPIC_S if missing else self._metadata_age_s)
        if shape != self._shape:
            self._shape = shape
            self._member.joined = False
