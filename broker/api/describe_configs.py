"""DescribeConfigs: the configs in force of topics and of this broker, and where each comes from (KIP-133,
226, 569).

Versions 1-4. Resources: topic (2), broker (4, by its id; the empty name = the cluster's defaults, of which
there are none). Loggers (8), client metrics and groups are refused with INVALID_REQUEST.
"""

from collections.abc import Iterable

from penstock.broker.config import ConfigSource, Described
from penstock.broker.context import Call, Context
from penstock.broker.topics import check_name
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

KEY, VERSIONS = 32, (1, 4)
TOPIC, BROKER = 2, 4

Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


async def handle(context: Context, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    """Answer per resource; one that fails does not touch the others."""
    response = DescribeConfigsResponse()
    for resource in request.resources:
        result = Result(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            described = _describe(context, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.what
        else:
            keys = resource.configuration_keys
            result.configs = [
                _entry(one, request) for one in described if keys is None or not keys or one.name in keys
            ]
        response.results.append(result)
    return response


def _describe(context: Context, kind: int, name: str) -> Iterable[Described]:
    if kind == TOPIC:
        check_name(name)
        topic = context.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is unknown.")
        return context.config.describe_topic(topic.configs)
    if kind == BROKER:
        if name == "":
            return []
        check_broker(context, name)
        return context.config.describe_broker()
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def check_broker(context: Context, name: str) -> None:
    """Raise KafkaError INVALID_REQUEST unless the resource name is this broker's id."""
    if name != str(context.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.node_id} or empty string, but received {name}",
        )


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
        is_default=one.source is ConfigSource.DEFAULT,
        config_source=one.source,
        synonyms=synonyms,
        config_type=one.kind,
        documentation=one.doc if request.include_documentation else None,
    )
