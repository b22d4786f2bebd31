"""ControlledShutdown: a broker that is about to stop asks this one, the controller, to move its leads away. Version 3.

Served on the listener for brokers alone.
"""

from penstock.broker.context import Call, Context, member
from penstock.broker.replication import wire
from penstock.pyx.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse

KEY, VERSIONS = 7, (3, 3)


def read(context: Context, message: ControlledShutdownRequest) -> tuple[int, int]:
    """The broker and its epoch. Raises WireError."""
    return wire.read_stopping(message)


async def handle(context: Context, request: tuple[int, int], call: Call) -> ControlledShutdownResponse:
    """Answer with what the broker still leads."""
    return wire.write_remaining(*await member(context).on_controlled_shutdown(*request))
