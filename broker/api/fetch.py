"""Fetch: served by the data plane (versions 0-18), which never sends such a request here."""

from penstock.broker.context import Call, Context
from penstock.broker.dispatch import CloseConnection
from penstock.pyx.wire.messages import FetchRequest, FetchResponse

KEY, VERSIONS = 1, (0, 18)


async def handle(context: Context, request: FetchRequest, call: Call) -> FetchResponse:
    """Refuse what the data plane does not serve."""
    raise CloseConnection(f"fetch version {call.api_version} is not served")
