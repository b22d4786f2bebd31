"""DeleteRecords: move a partition's start up (KIP-107). Versions 0-2; offset -1 = the high watermark.

What waits for its disk is bound to the topic by id: a later topic of that name keeps its records. In a cluster the answer waits
until the logs of all live replicas begin there, as none of them may show a deleted record once it leads. When `timeout_ms` is
over the answer is REQUEST_TIMED_OUT, and the work goes on.
"""

import asyncio

from penstock.broker.cluster.messages import Partition
from penstock.broker.clustermember import ClusterMember
from penstock.broker.configs.topicconfig import topic_value
from penstock.broker.context import Call, Context
from penstock.broker.patience import Deadline
from penstock.broker.topic import INTERNAL, Topic
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

KEY, VERSIONS = 21, (0, 2)

Result = DeleteRecordsResponse.DeleteRecordsPartitionResult
TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult


async def handle(context: Context, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Answer per partition; one that fails does not touch the others."""
    response = DeleteRecordsResponse()
    wanted: list[tuple[Result, Topic, int]] = []
    for topic in request.topics:
        results = []
        async for asked in call.turns.each(topic.partitions):
            result = Result(partition_index=asked.partition_index, low_watermark=-1)
            try:
                known = _checked(context, topic.name, asked.partition_index, asked.offset)
                wanted.append((result, known, asked.offset))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        response.topics.append(TopicResult(name=topic.name, partitions=results))
    keys = [(known.name, result.partition_index) for result, known, _ in wanted]
    before = [(known.name, known.topic_id, result.partition_index, offset) for result, known, offset in wanted]
    deadline = context.patience.deadline(request.timeout_ms)
    try:
        outcomes = await deadline.wait(context.topics.logs.ask_each(keys, context.log_manager.delete_records, before))
        if context.cluster is not None:
            ids = [known.topic_id for _, known, _ in wanted]
            waits = [_followed(context.cluster, *one, deadline) for one in zip(keys, ids, outcomes, strict=True)]
            outcomes = list(await asyncio.gather(*waits))
    except KafkaError as error:
        outcomes = [error] * len(wanted)
    for (result, _, _), outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, KafkaError):
            result.error_code = outcome.code
        elif isinstance(outcome, OSError):
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            result.low_watermark = outcome
    return response


async def _followed(
    cluster: ClusterMember, partition: Partition, topic_id: bytes, outcome: int | KafkaError | OSError, deadline: Deadline
) -> int | KafkaError | OSError:
    """Where the logs of all live replicas begin, once this broker's begins where `outcome` says."""
    if not isinstance(outcome, int):
        return outcome
    try:
        return await deadline.wait(cluster.low_watermark(partition, topic_id, outcome))
    except KafkaError as error:
        return error


def _checked(context: Context, name: str, index: int, offset: int) -> Topic:
    """The topic, if the partition's records may be deleted up to there. Raises KafkaError."""
    topic = context.topics.holding(name, index)
    policy = topic_value(context.config, topic.configs, "cleanup.policy")
    if name in INTERNAL or policy == ["compact"]:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} is compacted")
    if offset < -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}")
    return topic
