"""DeleteGroups: forget groups without members, and all their offsets. Versions 0-2 (KIP-229)."""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.groupoffsets import Delete
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

KEY, VERSIONS = 42, (0, 2)


async def handle(context: Context, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    """Delete one after the other; a name that is given twice is answered once."""
    response = DeleteGroupsResponse()
    turns = Turns()
    for name in dict.fromkeys(request.groups_names):
        await turns.take()
        error: int = ErrorCode.GROUP_ID_NOT_FOUND
        try:
            if context.groups.look_up(name) is not None:
                error = await context.groups.ask(name, Delete(None))
        except KafkaError as failure:
            error = failure.code
        response.results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=error))
    return response
