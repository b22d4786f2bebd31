"""StopReplica: the controller takes replicas from this broker, with or without their logs. Version 4.

Served on the listener for brokers alone.
"""

from penstock.broker.cluster.messages import StopReplica
from penstock.broker.context import Call, Context, member
from penstock.broker.replication import wire
from penstock.pyx.wire.messages import StopReplicaRequest, StopReplicaResponse

KEY, VERSIONS = 5, (4, 4)


def read(context: Context, message: StopReplicaRequest) -> StopReplica:
    """The replicas. Raises WireError."""
    return wire.read_stops(message)


async def handle(context: Context, request: StopReplica, call: Call) -> StopReplicaResponse:
    """Answer per replica."""
    return wire.write_stop_answers(await member(context).on_stop_replica(request))
