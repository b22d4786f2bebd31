"""ConsumerGroupHeartbeat (KIP-848): a member joins, stays, leaves, and hears what it owns.

Versions 0-1; from version 1 on members bring their own id and may subscribe by a regular expression in RE2's
syntax, which has to match the whole name. Answered when what it changed is in `__consumer_offsets`. Decisions:
`broker/coordination/consumergroups/machine.py`.
"""

from __future__ import annotations

import uuid

from penstock.broker.configs.features import GROUP_VERSION
from penstock.broker.context import Call, Context
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat, HeartbeatResult
from penstock.broker.coordination.consumergroups.state import LEAVING_EPOCH, LEAVING_STATIC_EPOCH, Partitions
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

KEY, VERSIONS = 68, (0, 1)
OWN_ID_SINCE = 1
# What a member may say of itself: a record has to fit into a batch.
SUBSCRIPTION_MAX_CHARACTERS = 500_000

Parts = ConsumerGroupHeartbeatResponse.TopicPartitions


async def handle(context: Context, request: ConsumerGroupHeartbeatRequest, call: Call) -> ConsumerGroupHeartbeatResponse:
    """Check the request by itself, then ask the group."""
    if not enabled(context):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        _check(context, request, call)
        return _response(await context.groups.heartbeat(request.group_id, _event(request, call)))
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.what)


def enabled(context: Context) -> bool:
    """Whether the feature `group.version` is at the level that brought KIP-848."""
    return context.features.level(GROUP_VERSION) >= 1


def _event(request: ConsumerGroupHeartbeatRequest, call: Call) -> ConsumerHeartbeat:
    topics = request.subscribed_topic_names
    return ConsumerHeartbeat(
        token=None,
        member_id=request.member_id or str(uuid.uuid4()),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if topics is None else tuple(sorted(set(topics))),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=call.client_id or "",
        client_host="/" + call.peer.rpartition(":")[0],
    )


def _owned(parts: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None) -> Partitions | None:
    if parts is None:
        return None
    return {bytes(part.topic_id): frozenset(part.partitions) for part in parts}


def _check(context: Context, request: ConsumerGroupHeartbeatRequest, call: Call) -> None:
    """Raise KafkaError for what no group would take."""
    epoch = request.member_epoch
    if (call.api_version >= OWN_ID_SINCE or epoch > 0 or epoch == LEAVING_EPOCH) and not request.member_id:
        raise _invalid("MemberId can't be empty.")
    for name, value in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        _check_joining(request)
    elif epoch == LEAVING_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    size = sum(map(len, request.subscribed_topic_names or ())) + len(request.subscribed_topic_regex or "")
    if size > SUBSCRIPTION_MAX_CHARACTERS:
        raise _invalid(f"A subscription may have at most {SUBSCRIPTION_MAX_CHARACTERS} characters.")
    offered = context.groups.config.consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in offered:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(offered)}.",
        )


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def _response(result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    response = ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
    )
    if result.assignment is not None:
        parts = [Parts(topic_id=topic_id, partitions=sorted(p)) for topic_id, p in sorted(result.assignment.items())]
        response.assignment = ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=parts)
    return response
