"""A group changes its protocol: a classic group becomes a consumer group when a member of KIP-848 joins it, and a
consumer group becomes a classic one when its last such member is gone.

Committed offsets stay as they are. Groups without members always change; others as
`group.consumer.migration.policy` allows, with their members: these speak the classic protocol on and are handled
by `classic.py`. The records of the old group and of the new one are one append, so a crash leaves one of the two.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.coordination.classicgroups import events as classic_events
from penstock.broker.coordination.classicgroups import machine as classic_machine
from penstock.broker.coordination.classicgroups import rebalance as classic_rebalance
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.broker.coordination.classicgroups.state import Group, GroupRecord, GroupState
from penstock.broker.coordination.consumergroups import embedded
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult
from penstock.broker.coordination.consumergroups.state import (
    ClassicFacts,
    ConsumerGroup,
    ConsumerRecord,
    Current,
    CurrentRecord,
    Environment,
    EpochRecord,
    MemberFacts,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    end_of,
    subscribed_topics,
    topics_hash,
)
from penstock.broker.coordination.consumergroups.update import Refused, Update
from penstock.broker.coordination.consumergroups.writing import AnyGroup, Then, await_heartbeat, removal, write
from penstock.broker.coordination.groupoffsets import AfterCommit, AfterRemoval, Out
from penstock.broker.coordination.machines import Now, Reply, append_error
from penstock.errors import ErrorCode
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE, version_of


# --- from classic to consumer -----------------------------------------------------------------------------------
def upgrade(classic: Group, event: ConsumerHeartbeat, now: Now, environment: Environment, out: Out) -> ConsumerGroup | None:
    """A heartbeat of KIP-848 came to a classic group, or to one that isn't there yet: the consumer group that the
    heartbeat goes to, or None if it was refused.
    """
    try:
        _check_upgrade(classic, event, environment)
        records = _consumer_records(classic, environment) if classic.members else []
    except Refused as refused:
        out.append(Reply(event.token, HeartbeatResult(refused.code, refused.text or None)))
        return None
    group = ConsumerGroup(classic.id, environment, offsets=classic.offsets, in_flight=classic.in_flight)

    def then(error: int, at: Now, out: Out) -> AnyGroup | None:
        if error:
            out.append(Reply(event.token, HeartbeatResult(append_error(error))))
            return classic
        out.extend(classic_machine.resign(classic, ErrorCode.REBALANCE_IN_PROGRESS))
        for member in group.members.values():
            await_heartbeat(group, member, at)
        group.waiting.appendleft(event)
        return None

    before = [GroupRecord(None)] if classic.generation > 0 else []
    if before or records:
        write(group, records, then, out, before=before)
    else:
        group.waiting.append(event)
    return group


def _check_upgrade(classic: Group, event: ConsumerHeartbeat, environment: Environment) -> None:
    config = environment.config
    if event.member_epoch != 0:
        exists = classic.generation > 0 or classic.members or not classic.offsets.is_empty()
        text = f"Group {classic.id} is not a consumer group."
        if not exists:
            text = f"{'Group' if event.member_epoch < 0 else 'Consumer group'} {classic.id} not found."
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)
    if classic.dead:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if any(not isinstance(after, AfterCommit | AfterRemoval) for after in classic.in_flight.waiting.values()):
        raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # Its own records are on their way.
    if not classic.members:
        return
    why = ""
    if not config.migration.upgrades:
        why = "online upgrade is disabled"
    elif classic.protocol_type != PROTOCOL_TYPE:
        why = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > config.consumer_max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why:
        raise _no_upgrade(classic, why)


def _no_upgrade(classic: Group, why: str) -> Refused:
    text = f"Cannot upgrade classic group {classic.id} to consumer group because {why}."
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _consumer_records(classic: Group, environment: Environment) -> list[ConsumerRecord]:
    """The members as they are, stable at the generation with what they were assigned. Raises Refused."""
    epoch, catalog = classic.generation, environment.catalog
    protocol = classic.protocol or classic_state.select_protocol(classic)
    facts: dict[str, MemberFacts] = {}
    targets: list[ConsumerRecord] = []
    currents: list[ConsumerRecord] = []
    for member in classic.members.values():
        try:
            facts[member.id] = _classic_facts(member, protocol)
            target = embedded.read_assignment(member.assignment, catalog)
        except embedded.Malformed as error:
            raise _no_upgrade(classic, str(error)) from None
        assigned = {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in target.items()}
        targets.append(TargetRecord(member.id, target))
        currents.append(CurrentRecord(member.id, Current(epoch, epoch, assigned=assigned)))
    hashed = topics_hash(subscribed_topics(facts.values(), {}), catalog)
    return [
        *(MemberRecord(member_id, one) for member_id, one in facts.items()),
        EpochRecord((epoch, hashed)),
        *targets,
        TargetEpochRecord((epoch, 0)),
        *currents,
    ]


def _classic_facts(member: classic_state.Member, protocol: str | None) -> MemberFacts:
    subscription = embedded.read_subscription(member.metadata(protocol))
    return MemberFacts(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicFacts(member.session_timeout_ms, member.protocols),
    )


# --- from consumer to classic -----------------------------------------------------------------------------------
def fence(group: ConsumerGroup, gone: Collection[str], then: Then, now: Now, out: Out) -> None:
    """Take members out of the group; if only members of the classic protocol stay, it becomes a classic one."""
    if may_downgrade(group, gone):
        downgrade(group, gone, then, now, out)
    else:
        write(group, removal(group, gone), then, out)


def may_downgrade(group: ConsumerGroup, gone: Collection[str], coming: int = 0) -> bool:
    """Whether without those members (and with so many classic ones more) it is to be a classic group."""
    left = [member for member in group.members.values() if member.id not in gone]
    return (
        bool(left or coming)
        and all(member.facts.classic is not None for member in left)
        and group.config.migration.downgrades
        and len(left) + coming <= group.config.max_size
    )


def downgrade(
    group: ConsumerGroup,
    gone: Collection[str],
    then: Then,
    now: Now,
    out: Out,
    joining: Update | None = None,
    rebalance: bool = True,
) -> None:
    """Become a classic group of the members that stay, with their targets as their assignments.

    `joining` takes the place of a member that is gone; what it has stored before is in its records.
    """
    classic, assignment = _classic_group(group, gone, now, joining)

    def ended(error: int, at: Now, out: Out) -> AnyGroup | None:
        if error:
            return then(error, at, out)
        classic_machine.loaded(classic, at)
        if rebalance:
            classic_rebalance.prepare_rebalance(classic, at, out)
        then(error, at, out)
        return classic

    record = GroupRecord(classic_state.snapshot(classic, assignment))
    write(group, end_of(group), ended, out, after=[record])


def _classic_group(
    group: ConsumerGroup, gone: Collection[str], now: Now, joining: Update | None
) -> tuple[Group, dict[str, bytes]]:
    classic = Group(group.id, group.config, GroupState.STABLE, offsets=group.offsets, in_flight=group.in_flight)
    classic.state_timestamp_ms = now.wall_ms
    classic.protocol_type, classic.generation = PROTOCOL_TYPE, group.epoch
    targets = {member.id: member.id for member in group.members.values() if member.id not in gone}
    facts = {member_id: group.members[member_id].facts for member_id in targets}
    if joining is not None:
        facts[joining.member_id] = joining.facts
        targets[joining.member_id] = joining.replaced or joining.member_id
    for member_id, one in facts.items():
        assert one.classic is not None
        classic.members[member_id] = classic_state.Member(
            member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            max(one.rebalance_timeout_ms, 0),
            one.classic.session_timeout_ms,
            one.classic.protocols,
        )
        if one.instance_id is not None:
            classic.static_members[one.instance_id] = member_id
    classic.leader = next(iter(classic.members))
    classic.protocol = classic_state.select_protocol(classic)
    classic.subscribed = classic_state.subscribed_topics(classic)
    for member_id, member in classic.members.items():
        target = group.target.get(targets[member_id], {})
        version = version_of(member.metadata(classic.protocol))
        member.assignment = embedded.write_assignment(target, version, group.catalog)
    return classic, {member.id: member.assignment for member in classic.members.values()}


def become_classic(group: ConsumerGroup, event: classic_events.Join, out: Out) -> None:
    """A member of the classic protocol joins a group without members: it is a classic group from now on."""

    def then(error: int, at: Now, out: Out) -> AnyGroup | None:
        if error:
            out.append(Reply(event.token, classic_events.JoinResult(append_error(error), event.member_id)))
            return None
        group.waiting.appendleft(event)
        return Group(group.id, group.config, offsets=group.offsets, in_flight=group.in_flight)

    write(group, end_of(group), then, out)
