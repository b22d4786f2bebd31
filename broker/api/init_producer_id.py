"""InitProducerId: an id for an idempotent producer; for a transactional one also the end of those before it.

Versions 0-5. With a transactional id the epoch is raised, which fences older producers of that id; their open
transaction is aborted first, and meanwhile the answer is CONCURRENT_TRANSACTIONS. A producer that goes on
after an error names its id and epoch (version 3, KIP-360). A fenced one hears PRODUCER_FENCED, before version
4 INVALID_PRODUCER_EPOCH. Decisions: `broker/coordination/transactions`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.coordination.transactions.events import Init, ProducerResult
from penstock.broker.coordination.transactions.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import InitProducerIdRequest, InitProducerIdResponse

KEY, VERSIONS = 22, (0, 5)
FENCED_SINCE = 4


async def handle(context: Context, request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """Give an id and epoch."""
    result = await _init(context, request)
    error = result.error
    if error == ErrorCode.PRODUCER_FENCED and call.api_version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=error, producer_id=result.producer_id, producer_epoch=result.producer_epoch)


async def _init(context: Context, request: InitProducerIdRequest) -> ProducerResult:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ProducerResult(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return ProducerResult(ErrorCode.NONE, await context.transactions.producer_ids.next(), 0)
    if not request.transactional_id:
        return ProducerResult(ErrorCode.INVALID_REQUEST)
    event = Init(None, request.transaction_timeout_ms, request.producer_id, request.producer_epoch)
    result = await context.transactions.init(request.transactional_id, event)
    return result
