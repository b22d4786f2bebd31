"""DeleteRecords: move a partition's start up (KIP-107). Versions 0-2; offset -1 = the high watermark."""

import asyncio

from penstock.broker.context import Call, Context
from penstock.broker.topicconfig import topic_value
from penstock.broker.topics import INTERNAL
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

KEY, VERSIONS = 21, (0, 2)

Result = DeleteRecordsResponse.DeleteRecordsPartitionResult


async def handle(context: Context, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Answer per partition; one that fails does not touch the others."""
    response = DeleteRecordsResponse()
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = Result(partition_index=asked.partition_index, low_watermark=-1)
            try:
                result.low_watermark = await _one(context, topic.name, asked.partition_index, asked.offset)
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        response.topics.append(
            DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=results)
        )
    return response


async def _one(context: Context, name: str, index: int, offset: int) -> int:
    context.topics.partition(name, index)
    topic = context.topics.get(name)
    policy = topic_value(context.config, topic.configs if topic else {}, "cleanup.policy")
    if name in INTERNAL or policy == ["compact"]:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} is compacted")
    if offset < -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}")
    loop = asyncio.get_running_loop()
    try:
        low: int = await loop.run_in_executor(
            None, context.partitions.delete_records_before, name, index, offset
        )
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return low
