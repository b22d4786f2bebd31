"""Produce: served by the network threads in every version, so they never send such a request here.

Those that begin a transaction are handed over, but as they came: `broker/coordination/transactionalproduce.py`.
"""

from penstock.broker.context import Call, Context
from penstock.broker.dispatch import NotServed
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse

KEY, VERSIONS = 0, (ProduceRequest.MIN_VERSION, ProduceRequest.MAX_VERSION)


async def handle(context: Context, request: ProduceRequest, call: Call) -> ProduceResponse:
    """Refuse what the network threads do not serve."""
    raise NotServed(f"produce version {call.api_version} is not served")
