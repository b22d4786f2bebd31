"""Heartbeat: a member is alive; it hears of a rebalance by REBALANCE_IN_PROGRESS.

Versions 0-4; static members from version 3 on (FENCED_INSTANCE_ID). Decisions: `broker/classicgroups`, `broker/consumergroups`.
"""

from penstock.broker.classicgroups.events import Heartbeat
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import HeartbeatRequest, HeartbeatResponse

KEY, VERSIONS = 12, (0, 4)


async def handle(context: Context, request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    """Note the sign of life."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    event = Heartbeat(None, request.member_id, request.group_instance_id, request.generation_id)
    return HeartbeatResponse(error_code=await context.groups.ask(request.group_id, event))
