"""UpdateMetadata: the controller tells this broker which brokers live, and the state of partitions. Version 8.

Served on the listener for brokers alone.
"""

from penstock.broker.cluster.messages import UpdateMetadata
from penstock.broker.context import Call, Context, member
from penstock.broker.replication import wire
from penstock.pyx.wire.messages import UpdateMetadataRequest, UpdateMetadataResponse

KEY, VERSIONS = 6, (8, 8)


def read(context: Context, message: UpdateMetadataRequest) -> UpdateMetadata:
    """Brokers and partitions. Raises WireError."""
    return wire.read_metadata(message)


async def handle(context: Context, request: UpdateMetadata, call: Call) -> UpdateMetadataResponse:
    """Answer for all of it."""
    return UpdateMetadataResponse(error_code=await member(context).on_update_metadata(request))
