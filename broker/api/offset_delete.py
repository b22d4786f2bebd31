"""OffsetDelete (KIP-496): forget a group's offsets of partitions. Version 0.

Topics that a stable group is subscribed to are refused with GROUP_SUBSCRIBED_TO_TOPIC; a group of another
protocol than the consumers' has to be empty (NON_EMPTY_GROUP).
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.groupoffsets import DeleteOffsets
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.offsetrequest import errors_of
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

KEY, VERSIONS = 47, (0, 0)

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(context: Context, request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
    """Answer per partition, or with one error for the whole group."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if context.groups.look_up(request.group_id) is None:
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    asked: list[TopicPartition] = []
    for topic in request.topics:
        known = context.topics.get(topic.name)
        indexes = [partition.partition_index for partition in topic.partitions]
        asked += [(topic.name, i) for i in indexes if known is not None and 0 <= i < len(known.partitions)]
    results: int | dict[TopicPartition, int] = await context.groups.ask(request.group_id, DeleteOffsets(None, asked))
    if isinstance(results, int):
        return OffsetDeleteResponse(error_code=results)
    response = OffsetDeleteResponse()
    for topic in request.topics:
        errors = await errors_of(topic.name, topic.partitions, results, call.turns)
        partitions = [Partition(partition_index=index, error_code=error) for index, error in errors]
        response.topics.append(Topic(name=topic.name, partitions=partitions))
    return response
