"""ListGroups: every group that this broker coordinates, with its state.

Versions 0-5; filters by state (version 4, KIP-518) and by type (version 5, KIP-848) don't mind upper and
lower case. A group is of type `classic` or `consumer`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.consumergroups.state import ConsumerGroup
from penstock.errors import ErrorCode
from penstock.pyx.wire.consumerprotocol import PROTOCOL_TYPE
from penstock.pyx.wire.messages import ListGroupsRequest, ListGroupsResponse

KEY, VERSIONS = 16, (0, 5)
CLASSIC, CONSUMER = "classic", "consumer"


async def handle(context: Context, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """List by name."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    response = ListGroupsResponse()
    if context.groups.is_loading:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response
    async for name, entry in call.turns.each(sorted(context.groups.entries.items())):
        group = entry.machine
        if isinstance(group, ConsumerGroup):
            state, kind, protocol_type = group.state(), CONSUMER, PROTOCOL_TYPE
        else:
            state, kind, protocol_type = group.state.value, CLASSIC, group.protocol_type or ""
        if (states and state.lower() not in states) or (types and kind not in types):
            continue
        response.groups.append(
            ListGroupsResponse.ListedGroup(group_id=name, protocol_type=protocol_type, group_state=state, group_type=kind)
        )
    return response
