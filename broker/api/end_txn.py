"""EndTxn: commit or abort a transaction.

Versions 0-5. The decision is stored, then the markers are appended to all partitions, then the answer goes
out. From version 5 on each transaction raises the producer's epoch, which the answer carries (KIP-890). A
fenced producer hears PRODUCER_FENCED, before version 2 INVALID_PRODUCER_EPOCH. Decisions:
`broker/coordination/transactions`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.transactions.events import End
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import EndTxnRequest, EndTxnResponse

KEY, VERSIONS = 26, (0, 5)
FENCED_SINCE = 2
RAISES_EPOCH_SINCE = 5


async def handle(context: Context, request: EndTxnRequest, call: Call) -> EndTxnResponse:
    """End the transaction."""
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    raises = call.api_version >= RAISES_EPOCH_SINCE
    event = End(None, request.producer_id, request.producer_epoch, request.committed, raises)
    result = await context.transactions.end(request.transactional_id, event)
    error = result.error
    if error == ErrorCode.PRODUCER_FENCED and call.api_version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    response = EndTxnResponse(error_code=error)
    if raises and not error:
        response.producer_id, response.producer_epoch = result.producer_id, result.producer_epoch
    return response
