"""DescribeTopicPartitions (KIP-966): topics in pages, by name, with a cursor. Version 0.

No topics = all of them. An answer holds at most `response_partition_limit` partitions (and never more than
LIMIT), then a cursor says where to go on. There are no eligible leader replicas: they are empty lists.
"""

from penstock.broker.context import Call, Context
from penstock.broker.topics import Topic, check_name
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

KEY, VERSIONS = 75, (0, 0)
LIMIT = 2000

Entry = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


async def handle(
    context: Context, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Answer one page."""
    names = sorted({topic.name for topic in request.topics} or {topic.name for topic in context.topics.all()})
    first_name, first_index = "", 0
    if request.cursor is not None:
        first_name, first_index = request.cursor.topic_name, max(0, request.cursor.partition_index)
    left = min(LIMIT, request.response_partition_limit if request.response_partition_limit > 0 else LIMIT)
    response = DescribeTopicPartitionsResponse()
    for name in [name for name in names if name >= first_name]:
        start = first_index if name == first_name else 0
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        topic = context.topics.get(name)
        if topic is None:
            response.topics.append(_missing(name))
            continue
        page = _describe(topic, start, left)
        response.topics.append(page)
        left -= len(page.partitions)
        if start + len(page.partitions) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=start + len(page.partitions)
            )
            break
    return response


def _missing(name: str) -> Entry:
    code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_name(name)
    except KafkaError as error:
        code = error.code
    return Entry(error_code=code, name=name)


def _describe(topic: Topic, start: int, most: int) -> Entry:
    return Entry(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            Partition(
                partition_index=state.index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.isr,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for state in topic.partitions[start : start + most]
        ],
    )
