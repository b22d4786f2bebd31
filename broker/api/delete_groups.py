"""DeleteGroups: forget groups without members, and all their offsets.

Versions 0-3 (KIP-229); from 3 on the answer says in words why the coordinator can't serve a group.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.groupoffsets import Delete
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

KEY, VERSIONS = 42, (0, 3)


async def handle(context: Context, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    """Delete one after the other; a name that is given twice is answered once."""
    response = DeleteGroupsResponse()
    async for name in call.turns.each(dict.fromkeys(request.groups_names)):
        result = DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        try:
            if context.groups.look_up(name) is not None:
                result.error_code = await context.groups.ask(name, Delete(None))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what or None
        response.results.append(result)
    return response
