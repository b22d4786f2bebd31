"""ConsumerGroupDescribe (KIP-848): state, epochs and members of consumer groups, with what each has and shall have.

Versions 0-1; version 1 tells members of the classic protocol (0) from the others (1). A group that isn't there, or
is a classic one, answers GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.broker.api.consumer_group_heartbeat import enabled
from penstock.broker.api.describe_groups import ALL_OPERATIONS
from penstock.broker.context import Call, Context
from penstock.broker.coordination.consumergroups.state import ConsumerGroup, Member
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

KEY, VERSIONS = 69, (0, 1)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1

Described = ConsumerGroupDescribeResponse.DescribedGroup
Assignment = ConsumerGroupDescribeResponse.Assignment
Parts = ConsumerGroupDescribeResponse.TopicPartitions


async def handle(context: Context, request: ConsumerGroupDescribeRequest, call: Call) -> ConsumerGroupDescribeResponse:
    """Describe one after the other, in turns with the loop's other work."""
    response = ConsumerGroupDescribeResponse()
    if not enabled(context):
        unsupported = ErrorCode.UNSUPPORTED_VERSION
        response.groups = [Described(group_id=name, error_code=unsupported) for name in request.group_ids]
        return response
    names, with_operations = dict.fromkeys(request.group_ids), request.include_authorized_operations
    response.groups = [_one(context, name, with_operations) async for name in call.turns.each(names)]
    return response


def _one(context: Context, name: str, with_operations: bool) -> Described:
    if not name:
        return Described(group_id=name, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        group = context.groups.look_up(name)
    except KafkaError as error:
        return Described(group_id=name, error_code=error.code, error_message=error.what)
    if not isinstance(group, ConsumerGroup):
        what = f"Group {name} not found." if group is None else f"Group {name} is not a consumer group."
        return Described(group_id=name, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=what)
    return Described(
        group_id=name,
        group_state=group.state(),
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=_assignor(group),
        members=[_member(group, member) for member in group.members.values()],
        authorized_operations=ALL_OPERATIONS if with_operations else -(1 << 31),
    )


def _assignor(group: ConsumerGroup) -> str:
    votes: dict[str, int] = {}
    for member in group.members.values():
        if member.facts.assignor is not None:
            votes[member.facts.assignor] = votes.get(member.facts.assignor, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else group.config.consumer_assignors[0]


def _member(group: ConsumerGroup, member: Member) -> ConsumerGroupDescribeResponse.Member:
    facts, current = member.facts, member.current
    # It is still responsible for what it has to give back.
    has = {
        topic_id: {*current.assigned.get(topic_id, ()), *current.revoking.get(topic_id, ())}
        for topic_id in {**current.assigned, **current.revoking}
    }
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.id,
        instance_id=facts.instance_id,
        rack_id=facts.rack_id,
        member_epoch=current.epoch,
        client_id=facts.client_id,
        client_host=facts.client_host,
        subscribed_topic_names=list(facts.topics),
        subscribed_topic_regex=facts.pattern,
        assignment=_assignment(group, has),
        target_assignment=_assignment(group, group.target.get(member.id, {})),
        member_type=CONSUMER_MEMBER if facts.classic is None else CLASSIC_MEMBER,
    )


def _assignment(group: ConsumerGroup, partitions: Mapping[bytes, Collection[int]]) -> Assignment:
    """Topics that aren't there any more are left out: they have no name."""
    names = {topic_id: group.catalog.name_of(topic_id) for topic_id in partitions}
    return Assignment(
        topic_partitions=[
            Parts(topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id]))
            for topic_id, name in sorted(names.items())
            if name is not None
        ]
    )
