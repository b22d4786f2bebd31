"""A consumer group of the classic protocol as a pure state machine: members, generations, committed offsets.

    Empty ──────── first join ────────► PreparingRebalance    collects JoinGroups
    PreparingRebalance ── all in ────► CompletingRebalance   a new generation; waits for the leader's sync
    PreparingRebalance ── no member ──► Empty
    CompletingRebalance ── stored ───► Stable                each member has an assignment
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

from collections.abc import Callable
from typing import Any

from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.classicgroups.commits import on_commit, on_delete, on_delete_offsets, on_expire
from penstock.broker.coordination.classicgroups.events import (
    AfterAssignment,
    AfterDelete,
    AfterStaticSwap,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    Sync,
    SyncResult,
)
from penstock.broker.coordination.classicgroups.joining import on_join, static_swap_stored
from penstock.broker.coordination.classicgroups.rebalance import (
    answer_join,
    answer_sync,
    fail_assignment,
    join_time_is_up,
    maybe_complete_join,
    prepare_rebalance,
    remove,
    remove_and_rebalance,
)
from penstock.broker.coordination.classicgroups.state import (
    Group,
    GroupRecord,
    GroupState,
    Member,
    await_heartbeat,
    check_member,
    load_snapshot,
    snapshot,
    transition,
)
from penstock.broker.coordination.groupoffsets import (
    AfterCommit,
    AfterRemoval,
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    Marker,
    Out,
    TopicDeleted,
)
from penstock.broker.coordination.machines import NEVER, Append, Appended, Now, Reply, Tick, append_error
from penstock.broker.coordination.offsets import OffsetRecord, Offsets
from penstock.errors import ErrorCode


def step(group: Group, event: object, now: Now) -> tuple[Group, Out]:
    """Feed one event. The group is changed in place and handed back with the actions to carry out, in
    order.
    """
    out: Out = []
    _HANDLERS[type(event)](group, event, now, out)
    if group.wake_at_ms <= now.mono_ms:
        _run_timers(group, now, out)
    return group, out


def _on_tick(group: Group, event: Tick, now: Now, out: Out) -> None:
    """Timers run after each event anyway."""


def _run_timers(group: Group, now: Now, out: Out) -> None:
    """Let everything happen whose time has come, then look up when the next is due."""
    late = [member_id for member_id, deadline in group.pending_members.items() if deadline <= now.mono_ms]
    for member_id in late:
        del group.pending_members[member_id]
    if late:
        maybe_complete_join(group, now, out)
    for member in [m for m in group.members.values() if m.deadline_ms <= now.mono_ms]:
        if group.members.get(member.id) is member:
            _member_silent(group, member, now, out)
    if group.join_deadline_ms <= now.mono_ms:
        join_time_is_up(group, now, out)
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
    remove_and_rebalance(group, member, now, out)


def _sync_time_is_up(group: Group, now: Now, out: Out) -> None:
    """Members that joined this generation and never sent SyncGroup are dropped (KAFKA-10134)."""
    group.sync_deadline_ms = NEVER
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
        return
    for member_id in sorted(group.pending_sync):
        remove(group, member_id)
    prepare_rebalance(group, now, out)


def _on_sync(group: Group, event: Sync, now: Now, out: Out) -> None:
    error = _sync_refused(group, event)
    if error:
        out.append(Reply(event.token, SyncResult(error)))
        return
    member = group.members[event.member_id]
    group.pending_sync.discard(member.id)
    if group.state is GroupState.STABLE:
        await_heartbeat(group, member, now)
        out.append(Reply(event.token, _synced(group, member)))
        return
    answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), out)
    member.sync_token = event.token
    if group.leader == member.id and group.storing_generation != group.generation:
        group.storing_generation = group.generation
        assignment = {member_id: event.assignments.get(member_id, b"") for member_id in group.members}
        after = AfterAssignment(group.generation, assignment)
        out.append(Append(group.in_flight.add(after), [GroupRecord(snapshot(group, assignment))]))


def _sync_refused(group: Group, event: Sync) -> int:
    if group.dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_member(group, event.member_id, event.instance_id)
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


def _assignment_stored(group: Group, after: AfterAssignment, error: int, now: Now, out: Out) -> None:
    if group.storing_generation == after.generation:
        group.storing_generation = -1
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != after.generation:
        return  # Another rebalance began; it has answered those who waited.
    if error:
        fail_assignment(group, append_error(error), now, out)
        prepare_rebalance(group, now, out)
        return
    transition(group, GroupState.STABLE, now)
    for member in group.members.values():
        member.assignment = after.assignment.get(member.id, b"")
        if member.sync_token is not None:
            answer_sync(member, _synced(group, member), out)
        await_heartbeat(group, member, now)


def _on_heartbeat(group: Group, event: Heartbeat, now: Now, out: Out) -> None:
    error: int
    if group.dead:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        error = check_member(group, event.member_id, event.instance_id)
        if not error and event.generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
    if not error:
        await_heartbeat(group, group.members[event.member_id], now)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    out.append(Reply(event.token, error))


def _on_leave(group: Group, event: Leave, now: Now, out: Out) -> None:
    if group.dead:
        out.append(Reply(event.token, (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])))
        return
    errors = [_leave(group, member_id, instance_id, now, out) for member_id, instance_id in event.members]
    out.append(Reply(event.token, (ErrorCode.NONE, errors)))


def _leave(group: Group, member_id: str, instance_id: str | None, now: Now, out: Out) -> int:
    if not member_id and instance_id is not None:  # An operator removes a static member by its instance id.
        member_id = group.static_members.get(instance_id, "")
    elif member_id in group.pending_members and instance_id is None:
        del group.pending_members[member_id]
        maybe_complete_join(group, now, out)
        return ErrorCode.NONE
    error = check_member(group, member_id, instance_id)
    if not error:
        remove_and_rebalance(group, group.members[member_id], now, out)
    return error


def _on_marker(group: Group, event: Marker, now: Now, out: Out) -> None:
    group.offsets.end_transaction(event.producer_id, event.commit)


def _on_appended(group: Group, event: Appended, now: Now, out: Out) -> None:
    after = group.in_flight.waiting.pop(event.id)
    if isinstance(after, AfterCommit | AfterRemoval):
        groupoffsets.appended(group, after, event, out)
    elif isinstance(after, AfterAssignment):
        _assignment_stored(group, after, event.error, now, out)
    elif isinstance(after, AfterStaticSwap):
        static_swap_stored(group, after, event.error, now, out)
    elif isinstance(after, AfterDelete):
        if event.error:
            transition(group, GroupState.EMPTY, now)
        else:
            group.offsets = Offsets()
        out.append(Reply(after.token, append_error(event.error) if event.error else ErrorCode.NONE))


_HANDLERS: dict[type, Callable[[Group, Any, Now, Out], None]] = {
    Heartbeat: _on_heartbeat,
    Commit: on_commit,
    Appended: _on_appended,
    Join: on_join,
    Sync: _on_sync,
    Leave: _on_leave,
    Marker: _on_marker,
    Delete: on_delete,
    DeleteOffsets: on_delete_offsets,
    TopicDeleted: groupoffsets.on_topic_deleted,
    Expire: on_expire,
    Tick: _on_tick,
}


def load(group: Group, record: OffsetRecord | GroupRecord, record_offset: int, producer_id: int = -1) -> None:
    """Apply one record of the log, in the log's order; a marker is `offsets.end_transaction`."""
    if isinstance(record, GroupRecord):
        load_snapshot(group, record.value)
        return
    groupoffsets.load(group, record, record_offset, producer_id)


def loaded(group: Group, now: Now) -> None:
    """The log is read to its end: every member gets a full session to show itself."""
    for member in group.members.values():
        await_heartbeat(group, member, now)


def resign(group: Group, error: int = ErrorCode.NOT_COORDINATOR) -> Out:
    """The group's log is gone, or another group takes its place: requests that wait are answered with that error."""
    out: Out = []
    for member in group.members.values():
        answer_join(member, JoinResult(error, member.id), out)
        answer_sync(member, SyncResult(error), out)
    return out
