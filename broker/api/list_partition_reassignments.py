"""ListPartitionReassignments (KIP-455): reassignments that are under way; there never are any. Version 0.

What an old tool has left in ZooKeeper isn't under way, either: the controller says so in the answer's words, next to no error.
"""

from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

KEY, VERSIONS = 46, (0, 0)


async def handle(
    context: Context, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """Answer an empty list; topics that aren't known are no error, as in Kafka."""
    refused = None if context.cluster is None else context.cluster.refused_reassignment
    return ListPartitionReassignmentsResponse(error_message=refused)
