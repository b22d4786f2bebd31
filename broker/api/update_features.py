"""UpdateFeatures (KIP-584): bring features to other levels. Versions 0-2.

All updates of a request are made, or none; the answer has the first error, or (to version 1) of each feature that it
was done, as Apache Kafka 4.4.0 does. Levels and what they mean: `broker/configs/features.py`.
"""

from penstock.broker.configs.features import UpgradeType
from penstock.broker.context import Call, Context
from penstock.errors import KafkaError
from penstock.pyx.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

KEY, VERSIONS = 57, (0, 2)

Update = UpdateFeaturesRequest.FeatureUpdateKey
Result = UpdateFeaturesResponse.UpdatableFeatureResult


async def handle(context: Context, request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    """Check all, then store all."""
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    try:
        for update in request.feature_updates:
            _check(context, update, call)
        if not request.validate_only:
            await context.features.update(levels)
    except KafkaError as error:
        text = f"The update failed for all features since the following feature had an error: {error.what}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=text)
    return UpdateFeaturesResponse(results=[Result(feature=name) for name in levels])


def _check(context: Context, update: Update, call: Call) -> None:
    kind = update.upgrade_type
    if call.api_version == 0:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    context.features.check(update.feature, update.max_version_level, kind)
