"""DeleteRecords: move a partition's start up (KIP-107). Versions 0-2; offset -1 = the high watermark."""

import asyncio

from penstock.broker.configs.topicconfig import topic_value
from penstock.broker.context import Call, Context
from penstock.broker.topic import INTERNAL
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

KEY, VERSIONS = 21, (0, 2)

Result = DeleteRecordsResponse.DeleteRecordsPartitionResult
TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult


async def handle(context: Context, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    """Answer per partition; one that fails does not touch the others."""
    response = DeleteRecordsResponse()
    wanted: list[tuple[Result, str, int]] = []
    turns = Turns()
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            await turns.take()
            result = Result(partition_index=asked.partition_index, low_watermark=-1)
            try:
                _check(context, topic.name, asked.partition_index, asked.offset)
                wanted.append((result, topic.name, asked.offset))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        response.topics.append(TopicResult(name=topic.name, partitions=results))
    before = [(name, result.partition_index, offset) for result, name, offset in wanted]
    logs = context.topics.logs
    by_folder: dict[str, list[int]] = {}
    for place, (name, index, _) in enumerate(before):
        by_folder.setdefault(logs.folder_of((name, index)), []).append(place)
    groups = list(by_folder.values())
    answers = await asyncio.gather(
        *(logs.ask(before[group[0]][:2], context.log_manager.delete_records, [before[i] for i in group]) for group in groups)
    )
    outcomes = {i: outcome for group, got in zip(groups, answers, strict=True) for i, outcome in zip(group, got, strict=True)}
    for place, (result, _, _) in enumerate(wanted):
        outcome = outcomes[place]
        if isinstance(outcome, KafkaError):
            result.error_code = outcome.code
        elif isinstance(outcome, OSError):
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            result.low_watermark = outcome
    return response


def _check(context: Context, name: str, index: int, offset: int) -> None:
    context.topics.partition(name, index)
    topic = context.topics.get(name)
    policy = topic_value(context.config, topic.configs if topic else {}, "cleanup.policy")
    if name in INTERNAL or policy == ["compact"]:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} is compacted")
    if offset < -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}")
