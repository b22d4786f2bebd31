"""One member's way through a heartbeat, or through a JoinGroup of the classic protocol.

    who it is ► what it says of itself ► the group's epoch ► the target ► its own next assignment

Nothing is changed here: the result is a list of records and what the member will be when they are in the log. A
request that is refused raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.broker.coordination.consumergroups.assignors import ASSIGNORS, Wants
from penstock.broker.coordination.consumergroups.reconcile import UnknownState, reconcile
from penstock.broker.coordination.consumergroups.state import (
    LEAVING_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerRecord,
    Current,
    CurrentRecord,
    EpochRecord,
    Member,
    MemberFacts,
    MemberRecord,
    Partitions,
    PatternRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicsTombstone,
    is_reconciled,
    subscribed,
    subscribed_topics,
    topics_hash,
    without,
)
from penstock.broker.coordination.machines import Now
from penstock.errors import ErrorCode

# A group begins at this epoch, so that its first members are at the next one.
INITIAL_EPOCH = 1


class Refused(Exception):
    """A request is answered with this error and these words."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(slots=True)
class Update:
    """The member that a request is of, as it is and as it will be, and the records that make it so."""

    group: ConsumerGroup
    member_id: str
    now: Now
    before: Current
    facts: MemberFacts
    is_new: bool = False
    replaced: str | None = None  # the id of the static member whose place it takes
    current: Current = field(default_factory=Current)
    records: list[ConsumerRecord] = field(default_factory=list)
    epoch: int = 0
    target_epoch: int = 0
    target: Partitions = field(default_factory=dict)
    patterns: dict[str, frozenset[str]] = field(default_factory=dict)

    def others(self) -> Iterator[Member]:
        """The group's members but this one and the one that it replaces."""
        gone = (self.member_id, self.replaced)
        return (member for member in self.group.members.values() if member.id not in gone)

    def all_facts(self) -> Iterator[MemberFacts]:
        """What all members will have said."""
        yield from (member.facts for member in self.others())
        yield self.facts

    def say(self, facts: MemberFacts, resolved: frozenset[str] | None) -> bool:
        """The member says this of itself; whether what it is subscribed to changed.

        `resolved` are the topics of its pattern, None if it wasn't evaluated yet.
        """
        old, self.facts = self.facts, facts
        if self.is_new or facts != old:
            self.records.append(MemberRecord(self.member_id, facts))
        # A member with neither epoch nor target is one whose join was cut off after its first record.
        cut_off = self.current.epoch == 0 and self.replaced is None and self.member_id not in self.group.target
        fresh = self.is_new or cut_off
        changed = fresh or facts.topics != old.topics or facts.pattern != old.pattern
        if facts.pattern != old.pattern or self.is_new:
            if old.pattern and not any(member.facts.pattern == old.pattern for member in self.others()):
                self.patterns.pop(old.pattern, None)
                self.records.append(PatternRecord(old.pattern, None))
            if facts.pattern and facts.pattern not in self.patterns and resolved is not None:
                self.patterns[facts.pattern] = resolved
                value = (resolved, self.group.catalog.version, self.now.wall_ms)
                self.records.append(PatternRecord(facts.pattern, value))
        return changed

    def bump(self, changed: bool) -> None:
        """A new group epoch when a subscription changed, or one of the topics did."""
        group = self.group
        if not changed and group.catalog_version == group.catalog.version:
            return
        hashed = topics_hash(subscribed_topics(self.all_facts(), self.patterns), group.catalog)
        if changed or hashed != group.topics_hash:
            self.epoch = max(self.epoch, INITIAL_EPOCH) + 1
            self.records.append(EpochRecord((self.epoch, hashed)))
        else:  # Nothing to see until the topics change again.
            group.catalog_version = group.catalog.version
        if group.has_topics_record:
            self.records.append(TopicsTombstone())

    def assign(self) -> None:
        """A new target if the group's epoch is ahead of the target's, and the last one is old enough."""
        group = self.group
        if self.epoch <= self.target_epoch or not may_assign(group, self.now):
            return
        members = {member.id: self._wants(member.facts, member.id) for member in self.others()}
        members[self.member_id] = self._wants(self.facts, self.replaced or self.member_id)
        counts = self._partition_counts()
        target = ASSIGNORS[self._assignor()](members, counts)
        for member_id, partitions in target.items():
            had = group.target.get(member_id)
            if had != partitions and (had is not None or partitions or member_id == self.member_id):
                self.records.append(TargetRecord(member_id, partitions))
        self.target_epoch, self.target = self.epoch, target[self.member_id]
        self.records.append(TargetEpochRecord((self.target_epoch, self.now.wall_ms)))

    def _wants(self, facts: MemberFacts, had_by: str) -> Wants:
        catalog = self.group.catalog
        found = (catalog.get(name) for name in subscribed(facts, self.patterns))
        topic_ids = frozenset(topic.topic_id for topic in found if topic is not None)
        return Wants(facts.instance_id, topic_ids, self.group.target.get(had_by, {}))

    def _partition_counts(self) -> Mapping[bytes, int]:
        catalog = self.group.catalog
        names = subscribed_topics(self.all_facts(), self.patterns)
        found = (catalog.get(name) for name in sorted(names))
        return {topic.topic_id: topic.partitions for topic in found if topic is not None}

    def _assignor(self) -> str:
        """What most members ask for; the first of the broker's where none does."""
        votes: dict[str, int] = {}
        offered = self.group.config.consumer_assignors
        for facts in self.all_facts():
            if facts.assignor in offered:
                votes[facts.assignor] = votes.get(facts.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else offered[0]

    def reassign(self, owned: Partitions | None, changed: bool) -> None:
        """The member's next assignment. `owned` is what it says that it owns. Raises Refused."""
        if is_reconciled(self.current, self.target_epoch) and not changed:
            return
        found = (self.group.catalog.get(name) for name in subscribed(self.facts, self.patterns))
        topic_ids = {topic.topic_id for topic in found if topic is not None}
        mine = (None, self.member_id, self.replaced)

        def held(topic_id: bytes, partition: int) -> bool:
            return self.group.owners.get(topic_id, {}).get(partition) not in mine

        try:
            after = reconcile(self.current, self.target_epoch, self.target, topic_ids, owned, held, changed)
        except UnknownState:
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
            ) from None
        if after is not self.current:
            self.current = after
            self.records.append(CurrentRecord(self.member_id, after))


def may_assign(group: ConsumerGroup, now: Now) -> bool:
    """Whether a target may be computed now: `consumer.assignment.interval.ms` after the last one.

    When that was stands in the log, by the wall clock. A time in the future says that the clock was set back since, and
    not when; the members don't wait until the clock is there again.
    """
    past_ms = now.wall_ms - group.target_timestamp_ms
    return not 0 <= past_ms < group.settings.assignment_interval_ms


def begin(group: ConsumerGroup, member_id: str, now: Now) -> Update:
    """The update of a member, or of one that is to become a member."""
    member = group.members.get(member_id)
    current = member.current if member is not None else Current()
    facts = member.facts if member is not None else MemberFacts()
    update = Update(group, member_id, now, current, facts, is_new=member is None)
    update.current = current
    update.epoch, update.target_epoch = group.epoch, group.target_epoch
    update.target = group.target.get(member_id, {})
    update.patterns = dict(group.patterns)
    return update


def take_place(group: ConsumerGroup, old: Member, member_id: str, now: Now) -> Update:
    """The update of a static member that came back under a new id: it has what the old one had, at epoch 0."""
    update = begin(group, member_id, now)
    update.is_new = False
    update.replaced = old.id
    update.facts = old.facts
    update.before = update.current = replace(old.current, epoch=0, previous_epoch=0, revoking={})
    update.target = group.target.get(old.id, {})
    update.records += without(old.id)
    update.records += [
        MemberRecord(member_id, old.facts),
        TargetRecord(member_id, update.target),
        CurrentRecord(member_id, update.current),
    ]
    return update


def has_left_for_now(member: Member) -> bool:
    """Whether a static member said that it will come back (epoch -2)."""
    return member.current.epoch == LEAVING_STATIC_EPOCH


def unknown_member(group: ConsumerGroup, member_id: str) -> Refused:
    """The refusal of a client that isn't a member."""
    return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.id}.")


def static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> Member:
    """The member of that instance id. Raises Refused if there is none, or another holds it."""
    current = group.static_members.get(instance_id)
    if current is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if current != member_id:
        raise Refused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {current}.",
        )
    return group.members[current]
