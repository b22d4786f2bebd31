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

Coordinator = FindCoordinatorResponse.Coordinator


async def handle(context: Context, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """Answer the one key, or each of them."""
    keys = request.coordinator_keys if call.api_version >= 4 else [request.key]
    answers = [await _coordinator(context, request.key_type, key, call) async for key in call.turns.each(keys)]
    if call.api_version >= 4:
        return FindCoordinatorResponse(coordinators=answers)
    (one,) = answers
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def _coordinator(context: Context, key_type: int, key: str, call: Call) -> Coordinator:
    try:
        await _ready(context, key_type, key)
    except KafkaError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.what)
    host, port = context.advertised_for(call.listener)
    return Coordinator(key=key, node_id=context.node_id, host=host, port=port, error_message=None)


async def _ready(context: Context, key_type: int, key: str) -> None:
    """Make sure that the coordinator's topic is there and the key's part of it was read. Raises KafkaError."""
    if key_type not in (GROUP, TRANSACTION):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"coordinators of key type {key_type} are not served")
    coordinator = context.groups if key_type == GROUP else context.transactions
    await coordinator.ensure_topic()
    coordinator.check_served(key)
