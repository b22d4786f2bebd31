"""A classic group's offsets: who may commit and delete them, when they are past their retention."""

from __future__ import annotations

from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.classicgroups.events import AfterDelete
from penstock.broker.coordination.classicgroups.state import (
    Group,
    GroupRecord,
    GroupState,
    await_heartbeat,
    check_member,
    transition,
)
from penstock.broker.coordination.groupoffsets import AfterRemoval, Commit, Delete, DeleteOffsets, Expire, Out
from penstock.broker.coordination.machines import Append, Now, Reply, TopicPartition
from penstock.broker.coordination.offsets import Committed, tombstones
from penstock.errors import ErrorCode
from penstock.groupnames import is_stage
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE


def on_commit(group: Group, event: Commit, now: Now, out: Out) -> None:
    refused = _commit_refused(group, event)
    member = group.members.get(event.member_id)
    if not refused and member is not None:
        await_heartbeat(group, member, now)
    groupoffsets.commit(group, event, refused, now, out)


def _commit_refused(group: Group, event: Commit) -> int:
    """Who may commit: members of this generation; anybody without a generation while the group has no
    members.
    """
    transactional = event.producer_id >= 0
    if group.dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if event.generation >= 0 or event.member_id or event.instance_id is not None:
        error = check_member(group, event.member_id, event.instance_id)
        if error:
            return error
        if event.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def on_delete(group: Group, event: Delete, now: Now, out: Out) -> None:
    if group.dead:
        out.append(Reply(event.token, ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.state is not GroupState.EMPTY:
        out.append(Reply(event.token, ErrorCode.NON_EMPTY_GROUP))
    else:
        transition(group, GroupState.DEAD, now)
        records: list[object] = [*tombstones(group.offsets.partitions()), GroupRecord(None)]
        out.append(Append(group.in_flight.add(AfterDelete(event.token)), records))


def on_delete_offsets(group: Group, event: DeleteOffsets, now: Now, out: Out) -> None:
    in_use: frozenset[str] = frozenset()
    if group.state not in (GroupState.EMPTY, GroupState.DEAD):
        if group.protocol_type != PROTOCOL_TYPE or group.subscribed is None:
            out.append(Reply(event.token, ErrorCode.NON_EMPTY_GROUP))
            return
        in_use = group.subscribed
    groupoffsets.delete(group, event, in_use, out)


def on_expire(group: Group, event: Expire, now: Now, out: Out) -> None:
    if group.dead:
        return
    gone = () if is_stage(group.id) else _expired_offsets(group, now)
    may_die = group.state is GroupState.EMPTY and len(gone) == len(group.offsets.committed)
    if not may_die:
        groupoffsets.take_back(group, AfterRemoval(gone), [], out)
        return

    def die(error: int) -> None:
        unused = not group.members and not group.pending_members and group.offsets.is_empty()
        if not error and group.state is GroupState.EMPTY and unused:
            transition(group, GroupState.DEAD, now)

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
