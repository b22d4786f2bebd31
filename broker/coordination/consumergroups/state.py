"""A consumer group's state: its members, which of them owns which partition at which epoch, and what each shall own.

Durable state changes by `apply` alone, one record at a time: at load with what the log holds, live with what was
just appended. So what a crash leaves is what the members heard. Deadlines are soft: after a load each member
gets a full session to show itself. Member epochs, the group's epoch and the target's only grow.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

from penstock.broker.configs.groupconfig import GroupConfig, GroupSettings
from penstock.broker.coordination.machines import NEVER, InFlight
from penstock.broker.coordination.offsets import Offsets

LEAVING_STATIC_EPOCH = -2
LEAVING_EPOCH = -1

# Topic id -> partitions; with the epoch at which the member was given each of them.
Partitions = Mapping[bytes, frozenset[int]]
Assigned = Mapping[bytes, Mapping[int, int]]


class TopicFacts(NamedTuple):
    """What an assignment needs to know of a topic."""

    topic_id: bytes
    partitions: int


class Catalog(Protocol):
    """The broker's topics, as they are now. `version` changes whenever a topic comes, grows or goes."""

    @property
    def version(self) -> int:
        """Grows with every change."""
        ...

    def get(self, name: str) -> TopicFacts | None:
        """A topic by name."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """A topic's name by its id."""
        ...


@dataclass(slots=True, frozen=True)
class Environment:
    """What every group shares: properties, topics, and a look-up of a group's own settings by its name."""

    config: GroupConfig
    catalog: Catalog
    settings: Callable[[str], GroupSettings]


class MemberState(IntEnum):
    """How far a member is on its way to its target, as stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(slots=True, frozen=True)
class ClassicFacts:
    """What a member of the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(slots=True, frozen=True)
class MemberFacts:
    """What a member says of itself (ConsumerGroupMemberMetadataValue). `topics` are sorted; `pattern` "" is none."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicFacts | None = None


@dataclass(slots=True, frozen=True)
class Current:
    """What a member has (ConsumerGroupCurrentMemberAssignmentValue); `revoking` it still has to give back."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)


@dataclass(slots=True)
class Member:
    """A member; deadlines are monotonic milliseconds."""

    id: str
    facts: MemberFacts = MemberFacts()
    current: Current = Current()
    session_deadline_ms: int = NEVER
    rebalance_deadline_ms: int = NEVER  # it is asked to revoke and has to say that it did
    join_deadline_ms: int = NEVER  # classic: it has to join again
    sync_deadline_ms: int = NEVER  # classic: it joined and has to sync

    def next_deadline_ms(self) -> int:
        """When it is late if nothing is heard of it."""
        return min(self.session_deadline_ms, self.rebalance_deadline_ms, self.join_deadline_ms, self.sync_deadline_ms)


# --- records: a value of None is a tombstone ------------------------------------------------------------------
@dataclass(slots=True, frozen=True)
class EpochRecord:
    """ConsumerGroupMetadata: (epoch, hash of the subscribed topics); its tombstone ends the group."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TopicsTombstone:
    """ConsumerGroupPartitionMetadata, which Kafka wrote before 4.1: only its tombstone is written here."""

    present: bool = False


@dataclass(slots=True, frozen=True)
class MemberRecord:
    """ConsumerGroupMemberMetadata."""

    member_id: str
    value: MemberFacts | None


@dataclass(slots=True, frozen=True)
class TargetEpochRecord:
    """ConsumerGroupTargetAssignmentMetadata: (epoch, when it was computed in wall ms, 0 if unknown)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TargetRecord:
    """ConsumerGroupTargetAssignmentMember."""

    member_id: str
    value: Partitions | None


@dataclass(slots=True, frozen=True)
class CurrentRecord:
    """ConsumerGroupCurrentMemberAssignment."""

    member_id: str
    value: Current | None


@dataclass(slots=True, frozen=True)
class PatternRecord:
    """ConsumerGroupRegularExpression: (topics that match, version of the topics, when in wall ms)."""

    pattern: str
    value: tuple[frozenset[str], int, int] | None


ConsumerRecord = EpochRecord | TopicsTombstone | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord | PatternRecord


def is_tombstone(record: ConsumerRecord) -> bool:
    """Whether the record takes something back."""
    return not record.present if isinstance(record, TopicsTombstone) else record.value is None


@dataclass(slots=True)
class ConsumerGroup:
    """The whole state of one group. Only the machine changes it."""

    id: str
    environment: Environment
    epoch: int = 0
    epoch_ms: int = 0  # when it was raised, by the wall clock; of a group without members: when its last one left
    topics_hash: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    target_epoch: int = 0
    target_timestamp_ms: int = 0
    target: dict[str, Partitions] = field(default_factory=dict)
    owners: dict[bytes, dict[int, str]] = field(default_factory=dict)  # the member that holds or still has to release it
    patterns: dict[str, frozenset[str]] = field(default_factory=dict)  # resolved ones
    has_topics_record: bool = False
    dead: bool = False
    # Soft state.
    catalog_version: int = -1  # the topics that `topics_hash` was last compared with
    patterns_version: int = -1  # the topics that `patterns` were last resolved against
    busy: bool = False  # an append of records is under way; events wait in `waiting`
    waiting: deque[object] = field(default_factory=deque)
    offsets: Offsets = field(default_factory=Offsets)
    in_flight: InFlight = field(default_factory=InFlight)
    wake_at_ms: int = NEVER

    @property
    def config(self) -> GroupConfig:
        """The broker's properties for groups."""
        return self.environment.config

    @property
    def catalog(self) -> Catalog:
        """The broker's topics."""
        return self.environment.catalog

    @property
    def settings(self) -> GroupSettings:
        """The group's own settings, or the broker's."""
        return self.environment.settings(self.id)

    def state(self) -> str:
        """Kafka's name of the state."""
        if self.dead:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        reconciled = all(is_reconciled(member.current, self.target_epoch) for member in self.members.values())
        return "Stable" if reconciled else "Reconciling"

    def session_timeout_ms(self, facts: MemberFacts) -> int:
        """How long that member may be silent."""
        return facts.classic.session_timeout_ms if facts.classic is not None else self.settings.session_timeout_ms


def is_reconciled(current: Current, target_epoch: int) -> bool:
    """Whether a member has all of its target and nothing else."""
    return current.state is MemberState.STABLE and current.epoch == target_epoch


def subscribed(facts: MemberFacts, patterns: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The topics that a member wants, by name and by pattern."""
    names = frozenset(facts.topics)
    return names | patterns.get(facts.pattern, frozenset()) if facts.pattern else names


def subscribed_topics(members: Iterable[MemberFacts], patterns: Mapping[str, frozenset[str]]) -> set[str]:
    """The topics that any of the members wants."""
    topics: set[str] = set()
    seen: set[tuple[tuple[str, ...], str]] = set()
    for facts in members:
        key = (facts.topics, facts.pattern)
        if key not in seen:
            seen.add(key)
            topics |= subscribed(facts, patterns)
    return topics


def topics_hash(names: Iterable[str], catalog: Catalog) -> int:
    """64 bits that change when one of the topics comes, grows, is made again or goes; 0 when there is none."""
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        facts = catalog.get(name)
        if facts is not None:
            found = True
            digest.update(facts.topic_id + facts.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0


# --- records change the state ---------------------------------------------------------------------------------
def apply(group: ConsumerGroup, record: ConsumerRecord, written_ms: int) -> None:
    """Change the group as the record says, which was written then by the wall clock."""
    if isinstance(record, EpochRecord):
        if record.value is None:
            _clear(group)
        else:
            group.epoch, group.topics_hash = record.value
            group.epoch_ms = written_ms
    elif isinstance(record, MemberRecord):
        _apply_facts(group, record)
    elif isinstance(record, TargetEpochRecord):
        group.target_epoch, group.target_timestamp_ms = record.value or (0, 0)
    elif isinstance(record, TargetRecord):
        if record.value is None:
            group.target.pop(record.member_id, None)
        else:
            group.target[record.member_id] = record.value
    elif isinstance(record, CurrentRecord):
        _apply_current(group, record)
    elif isinstance(record, PatternRecord):
        if record.value is None:
            group.patterns.pop(record.pattern, None)
        else:
            group.patterns[record.pattern] = record.value[0]
    else:
        group.has_topics_record = record.present


def _clear(group: ConsumerGroup) -> None:
    group.dead = True
    group.epoch = group.epoch_ms = group.target_epoch = group.target_timestamp_ms = group.topics_hash = 0
    for table in (group.members, group.static_members, group.target, group.owners, group.patterns):
        table.clear()


def _apply_facts(group: ConsumerGroup, record: MemberRecord) -> None:
    member = group.members.get(record.member_id)
    before = member.facts.instance_id if member is not None else None
    if before is not None and group.static_members.get(before) == record.member_id:
        del group.static_members[before]
    if record.value is None:
        if member is not None:
            _release(group, member)
            del group.members[record.member_id]
        return
    if member is None:
        member = group.members[record.member_id] = Member(record.member_id)
    member.facts = record.value
    if record.value.instance_id is not None:
        group.static_members[record.value.instance_id] = record.member_id


def _apply_current(group: ConsumerGroup, record: CurrentRecord) -> None:
    member = group.members.get(record.member_id)
    if member is None:
        if record.value is None:
            return
        member = group.members[record.member_id] = Member(record.member_id)
    _release(group, member)
    member.current = record.value or Current()
    for held in (member.current.assigned, member.current.revoking):
        for topic_id, partitions in held.items():
            owners = group.owners.setdefault(topic_id, {})
            for partition in partitions:
                owners[partition] = member.id


def _release(group: ConsumerGroup, member: Member) -> None:
    for held in (member.current.assigned, member.current.revoking):
        for topic_id, partitions in held.items():
            owners = group.owners.get(topic_id, {})
            for partition in partitions:
                if owners.get(partition) == member.id:
                    del owners[partition]
            if not owners:
                group.owners.pop(topic_id, None)
    member.current = replace(member.current, assigned={}, revoking={})


def end_of(group: ConsumerGroup) -> list[ConsumerRecord]:
    """The tombstones of everything that the group has stored."""
    records: list[ConsumerRecord] = [CurrentRecord(member_id, None) for member_id in group.members]
    records.extend(TargetRecord(member_id, None) for member_id in {**group.members, **group.target})
    records.append(TargetEpochRecord(None))
    records.extend(MemberRecord(member_id, None) for member_id in group.members)
    records.extend(PatternRecord(pattern, None) for pattern in group.patterns)
    if group.has_topics_record:
        records.append(TopicsTombstone())
    records.append(EpochRecord(None))
    return records


def without(member_id: str) -> list[ConsumerRecord]:
    """The tombstones of one member."""
    return [CurrentRecord(member_id, None), TargetRecord(member_id, None), MemberRecord(member_id, None)]
