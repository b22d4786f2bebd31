"""DescribeQuorum (KIP-595, 836, 853): which broker decides about the cluster's metadata. Versions 0-2.

The controller decides alone, on one node and in a cluster: it is leader and only voter of `__cluster_metadata`, of which
nothing but the name is there; the leader's epoch is the controller's, and offsets count the changes of the metadata store.
While no controller is known there is neither leader nor voter.
"""

import asyncio

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

KEY, VERSIONS = 55, (0, 2)
METADATA = "__cluster_metadata"
NODES_SINCE = 2
STORE_S = 2.0
"""How long the metadata store may take to say how many changes there are."""

Topic = DescribeQuorumResponse.TopicData
Partition = DescribeQuorumResponse.PartitionData


async def handle(context: Context, request: DescribeQuorumRequest, call: Call) -> DescribeQuorumResponse:
    """Answer per partition; only one has a quorum."""
    response = DescribeQuorumResponse(error_message=None)
    for topic in request.topics:
        name, indexes = topic.topic_name, [asked.partition_index for asked in topic.partitions]
        described = [await _partition(context, name, index) async for index in call.turns.each(indexes)]
        response.topics.append(Topic(topic_name=name, partitions=described))
    if call.api_version >= NODES_SINCE and any(topic.topic_name == METADATA for topic in request.topics):
        controller = context.controller_id
        at = context.brokers_for(call.listener).get(controller)
        if at is not None:
            listener = DescribeQuorumResponse.Listener(name=call.listener, host=at.host, port=at.port)
            response.nodes = [DescribeQuorumResponse.Node(node_id=controller, listeners=[listener])]
    return response


async def _partition(context: Context, topic: str, index: int) -> Partition:
    if (topic, index) != (METADATA, 0):
        return Partition(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="This server does not host this topic-partition.",
        )
    try:
        async with asyncio.timeout(STORE_S):
            end, now_ms = await context.store.changes(), context.now_ms()
    except TimeoutError:  # No server of ZooKeeper answers: whoever was the controller may not be it any more.
        why = "The metadata store doesn't answer: nobody knows who is the controller."
        return Partition(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message=why)
    controller = context.controller_id
    voter = DescribeQuorumResponse.ReplicaState(
        replica_id=controller, log_end_offset=end, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    return Partition(
        partition_index=0,
        error_message=None,
        leader_id=controller,
        leader_epoch=context.controller_epoch,
        high_watermark=end,
        current_voters=[voter] if controller >= 0 else [],
    )
