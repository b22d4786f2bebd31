"""DescribeTopicPartitions (KIP-966): topics in pages, by name, with a cursor. Version 0.

No topics = all of them. An answer holds at most `response_partition_limit` partitions (at least one, and never
more than `max.request.partition.size.limit`), then a cursor says where to go on. On one node no replica is
out of sync: there the lists of eligible ones are empty.
"""

from penstock.broker.acls import TOPIC_OPERATIONS, operations_bits
from penstock.broker.context import Call, Context
from penstock.broker.topic import Topic, check_name
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

KEY, VERSIONS = 75, (0, 0)

Entry = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


async def handle(context: Context, request: DescribeTopicPartitionsRequest, call: Call) -> DescribeTopicPartitionsResponse:
    """Answer one page."""
    asked = [topic.name for topic in request.topics]
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        wrong = [Entry(error_code=ErrorCode.INVALID_REQUEST, name=name) for name in asked]
        return DescribeTopicPartitionsResponse(topics=wrong)
    names = sorted(set(asked) or {topic.name for topic in context.topics.all()})
    first_name, first_index = (cursor.topic_name, cursor.partition_index) if cursor else ("", 0)
    left = min(context.config["max.request.partition.size.limit"], max(1, request.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    async for name in call.turns.each([name for name in names if name >= first_name]):
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
        topic_authorized_operations=operations_bits(TOPIC_OPERATIONS),
        partitions=[
            Partition(
                partition_index=state.index,
                error_code=0 if state.leader_for_clients >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                leader_id=state.leader_for_clients,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.isr,
                offline_replicas=state.offline_replicas,
                eligible_leader_replicas=state.eligible,
                last_known_elr=state.last_eligible,
            )
            for state in topic.partitions[start : start + most]
        ],
    )
