"""AlterPartition (KIP-497, 841, 903): leaders propose other ISRs to this broker, the controller. Version 3.

Served on the listener for brokers alone. A topic whose id this broker doesn't know is answered UNKNOWN_TOPIC_ID.
"""

from penstock.broker.context import Call, Context, member
from penstock.broker.replication import wire
from penstock.pyx.wire.messages import AlterPartitionRequest, AlterPartitionResponse

KEY, VERSIONS = 56, (3, 3)


def read(context: Context, message: AlterPartitionRequest) -> wire.Proposals:
    """The proposals. Raises WireError."""
    return wire.read_proposals(message, member(context).topic_names)


async def handle(context: Context, request: wire.Proposals, call: Call) -> AlterPartitionResponse:
    """Answer per proposal."""
    return wire.write_proposal_answers(await member(context).on_alter_partition(request.asks), request)
