"""OffsetForLeaderEpoch: where a leader epoch ended (KIP-101, KIP-279, KIP-320).

Versions 0-4. Answers the largest epoch that is not above the asked one, and its end offset; -1, -1 if the log
knows none. Consumers use it after an unclean election to find out that their position was truncated.
"""

from functools import partial

from penstock.broker.context import Call, Context
from penstock.errors import KafkaError
from penstock.pyx.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

KEY, VERSIONS = 23, (0, 4)

Asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Answer = OffsetForLeaderEpochResponse.EpochEndOffset


async def handle(context: Context, request: OffsetForLeaderEpochRequest, call: Call) -> OffsetForLeaderEpochResponse:
    """Answer per partition."""
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answers = [await _answer(context, topic.topic, asked) async for asked in call.turns.each(topic.partitions)]
        response.topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return response


async def _answer(context: Context, topic: str, asked: Asked) -> Answer:
    answer = Answer(partition=asked.partition)
    try:
        context.topics.check_leader_epoch(topic, asked.partition, asked.current_leader_epoch)
        end = partial(_end, context, topic, asked)
        answer.leader_epoch, answer.end_offset = await context.topics.logs.moving.retried(end)
    except KafkaError as error:
        answer.error_code = error.code
    return answer


async def _end(context: Context, topic: str, asked: Asked) -> tuple[int, int]:
    context.log_manager.check_leads(topic, asked.partition)
    return context.log_manager.offset_for_epoch(topic, asked.partition, asked.leader_epoch)
