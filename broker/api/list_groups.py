"""ListGroups: every group with its state.

Versions 0-5; filters by state (version 4, KIP-518) and by type (version 5, KIP-848) don't mind upper and
lower case. All groups here are of type `classic`.
"""

from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import ListGroupsRequest, ListGroupsResponse

KEY, VERSIONS = 16, (0, 5)
TYPE = "classic"


async def handle(context: Context, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """List by name."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    response = ListGroupsResponse()
    if types and TYPE not in types:
        return response
    for name in sorted(context.groups.entries):
        group = context.groups.find(name)
        if states and group.state.value.lower() not in states:
            continue
        response.groups.append(
            ListGroupsResponse.ListedGroup(
                group_id=name,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=TYPE,
            )
        )
    return response
