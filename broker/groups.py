"""A consumer group of the classic protocol as a pure state machine: members, generations, committed offsets.

    Empty ──────── first join ────────► PreparingRebalance    collects JoinGroups
    PreparingRebalance ── all in ────► CompletingRebalance   a new generation; waits for the leader's sync
    PreparingRebalance ── nobody left ► Empty
    CompletingRebalance ── stored ───► Stable                everybody has an assignment
    CompletingRebalance, Stable ── a member lost, added or changed ──► PreparingRebalance
    Empty ── deleted, or nothing is stored any more ──► Dead (the shell forgets it)

`step(group, event, now) -> (group, actions)`; the rules of feeding are in `machines.py`. Names and answers
are those of Kafka's GroupCoordinator (KIP-62 rebalance timeout, KIP-134 initial delay, KIP-345 static
members, KIP-394 known member ids, KIP-447 stable offsets, KIP-814 skipped assignment).

What the records of a group say is durable before it is answered: a generation's assignment
(GroupMetadataValue) before any SyncGroup of it, a commit before its OffsetCommit. JoinGroup's answer is not,
as in Kafka: a coordinator that dies between the two has the group join again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.broker import groupoffsets
from penstock.broker.groupconfig import GroupConfig
from penstock.broker.groupoffsets import (
    AfterCommit,
    AfterRemoval,
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    Marker,
    Out,
    TopicDeleted,
    append_error,
)
from penstock.broker.machines import NEVER, Append, Appended, InFlight, Now, Reply, Tick, TopicPartition
from penstock.broker.offsets import Committed, OffsetRecord, Offsets, tombstones
from penstock.errors import ErrorCode

# A new member has no id to heartbeat with while its first JoinGroup waits; it is dropped after this time, ms.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
# What one member may say about itself, all its protocols together; a group's record has to fit into a batch
# anyway.
MEMBER_METADATA_MAX_BYTES = 4 << 20
# Member ids that were handed out and not used yet; each of them ends with its session timeout.
PENDING_MEMBERS_MAX = 10_000
CONSUMER_PROTOCOL_TYPE = "consumer"

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


# --- events (each with a token is answered by one Reply) ----------------------------------------------------
@dataclass(slots=True)
class Join:
    """JoinGroup. `fresh_member_id` is used if the member has none. Answered by JoinResult."""

    token: object
    member_id: str
    fresh_member_id: str
    instance_id: str | None
    require_known_member: bool
    can_skip_assignment: bool
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols


@dataclass(slots=True)
class JoinResult:
    """Members are given to the leader only: (member id, instance id, metadata)."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()


@dataclass(slots=True)
class Sync:
    """SyncGroup; assignments come from the leader. Answered by SyncResult."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(slots=True)
class SyncResult:
    """The member's assignment, and what the group agreed on."""

    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True)
class Heartbeat:
    """Heartbeat. Answered by an error code."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(slots=True)
class Leave:
    """LeaveGroup of (member id, instance id) pairs. Answered by (error, [error of each])."""

    token: object
    members: Sequence[tuple[str, str | None]]


# --- what an append was for ---------------------------------------------------------------------------------
@dataclass(slots=True)
class _AfterAssignment:
    generation: int
    assignment: dict[str, bytes]


@dataclass(slots=True)
class _AfterStaticSwap:
    """A static member came back with a new id while the group was stable; see `_static_member_returned`."""

    member_id: str
    old: Member
    old_leader: str | None
    generation: int
    can_skip_assignment: bool


@dataclass(slots=True)
class _AfterDelete:
    token: object


@dataclass(slots=True)
class _AfterEmpty:
    """An empty generation was stored; nobody waits for it."""


def step(group: Group, event: object, now: Now) -> tuple[Group, Out]:
    """Feed one event. The group is changed in place and handed back with the actions to carry out, in
    order.
    """
    out: Out = []
    _HANDLERS[type(event)](group, event, now, out)
    if group.wake_at_ms <= now.mono_ms:
        _run_timers(group, now, out)
    return group, out


def is_disposable(group: Group) -> bool:
    """Whether the shell may forget the group: it is dead, or never had anything worth a record."""
    if group.in_flight.waiting:
        return False
    if group.state is GroupState.DEAD:
        return True
    return (
        group.state is GroupState.EMPTY
        and group.generation == 0
        and not group.pending_members
        and group.offsets.is_empty()
    )


# --- timers -------------------------------------------------------------------------------------------------
def _wake(group: Group, deadline_ms: int) -> None:
    if deadline_ms < group.wake_at_ms:
        group.wake_at_ms = deadline_ms


def _await_heartbeat(group: Group, member: Member, now: Now) -> None:
    member.deadline_ms = now.mono_ms + member.session_timeout_ms
    _wake(group, member.deadline_ms)


def _on_tick(group: Group, event: Tick, now: Now, out: Out) -> None:
    """Timers run after each event anyway."""


def _run_timers(group: Group, now: Now, out: Out) -> None:
    """Let everything happen whose time has come, then look up when the next is due."""
    late = [member_id for member_id, deadline in group.pending_members.items() if deadline <= now.mono_ms]
    for member_id in late:
        del group.pending_members[member_id]
    if late:
        _maybe_complete_join(group, now, out)
    for member in [m for m in group.members.values() if m.deadline_ms <= now.mono_ms]:
        if group.members.get(member.id) is member:
            _member_silent(group, member, now, out)
    if group.join_deadline_ms <= now.mono_ms:
        _join_time_is_up(group, now, out)
    if group.sync_deadline_ms <= now.mono_ms:
        _sync_time_is_up(group, now, out)
    deadlines = [group.join_deadline_ms, group.sync_deadline_ms, *group.pending_members.values()]
    deadlines.extend(member.deadline_ms for member in group.members.values())
    group.wake_at_ms = min(deadlines)


def _member_silent(group: Group, member: Member, now: Now, out: Out) -> None:
    """No heartbeat for a session timeout. A member that waits for our answer is not silent, unless it never
    had an id.
    """
    if not member.is_new and (member.join_token is not None or member.sync_token is not None):
        member.deadline_ms = NEVER  # Set again when it is answered.
        return
    _remove_and_rebalance(group, member, now, out)


def _sync_time_is_up(group: Group, now: Now, out: Out) -> None:
    """Members that joined this generation and never sent SyncGroup are dropped (KAFKA-10134)."""
    group.sync_deadline_ms = NEVER
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
        return
    for member_id in list(group.pending_sync):
        _remove(group, member_id)
    prepare_rebalance(group, now, out)


# --- members ------------------------------------------------------------------------------------------------
def _transition(group: Group, state: GroupState, now: Now) -> None:
    group.state = state
    group.state_timestamp_ms = now.wall_ms


def _check_member(group: Group, member_id: str, instance_id: str | None) -> int:
    """Whether the id belongs to a member and no newer process has taken over its instance id."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _supports(group: Group, protocol_type: str, protocols: Protocols) -> bool:
    if group.state is GroupState.EMPTY:
        return bool(protocol_type) and bool(protocols)
    if group.protocol_type != protocol_type:
        return False
    common = _common_protocols(group)
    return any(name in common for name, _ in protocols)


def _common_protocols(group: Group) -> set[str]:
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
    common = _common_protocols(group)
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next((name for name, _ in member.protocols if name in common), None)
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else None


def _answer_join(member: Member, result: JoinResult, out: Out) -> None:
    if member.join_token is not None:
        out.append(Reply(member.join_token, result))
        member.join_token = None


def _answer_sync(member: Member, result: SyncResult, out: Out) -> None:
    if member.sync_token is not None:
        out.append(Reply(member.sync_token, result))
        member.sync_token = None


def _remove(group: Group, member_id: str) -> None:
    member = group.members.pop(member_id, None)
    if member is not None and member.instance_id is not None:
        group.static_members.pop(member.instance_id, None)
    if group.leader == member_id:
        group.leader = next(iter(group.members), None)
    group.pending_members.pop(member_id, None)
    group.pending_sync.discard(member_id)


def _remove_and_rebalance(group: Group, member: Member, now: Now, out: Out) -> None:
    """A member is gone; the others have to share its work. Its open requests are told so."""
    _answer_join(member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, ""), out)
    _answer_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID), out)
    _remove(group, member.id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, now, out)
    else:
        _maybe_complete_join(group, now, out)


# --- JoinGroup ----------------------------------------------------------------------------------------------
def _on_join(group: Group, event: Join, now: Now, out: Out) -> None:
    error = _join_refused(group, event)
    if error:
        if error == ErrorCode.GROUP_MAX_SIZE_REACHED and event.member_id in group.members:
            _remove_and_rebalance(group, group.members[event.member_id], now, out)
        out.append(Reply(event.token, JoinResult(error, event.member_id)))
    elif not event.member_id:
        _join_of_new(group, event, now, out)
    else:
        _join_of_known(group, event, now, out)
    _maybe_complete_join(group, now, out)


def _join_refused(group: Group, event: Join) -> int:
    config = group.config
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if sum(len(data) for _, data in event.protocols) > MEMBER_METADATA_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not _has_room(group, event.member_id):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not _supports(group, event.protocol_type, event.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _has_room(group: Group, member_id: str) -> bool:
    """group.max.size; while preparing, only those count that have joined, so that the first come are the
    first served.
    """
    if not member_id and len(group.pending_members) >= PENDING_MEMBERS_MAX:
        return False
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        if member is not None and member.join_token is not None:
            return True
        return sum(m.join_token is not None for m in group.members.values()) < group.config.max_size
    return member is not None or len(group.members) < group.config.max_size


def _join_of_new(group: Group, event: Join, now: Now, out: Out) -> None:
    if event.instance_id is not None:
        old_id = group.static_members.get(event.instance_id)
        if old_id is not None:
            _static_member_returned(group, event, old_id, now, out)
        else:
            _add_member(group, event, event.fresh_member_id, now, out)
    elif event.require_known_member:
        # KIP-394: the client joins again with this id, so a client that gave up leaves no member behind.
        deadline = now.mono_ms + event.session_timeout_ms
        group.pending_members[event.fresh_member_id] = deadline
        _wake(group, deadline)
        out.append(Reply(event.token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, event.fresh_member_id)))
    else:
        _add_member(group, event, event.fresh_member_id, now, out)


def _add_member(group: Group, event: Join, member_id: str, now: Now, out: Out) -> None:
    member = Member(
        id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        protocols=event.protocols,
        join_token=event.token,
        is_new=True,
        deadline_ms=now.mono_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
    )
    _wake(group, member.deadline_ms)
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms >= 0:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = event.protocol_type
    if group.leader is None:
        group.leader = member_id
    group.members[member_id] = member
    if event.instance_id is not None:
        group.static_members[event.instance_id] = member_id
    group.pending_members.pop(member_id, None)
    prepare_rebalance(group, now, out)


def _join_of_known(group: Group, event: Join, now: Now, out: Out) -> None:
    if event.member_id in group.pending_members and event.instance_id is None:
        _add_member(group, event, event.member_id, now, out)
        return
    error = _check_member(group, event.member_id, event.instance_id)
    if error:
        out.append(Reply(event.token, JoinResult(error, event.member_id)))
        return
    member = group.members[event.member_id]
    same = member.protocols == event.protocols
    repeats = group.state is GroupState.COMPLETING_REBALANCE and same
    keeps = group.state is GroupState.STABLE and same and group.leader != member.id
    if repeats or keeps:
        # The member may have missed our answer (or asks for no reason); it is in this generation.
        out.append(Reply(event.token, _joined(group, member)))
        return
    _update_member(group, member, event, out)
    prepare_rebalance(group, now, out)


def _update_member(group: Group, member: Member, event: Join, out: Out) -> None:
    # An older JoinGroup of the same member would wait for ever: one of its connections would hang.
    _answer_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.id), out)
    member.protocols = event.protocols
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.session_timeout_ms = event.session_timeout_ms
    member.client_id = event.client_id
    member.client_host = event.client_host
    member.join_token = event.token


def _static_member_returned(group: Group, event: Join, old_id: str, now: Now, out: Out) -> None:
    """A process with a known instance id started again (KIP-345): it takes the old member's place under a new
    id.
    """
    old, old_leader = group.members[old_id], group.leader
    _answer_join(old, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id), out)
    _answer_sync(old, SyncResult(ErrorCode.FENCED_INSTANCE_ID), out)
    member = Member(
        id=event.fresh_member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        protocols=event.protocols,
        assignment=old.assignment,
        join_token=event.token,
    )
    _replace_member(group, old, member)
    _await_heartbeat(group, member, now)
    if group.state is GroupState.STABLE and select_protocol(group) == group.protocol:
        # Nothing changes for the others: store the new id and let the member have the old one's assignment.
        after = _AfterStaticSwap(member.id, old, old_leader, group.generation, event.can_skip_assignment)
        assignment = {m.id: m.assignment for m in group.members.values()}
        out.append(Append(group.in_flight.add(after), [GroupRecord(snapshot(group, assignment))]))
    else:
        prepare_rebalance(group, now, out)


def _replace_member(group: Group, old: Member, new: Member) -> None:
    """Put `new` where `old` was, in the order of members too."""
    group.members = {
        (new.id if key == old.id else key): (new if key == old.id else value) for key, value in group.members.items()
    }
    if group.leader == old.id:
        group.leader = new.id
    if old.id in group.pending_sync:
        group.pending_sync.remove(old.id)
        group.pending_sync.add(new.id)
    if new.instance_id is not None:
        group.static_members[new.instance_id] = new.id


def _static_swap_stored(group: Group, after: _AfterStaticSwap, error: int, now: Now, out: Out) -> None:
    member = group.members.get(after.member_id)
    if member is None or group.generation != after.generation or group.state is not GroupState.STABLE:
        return  # A rebalance or an even newer process overtook it, and that answers.
    if error:
        _answer_join(member, JoinResult(append_error(error), ""), out)
        _replace_member(group, member, after.old)
        _await_heartbeat(group, after.old, now)
        return
    result = _joined(group, member)
    if after.can_skip_assignment:
        result.skip_assignment = group.leader == member.id
    else:
        # Before v9 a returning leader is shown its old id as leader, so that it computes no assignment nobody
        # would get.
        result.leader, result.members = after.old_leader or "", ()
    _answer_join(member, result, out)
    _await_heartbeat(group, member, now)


def _joined(group: Group, member: Member) -> JoinResult:
    members: list[tuple[str, str | None, bytes]] = []
    if group.leader == member.id:
        members = [(m.id, m.instance_id, m.metadata(group.protocol)) for m in group.members.values()]
    return JoinResult(
        ErrorCode.NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        False,
        members,
    )


# --- the rebalance ------------------------------------------------------------------------------------------
def _rebalance_timeout_ms(group: Group) -> int:
    return max((member.rebalance_timeout_ms for member in group.members.values()), default=0)


def prepare_rebalance(group: Group, now: Now, out: Out) -> None:
    """Begin to collect JoinGroups, unless that goes on already."""
    if group.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        _fail_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now, out)
    group.sync_deadline_ms = NEVER
    timeout_ms = _rebalance_timeout_ms(group)
    if group.state is GroupState.EMPTY:
        # KIP-134: a group that starts waits a little, so that its first members needn't rebalance one by one.
        delay_ms = group.config.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
        group.join_deadline_ms = now.mono_ms + delay_ms
    else:
        group.initial_delay_left_ms = -1
        group.join_deadline_ms = now.mono_ms + timeout_ms
    group.new_member_added = False
    _wake(group, group.join_deadline_ms)
    _transition(group, GroupState.PREPARING_REBALANCE, now)
    _maybe_complete_join(group, now, out)


def _fail_assignment(group: Group, error: int, now: Now, out: Out) -> None:
    for member in group.members.values():
        member.assignment = b""
        if member.sync_token is not None:
            _answer_sync(member, SyncResult(error), out)
            _await_heartbeat(group, member, now)


def _maybe_complete_join(group: Group, now: Now, out: Out) -> None:
    """Complete when all have joined; a group that starts waits out its delay."""
    if group.state is not GroupState.PREPARING_REBALANCE or group.initial_delay_left_ms >= 0:
        return
    if not group.pending_members and all(m.join_token is not None for m in group.members.values()):
        _complete_join(group, now, out)


def _join_time_is_up(group: Group, now: Now, out: Out) -> None:
    left_ms = group.initial_delay_left_ms
    if left_ms > 0 and group.new_member_added:
        delay_ms = min(group.config.initial_rebalance_delay_ms, left_ms)
        group.new_member_added = False
        group.initial_delay_left_ms = left_ms - delay_ms
        group.join_deadline_ms = now.mono_ms + delay_ms
        return
    group.initial_delay_left_ms = -1
    _complete_join(group, now, out)


def _complete_join(group: Group, now: Now, out: Out) -> None:
    """The next generation: of those that joined, and of static members that still have time to."""
    group.join_deadline_ms = NEVER
    for member in [m for m in group.members.values() if m.join_token is None and m.instance_id is None]:
        _remove(group, member.id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left and none has joined: wait on, their sessions decide.
        wait_ms = max(_rebalance_timeout_ms(group), group.config.min_session_timeout_ms)
        group.join_deadline_ms = now.mono_ms + wait_ms
        _wake(group, group.join_deadline_ms)
        return
    group.generation += 1
    group.pending_sync.clear()
    if not group.members:
        group.protocol, group.leader, group.subscribed = None, None, frozenset()
        _transition(group, GroupState.EMPTY, now)
        out.append(Append(group.in_flight.add(_AfterEmpty()), [GroupRecord(snapshot(group, {}))]))
        return
    group.protocol = select_protocol(group)
    group.subscribed = subscribed_topics(group)
    _transition(group, GroupState.COMPLETING_REBALANCE, now)
    for member in group.members.values():
        _answer_join(member, _joined(group, member), out)
        _await_heartbeat(group, member, now)
        member.is_new = False
        group.pending_sync.add(member.id)
    group.sync_deadline_ms = now.mono_ms + _rebalance_timeout_ms(group)
    _wake(group, group.sync_deadline_ms)


def _elect_joined_leader(group: Group) -> bool:
    """The leader has to be one that joined; the old one stays if it did."""
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.join_token is not None:
        return True
    joined = next((m.id for m in group.members.values() if m.join_token is not None), None)
    if joined is not None:
        group.leader = joined
    return joined is not None


def subscribed_topics(group: Group) -> frozenset[str] | None:
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        names = subscription_topics(member.metadata(group.protocol))
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def subscription_topics(metadata: bytes) -> list[str] | None:
    """The topics of a ConsumerProtocolSubscription (the same place in every version); None if it isn't
    one.
    """
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or not 0 <= count <= len(metadata) // 2:
            return None
        names, at = [], 6
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, at)
            if size < 0 or at + 2 + size > len(metadata):
                return None
            names.append(metadata[at + 2 : at + 2 + size].decode("utf-8"))
            at += 2 + size
    except (struct.error, UnicodeDecodeError):
        return None
    return names


# --- SyncGroup, Heartbeat, LeaveGroup -----------------------------------------------------------------------
def _on_sync(group: Group, event: Sync, now: Now, out: Out) -> None:
    error = _sync_refused(group, event)
    if error:
        out.append(Reply(event.token, SyncResult(error)))
        return
    member = group.members[event.member_id]
    group.pending_sync.discard(member.id)
    if group.state is GroupState.STABLE:
        _await_heartbeat(group, member, now)
        out.append(Reply(event.token, _synced(group, member)))
        return
    _answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), out)
    member.sync_token = event.token
    if group.leader == member.id and group.storing_generation != group.generation:
        group.storing_generation = group.generation
        assignment = {member_id: event.assignments.get(member_id, b"") for member_id in group.members}
        after = _AfterAssignment(group.generation, assignment)
        out.append(Append(group.in_flight.add(after), [GroupRecord(snapshot(group, assignment))]))


def _sync_refused(group: Group, event: Sync) -> int:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = _check_member(group, event.member_id, event.instance_id)
    if error:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if event.protocol_type is not None and event.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if event.protocol is not None and event.protocol != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _synced(group: Group, member: Member) -> SyncResult:
    return SyncResult(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)


def _assignment_stored(group: Group, after: _AfterAssignment, error: int, now: Now, out: Out) -> None:
    if group.storing_generation == after.generation:
        group.storing_generation = -1
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != after.generation:
        return  # Another rebalance began; it has answered those who waited.
    if error:
        _fail_assignment(group, append_error(error), now, out)
        prepare_rebalance(group, now, out)
        return
    _transition(group, GroupState.STABLE, now)
    for member in group.members.values():
        member.assignment = after.assignment.get(member.id, b"")
        if member.sync_token is not None:
            _answer_sync(member, _synced(group, member), out)
        _await_heartbeat(group, member, now)


def _on_heartbeat(group: Group, event: Heartbeat, now: Now, out: Out) -> None:
    error: int
    if group.state is GroupState.DEAD:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        error = _check_member(group, event.member_id, event.instance_id)
        if not error and event.generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
    if not error:
        _await_heartbeat(group, group.members[event.member_id], now)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    out.append(Reply(event.token, error))


def _on_leave(group: Group, event: Leave, now: Now, out: Out) -> None:
    if group.state is GroupState.DEAD:
        out.append(Reply(event.token, (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])))
        return
    errors = [_leave(group, member_id, instance_id, now, out) for member_id, instance_id in event.members]
    out.append(Reply(event.token, (ErrorCode.NONE, errors)))


def _leave(group: Group, member_id: str, instance_id: str | None, now: Now, out: Out) -> int:
    if not member_id and instance_id is not None:  # An operator removes a static member by its instance id.
        member_id = group.static_members.get(instance_id, "")
    elif member_id in group.pending_members and instance_id is None:
        del group.pending_members[member_id]
        _maybe_complete_join(group, now, out)
        return ErrorCode.NONE
    error = _check_member(group, member_id, instance_id)
    if not error:
        _remove_and_rebalance(group, group.members[member_id], now, out)
    return error


# --- offsets ------------------------------------------------------------------------------------------------
def _on_commit(group: Group, event: Commit, now: Now, out: Out) -> None:
    error = _commit_refused(group, event)
    if error:
        out.append(Reply(event.token, error))
        return
    member = group.members.get(event.member_id)
    if member is not None:
        _await_heartbeat(group, member, now)
    groupoffsets.commit(group, event, now, out)


def _commit_refused(group: Group, event: Commit) -> int:
    """Who may commit: members of this generation; anybody without a generation while the group has no
    members.
    """
    transactional = event.producer_id >= 0
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if event.generation >= 0 or event.member_id or event.instance_id is not None:
        error = _check_member(group, event.member_id, event.instance_id)
        if error:
            return error
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _on_marker(group: Group, event: Marker, now: Now, out: Out) -> None:
    group.offsets.end_transaction(event.producer_id, event.commit)


def _on_delete(group: Group, event: Delete, now: Now, out: Out) -> None:
    if group.state is GroupState.DEAD:
        out.append(Reply(event.token, ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.state is not GroupState.EMPTY:
        out.append(Reply(event.token, ErrorCode.NON_EMPTY_GROUP))
    else:
        _transition(group, GroupState.DEAD, now)
        records: list[object] = [*tombstones(group.offsets.partitions()), GroupRecord(None)]
        out.append(Append(group.in_flight.add(_AfterDelete(event.token)), records))


def _on_delete_offsets(group: Group, event: DeleteOffsets, now: Now, out: Out) -> None:
    in_use: frozenset[str] = frozenset()
    if group.state is GroupState.DEAD:
        out.append(Reply(event.token, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    if group.state is not GroupState.EMPTY:
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE or group.subscribed is None:
            out.append(Reply(event.token, ErrorCode.NON_EMPTY_GROUP))
            return
        in_use = group.subscribed
    groupoffsets.delete(group, event, in_use, out)


def _on_topic_deleted(group: Group, event: TopicDeleted, now: Now, out: Out) -> None:
    if group.state is not GroupState.DEAD:
        groupoffsets.topic_deleted(group, event.topic, out)


def _on_expire(group: Group, event: Expire, now: Now, out: Out) -> None:
    if group.state is GroupState.DEAD:
        return
    gone = _expired_offsets(group, now)
    may_die = group.state is GroupState.EMPTY and len(gone) == len(group.offsets.committed)
    if not may_die:
        groupoffsets.take_back(group, AfterRemoval(gone), [], out)
        return

    def die(error: int) -> None:
        unused = not group.members and not group.pending_members and group.offsets.is_empty()
        if not error and group.state is GroupState.EMPTY and unused:
            _transition(group, GroupState.DEAD, now)

    beside = [GroupRecord(None)] if group.generation > 0 else []
    groupoffsets.take_back(group, AfterRemoval(gone, then=die), beside, out)


def _expired_offsets(group: Group, now: Now) -> tuple[TopicPartition, ...]:
    """KIP-211: retention starts when the group becomes empty; for topics no longer subscribed and for simple
    consumers it starts at the commit."""

    def by_commit(commit: Committed) -> int:
        return commit.commit_timestamp_ms

    def by_state(commit: Committed) -> int:
        return group.state_timestamp_ms if group.state_timestamp_ms >= 0 else commit.commit_timestamp_ms

    retention_ms = group.config.offsets_retention_ms
    if group.protocol_type is None:
        return group.offsets.expired(by_commit, frozenset(), retention_ms, now.wall_ms)
    if group.state is GroupState.EMPTY:
        return group.offsets.expired(by_state, frozenset(), retention_ms, now.wall_ms)
    if group.state is GroupState.STABLE and group.subscribed is not None:
        return group.offsets.expired(by_commit, group.subscribed, retention_ms, now.wall_ms)
    return ()


# --- appends that have ended --------------------------------------------------------------------------------
def _on_appended(group: Group, event: Appended, now: Now, out: Out) -> None:
    after = group.in_flight.waiting.pop(event.id)
    if isinstance(after, AfterCommit | AfterRemoval):
        groupoffsets.appended(group, after, event, out)
    elif isinstance(after, _AfterAssignment):
        _assignment_stored(group, after, event.error, now, out)
    elif isinstance(after, _AfterStaticSwap):
        _static_swap_stored(group, after, event.error, now, out)
    elif isinstance(after, _AfterDelete):
        if event.error:
            _transition(group, GroupState.EMPTY, now)
        else:
            group.offsets = Offsets()
        out.append(Reply(after.token, append_error(event.error) if event.error else ErrorCode.NONE))


_HANDLERS: dict[type, Callable[[Group, Any, Now, Out], None]] = {
    Heartbeat: _on_heartbeat,
    Commit: _on_commit,
    Appended: _on_appended,
    Join: _on_join,
    Sync: _on_sync,
    Leave: _on_leave,
    Marker: _on_marker,
    Delete: _on_delete,
    DeleteOffsets: _on_delete_offsets,
    TopicDeleted: _on_topic_deleted,
    Expire: _on_expire,
    Tick: _on_tick,
}


# --- records ------------------------------------------------------------------------------------------------
def snapshot(group: Group, assignment: Mapping[str, bytes]) -> GroupSnapshot:
    members = tuple(
        MemberSnapshot(
            m.id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.rebalance_timeout_ms,
            m.session_timeout_ms,
            m.metadata(group.protocol),
            assignment.get(m.id, b""),
        )
        for m in group.members.values()
    )
    return GroupSnapshot(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        group.leader,
        group.state_timestamp_ms,
        members,
    )


def load(group: Group, record: OffsetRecord | GroupRecord, record_offset: int, producer_id: int = -1) -> None:
    """Apply one record of the log, in the log's order; markers come as `load_marker`."""
    if isinstance(record, GroupRecord):
        _load_snapshot(group, record.value)
        return
    groupoffsets.load(group, record, record_offset, producer_id)


def load_marker(group: Group, producer_id: int, commit: bool) -> None:
    """Apply a transaction marker of the log."""
    group.offsets.end_transaction(producer_id, commit)


def _load_snapshot(group: Group, value: GroupSnapshot | None) -> None:
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


def loaded(group: Group, now: Now) -> None:
    """The log is read to its end: every member gets a full session to show itself."""
    for member in group.members.values():
        _await_heartbeat(group, member, now)


def resign(group: Group, error: int = ErrorCode.NOT_COORDINATOR) -> Out:
    """The group's log is gone, or another group takes its place: whoever waits is told that error."""
    out: Out = []
    for member in group.members.values():
        _answer_join(member, JoinResult(error, member.id), out)
        _answer_sync(member, SyncResult(error), out)
    return out


# --- questions ----------------------------------------------------------------------------------------------
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
        MemberSnapshot(
            m.id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.rebalance_timeout_ms,
            m.session_timeout_ms,
            m.metadata(group.protocol) if stable else b"",
            m.assignment if stable else b"",
        )
        for m in group.members.values()
    ]
    return Described(group.state.value, group.protocol_type or "", (group.protocol or "") if stable else "", members)
