"""AddPartitionsToTxn: say which partitions a transaction is going to write to, before writing.

Versions 0-5. From version 4 on for several transactions at once, or only to verify (KIP-890); that is the way
of brokers, and answered to anybody. If one partition does not exist none is added: the others hear
OPERATION_NOT_ATTEMPTED. The coordinators' own topics can't be written to: TOPIC_AUTHORIZATION_FAILED. A
fenced producer hears PRODUCER_FENCED, before version 2 INVALID_PRODUCER_EPOCH. A partition that is to be verified
and isn't in the transaction is TRANSACTION_ABORTABLE. Decisions: `broker/coordination/transactions`.
"""

from collections.abc import Sequence

from penstock.broker.context import Call, Context
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.transactions.events import AddPartitions
from penstock.broker.topic import INTERNAL
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

KEY, VERSIONS = 24, (0, 5)
FENCED_SINCE = 2
MANY_SINCE = 4

Topics = Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


async def handle(context: Context, request: AddPartitionsToTxnRequest, call: Call) -> AddPartitionsToTxnResponse:
    """Add or verify; the answer has every partition that was asked."""
    if call.api_version < MANY_SINCE:
        results = await _add(
            context,
            call.turns,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
        )
        if call.api_version < FENCED_SINCE:
            fenced, old = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
            results = {key: old if error == fenced else error for key, error in results.items()}
        answer = await _answer(request.v3_and_below_topics, results, call.turns)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=answer)
    response = AddPartitionsToTxnResponse()
    async for asked in call.turns.each(request.transactions):
        who = (context, call.turns, asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.topics)
        results = await _verify(*who) if asked.verify_only else await _add(*who, client_version=2)
        response.results_by_transaction.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id, topic_results=await _answer(asked.topics, results, call.turns)
            )
        )
    return response


def _keys(topics: Topics) -> list[TopicPartition]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


async def _add(
    context: Context,
    turns: Turns,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: Topics,
    client_version: int = 0,
) -> dict[TopicPartition, int]:
    keys = _keys(topics)
    if not transactional_id:
        return dict.fromkeys(keys, ErrorCode.INVALID_REQUEST)
    refused = {key: error async for key in turns.each(keys) if (error := _refused(context, key))}
    if refused:
        return {key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in keys}
    event = AddPartitions(None, producer_id, producer_epoch, keys, client_version)
    return dict.fromkeys(keys, await context.transactions.ask(transactional_id, event))


def _refused(context: Context, key: TopicPartition) -> int:
    if key[0] in INTERNAL:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = context.topics.get(key[0])
    if known is None or not 0 <= key[1] < len(known.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _verify(
    context: Context, turns: Turns, transactional_id: str, producer_id: int, producer_epoch: int, topics: Topics
) -> dict[TopicPartition, int]:
    keys = _keys(topics)
    if not transactional_id:
        return dict.fromkeys(keys, ErrorCode.INVALID_REQUEST)
    verify = context.transactions.verify
    return {key: verify(transactional_id, producer_id, producer_epoch, key) async for key in turns.each(keys)}


async def _answer(topics: Topics, results: dict[TopicPartition, int], turns: Turns) -> list[TopicResult]:
    answers = []
    for topic in topics:
        answers.append(answer := TopicResult(name=topic.name))
        async for index in turns.each(topic.partitions):
            error = results[topic.name, index]
            answer.results_by_partition.append(PartitionResult(partition_index=index, partition_error_code=error))
    return answers
