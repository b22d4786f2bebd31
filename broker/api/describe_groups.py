"""DescribeGroups: state, protocol and members of groups.

Versions 0-6. Members' metadata and assignments are shown of a stable group only. An unknown group is `Dead`
with no error; from version 6 on with GROUP_ID_NOT_FOUND (KIP-1043). So is a consumer group: it has
ConsumerGroupDescribe.
"""

from penstock.broker.acls import GROUP_OPERATIONS, operations_bits
from penstock.broker.context import Call, Context
from penstock.broker.coordination.classicgroups import state as classic_state
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

KEY, VERSIONS = 15, (0, 6)
NOT_FOUND_SINCE = 6
# What each client may do, since there is no authorizer: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
ALL_OPERATIONS = operations_bits(GROUP_OPERATIONS)

Described = DescribeGroupsResponse.DescribedGroup


async def handle(context: Context, request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
    """Describe one after the other, in turns with the loop's other work; a name that is given twice once."""
    described = [_one(context, name, call) async for name in call.turns.each(dict.fromkeys(request.groups))]
    if request.include_authorized_operations:
        for answer in described:
            if not answer.error_code:
                answer.authorized_operations = ALL_OPERATIONS
    return DescribeGroupsResponse(groups=described)


def _one(context: Context, name: str, call: Call) -> Described:
    try:
        group = context.groups.look_up(name)
    except KafkaError as error:
        return Described(group_id=name, error_code=error.code)
    if not isinstance(group, classic_state.Group) or group.dead:
        answer = Described(group_id=name, group_state=classic_state.GroupState.DEAD.value)
        if call.api_version >= NOT_FOUND_SINCE:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_not = "not found" if group is None else "is not a classic group"
            answer.error_message = f"Group {name} {is_not}."
        return answer
    shown = classic_state.describe(group)
    members = [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.subscription,
            member_assignment=member.assignment,
        )
        for member in shown.members
    ]
    return Described(
        group_id=name,
        group_state=shown.state,
        protocol_type=shown.protocol_type,
        protocol_data=shown.protocol,
        members=members,
    )
