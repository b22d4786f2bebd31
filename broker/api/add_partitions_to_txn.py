"""AddPartitionsToTxn: say which partitions a transaction is going to write to, before writing.

Versions 0-5. From version 4 on for several transactions at once, or only to verify (KIP-890); that is the way
of brokers, and answered to anybody. If one partition does not exist none is added: the others hear
OPERATION_NOT_ATTEMPTED. The coordinators' own topics can't be written to: TOPIC_AUTHORIZATION_FAILED. A
fenced producer hears PRODUCER_FENCED, before version 2 INVALID_PRODUCER_EPOCH. A partition that is to be verified
and isn't in the transaction is TRANSACTION_ABORTABLE. Decisions: `broker/coordination/transactions`.
"""

import asyncio
from collections.abc import Collection, Sequence

from penstock.broker.context import Call, Context
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.topic import GROUP_OFFSETS, INTERNAL, partition_in
from penstock.broker.transactionmessages import Verification
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode
from penstock.pyx.wire.message import NIL_UUID
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
    # An answer may wait for a commit: all are asked at once.
    answers = await asyncio.gather(*(_asked(context, one, call) for one in request.transactions))
    return AddPartitionsToTxnResponse(results_by_transaction=answers)


async def _asked(
    context: Context, asked: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, call: Call
) -> AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
    who = asked.transactional_id, asked.producer_id, asked.producer_epoch
    keys = _keys(asked.topics)
    from_broker = context.cluster is not None and call.listener == context.between_brokers
    # Of the logs that a broker leads; a client can't know better than the coordinator.
    ids = {one.name: bytes(one.topic_id) for one in asked.topics if from_broker and one.topic_id != NIL_UUID}
    if not asked.transactional_id:
        results = dict.fromkeys(keys, int(ErrorCode.INVALID_REQUEST))
    elif asked.verify_only:
        results = {key: context.transactions.verify(*who, key, ids.get(key[0], b"")) async for key in call.turns.each(keys)}
    else:
        # A group's coordinator adds the partition of its offsets (TxnOffsetCommit).
        results = await _refused(context, call.turns, keys, {GROUP_OFFSETS} if from_broker else ())
        if not results:
            question = Verification(*who, tuple(keys), adds=True, topic_ids=frozenset(ids.items()))
            errors = await context.coordinators.verifier.answer(question)
            results = dict(zip(keys, errors, strict=True))
    return AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id, topic_results=await _answer(asked.topics, results, call.turns)
    )


def _keys(topics: Topics) -> list[TopicPartition]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


async def _add(
    context: Context,
    turns: Turns,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: Topics,
) -> dict[TopicPartition, int]:
    keys = _keys(topics)
    if not transactional_id:
        return dict.fromkeys(keys, ErrorCode.INVALID_REQUEST)
    refused = await _refused(context, turns, keys)
    if refused:
        return refused
    return dict.fromkeys(keys, await context.transactions.add(transactional_id, (producer_id, producer_epoch), keys))


async def _refused(
    context: Context, turns: Turns, keys: Sequence[TopicPartition], allowed: Collection[str] = ()
) -> dict[TopicPartition, int]:
    """The error of each partition if one of them can't be added; none else. allowed: topics of the coordinators that can."""
    refused = {key: error async for key in turns.each(keys) if (error := _error_of(context, key, allowed))}
    return {key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in keys} if refused else {}


def _error_of(context: Context, key: TopicPartition, allowed: Collection[str]) -> int:
    if key[0] in INTERNAL and key[0] not in allowed:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if partition_in(context.topics.get(key[0]), key[1]) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _answer(topics: Topics, results: dict[TopicPartition, int], turns: Turns) -> list[TopicResult]:
    answers = []
    for topic in topics:
        answers.append(answer := TopicResult(name=topic.name))
        async for index in turns.each(topic.partitions):
            error = results[topic.name, index]
            answer.results_by_partition.append(PartitionResult(partition_index=index, partition_error_code=error))
    return answers
