"""AddOffsetsToTxn: a transaction is going to commit offsets of a group, so the group's partition joins it.

Versions 0-4. A fenced producer hears PRODUCER_FENCED, before version 2 INVALID_PRODUCER_EPOCH. Decisions:
`broker/coordination/transactions`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.topic import GROUP_OFFSETS
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

KEY, VERSIONS = 25, (0, 4)
FENCED_SINCE = 2


async def handle(context: Context, request: AddOffsetsToTxnRequest, call: Call) -> AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets`."""
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    await context.groups.ensure_topic()
    partition = (GROUP_OFFSETS, context.groups.partition_of(request.group_id))
    producer = request.producer_id, request.producer_epoch
    error = await context.transactions.add(request.transactional_id, producer, [partition])
    if error == ErrorCode.PRODUCER_FENCED and call.api_version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)
