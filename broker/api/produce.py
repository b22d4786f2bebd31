"""Produce: served by the data plane (versions 3-13), which never sends such a request here.

Versions 0-2 are advertised, as Apache Kafka 4 does: with a higher minimum older librdkafka silently stops
compressing (KAFKA-18659). A request of one of them is refused by closing the connection.
"""

from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse

KEY, VERSIONS = 0, (0, 13)


async def handle(context: Context, request: ProduceRequest, call: Call) -> ProduceResponse:
    """Refuse what the data plane does not serve."""
    raise CloseConnection(f"produce version {call.api_version} is not served")
