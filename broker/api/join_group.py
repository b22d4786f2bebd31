"""JoinGroup: become a member of a consumer group and wait for its next generation.

Versions 0-9. Version 0 has no rebalance timeout: the session timeout stands for it. From version 4 on a new
dynamic member first gets its id with MEMBER_ID_REQUIRED (KIP-394); 5 brings static members (KIP-345), 7 the
protocol type in the answer, 9 `skip_assignment` for a leader that came back (KIP-814). The answer comes when
the whole group has joined or its time is up. Decisions: `classicgroups` and `consumergroups` in `broker/coordination/`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.classicgroups.events import Join, JoinResult
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import JoinGroupRequest, JoinGroupResponse

KEY, VERSIONS = 11, (0, 9)
KNOWN_MEMBER_SINCE = 4
NULLABLE_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def handle(context: Context, request: JoinGroupRequest, call: Call) -> JoinGroupResponse:
    """Wait for the group; the leader is given all members."""
    if not request.group_id:
        return _response(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id), call)
    client_id = call.client_id or ""
    instance_id = request.group_instance_id
    rebalance_ms = request.rebalance_timeout_ms if call.api_version >= 1 else request.session_timeout_ms
    event = Join(
        token=None,
        member_id=request.member_id,
        fresh_member_id=context.groups.fresh_member_id(client_id if instance_id is None else instance_id),
        instance_id=instance_id,
        require_known_member=call.api_version >= KNOWN_MEMBER_SINCE and instance_id is None,
        can_skip_assignment=call.api_version >= SKIP_ASSIGNMENT_SINCE,
        client_id=client_id,
        client_host="/" + call.peer.rpartition(":")[0],
        rebalance_timeout_ms=max(rebalance_ms, 0),
        session_timeout_ms=request.session_timeout_ms,
        protocol_type=request.protocol_type,
        # Copies: a slice would keep its whole request alive for as long as the member lives.
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
    )
    return _response(await context.groups.ask(request.group_id, event), call)


def _response(result: JoinResult, call: Call) -> JoinGroupResponse:
    protocol = result.protocol
    if protocol is None and call.api_version < NULLABLE_PROTOCOL_SINCE:
        protocol = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in result.members
        ],
    )
