"""ApiVersions (KIP-35, KIP-511): which APIs and versions this broker serves, read from the registry.

Versions 0-4. No features are finalized, so transactions are those of before KIP-890's second part
(`transaction.version` 0) and groups are the classic ones. A version that is not known never comes here: the
dispatcher answers it with a version 0 body, error 35 and the range of key 18.
"""

from penstock.broker import dispatch
from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse

KEY, VERSIONS = 18, (0, 4)


async def handle(context: Context, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """Answer from the registry; the client's software name is not checked."""
    return ApiVersionsResponse(api_keys=dispatch.advertised())
