"""FindCoordinator: which broker coordinates a group (key type 0) or a transactional id (key type 1).

Versions 0-6; from version 4 on for many keys at once (KIP-699). A single node coordinates everything; in a cluster
the leader of the key's partition does, and while it has none the answer is COORDINATOR_NOT_AVAILABLE. The
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
        node_id = await _find(context, key_type, key)
        at = context.brokers_for(call.listener).get(node_id)
        if at is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"clients of this listener can't reach broker {node_id}")
    except KafkaError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.what)
    return Coordinator(key=key, node_id=node_id, host=at.host, port=at.port, error_message=None)


async def _find(context: Context, key_type: int, key: str) -> int:
    """The broker that coordinates a key, whose coordinator's topic is there. Raises KafkaError."""
    if key_type not in (GROUP, TRANSACTION):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"coordinators of key type {key_type} are not served")
    coordinator = context.groups if key_type == GROUP else context.transactions
    await coordinator.ensure_topic()
    if coordinator.is_alone:
        coordinator.check_served(key)
        return context.node_id
    leader = context.topics.partition(coordinator.topic, coordinator.partition_of(key)).leader
    if leader < 0:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now")
    return leader
