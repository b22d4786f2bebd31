"""WriteTxnMarkers: append commit or abort markers to partitions.

Versions 0-2. Coordinators of other brokers send it; an operator's tool sends it to end a hanging transaction
(KIP-664). A marker in `__consumer_offsets` also ends the offsets of that transaction. The partition refuses a
marker of an older epoch with INVALID_PRODUCER_EPOCH; version 2 says whether the marker is one of transactions v2
(KIP-890), whose epoch must be above that of the transaction's records.
"""

from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

KEY, VERSIONS = 27, (0, 2)

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
Partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def handle(context: Context, request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    """Answer per partition."""
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        result = Result(producer_id=marker.producer_id)
        for topic in marker.topics:
            answers = [_one(context, marker, topic.name, index) async for index in call.turns.each(topic.partition_indexes)]
            result.topics.append(Topic(name=topic.name, partitions=answers))
        response.markers.append(result)
    return response


def _one(context: Context, marker: WriteTxnMarkersRequest.WritableTxnMarker, name: str, index: int) -> Partition:
    error: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    known = context.topics.get(name)
    if known is not None and 0 <= index < len(known.partitions):
        error = context.transactions.write_marker(
            (name, index),
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
    return Partition(partition_index=index, error_code=error)
