"""DeleteTopics: topics with all their records, by name or (version 6) by id.

Versions 0-6. The deletion is written to the store first, so a crash can't leave half a topic. It is refused
with TOPIC_DELETION_DISABLED when `delete.topic.enable` is false; internal topics may be deleted, as in
Kafka. When `timeout_ms` is over the answer is REQUEST_TIMED_OUT; the deletion goes on. A request for more than `CHANGES_MAX`
topics that are there is refused as a whole.

In a cluster any broker deletes a topic that it knows. An id that it doesn't know is NOT_CONTROLLER, as Kafka 3.9 with ZooKeeper
answers everything that isn't sent to the controller: the client asks that one, which knows all topics.
"""

from collections import Counter

from penstock.broker.context import Call, Context
from penstock.broker.patience import Deadline
from penstock.broker.topic import Topic
from penstock.broker.topics.changes import check_changes
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

KEY, VERSIONS = 20, (0, 6)
# The first version that knows the error code.
DISABLED_SINCE = 3

Result = DeleteTopicsResponse.DeletableTopicResult


async def handle(context: Context, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Delete one after the other; one that fails does not touch the others."""
    wanted: list[tuple[str | None, bytes]] = [(name, bytes(16)) for name in request.topic_names]
    wanted += [(topic.name, bytes(topic.topic_id)) for topic in request.topics]
    response = DeleteTopicsResponse()
    times = Counter(wanted)
    find = context.topics
    there = ((find.get_by_id(one) if name is None else find.get(name)) is not None for name, one in times)
    await check_changes(call.turns, there)
    deadline = context.patience.deadline(request.timeout_ms)
    async for name, topic_id in call.turns.each(times):
        result = Result(name=name, topic_id=topic_id)
        try:
            if times[name, topic_id] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            await _delete(context, result, call.api_version, deadline)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        response.responses.append(result)
    return response


async def _find(context: Context, topic_id: bytes) -> Topic | None:
    """A topic that this broker doesn't show: the controller knows whether it isn't there. Raises KafkaError NOT_CONTROLLER."""
    if context.cluster is not None:
        await context.topics.catch_up(context.cluster.name_of(topic_id))
    return context.topics.get_by_id(topic_id)


async def _delete(context: Context, result: Result, version: int, deadline: Deadline) -> None:
    if not context.config["delete.topic.enable"]:
        code = ErrorCode.TOPIC_DELETION_DISABLED if version >= DISABLED_SINCE else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "Topic deletion is disabled.")
    if result.name is None:
        if not any(result.topic_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        topic = context.topics.get_by_id(result.topic_id) or await _find(context, result.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    elif any(result.topic_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    else:
        if context.topics.get(result.name) is None:
            await context.topics.catch_up(result.name)
        topic = context.topics.get(result.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic.")
    result.name, result.topic_id = topic.name, topic.topic_id
    try:
        await deadline.wait(context.topics.delete(topic.name, context.coordinators.topic_deleted))
    except OSError as error:
        # It is marked and no longer seen; the next start removes what is left of its files.
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{topic.name}': {error}") from error
