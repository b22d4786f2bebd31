"""CreatePartitions: more partitions for a topic; they serve when it is answered. Versions 0-3.

`count` is the new total. A manual assignment may only name brokers that live. When `timeout_ms` is over the answer is
REQUEST_TIMED_OUT; the work goes on.

The coordinators' topics don't grow: a group or transactional id belongs to the partition that its name's hash gives by
their number, so that with another number what is stored of it would be searched where it isn't. A request for more than
`CHANGES_MAX` new partitions is refused as a whole.
"""

from collections import Counter

from penstock.broker.assignments import check_assignment
from penstock.broker.context import Call, Context
from penstock.broker.topic import INTERNAL
from penstock.broker.topics.changes import check_changes
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

KEY, VERSIONS = 37, (0, 3)

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


async def handle(context: Context, request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    """Grow one topic after the other; one that fails does not touch the others."""
    names = Counter(topic.name for topic in request.topics)
    response = CreatePartitionsResponse()
    await check_changes(call.turns, (_changes(context, topic) for topic in request.topics))
    deadline = context.patience.deadline(request.timeout_ms)
    async for topic in call.turns.each({topic.name: topic for topic in request.topics}.values()):
        result = Result(name=topic.name)
        try:
            if names[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _check_name(topic.name)
            if context.topics.get(topic.name) is None:
                await context.topics.catch_up(topic.name)
            _check_assignments(context, topic)
            only = request.validate_only
            assignment = None if topic.assignments is None else [list(one.broker_ids) for one in topic.assignments]
            grown = context.topics.add_partitions(topic.name, topic.count, validate_only=only, assignment=assignment)
            await deadline.wait(grown)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        response.results.append(result)
    return response


def _changes(context: Context, wanted: CreatePartitionsRequest.CreatePartitionsTopic) -> int:
    """How many partitions are new."""
    topic = context.topics.get(wanted.name)
    return 0 if topic is None else max(0, wanted.count - len(topic.partitions))


def _check_name(name: str) -> None:
    if name in INTERNAL:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions of {name} can't be changed: committed offsets and transactions are kept in the "
            "partition that a name's hash gives by it, and would be lost.",
        )


def _check_assignments(context: Context, wanted: CreatePartitionsRequest.CreatePartitionsTopic) -> None:
    topic = context.topics.get(wanted.name)
    if wanted.assignments is None or topic is None:
        return
    added = wanted.count - len(topic.partitions)
    if len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(wanted.assignments)} assignment(s) were specified.",
        )
    for assignment in wanted.assignments:
        check_assignment(context, assignment.broker_ids)
