"""UpdateFeatures (KIP-584): bring features to other levels. Versions 0-2.

All updates of a request are made, or none. To version 1 the answer tells each feature's error, from 2 on one for all.
Levels and what they mean: `broker/features.py`.
"""

from collections import Counter

from penstock.broker.context import Call, Context
from penstock.broker.features import UpgradeType
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

KEY, VERSIONS = 57, (0, 2)

Update = UpdateFeaturesRequest.FeatureUpdateKey
Result = UpdateFeaturesResponse.UpdatableFeatureResult


async def handle(context: Context, request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    """Check all, then store all."""
    updates = request.feature_updates
    twice = [name for name, count in Counter(update.feature for update in updates).items() if count > 1]
    if not updates or twice:
        text = f"the feature `{twice[0]}` is there twice" if twice else "there is no feature to update"
        return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    errors = {update.feature: _error(context, update, call) for update in updates}
    failed = [error for error in errors.values() if error is not None]
    if not failed and not request.validate_only:
        try:
            await context.features.update({update.feature: update.max_version_level for update in updates})
        except KafkaError as error:
            failed = [error]
    response = UpdateFeaturesResponse(results=[_result(name, error) for name, error in errors.items()])
    if failed and (call.api_version >= 2 or not any(errors.values())):
        response.error_code, response.error_message = failed[0].code, failed[0].what
    return response


def _error(context: Context, update: Update, call: Call) -> KafkaError | None:
    kind = update.upgrade_type
    if call.api_version == 0:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    try:
        context.features.check(update.feature, update.max_version_level, kind)
    except KafkaError as error:
        return error
    return None


def _result(name: str, error: KafkaError | None) -> Result:
    if error is None:
        return Result(feature=name, error_code=ErrorCode.NONE)
    return Result(feature=name, error_code=error.code, error_message=error.what)
