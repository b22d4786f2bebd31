"""Fetch: served by the network threads in every version, so they never send such a request here."""

from penstock.broker.context import Call, Context
from penstock.broker.dispatch import NotServed
from penstock.pyx.wire.messages import FetchRequest, FetchResponse

KEY, VERSIONS = 1, (FetchRequest.MIN_VERSION, FetchRequest.MAX_VERSION)


async def handle(context: Context, request: FetchRequest, call: Call) -> FetchResponse:
    """Refuse what the network threads do not serve."""
    raise NotServed(f"fetch version {call.api_version} is not served")
