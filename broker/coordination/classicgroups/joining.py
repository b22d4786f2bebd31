"""JoinGroup of a classic group: members that are new, known, or came back under an instance id."""

from __future__ import annotations

from penstock.broker.coordination.classicgroups.events import AfterStaticSwap, Join, JoinResult, SyncResult
from penstock.broker.coordination.classicgroups.rebalance import (
    answer_join,
    answer_sync,
    joined,
    maybe_complete_join,
    prepare_rebalance,
    remove_and_rebalance,
)
from penstock.broker.coordination.classicgroups.state import (
    Group,
    GroupRecord,
    GroupState,
    Member,
    await_heartbeat,
    check_member,
    select_protocol,
    snapshot,
    supports,
    wake,
)
from penstock.broker.coordination.groupoffsets import Out
from penstock.broker.coordination.machines import Append, Now, Reply, append_error
from penstock.errors import ErrorCode

# A new member has no id to heartbeat with while its first JoinGroup waits; it is dropped after this time, ms.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
# What one member may say about itself, all its protocols together; a group's record has to fit into a batch
# anyway.
MEMBER_METADATA_MAX_BYTES = 4 << 20
# Member ids that were handed out and not used yet; each of them ends with its session timeout.
PENDING_MEMBERS_MAX = 10_000


def on_join(group: Group, event: Join, now: Now, out: Out) -> None:
    error = _join_refused(group, event)
    if error:
        if error == ErrorCode.GROUP_MAX_SIZE_REACHED and event.member_id in group.members:
            remove_and_rebalance(group, group.members[event.member_id], now, out)
        out.append(Reply(event.token, JoinResult(error, event.member_id)))
    elif not event.member_id:
        _join_of_new(group, event, now, out)
    else:
        _join_of_known(group, event, now, out)
    maybe_complete_join(group, now, out)


def _join_refused(group: Group, event: Join) -> int:
    config = group.config
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if sum(len(data) for _, data in event.protocols) > MEMBER_METADATA_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST
    if group.dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not _has_room(group, event.member_id):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not supports(group, event.protocol_type, event.protocols):
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
        wake(group, deadline)
        out.append(Reply(event.token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, event.fresh_member_id)))
    else:
        _add_member(group, event, event.fresh_member_id, now, out)


def _member(event: Join, member_id: str) -> Member:
    """A member as its JoinGroup describes it; it waits for the answer."""
    return Member(
        id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        protocols=event.protocols,
        join_token=event.token,
    )


def _add_member(group: Group, event: Join, member_id: str, now: Now, out: Out) -> None:
    member = _member(event, member_id)
    member.is_new = True
    member.deadline_ms = now.mono_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
    wake(group, member.deadline_ms)
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
    error = check_member(group, event.member_id, event.instance_id)
    if error:
        out.append(Reply(event.token, JoinResult(error, event.member_id)))
        return
    member = group.members[event.member_id]
    same = member.protocols == event.protocols
    repeats = group.state is GroupState.COMPLETING_REBALANCE and same
    keeps = group.state is GroupState.STABLE and same and group.leader != member.id
    if repeats or keeps:
        # The member may have missed our answer (or asks for no reason); it is in this generation.
        out.append(Reply(event.token, joined(group, member)))
        return
    _update_member(group, member, event, out)
    prepare_rebalance(group, now, out)


def _update_member(group: Group, member: Member, event: Join, out: Out) -> None:
    # An older JoinGroup of the same member would wait for ever: one of its connections would hang.
    answer_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.id), out)
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
    answer_join(old, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id), out)
    answer_sync(old, SyncResult(ErrorCode.FENCED_INSTANCE_ID), out)
    member = _member(event, event.fresh_member_id)
    member.assignment = old.assignment
    _replace_member(group, old, member)
    await_heartbeat(group, member, now)
    if group.state is GroupState.STABLE and select_protocol(group) == group.protocol:
        # Nothing changes for the others: store the new id and let the member have the old one's assignment.
        after = AfterStaticSwap(member.id, old, old_leader, group.generation, event.can_skip_assignment)
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


def static_swap_stored(group: Group, after: AfterStaticSwap, error: int, now: Now, out: Out) -> None:
    member = group.members.get(after.member_id)
    if member is None or group.generation != after.generation or group.state is not GroupState.STABLE:
        return  # A rebalance or an even newer process overtook it, and that answers.
    if error:
        answer_join(member, JoinResult(append_error(error), ""), out)
        _replace_member(group, member, after.old)
        await_heartbeat(group, after.old, now)
        return
    result = joined(group, member)
    if after.can_skip_assignment:
        result.skip_assignment = group.leader == member.id
    else:
        # Before v9 a returning leader is shown its old id as leader, so that it computes no assignment nobody
        # would get.
        result.leader, result.members = after.old_leader or "", ()
    answer_join(member, result, out)
    await_heartbeat(group, member, now)
