"""A classic group's state: members, generations, and what of it is stored (GroupMetadataValue)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.broker.configs.groupconfig import GroupConfig
from penstock.broker.coordination.machines import NEVER, InFlight, Now
from penstock.broker.coordination.offsets import Offsets
from penstock.errors import ErrorCode
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE, read_subscription
from penstock.pyx.wire.message import WireError

Protocols = tuple[tuple[str, bytes], ...]


class GroupState(Enum):
    """Kafka's names, as DescribeGroups and ListGroups show them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """One member. A token is there while its JoinGroup or SyncGroup waits for an answer."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: object | None = None
    sync_token: object | None = None
    is_new: bool = False
    deadline_ms: int = NEVER

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said under that protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def snapshot(self, metadata: bytes, assignment: bytes) -> MemberSnapshot:
        """The member as it is sent and stored, with these of its bytes."""
        return MemberSnapshot(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            metadata,
            assignment,
        )


@dataclass(slots=True, frozen=True)
class MemberSnapshot:
    """A member as it stands in GroupMetadataValue."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class GroupSnapshot:
    """A group as it stands in GroupMetadataValue."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberSnapshot, ...]


@dataclass(slots=True, frozen=True)
class GroupRecord:
    """A record of the log: the group, or its tombstone when value is None."""

    value: GroupSnapshot | None


@dataclass(slots=True)
class Group:
    """The whole state of one group. Only `step` and `load` change it."""

    id: str
    config: GroupConfig
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending_members: dict[str, int] = field(default_factory=dict)  # handed-out member id -> deadline
    pending_sync: set[str] = field(default_factory=set)
    subscribed: frozenset[str] | None = None  # None: some member's metadata isn't a consumer's
    join_deadline_ms: int = NEVER
    initial_delay_left_ms: int = -1  # >= 0 while the join deadline is that of the initial delay
    new_member_added: bool = False
    sync_deadline_ms: int = NEVER
    storing_generation: int = -1  # the generation whose assignment is being appended
    offsets: Offsets = field(default_factory=Offsets)
    in_flight: InFlight = field(default_factory=InFlight)
    wake_at_ms: int = NEVER

    @property
    def dead(self) -> bool:
        """Whether it is gone, and the shell about to forget it."""
        return self.state is GroupState.DEAD


def wake(group: Group, deadline_ms: int) -> None:
    if deadline_ms < group.wake_at_ms:
        group.wake_at_ms = deadline_ms


def await_heartbeat(group: Group, member: Member, now: Now) -> None:
    member.deadline_ms = now.mono_ms + member.session_timeout_ms
    wake(group, member.deadline_ms)


def transition(group: Group, state: GroupState, now: Now) -> None:
    group.state = state
    group.state_timestamp_ms = now.wall_ms


def check_member(group: Group, member_id: str, instance_id: str | None) -> int:
    """Whether the id belongs to a member and no newer process has taken over its instance id."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def common_protocols(group: Group) -> set[str]:
    """Names that every member supports."""
    common: set[str] | None = None
    for member in group.members.values():
        names = {name for name, _ in member.protocols}
        common = names if common is None else common & names
    return common or set()


def select_protocol(group: Group) -> str | None:
    """Each member votes for the first of its protocols that all support; most votes win, the earliest voter's
    on a tie.
    """
    common = common_protocols(group)
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next((name for name, _ in member.protocols if name in common), None)
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else None


def supports(group: Group, protocol_type: str, protocols: Protocols) -> bool:
    if group.state is GroupState.EMPTY:
        return bool(protocol_type) and bool(protocols)
    if group.protocol_type != protocol_type:
        return False
    common = common_protocols(group)
    return any(name in common for name, _ in protocols)


def subscribed_topics(group: Group) -> frozenset[str] | None:
    if group.protocol_type != PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        names = subscription_topics(member.metadata(group.protocol))
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def subscription_topics(metadata: bytes) -> list[str] | None:
    """The topics of a subscription; None if it isn't one."""
    try:
        return read_subscription(metadata).topics
    except WireError:
        return None


def snapshot(group: Group, assignment: Mapping[str, bytes]) -> GroupSnapshot:
    members = tuple(m.snapshot(m.metadata(group.protocol), assignment.get(m.id, b"")) for m in group.members.values())
    return GroupSnapshot(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        group.leader,
        group.state_timestamp_ms,
        members,
    )


def load_snapshot(group: Group, value: GroupSnapshot | None) -> None:
    group.members.clear()
    group.static_members.clear()
    if value is None:
        group.generation, group.protocol_type, group.state = 0, None, GroupState.EMPTY
        return
    group.protocol_type = value.protocol_type or None
    group.generation, group.protocol, group.leader = value.generation, value.protocol, value.leader
    group.state_timestamp_ms = value.state_timestamp_ms
    for m in value.members:
        protocols = ((value.protocol or "", m.subscription),)
        rebalance_ms = m.rebalance_timeout_ms if m.rebalance_timeout_ms >= 0 else m.session_timeout_ms
        member = Member(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            rebalance_ms,
            m.session_timeout_ms,
            protocols,
        )
        member.assignment = m.assignment
        group.members[m.member_id] = member
        if m.instance_id is not None:
            group.static_members[m.instance_id] = m.member_id
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.subscribed = subscribed_topics(group)


@dataclass(slots=True)
class Described:
    """What DescribeGroups shows; metadata and assignments only of a stable group."""

    state: str
    protocol_type: str
    protocol: str
    members: list[MemberSnapshot]


def describe(group: Group) -> Described:
    """The group as an operator sees it."""
    stable = group.state is GroupState.STABLE
    members = [
        m.snapshot(m.metadata(group.protocol), m.assignment) if stable else m.snapshot(b"", b"") for m in group.members.values()
    ]
    return Described(group.state.value, group.protocol_type or "", (group.protocol or "") if stable else "", members)


def is_disposable(group: Group) -> bool:
    """Whether the shell may forget the group: it is dead, or never had anything worth a record."""
    if group.in_flight.waiting:
        return False
    if group.dead:
        return True
    return group.state is GroupState.EMPTY and group.generation == 0 and not group.pending_members and group.offsets.is_empty()
