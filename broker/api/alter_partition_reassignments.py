"""AlterPartitionReassignments (KIP-455): where partitions should live. Versions 0-1.

Partitions don't move between brokers: the only assignment that can be asked for is the present one, which is there at once. Any
other is refused with INVALID_REPLICA_ASSIGNMENT. A cancellation finds nothing under way.
"""

from penstock.broker.assignments import check_assignment
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

KEY, VERSIONS = 45, (0, 1)

Asked = AlterPartitionReassignmentsRequest.ReassignablePartition
Answer = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


async def handle(
    context: Context, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    """Answer per partition; one that fails does not touch the others."""
    response = AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=request.allow_replication_factor_change
    )
    for topic in request.topics:
        if context.topics.get(topic.name) is None:
            await context.topics.catch_up(topic.name)
        answers = [_answer(context, topic.name, asked) async for asked in call.turns.each(topic.partitions)]
        response.responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=answers)
        )
    return response


def _answer(context: Context, name: str, asked: Asked) -> Answer:
    answer = Answer(partition_index=asked.partition_index, error_message=None)
    try:
        _check(context, name, asked)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.what or None
    return answer


def _check(context: Context, name: str, asked: Asked) -> None:
    topic = context.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= asked.partition_index < len(topic.partitions):
        why = f"Unable to find partition {name}:{asked.partition_index}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
    if asked.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is in progress.")
    check_assignment(context, asked.replicas)
    present = topic.partitions[asked.partition_index].replicas
    if asked.replicas != present:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partition {name}-{asked.partition_index} stays on {present}: partitions can't move between brokers yet.",
        )
