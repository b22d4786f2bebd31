"""AlterConfigs: replace all configs of a topic, a group or of brokers at once. Versions 0-2.

What is not named goes back to its default, which is why IncrementalAlterConfigs is the better way; but whether a
topic's configs are confirmed stays as it was. See
`broker/resources.py` for what can be altered; loggers only incrementally.
"""

from penstock.broker.configs.topicconfig import CONFIRMED, awaits_confirmation
from penstock.broker.context import Call, Context
from penstock.broker.resources import RESOURCES, alter_each, alter_stored
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import AlterConfigsRequest, AlterConfigsResponse

KEY, VERSIONS = 33, (0, 2)

Asked = AlterConfigsRequest.AlterConfigsResource
Result = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(context: Context, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Change one resource after the other; one that fails does not touch the others."""

    async def replace(resource: Asked) -> None:
        await alter_stored(context, lambda: _replace(context, resource, request.validate_only))

    return AlterConfigsResponse(responses=await alter_each(request.resources, Result, replace, call.turns))


async def _replace(context: Context, asked: Asked, validate_only: bool) -> None:
    resource = RESOURCES.get(asked.resource_type)
    if resource is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {asked.resource_type}")
    own = await resource.own(context, asked.resource_name)
    texts: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        texts[config.name] = config.value
    if len(texts) < len(asked.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if awaits_confirmation(own.texts):
        # A client that alters one config so, as old ones do, hasn't confirmed the others.
        texts.setdefault(CONFIRMED, own.texts[CONFIRMED])
    resource.check(context, asked.resource_name, texts)
    if not validate_only:
        await resource.replace(context, asked.resource_name, texts, own)
