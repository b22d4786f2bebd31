"""IncrementalAlterConfigs (KIP-339): change some configs of a topic, a group, of brokers or loggers. Versions 0-1.

Operations: set (0), delete (1: back to the default), append (2) and subtract (3), the last two for lists. Configs
hold at once and after a restart, loggers' levels until the broker stops.
"""

from penstock.broker.configs.topicconfig import ConfigType, text_of
from penstock.broker.context import Call, Context
from penstock.broker.resources import BROKER_LOGGER, LOGGERS, RESOURCES, alter_each, alter_stored
from penstock.config import parse_list
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

KEY, VERSIONS = 44, (0, 1)
SET, DELETE, APPEND, SUBTRACT = range(4)
WORDS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

Asked = IncrementalAlterConfigsRequest.AlterConfigsResource
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(context: Context, request: IncrementalAlterConfigsRequest, call: Call) -> IncrementalAlterConfigsResponse:
    """Change one resource after the other; one that fails does not touch the others."""

    async def alter(resource: Asked) -> None:
        _check_operations(resource)
        if resource.resource_type == BROKER_LOGGER:
            _alter_loggers(context, resource, request.validate_only)
        else:
            await alter_stored(context, lambda: _alter(context, resource, request.validate_only))

    return IncrementalAlterConfigsResponse(responses=await alter_each(request.resources, Result, alter, call.turns))


def _check_operations(asked: Asked) -> None:
    names = [config.name for config in asked.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    for config in asked.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation}")
        if config.value is None and config.config_operation != DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")


def _alter_loggers(context: Context, asked: Asked, validate_only: bool) -> None:
    for config in asked.configs:
        if config.config_operation in WORDS:
            why = f"{WORDS[config.config_operation]} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(ErrorCode.INVALID_REQUEST, why)
    levels = {one.name: None if one.config_operation == DELETE else one.value for one in asked.configs}
    LOGGERS.check(context, asked.resource_name, levels)
    if not validate_only:
        LOGGERS.set_levels(levels)


async def _alter(context: Context, asked: Asked, validate_only: bool) -> None:
    resource = RESOURCES.get(asked.resource_type)
    if resource is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {asked.resource_type}")
    own = await resource.own(context, asked.resource_name)
    texts = dict(own.texts)
    # Only brokers have a default resource, the empty name; what is in force for it is what is here.
    described = resource.describe(context, asked.resource_name or str(context.node_id))
    in_force = {one.name: one for one in described}
    for config in asked.configs:
        if config.config_operation == DELETE:
            texts.pop(config.name, None)
        elif config.config_operation == SET:
            texts[config.name] = config.value or ""
        else:
            one = in_force.get(config.name)
            if one is None or one.kind is not ConfigType.LIST:
                why = f"Can't {WORDS[config.config_operation]} to key {config.name} because its type is not LIST."
                raise KafkaError(ErrorCode.INVALID_CONFIG, why)
            texts[config.name] = _list(one.text or "", config.config_operation, config.value or "")
    resource.check(context, asked.resource_name, texts)
    if not validate_only:
        await resource.replace(context, asked.resource_name, texts, own)


def _list(text: str, operation: int, value: str) -> str:
    words, given = parse_list(text), parse_list(value)
    if operation == APPEND:
        return text_of(words + [word for word in given if word not in words])
    return text_of([word for word in words if word not in given])
