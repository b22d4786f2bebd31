"""WriteTxnMarkers: append commit or abort markers to partitions.

Versions 0-2. Coordinators of other brokers send it; an operator's tool sends it to end a hanging transaction
(KIP-664). A marker in `__consumer_offsets` also ends the offsets of that transaction. The partition refuses a
marker of an older epoch with INVALID_PRODUCER_EPOCH; version 2 says whether the marker is one of transactions v2
(KIP-890), whose epoch must be above that of the transaction's records.

In a cluster a marker is answered once it is committed, and only brokers may send it: on any other listener than theirs the
answer is CLUSTER_AUTHORIZATION_FAILED. A request that is older than one that its sender has sent since is STALE_BROKER_EPOCH:
it hung in a connection, and its markers came by the newer one. Brokers name topics by their ids, too: the log of another topic
is UNKNOWN_TOPIC_ID.
"""

import asyncio
from collections.abc import Sequence

from penstock.broker.context import Call, Context
from penstock.broker.topic import partition_in
from penstock.broker.transactionmessages import ANY_EPOCH, Marker, MarkerAnswer
from penstock.errors import ErrorCode
from penstock.pyx.wire.message import NIL_UUID
from penstock.pyx.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

KEY, VERSIONS = 27, (0, 2)
NO_SENDER = -1

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
Partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def handle(context: Context, request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    """Answer per partition."""
    # Appends are in turns, answers may wait for commits: those of all markers at once.
    return WriteTxnMarkersResponse(
        markers=await asyncio.gather(*(_one(context, request, one, call) for one in request.markers))
    )


async def _one(
    context: Context, request: WriteTxnMarkersRequest, asked: WriteTxnMarkersRequest.WritableTxnMarker, call: Call
) -> Result:
    marker = Marker(
        asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch, asked.transaction_version
    )
    result = Result(producer_id=asked.producer_id)
    writes = [
        _write(context, request, marker, (topic.name, index), (epoch, topic.topic_id), call)
        for topic in asked.topics
        for index, epoch in zip(topic.partition_indexes, _epochs(topic), strict=True)
    ]
    answers = iter(await asyncio.gather(*writes))
    for topic in asked.topics:
        result.topics.append(named := Topic(name=topic.name))
        for index in topic.partition_indexes:
            error, is_open = next(answers)
            named.partitions.append(Partition(partition_index=index, error_code=error, is_open=is_open))
    return result


def _epochs(topic: WriteTxnMarkersRequest.WritableTxnMarkerTopic) -> Sequence[int]:
    """The leader epochs of a topic's partitions; a tool names none."""
    count = len(topic.partition_indexes)
    return topic.leader_epochs if len(topic.leader_epochs) == count else [ANY_EPOCH] * count


async def _write(
    context: Context,
    request: WriteTxnMarkersRequest,
    marker: Marker,
    partition: tuple[str, int],
    meant: tuple[int, bytes],
    call: Call,
) -> MarkerAnswer:
    leader_epoch, topic_id = meant
    await call.turns.take()
    markers, cluster = context.transactions.markers, context.cluster
    if cluster is None:
        if partition_in(context.topics.get(partition[0]), partition[1]) is None:
            return MarkerAnswer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MarkerAnswer(markers.write(partition, marker))
    if call.listener != context.between_brokers:
        return MarkerAnswer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.sender != NO_SENDER:
        is_known = request.sender in cluster.brokers_for(call.listener)
        # In the step of the append: a newer request may come between two of this one's.
        if not is_known or markers.is_late(request.sender, request.sender_epoch, request.number):
            return MarkerAnswer(ErrorCode.STALE_BROKER_EPOCH)
    return await markers.write_committed(partition, marker, leader_epoch, b"" if topic_id == NIL_UUID else bytes(topic_id))
