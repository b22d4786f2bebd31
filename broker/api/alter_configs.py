"""AlterConfigs: replace all configs of a topic or of this broker at once. Versions 0-2.

What is not named goes back to its default, which is why IncrementalAlterConfigs is the better way. A null
value is the default too. See `incremental_alter_configs.py` for what can be altered.
"""

from penstock.broker.api.incremental_alter_configs import apply, own_configs
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterConfigsRequest, AlterConfigsResponse

KEY, VERSIONS = 33, (0, 2)

Result = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(context: Context, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Change one resource after the other; one that fails does not touch the others."""
    response = AlterConfigsResponse()
    asked = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        result = Result(error_message=None, resource_type=kind, resource_name=name)
        try:
            if asked.count((kind, name)) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            own_configs(context, kind, name)
            texts = {config.name: config.value for config in resource.configs if config.value is not None}
            await apply(context, kind, name, texts, request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        response.responses.append(result)
    return response
