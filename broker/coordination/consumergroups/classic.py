"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup of theirs.

The server assigns here too: a JoinGroup takes the member as far as a heartbeat would, its answer's generation is
the member's epoch, and SyncGroup gives it what it has. It has to join again (REBALANCE_IN_PROGRESS) when there
is a new target, when it has to give something back, or when what it waits for is free.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.configs.groupconfig import MigrationPolicy
from penstock.broker.coordination.classicgroups import joining as classic_joining
from penstock.broker.coordination.classicgroups.events import Heartbeat, Join, JoinResult, Leave, Sync, SyncResult
from penstock.broker.coordination.consumergroups import embedded
from penstock.broker.coordination.consumergroups.conversion import become_classic, downgrade, fence, may_downgrade
from penstock.broker.coordination.consumergroups.state import (
    ClassicFacts,
    ConsumerGroup,
    Member,
    MemberState,
    is_reconciled,
    subscribed_topics,
    topics_hash,
)
from penstock.broker.coordination.consumergroups.update import (
    Refused,
    Update,
    begin,
    may_assign,
    static_member,
    take_place,
    unknown_member,
)
from penstock.broker.coordination.consumergroups.writing import await_heartbeat, wake, write
from penstock.broker.coordination.groupoffsets import Out
from penstock.broker.coordination.machines import NEVER, Now, Reply, append_error
from penstock.errors import ErrorCode
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE, version_of


# --- JoinGroup ------------------------------------------------------------------------------------------------
def on_join(group: ConsumerGroup, event: Join, now: Now, out: Out) -> None:
    """Join, or join again."""
    if not group.members and not group.dead:
        become_classic(group, event, out)
        return
    try:
        _check_join(group, event)
        _join(group, event, now, out)
    except Refused as refused:
        named = event.member_id if refused.code == ErrorCode.INVALID_SESSION_TIMEOUT else ""
        out.append(Reply(event.token, JoinResult(refused.code, named)))


def _check_join(group: ConsumerGroup, event: Join) -> None:
    config = group.config
    if group.dead:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
    if sum(len(data) for _, data in event.protocols) > classic_joining.MEMBER_METADATA_MAX_BYTES:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if config.migration is MigrationPolicy.DISABLED:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(group.members) >= config.consumer_max_size and event.member_id not in group.members:
        raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if event.protocol_type != PROTOCOL_TYPE or not event.protocols or not _shares_protocol(group, event):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _shares_protocol(group: ConsumerGroup, event: Join) -> bool:
    """Whether one of its protocols is known to all other classic members, so that they could be a group again."""
    names = {name for name, _ in event.protocols}
    for member in group.members.values():
        if member.facts.classic is not None and member.id != event.member_id:
            names &= {name for name, _ in member.facts.classic.protocols}
    return bool(names)


def _join(group: ConsumerGroup, event: Join, now: Now, out: Out) -> None:
    if not event.member_id and event.require_known_member:
        out.append(Reply(event.token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, event.fresh_member_id)))
        return
    try:
        subscription = embedded.read_subscription(event.protocols[0][1])
    except embedded.Malformed:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    update = _update_of(group, event, now)
    facts = update.facts
    changed = update.say(
        replace(
            facts,
            instance_id=facts.instance_id if event.instance_id is None else event.instance_id,
            rack_id=facts.rack_id if subscription.rack_id is None else subscription.rack_id,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            pattern="",
            client_id=event.client_id,
            client_host=event.client_host,
            classic=ClassicFacts(event.session_timeout_ms, event.protocols),
        ),
        None,
    )
    update.bump(changed)
    owned = embedded.by_id([(part.topic, part.partitions) for part in subscription.owned_partitions], group.catalog)
    if update.replaced is not None and may_downgrade(group, [update.replaced], coming=1):
        # The last member of KIP-848 came back as one of the classic protocol.
        behind = update.target_epoch < update.epoch
        if not behind:
            update.reassign(owned, changed)
        _downgrade_to(group, update, event, behind, now, out)
        return
    update.assign()
    update.reassign(owned, changed)
    _carry_through(group, update, event, now, out)


def _update_of(group: ConsumerGroup, event: Join, now: Now) -> Update:
    member_id = event.member_id or event.fresh_member_id
    if event.instance_id is None:
        return begin(group, member_id, now)
    if event.member_id:
        return begin(group, static_member(group, member_id, event.instance_id).id, now)
    old = group.members.get(group.static_members.get(event.instance_id, ""))
    return begin(group, member_id, now) if old is None else take_place(group, old, member_id, now)


def _carry_through(group: ConsumerGroup, update: Update, event: Join, now: Now, out: Out) -> None:
    def then(error: int, at: Now, out: Out) -> None:
        if error:
            out.append(Reply(event.token, JoinResult(append_error(error), event.member_id)))
            return
        member = group.members[update.member_id]
        member.join_deadline_ms = member.rebalance_deadline_ms = NEVER
        await_heartbeat(group, member, at)
        member.sync_deadline_ms = at.mono_ms + event.rebalance_timeout_ms
        wake(group, member.sync_deadline_ms)
        out.append(Reply(event.token, _joined(update, event)))

    if update.records:
        write(group, update.records, then, out)
    else:
        then(ErrorCode.NONE, now, out)


def _joined(update: Update, event: Join) -> JoinResult:
    """There is no leader: the answer names none and shows no members."""
    name = event.protocols[0][0]
    return JoinResult(ErrorCode.NONE, update.member_id, update.current.epoch, PROTOCOL_TYPE, name)


def _downgrade_to(group: ConsumerGroup, update: Update, event: Join, rebalance: bool, now: Now, out: Out) -> None:
    def then(error: int, at: Now, out: Out) -> None:
        result = JoinResult(append_error(error), event.member_id) if error else _joined(update, event)
        out.append(Reply(event.token, result))

    downgrade(group, [update.replaced or ""], then, now, out, joining=update, rebalance=rebalance)


# --- SyncGroup, Heartbeat, LeaveGroup -------------------------------------------------------------------------
def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if group.dead:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if instance_id is not None:
        member = static_member(group, member_id, instance_id)
    else:
        found = group.members.get(member_id)
        if found is None:
            raise unknown_member(group, member_id)
        member = found
    if member.facts.classic is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    return member


def _await_join(group: ConsumerGroup, member: Member, now: Now) -> None:
    """It has to join again, and has its rebalance timeout to do so."""
    if member.join_deadline_ms == NEVER:
        member.join_deadline_ms = now.mono_ms + max(member.facts.rebalance_timeout_ms, 0)
        wake(group, member.join_deadline_ms)


def on_sync(group: ConsumerGroup, event: Sync, now: Now, out: Out) -> None:
    """Send the member what it has."""
    try:
        member = _classic_member(group, event.member_id, event.instance_id)
        _check_sync(group, member, event, now)
    except Refused as refused:
        out.append(Reply(event.token, SyncResult(refused.code)))
        return
    member.sync_deadline_ms = NEVER
    await_heartbeat(group, member, now)
    assert member.facts.classic is not None
    target = {topic_id: frozenset(held) for topic_id, held in member.current.assigned.items()}
    version = version_of(member.facts.classic.protocols[0][1])
    assignment = embedded.write_assignment(target, version, group.catalog)
    out.append(Reply(event.token, SyncResult(ErrorCode.NONE, assignment, event.protocol_type, event.protocol)))


def _check_sync(group: ConsumerGroup, member: Member, event: Sync, now: Now) -> None:
    assert member.facts.classic is not None
    if event.generation != member.current.epoch:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    protocol = member.facts.classic.protocols[0][0]
    if event.protocol_type not in (None, PROTOCOL_TYPE) or event.protocol not in (None, protocol):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.target_epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(group, member, now)
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)


def on_heartbeat(group: ConsumerGroup, event: Heartbeat, now: Now, out: Out) -> None:
    """The member is alive; it may have to join again."""
    try:
        member = _classic_member(group, event.member_id, event.instance_id)
        if event.generation != member.current.epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
    except Refused as refused:
        out.append(Reply(event.token, refused.code))
        return
    await_heartbeat(group, member, now)
    error = ErrorCode.NONE
    if _has_to_join(group, member, now):
        _await_join(group, member, now)
        error = ErrorCode.REBALANCE_IN_PROGRESS
    out.append(Reply(event.token, error))


def _has_to_join(group: ConsumerGroup, member: Member, now: Now) -> bool:
    current = member.current
    if current.epoch < group.target_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    # A target may be due that wasn't computed yet; that is done by the next one that joins.
    if group.epoch > group.target_epoch or _topics_changed(group):
        return may_assign(group, now)
    return not is_reconciled(current, group.target_epoch) and not _waits_for_others(group, member)


def _topics_changed(group: ConsumerGroup) -> bool:
    version = group.catalog.version
    if group.catalog_version == version:
        return False
    wanted = subscribed_topics((member.facts for member in group.members.values()), group.patterns)
    if topics_hash(wanted, group.catalog) != group.topics_hash:
        return True
    group.catalog_version = version
    return False


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    """Whether a partition of its target is still held by another member."""
    for topic_id, partitions in group.target.get(member.id, {}).items():
        owners = group.owners.get(topic_id, {})
        if any(owners.get(partition) not in (None, member.id) for partition in partitions):
            return True
    return False


def on_leave(group: ConsumerGroup, event: Leave, now: Now, out: Out) -> None:
    """Members go; an operator may take out members of either protocol."""
    if group.dead:
        out.append(Reply(event.token, (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])))
        return
    gone: list[str] = []
    errors: list[int] = []
    for member_id, instance_id in event.members:
        try:
            leaving = _leaving(group, member_id, instance_id)
        except Refused as refused:
            errors.append(refused.code)
        else:
            errors.append(ErrorCode.NONE)
            gone.append(leaving.id)

    def then(error: int, at: Now, out: Out) -> None:
        out.append(Reply(event.token, (append_error(error), errors)))

    if gone:
        fence(group, gone, then, now, out)
    else:
        then(ErrorCode.NONE, now, out)


def _leaving(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise unknown_member(group, member_id)
        return member
    return static_member(group, member_id or group.static_members.get(instance_id, ""), instance_id)
