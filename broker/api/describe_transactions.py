"""DescribeTransactions (KIP-664): state, producer and partitions of transactional ids. Version 0."""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.transactions.state import TransactionState
from penstock.broker.topic import by_topic
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

KEY, VERSIONS = 65, (0, 0)

Described = DescribeTransactionsResponse.TransactionState


async def handle(context: Context, request: DescribeTransactionsRequest, call: Call) -> DescribeTransactionsResponse:
    """Describe one after the other; an unknown one is TRANSACTIONAL_ID_NOT_FOUND."""
    described = [_one(context, name) async for name in call.turns.each(dict.fromkeys(request.transactional_ids))]
    return DescribeTransactionsResponse(transaction_states=described)


def _one(context: Context, name: str) -> Described:
    if not name:
        return Described(transactional_id=name, error_code=ErrorCode.INVALID_REQUEST)
    try:
        transaction = context.transactions.look_up(name)
    except KafkaError as error:
        return Described(transactional_id=name, error_code=error.code)
    facts = transaction.facts if transaction is not None else None
    if facts is None or facts.state is TransactionState.DEAD:
        return Described(transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics = by_topic(sorted(facts.partitions))
    return Described(
        transactional_id=name,
        transaction_state=facts.state.shown,
        transaction_timeout_ms=facts.timeout_ms,
        transaction_start_time_ms=facts.started_ms,
        producer_id=facts.producer_id,
        producer_epoch=facts.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()
        ],
    )
