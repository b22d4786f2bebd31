"""DescribeConfigs: the configs in force, and where each comes from (KIP-133, 226, 412, 569, 1043).

Versions 0-4. Resources: topic (2), broker (4, by its id; the empty name = what was altered for all brokers),
broker's loggers (8), client metrics (16, there are none), group (32). No or null keys ask for all.
"""

from collections.abc import Iterable
from typing import cast

from penstock.broker.configs.brokerconfig import ConfigSource, Described
from penstock.broker.context import Call, Context
from penstock.broker.resources import BROKER_LOGGER, LOGGERS, RESOURCES
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.message import Encoded
from penstock.pyx.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

KEY, VERSIONS = 32, (0, 4)

Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


async def handle(context: Context, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    """Answer per resource, once for one that is named twice; one that fails does not touch the others."""
    response = DescribeConfigsResponse()
    async for resource in call.turns.each({(one.resource_type, one.resource_name): one for one in request.resources}.values()):
        result = Result(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            described = _describe(context, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        else:
            keys = frozenset(resource.configuration_keys or ())
            result.configs = [_entry(one, request) for one in described if not keys or one.name in keys]
        # As bytes at once: there may be thousands, and what a request names is small beside it.
        response.results.append(cast(Result, Encoded(DescribeConfigsResponse.encode_struct(result, call.api_version))))
    return response


def _describe(context: Context, kind: int, name: str) -> Iterable[Described]:
    if kind == BROKER_LOGGER:
        return LOGGERS.describe(context, name)
    if kind not in RESOURCES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
    return RESOURCES[kind].describe(context, name)


def _entry(one: Described, request: DescribeConfigsRequest) -> Entry:
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in one.synonyms
        ]
    return Entry(
        name=one.name,
        value=one.text,
        read_only=one.read_only,
        is_sensitive=one.sensitive,
        is_default=one.source is ConfigSource.DEFAULT,
        config_source=one.source,
        synonyms=synonyms,
        config_type=one.kind,
        documentation=one.doc if request.include_documentation else None,
    )
