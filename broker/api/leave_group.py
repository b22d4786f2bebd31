"""LeaveGroup: members go, and the others rebalance without waiting for a session timeout.

Versions 0-5; from version 3 on several at once, static ones also by their instance id alone, which is how an
operator removes them (KIP-345). Decisions: `broker/coordination/classicgroups`, `broker/coordination/consumergroups`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.classicgroups.events import Leave
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import LeaveGroupRequest, LeaveGroupResponse

KEY, VERSIONS = 13, (0, 5)
MANY_SINCE = 3


async def handle(context: Context, request: LeaveGroupRequest, call: Call) -> LeaveGroupResponse:
    """Remove each member; before version 3 the one member's error is the answer's."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    leaving: list[tuple[str, str | None]] = [(request.member_id, None)]
    if call.api_version >= MANY_SINCE:
        leaving = [(member.member_id, member.group_instance_id) for member in request.members]
    error, errors = await context.groups.ask(request.group_id, Leave(None, leaving))
    if call.api_version < MANY_SINCE:
        return LeaveGroupResponse(error_code=error or errors[0])
    members = [
        LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=member_error)
        for (member_id, instance_id), member_error in zip(leaving, errors, strict=False)
    ]
    return LeaveGroupResponse(error_code=error, members=members)
