"""ListConfigResources (KIP-714, KIP-1142): what has configs. Versions 0-1.

Version 0 asks for client metrics subscriptions, of which there are none. Version 1: topics (2), brokers (4),
brokers' loggers (8), client metrics (16) and groups (32) with configs of their own; no types = all of these.
"""

from penstock.broker.context import Call, Context
from penstock.broker.resources import BROKER_LOGGER, CLIENT_METRICS, LOGGERS, RESOURCES, Loggers, Resource
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

KEY, VERSIONS = 74, (0, 1)
LISTED: dict[int, Resource | Loggers] = {**RESOURCES, BROKER_LOGGER: LOGGERS}

Listed = ListConfigResourcesResponse.ConfigResource


async def handle(context: Context, request: ListConfigResourcesRequest, call: Call) -> ListConfigResourcesResponse:
    """Answer the resources of the types that are asked for."""
    kinds = (CLIENT_METRICS,) if call.api_version == 0 else tuple(dict.fromkeys(request.resource_types)) or tuple(LISTED)
    if any(kind not in LISTED for kind in kinds):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = [Listed(resource_name=name, resource_type=kind) for kind in kinds for name in LISTED[kind].names(context)]
    return ListConfigResourcesResponse(config_resources=resources)
