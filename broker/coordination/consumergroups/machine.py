"""A consumer group of KIP-848 as a pure state machine: `step(group, event, now) -> (group, actions)`.

A heartbeat that changes nothing is answered at once. One that does becomes records; they are appended, then
applied to the state, then answered. While an append is under way the other events wait in their order, so that
each is decided on what is stored. A group may become one of the classic protocol (`conversion.py`), which is why a
step gives back the group that comes after it. The rules of feeding are those of `broker/coordination/machines.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.classicgroups import events as classic_events
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.consumergroups import classic, commits
from penstock.broker.coordination.consumergroups.conversion import fence, upgrade
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult, PatternsResolved
from penstock.broker.coordination.consumergroups.state import (
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerRecord,
    CurrentRecord,
    Environment,
    EpochRecord,
    Member,
    MemberState,
    Partitions,
    PatternRecord,
    apply,
    is_tombstone,
    subscribed_topics,
    topics_hash,
)
from penstock.broker.coordination.consumergroups.update import (
    Refused,
    Update,
    begin,
    has_left_for_now,
    static_member,
    take_place,
    unknown_member,
)
from penstock.broker.coordination.consumergroups.writing import (
    AfterWrite,
    AnyGroup,
    await_heartbeat,
    find_next_deadline,
    wake,
    write,
    written,
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
from penstock.broker.coordination.machines import NEVER, Appended, Now, Reply, Tick, append_error
from penstock.broker.coordination.offsets import OffsetRecord
from penstock.errors import ErrorCode


def step(group: AnyGroup, event: object, now: Now, environment: Environment) -> tuple[AnyGroup, Out]:
    """Feed one event to a group of either protocol. It is changed in place and handed back, or another that takes
    its place.
    """
    if isinstance(group, ConsumerGroup):
        return _step(group, event, now)
    if not isinstance(event, ConsumerHeartbeat):
        return classic_machine.step(group, event, now)
    out: Out = []
    fresh = upgrade(group, event, now, environment, out)
    return (group if fresh is None else _drain(fresh, fresh, now, out)), out


def _step(group: ConsumerGroup, event: object, now: Now) -> tuple[AnyGroup, Out]:
    out: Out = []
    after: AnyGroup = group
    if isinstance(event, Appended):
        after = _on_appended(group, event, now, out)
    elif isinstance(event, Marker):
        group.offsets.end_transaction(event.producer_id, event.commit)
    elif not isinstance(event, Tick):
        group.waiting.append(event)
    return _drain(group, after, now, out), out


def _drain(group: ConsumerGroup, after: AnyGroup, now: Now, out: Out) -> AnyGroup:
    """Take the events that have waited for `group`, and see which members are late; if it became another, that one does."""
    while group.waiting:
        if after is not group:
            if isinstance(after, ConsumerGroup) and after.busy:
                after.waiting.extend(group.waiting)
                group.waiting.clear()
                break
            after, more = step(after, group.waiting.popleft(), now, group.environment)
            out += more
        elif group.busy:
            break
        else:
            event = group.waiting.popleft()
            _HANDLERS[type(event)](group, event, now, out)
    if after is not group or group.busy:
        return after
    if group.wake_at_ms <= now.mono_ms:
        _run_timers(group, now, out)
    if group.epoch or group.members or group.dead or group.busy:
        return group
    # No member joined after all: only offsets are left, which any group may have.
    return classic_state.Group(group.id, group.config, offsets=group.offsets, in_flight=group.in_flight)


def is_disposable(group: ConsumerGroup) -> bool:
    """Whether the shell may forget the group: it is gone, or never came to be."""
    if group.in_flight.waiting or group.waiting:
        return False
    return group.dead or (group.epoch == 0 and not group.members and group.offsets.is_empty())


def _on_appended(group: ConsumerGroup, event: Appended, now: Now, out: Out) -> AnyGroup:
    after = group.in_flight.waiting.pop(event.id)
    if isinstance(after, AfterWrite):
        return written(group, after, event.error, now, out)
    if isinstance(after, AfterCommit | AfterRemoval):
        groupoffsets.appended(group, after, event, out)
    return group


# --- heartbeats -----------------------------------------------------------------------------------------------
def _on_heartbeat(group: ConsumerGroup, event: ConsumerHeartbeat, now: Now, out: Out) -> None:
    try:
        if event.member_epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            _leave(group, event, now, out)
        else:
            _beat(group, event, now, out)
    except Refused as refused:
        out.append(Reply(event.token, HeartbeatResult(refused.code, refused.text or None)))


def _beat(group: ConsumerGroup, event: ConsumerHeartbeat, now: Now, out: Out) -> None:
    _check_exists(group, joining=event.member_epoch == 0)
    if len(group.members) >= group.config.consumer_max_size and event.member_id not in group.members:
        most = group.config.consumer_max_size
        raise Refused(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {most} members.",
        )
    update = _update_of(group, event, now)
    facts = update.facts
    changed = update.say(
        replace(
            facts,
            instance_id=facts.instance_id if event.instance_id is None else event.instance_id,
            rack_id=facts.rack_id if event.rack_id is None else event.rack_id,
            rebalance_timeout_ms=(
                facts.rebalance_timeout_ms if event.rebalance_timeout_ms == -1 else event.rebalance_timeout_ms
            ),
            assignor=facts.assignor if event.assignor is None else event.assignor,
            topics=facts.topics if event.topics is None else event.topics,
            pattern=facts.pattern if event.pattern is None else event.pattern,
            client_id=event.client_id,
            client_host=event.client_host,
            classic=None,
        ),
        event.resolved,
    )
    update.bump(changed)
    update.assign()
    update.reassign(event.owned, changed)
    asks_all = (
        event.rebalance_timeout_ms != -1 and (event.topics is not None or event.pattern is not None) and event.owned is not None
    )
    show = event.member_epoch == 0 or asks_all or update.current.assigned != update.before.assigned
    _carry_through(group, update, event, show, now, out)


def _carry_through(group: ConsumerGroup, update: Update, event: ConsumerHeartbeat, show: bool, now: Now, out: Out) -> None:
    """Store what changed, if anything did, and answer."""

    def then(error: int, at: Now, out: Out) -> None:
        if error:
            out.append(Reply(event.token, HeartbeatResult(append_error(error))))
            return
        member = group.members[update.member_id]
        await_heartbeat(group, member, at)
        member.join_deadline_ms = member.sync_deadline_ms = NEVER
        if update.current is not update.before:
            revokes = update.current.state is MemberState.UNREVOKED_PARTITIONS
            timeout_ms = max(member.facts.rebalance_timeout_ms, 0)
            member.rebalance_deadline_ms = at.mono_ms + timeout_ms if revokes else NEVER
            wake(group, member.rebalance_deadline_ms)
        out.append(Reply(event.token, _answer(group, member, show)))

    if update.records:
        write(group, update.records, then, out)
    else:
        then(ErrorCode.NONE, now, out)


def _answer(group: ConsumerGroup, member: Member, show: bool) -> HeartbeatResult:
    assigned = member.current.assigned
    return HeartbeatResult(
        ErrorCode.NONE,
        None,
        member.id,
        member.current.epoch,
        group.settings.heartbeat_interval_ms,
        {topic_id: frozenset(held) for topic_id, held in assigned.items()} if show else None,
    )


def _check_exists(group: ConsumerGroup, joining: bool) -> None:
    """A group that was just deleted is there until the shell forgets it; one without epoch never was."""
    if group.dead or (group.epoch == 0 and not joining):
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if joining else ErrorCode.GROUP_ID_NOT_FOUND
        raise Refused(code, f"Consumer group {group.id} not found.")


def _update_of(group: ConsumerGroup, event: ConsumerHeartbeat, now: Now) -> Update:
    """Whose heartbeat it is. Raises Refused for a member that isn't one, or is one no more."""
    joining = event.member_epoch == 0
    if event.instance_id is None:
        member = group.members.get(event.member_id)
        if member is None and not joining:
            raise unknown_member(group, event.member_id)
        if member is not None:
            _check_epoch(member, event)
        return begin(group, event.member_id, now)
    old = group.members.get(group.static_members.get(event.instance_id, ""))
    if not joining:
        member = static_member(group, event.member_id, event.instance_id)
        _check_epoch(member, event)
        return begin(group, member.id, now)
    if old is None or old.id == event.member_id:
        return begin(group, event.member_id, now)
    if old.facts.classic is None and not has_left_for_now(old):
        raise Refused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {event.member_id} with instance id {event.instance_id} cannot join the group because "
            f"the instance id is owned by {old.id} member.",
        )
    return take_place(group, old, event.member_id, now)


def _check_epoch(member: Member, event: ConsumerHeartbeat) -> None:
    """The member's epoch, or the one before if it can be that our last answer was lost."""
    received, known = event.member_epoch, member.current.epoch
    if received in (0, known):
        return
    lost = received == member.current.previous_epoch and _is_part(event.owned, member)
    if received > known or not lost:
        compared = "greater" if received > known else "smaller"
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {compared} member epoch ({received}) than the one known by the group "
            f"coordinator ({known}). The member must abandon all its partitions and rejoin.",
        )


def _is_part(owned: Partitions | None, member: Member) -> bool:
    if owned is None:
        return False
    assigned = member.current.assigned
    return all(partitions <= assigned.get(topic_id, {}).keys() for topic_id, partitions in owned.items())


# --- leaving --------------------------------------------------------------------------------------------------
def _leave(group: ConsumerGroup, event: ConsumerHeartbeat, now: Now, out: Out) -> None:
    _check_exists(group, joining=False)
    if event.instance_id is None:
        member = group.members.get(event.member_id)
        if member is None:
            raise unknown_member(group, event.member_id)
    else:
        member = static_member(group, event.member_id, event.instance_id)

    def then(error: int, at: Now, out: Out) -> None:
        result = HeartbeatResult(append_error(error), None, member.id, event.member_epoch)
        out.append(Reply(event.token, result))

    if event.instance_id is not None and event.member_epoch == LEAVING_STATIC_EPOCH:
        # It keeps its partitions; if it doesn't come back, its session ends it.
        current = replace(member.current, epoch=LEAVING_STATIC_EPOCH, revoking={})
        member.rebalance_deadline_ms = NEVER
        write(group, [CurrentRecord(member.id, current)], then, out)
    else:
        fence(group, [member.id], then, now, out)


def _run_timers(group: ConsumerGroup, now: Now, out: Out) -> None:
    """Members that were not heard of in time are taken out."""
    late = [member.id for member in group.members.values() if member.next_deadline_ms() <= now.mono_ms]
    if not late:
        find_next_deadline(group)
        return

    def then(error: int, at: Now, out: Out) -> None:
        if error:  # Try again after a while; until then they are members still.
            for member_id in late:
                if member_id in group.members:
                    group.members[member_id].rebalance_deadline_ms = NEVER
                    await_heartbeat(group, group.members[member_id], at)
        find_next_deadline(group)

    fence(group, late, then, now, out)


# --- patterns -------------------------------------------------------------------------------------------------
def _on_patterns(group: ConsumerGroup, event: PatternsResolved, now: Now, out: Out) -> None:
    used = {member.facts.pattern for member in group.members.values()}
    news = {
        pattern: topics for pattern, topics in event.found.items() if pattern in used and group.patterns.get(pattern) != topics
    }

    def then(error: int, at: Now, out: Out) -> None:
        if not error:
            group.patterns_version = event.version

    if group.dead or not news:
        then(ErrorCode.NONE, now, out)
        return
    hashed = topics_hash(
        subscribed_topics((member.facts for member in group.members.values()), {**group.patterns, **news}),
        group.catalog,
    )
    records = [PatternRecord(pattern, (topics, event.version, now.wall_ms)) for pattern, topics in news.items()]
    write(group, [*records, EpochRecord((group.epoch + 1, hashed))], then, out)


_HANDLERS: dict[type, Callable[[ConsumerGroup, Any, Now, Out], None]] = {
    ConsumerHeartbeat: _on_heartbeat,
    Commit: commits.on_commit,
    classic_events.Heartbeat: classic.on_heartbeat,
    classic_events.Sync: classic.on_sync,
    classic_events.Join: classic.on_join,
    classic_events.Leave: classic.on_leave,
    PatternsResolved: _on_patterns,
    Delete: commits.on_delete,
    DeleteOffsets: commits.on_delete_offsets,
    TopicDeleted: groupoffsets.on_topic_deleted,
    Expire: commits.on_expire,
}


def load(
    group: AnyGroup,
    record: OffsetRecord | classic_state.GroupRecord | ConsumerRecord,
    record_offset: int,
    producer_id: int,
    environment: Environment,
    written_ms: int = 0,
) -> AnyGroup:
    """Apply one record of the log, in the log's order: the group that comes after it, of either protocol.

    written_ms: the record's timestamp.
    """
    if isinstance(record, OffsetRecord):
        groupoffsets.load(group, record, record_offset, producer_id)
        return group
    if isinstance(record, classic_state.GroupRecord):
        if isinstance(group, ConsumerGroup):
            if record.value is None:
                return group
            group = classic_state.Group(group.id, group.config, offsets=group.offsets)
        classic_machine.load(group, record, record_offset)
        return group
    if isinstance(group, classic_state.Group):
        if is_tombstone(record):
            return group
        group = ConsumerGroup(group.id, environment, offsets=group.offsets)
    apply(group, record, written_ms)
    return classic_state.Group(group.id, group.config, offsets=group.offsets) if group.dead else group


def loaded(group: ConsumerGroup, now: Now) -> None:
    """The log is read to its end: every member gets a full session, and its full time to revoke."""
    for member in group.members.values():
        await_heartbeat(group, member, now)
        if member.facts.classic is None and member.current.state is MemberState.UNREVOKED_PARTITIONS:
            member.rebalance_deadline_ms = now.mono_ms + max(member.facts.rebalance_timeout_ms, 0)
            wake(group, member.rebalance_deadline_ms)


def resign(group: ConsumerGroup) -> Out:
    """The group's log is gone: the clients that wait have to find a coordinator again."""
    out: Out = []
    for event in group.waiting:
        token = getattr(event, "token", None)
        if token is None:
            continue
        code = ErrorCode.NOT_COORDINATOR
        results = {
            ConsumerHeartbeat: HeartbeatResult(code),
            classic_events.Join: classic_events.JoinResult(code, ""),
            classic_events.Sync: classic_events.SyncResult(code),
            classic_events.Leave: (code, []),
        }
        out.append(Reply(token, results.get(type(event), code)))
    group.waiting.clear()
    return out
