"""Heartbeat: a member is alive; it hears of a rebalance by REBALANCE_IN_PROGRESS.

Versions 0-4; static members from version 3 on (FENCED_INSTANCE_ID).
Decisions: `classicgroups` and `consumergroups` in `broker/coordination/`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.classicgroups.events import Heartbeat
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import HeartbeatRequest, HeartbeatResponse

KEY, VERSIONS = 12, (0, 4)


async def handle(context: Context, request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    """Note the sign of life."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    event = Heartbeat(None, request.member_id, request.group_instance_id, request.generation_id)
    return HeartbeatResponse(error_code=await context.groups.ask(request.group_id, event))
