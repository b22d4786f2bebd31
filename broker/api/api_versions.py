"""ApiVersions (KIP-35, KIP-511): which APIs and versions this broker serves on a listener, read from the registry.

Versions 0-5; from 3 on with the features that are supported and in force (KIP-584, `broker/configs/features.py`). Clients of
version 3 fail on a feature whose lowest level is 0, so those aren't in their list of supported ones. From 5 on a client that
knows the cluster names the cluster and the node that it means to reach: another broker that has got their address since then
answers REBOOTSTRAP_REQUIRED (KIP-1242). Names of a client's software that aren't as KIP-511 has them are an INVALID_REQUEST, as
in Kafka. A version that is not known never comes here: the dispatcher answers it with a
version 0 body, error 35 and the range of key 18.
"""

import re

from penstock.broker import dispatch
from penstock.broker.configs.features import SUPPORTED
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse

KEY, VERSIONS = 18, (0, 5)
LEVEL_0_SINCE = 4
NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

Supported = ApiVersionsResponse.SupportedFeatureKey
Finalized = ApiVersionsResponse.FinalizedFeatureKey


async def handle(context: Context, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """Answer from the registry."""
    refused = _misnamed(request, call) or _misrouted(context, request)
    if refused:
        return ApiVersionsResponse(error_code=refused)
    finalized = context.features.finalized()
    return ApiVersionsResponse(
        api_keys=dispatch.advertised(context, call.listener),
        supported_features=[
            Supported(name=name, min_version=levels.min, max_version=levels.max)
            for name, levels in SUPPORTED.items()
            if levels.min > 0 or call.api_version >= LEVEL_0_SINCE
        ],
        finalized_features_epoch=context.features.epoch,
        finalized_features=[
            Finalized(name=name, min_version_level=level, max_version_level=level) for name, level in finalized.items()
        ],
    )


def _misnamed(request: ApiVersionsRequest, call: Call) -> int:
    """An error code if a client that names its software does it in other letters than it may."""
    if call.api_version < dispatch.NAMES_SOFTWARE_FROM:
        return ErrorCode.NONE
    names = (request.client_software_name, request.client_software_version)
    return ErrorCode.NONE if all(_SOFTWARE.fullmatch(name) for name in names) else ErrorCode.INVALID_REQUEST


def _misrouted(context: Context, request: ApiVersionsRequest) -> int:
    """An error code if the client means another cluster or node; before version 5 it names neither."""
    if request.cluster_id is None and request.node_id == NO_NODE:
        return ErrorCode.NONE
    if request.cluster_id is None or request.node_id == NO_NODE:
        return ErrorCode.INVALID_REQUEST
    if (request.cluster_id, request.node_id) != (context.cluster_id, context.node_id):
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE
