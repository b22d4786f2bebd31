"""IncrementalAlterConfigs (KIP-339): change some configs of a topic or of this broker. Versions 0-1.

Operations: set (0), delete (1: back to the default), append (2) and subtract (3), the last two for lists.
Topic configs hold for the next append, broker configs (only those behind topic configs) too, and both after
a restart. Cluster-wide broker defaults (the empty broker name), loggers and other resources are refused.
`AlterConfigs` is carried out by the same functions.
"""

import json
from collections.abc import Mapping

from penstock.broker.api.describe_configs import BROKER, TOPIC, check_broker
from penstock.broker.config import BrokerConfig, ConfigType, check_topic_configs, text_of
from penstock.broker.context import Call, Context
from penstock.broker.store.base import paths
from penstock.config import parse_list
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

KEY, VERSIONS = 44, (0, 1)
SET, DELETE, APPEND, SUBTRACT = range(4)

Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(
    context: Context, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    """Change one resource after the other; one that fails does not touch the others."""
    response = IncrementalAlterConfigsResponse()
    asked = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        result = Result(error_message=None, resource_type=kind, resource_name=name)
        try:
            if asked.count((kind, name)) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            texts = own_configs(context, kind, name)
            changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
            await apply(context, kind, name, _changed(context, kind, texts, changes), request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        response.responses.append(result)
    return response


def own_configs(context: Context, kind: int, name: str) -> dict[str, str]:
    """The configs that were set for a topic or, at run time, for this broker. Raises KafkaError."""
    if kind == TOPIC:
        topic = context.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return dict(topic.configs)
    if kind == BROKER:
        check_broker(context, name)
        return dict(context.config.dynamic)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


async def apply(
    context: Context, kind: int, name: str, texts: Mapping[str, str | None], validate_only: bool
) -> None:
    """Make these the configs of a topic or of this broker; KafkaError, and no change, if one is wrong."""
    check = check_topic_configs if kind == TOPIC else BrokerConfig.check
    check(texts)
    configs = {key: value for key, value in texts.items() if value is not None}
    if validate_only:
        return
    if kind == TOPIC:
        await context.topics.alter_configs(name, configs)
        return
    path, data = paths.broker_config(context.node_id), json.dumps({"version": 1, "config": configs}).encode()
    if await context.store.exists(path) is None:
        await context.store.create(path, data, parents=True)
    else:
        await context.store.set(path, data)
    context.config.alter(configs)
    context.topics.broker_configs_changed()


def _changed(
    context: Context, kind: int, texts: dict[str, str], changes: list[tuple[str, int, str | None]]
) -> dict[str, str | None]:
    """The configs after the operations, as texts. Raises KafkaError."""
    new: dict[str, str | None] = dict(texts)
    names = [name for name, _, _ in changes]
    described = context.config.describe_topic(texts) if kind == TOPIC else context.config.describe_broker()
    in_force = {one.name: one for one in described}
    for name, operation, value in changes:
        if names.count(name) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {name}")
        if name not in in_force:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if operation == DELETE:
            new.pop(name, None)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        if operation == SET:
            new[name] = value
        elif operation in (APPEND, SUBTRACT):
            if in_force[name].kind is not ConfigType.LIST:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list: it can't be appended to.")
            new[name] = _list(in_force[name].text, operation, value)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation}")
    return new


def _list(text: str, operation: int, value: str) -> str:
    words, given = parse_list(text), parse_list(value)
    if operation == APPEND:
        return text_of(words + [word for word in given if word not in words])
    return text_of([word for word in words if word not in given])
