"""ListTransactions (KIP-664): transactional ids with their state, filtered by state, producer id and age.

Versions 0-1. The pattern of version 2 (KIP-1152) isn't served: it needs a regular expression engine that
takes linear time whatever a client sends.
"""

from penstock.broker.context import Call, Context
from penstock.broker.transactions import Facts, TransactionState
from penstock.pyx.wire.messages import ListTransactionsRequest, ListTransactionsResponse

KEY, VERSIONS = 66, (0, 1)


async def handle(context: Context, request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    """List by id."""
    by_name = {state.shown: state for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in by_name]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    states = {by_name[name] for name in request.state_filters if name in by_name}
    if request.state_filters and not states:
        return response
    now_ms = context.now_ms()
    for transaction in sorted(context.transactions.live(), key=lambda found: found.id):
        facts: Facts = transaction.facts
        if facts.state is TransactionState.DEAD or (states and facts.state not in states):
            continue
        if request.producer_id_filters and facts.producer_id not in request.producer_id_filters:
            continue
        if request.duration_filter >= 0 and now_ms - facts.started_ms <= request.duration_filter:
            continue
        response.transaction_states.append(
            ListTransactionsResponse.TransactionState(
                transactional_id=transaction.id,
                producer_id=facts.producer_id,
                transaction_state=facts.state.shown,
            )
        )
    return response
