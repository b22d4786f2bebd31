"""ListTransactions (KIP-664): the transactional ids that this broker coordinates, with their state, filtered by state, producer
id, age (from version 1 on) and a pattern of the whole id (from version 2 on, KIP-1152; RE2's syntax). Versions 0-2.

In a cluster other brokers ask what becomes of transactions that are open in their logs. On any other listener than theirs the
answer to that is CLUSTER_AUTHORIZATION_FAILED.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.transactions.state import TransactionState
from penstock.broker.transactionmessages import OpenTransaction
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import ListTransactionsRequest, ListTransactionsResponse
from penstock.regex import RegexError, compile_regex

KEY, VERSIONS = 66, (0, 2)
NO_PARTITION = -1


async def handle(context: Context, request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    """List by id."""
    if request.open_transactions:
        if context.cluster is None or call.listener != context.between_brokers:
            return ListTransactionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await _fates(context, request)
    by_name = {state.shown: state for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in by_name]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if context.transactions.is_loading:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response
    states = {by_name[name] for name in request.state_filters if name in by_name}
    if request.state_filters and not states:
        return response
    try:
        pattern = compile_regex(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except RegexError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    now_ms = context.now_ms()
    async for transaction in call.turns.each(sorted(context.transactions.live(), key=lambda found: found.id)):
        facts = transaction.facts
        if facts is None or facts.state is TransactionState.DEAD or (states and facts.state not in states):
            continue
        if request.producer_id_filters and facts.producer_id not in request.producer_id_filters:
            continue
        if request.duration_filter >= 0 and now_ms - facts.started_ms <= request.duration_filter:
            continue
        if pattern is not None and not pattern.matches(transaction.id):
            continue
        response.transaction_states.append(
            ListTransactionsResponse.TransactionState(
                transactional_id=transaction.id,
                producer_id=facts.producer_id,
                transaction_state=facts.state.shown,
            )
        )
    return response


async def _fates(context: Context, request: ListTransactionsRequest) -> ListTransactionsResponse:
    asked = [
        OpenTransaction((one.topic, one.partition_index), one.producer_id, one.producer_epoch, keeps_markers=one.keeps_markers)
        for one in request.open_transactions
    ]
    fates = await context.coordinators.hanging.answer(asked)
    fate = ListTransactionsResponse.TransactionFate
    return ListTransactionsResponse(
        leads=[
            ListTransactionsResponse.Lead(partition_index=index, leader_epoch=epoch) for index, epoch in fates.leads.items()
        ],
        fates=[
            fate(partition_index=NO_PARTITION) if found is None else fate(partition_index=found[0], fate=found[1])
            for found in fates.found
        ],
    )
