"""SyncGroup: the leader hands in the assignment of a generation, every member gets its part.

Versions 0-5; from 5 on the protocol is named and checked (INCONSISTENT_GROUP_PROTOCOL). The answer comes when
the assignment is in the log. Decisions: `broker/coordination/classicgroups`, `broker/coordination/consumergroups`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.classicgroups.events import Sync, SyncResult
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import SyncGroupRequest, SyncGroupResponse

KEY, VERSIONS = 14, (0, 5)
PROTOCOL_SINCE = 5


async def handle(context: Context, request: SyncGroupRequest, call: Call) -> SyncGroupResponse:
    """Wait for the leader's assignment."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if not request.group_id:
        result = SyncResult(ErrorCode.INVALID_GROUP_ID)
    elif call.api_version >= PROTOCOL_SINCE and not names_protocol:
        result = SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    else:
        event = Sync(
            token=None,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={entry.member_id: bytes(entry.assignment) for entry in request.assignments},
        )
        result = await context.groups.ask(request.group_id, event)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
