"""ApiVersions (KIP-35, KIP-511): which APIs and versions this broker serves, read from the registry.

Versions 0-4; from 3 on with the features that are supported and in force (KIP-584, `broker/configs/features.py`). Clients of
version 3 fail on a feature whose lowest level is 0, so those aren't in their list of supported ones. A version that is not
known never comes here: the dispatcher answers it with a version 0 body, error 35 and the range of key 18.
"""

from penstock.broker import dispatch
from penstock.broker.configs.features import SUPPORTED
from penstock.broker.context import Call, Context
from penstock.pyx.wire.messages import ApiVersionsRequest, ApiVersionsResponse

KEY, VERSIONS = 18, (0, 4)
LEVEL_0_SINCE = 4

Supported = ApiVersionsResponse.SupportedFeatureKey
Finalized = ApiVersionsResponse.FinalizedFeatureKey


async def handle(context: Context, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """Answer from the registry; the client's software name is not checked."""
    finalized = context.features.finalized()
    return ApiVersionsResponse(
        api_keys=dispatch.advertised(),
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
