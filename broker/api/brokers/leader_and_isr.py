"""LeaderAndIsr: the controller tells this broker which partitions it leads and follows. Version 7.

Served on the listener for brokers alone. Topics go by id in the answer, which also says where each log ends.
"""

from penstock.broker.cluster.messages import LeaderAndIsrRequest
from penstock.broker.context import Call, Context, member
from penstock.broker.replication import wire
from penstock.pyx.wire import messages

KEY, VERSIONS = 4, (7, 7)


def read(context: Context, message: messages.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    """The roles. Raises WireError."""
    return wire.read_roles(message)


async def handle(context: Context, request: LeaderAndIsrRequest, call: Call) -> messages.LeaderAndIsrResponse:
    """Answer per role."""
    return wire.write_role_answers(await member(context).on_leader_and_isr(request), request)
