"""FindCoordinator: which broker coordinates a group (key type 0) or a transactional id (key type 1).

Versions 0-6; from version 4 on for many keys at once (KIP-699). A single node coordinates everything. The
coordinator's own topic is created by the first question. Share groups (key type 2) aren't served:
INVALID_REQUEST.
"""

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

KEY, VERSIONS = 10, (0, 6)
GROUP, TRANSACTION = 0, 1


async def handle(context: Context, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """Answer the one key, or each of them."""
    keys = request.coordinator_keys if call.api_version >= 4 else [request.key]
    error, text = await _ready(context, request.key_type)
    (host, port), node_id = context.advertised_for(call.listener), context.node_id
    if error:
        host, port, node_id = "", -1, -1
    if call.api_version < 4:
        return FindCoordinatorResponse(error_code=error, error_message=text, node_id=node_id, host=host, port=port)
    coordinators = [
        FindCoordinatorResponse.Coordinator(
            key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=text
        )
        for key in keys
    ]
    return FindCoordinatorResponse(coordinators=coordinators)


async def _ready(context: Context, key_type: int) -> tuple[int, str | None]:
    """Make sure that the coordinator's topic exists: an error code and its words."""
    if key_type not in (GROUP, TRANSACTION):
        return ErrorCode.INVALID_REQUEST, f"coordinators of key type {key_type} are not served"
    coordinator = context.groups if key_type == GROUP else context.transactions
    try:
        await coordinator.ensure_topic()
    except KafkaError as error:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, error.what
    return ErrorCode.NONE, None
