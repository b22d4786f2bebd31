"""A rebalance of a classic group: collect JoinGroups, begin a generation, let go of those who did not come."""

from __future__ import annotations

from penstock.broker.coordination.classicgroups.events import AfterEmpty, JoinResult, SyncResult
from penstock.broker.coordination.classicgroups.state import (
    Group,
    GroupRecord,
    GroupState,
    Member,
    await_heartbeat,
    select_protocol,
    snapshot,
    subscribed_topics,
    transition,
    wake,
)
from penstock.broker.coordination.groupoffsets import Out
from penstock.broker.coordination.machines import NEVER, Append, Now, Reply
from penstock.errors import ErrorCode


def answer_join(member: Member, result: JoinResult, out: Out) -> None:
    if member.join_token is not None:
        out.append(Reply(member.join_token, result))
        member.join_token = None


def answer_sync(member: Member, result: SyncResult, out: Out) -> None:
    if member.sync_token is not None:
        out.append(Reply(member.sync_token, result))
        member.sync_token = None


def remove(group: Group, member_id: str) -> None:
    member = group.members.pop(member_id, None)
    if member is not None and member.instance_id is not None:
        group.static_members.pop(member.instance_id, None)
    if group.leader == member_id:
        group.leader = next(iter(group.members), None)
    group.pending_members.pop(member_id, None)
    group.pending_sync.discard(member_id)


def remove_and_rebalance(group: Group, member: Member, now: Now, out: Out) -> None:
    """A member is gone; the others have to share its work. Its open requests are answered so."""
    answer_join(member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, ""), out)
    answer_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID), out)
    remove(group, member.id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, now, out)
    else:
        maybe_complete_join(group, now, out)


def joined(group: Group, member: Member) -> JoinResult:
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


def rebalance_timeout_ms(group: Group) -> int:
    return max((member.rebalance_timeout_ms for member in group.members.values()), default=0)


def prepare_rebalance(group: Group, now: Now, out: Out) -> None:
    """Begin to collect JoinGroups, unless that goes on already."""
    if group.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now, out)
    group.sync_deadline_ms = NEVER
    timeout_ms = rebalance_timeout_ms(group)
    if group.state is GroupState.EMPTY:
        # KIP-134: a group that starts waits a little, so that its first members needn't rebalance one by one.
        delay_ms = group.config.initial_rebalance_delay_ms
        group.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
        group.join_deadline_ms = now.mono_ms + delay_ms
    else:
        group.initial_delay_left_ms = -1
        group.join_deadline_ms = now.mono_ms + timeout_ms
    group.new_member_added = False
    wake(group, group.join_deadline_ms)
    transition(group, GroupState.PREPARING_REBALANCE, now)
    maybe_complete_join(group, now, out)


def fail_assignment(group: Group, error: int, now: Now, out: Out) -> None:
    for member in group.members.values():
        member.assignment = b""
        if member.sync_token is not None:
            answer_sync(member, SyncResult(error), out)
            await_heartbeat(group, member, now)


def maybe_complete_join(group: Group, now: Now, out: Out) -> None:
    """Complete when all have joined; a group that starts waits out its delay."""
    if group.state is not GroupState.PREPARING_REBALANCE or group.initial_delay_left_ms >= 0:
        return
    if not group.pending_members and all(m.join_token is not None for m in group.members.values()):
        _complete_join(group, now, out)


def join_time_is_up(group: Group, now: Now, out: Out) -> None:
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
        remove(group, member.id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left and none has joined: wait on, their sessions decide.
        wait_ms = max(rebalance_timeout_ms(group), group.config.min_session_timeout_ms)
        group.join_deadline_ms = now.mono_ms + wait_ms
        wake(group, group.join_deadline_ms)
        return
    group.generation += 1
    group.pending_sync.clear()
    if not group.members:
        group.protocol, group.leader, group.subscribed = None, None, frozenset()
        transition(group, GroupState.EMPTY, now)
        out.append(Append(group.in_flight.add(AfterEmpty()), [GroupRecord(snapshot(group, {}))]))
        return
    group.protocol = select_protocol(group)
    group.subscribed = subscribed_topics(group)
    transition(group, GroupState.COMPLETING_REBALANCE, now)
    for member in group.members.values():
        answer_join(member, joined(group, member), out)
        await_heartbeat(group, member, now)
        member.is_new = False
        group.pending_sync.add(member.id)
    group.sync_deadline_ms = now.mono_ms + rebalance_timeout_ms(group)
    wake(group, group.sync_deadline_ms)


def _elect_joined_leader(group: Group) -> bool:
    """The leader has to be one that joined; the old one stays if it did."""
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.join_token is not None:
        return True
    joined = next((m.id for m in group.members.values() if m.join_token is not None), None)
    if joined is not None:
        group.leader = joined
    return joined is not None
