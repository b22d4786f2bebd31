"""CreateTopics: new topics; an answer without error means that every partition serves.

Versions 0-7. Partitions -1 = `num.partitions`, replication factor -1 = `default.replication.factor`
(KIP-464); with one node the factor is 1 and a manual assignment may only name this node. Configs are
checked against the table in `broker/configs/topicconfig.py`. `validate_only` does everything but create. When `timeout_ms`
is over the answer is REQUEST_TIMED_OUT; the creation goes on. A request for more than `CHANGES_MAX` new topics, partitions and
configs is refused as a whole.
"""

from collections import Counter
from typing import cast

from penstock.broker.assignments import check_assignment
from penstock.broker.context import Call, Context
from penstock.broker.patience import Deadline
from penstock.broker.topic import check_name
from penstock.broker.topics.changes import check_changes
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.message import Encoded
from penstock.pyx.wire.messages import CreateTopicsRequest, CreateTopicsResponse

KEY, VERSIONS = 19, (0, 7)
# DescribeQuorum speaks of it, so no client may make a topic of that name.
CLUSTER_METADATA = "__cluster_metadata"

Wanted = CreateTopicsRequest.CreatableTopic
Result = CreateTopicsResponse.CreatableTopicResult


async def handle(context: Context, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    """Create one after the other; one that fails does not touch the others."""
    names = Counter(wanted.name for wanted in request.topics)
    response = CreateTopicsResponse()
    await check_changes(call.turns, (_changes(context, wanted) for wanted in request.topics))
    deadline = context.patience.deadline(request.timeout_ms)
    async for name, wanted in call.turns.each({topic.name: topic for topic in request.topics}.items()):
        try:
            if names[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            result = await _one(context, wanted, request.validate_only, deadline)
        except KafkaError as error:
            result = Result(name=name, error_code=error.code, error_message=error.what)
        # As bytes at once: each has some forty configs, and a request may name tens of thousands.
        response.topics.append(cast(Result, Encoded(CreateTopicsResponse.encode_struct(result, call.api_version))))
    return response


def _changes(context: Context, wanted: Wanted) -> int:
    """What a new topic is in the metadata: itself, its partitions and its configs. Of one that is there nothing is made."""
    if context.topics.get(wanted.name) is not None:
        return 0
    return 1 + max(wanted.num_partitions, len(wanted.assignments), 1) + len(wanted.configs)


async def _one(context: Context, wanted: Wanted, validate_only: bool, deadline: Deadline) -> Result:
    check_name(wanted.name)
    if wanted.name == CLUSTER_METADATA:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {wanted.name} is prohibited.")
    if context.topics.get(wanted.name) is not None:
        await context.topics.catch_up(wanted.name)
    partitions = _partitions(context, wanted)
    given = {config.name: config.value for config in wanted.configs}
    context.topics.check_new(wanted.name, partitions, given)
    configs = {name: value for name, value in given.items() if value is not None}
    placed = sorted(wanted.assignments, key=lambda one: one.partition_index)
    assignment = [list(one.broker_ids) for one in placed] or None
    factor = len(assignment[0]) if assignment else context.topics.check_factor(wanted.name, wanted.replication_factor)
    result = Result(name=wanted.name, error_message=None, num_partitions=partitions, replication_factor=factor)
    if not validate_only:
        made = context.topics.create(wanted.name, partitions, configs, factor=factor, assignment=assignment)
        result.topic_id = (await deadline.wait(made)).topic_id
    result.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name, value=entry.text, read_only=entry.read_only, config_source=entry.source
        )
        for entry in context.config.describe_topic(configs)
    ]
    return result


def _partitions(context: Context, wanted: Wanted) -> int:
    """The number of partitions that is asked for, by number or by assignment. Raises KafkaError."""
    if not wanted.assignments:
        default: int = context.config["num.partitions"]
        return default if wanted.num_partitions == -1 else wanted.num_partitions
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but the number of partitions or the replication "
            "factor was not set to -1.",
        )
    indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions should be a consecutive 0-based sequence.")
    for assignment in wanted.assignments:
        check_assignment(context, assignment.broker_ids)
    return len(indexes)
