"""Configs of topics, brokers, loggers and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import raise_for
from penstock.pipeline.clients.client import ANY_NODE, Client
from penstock.pyx.wire import messages

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
LOGGER_RESOURCE = 8
GROUP_RESOURCE = 32
# Where DescribeConfigs says that a value was set for the resource itself: topic, altered broker, logger, group.
OWN_SOURCES = frozenset({1, 2, 3, 6, 8})
STATIC_BROKER_SOURCE = 4


class ConfigEntry(NamedTuple):
    """One config of a resource. `is_own`: it was set for this resource, not taken from a default."""

    name: str
    value: str | None
    source: int
    read_only: bool
    is_own: bool


async def describe_configs(client: Client, kind: int, name: str) -> dict[str, str | None]:
    """All configs of a topic (TOPIC_RESOURCE) or a broker (BROKER_RESOURCE, name = its id)."""
    return {entry.name: entry.value for entry in await config_entries(client, kind, name)}


async def config_entries(client: Client, kind: int, name: str) -> list[ConfigEntry]:
    """The same with where each comes from; also of a group (GROUP_RESOURCE) or a broker's loggers."""
    resource = messages.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = messages.DescribeConfigsRequest(resources=[resource])
    node_id = _node_of(kind, name)
    own = OWN_SOURCES | ({STATIC_BROKER_SOURCE} if kind == BROKER_RESOURCE else frozenset())

    async def attempt() -> list[ConfigEntry]:
        answer: messages.DescribeConfigsResponse = await client.send(node_id, request)
        (result,) = answer.results
        raise_for(result.error_code, f"configs of `{name}`: {result.error_message}")
        return [
            ConfigEntry(entry.name, entry.value, entry.config_source, entry.read_only, entry.config_source in own)
            for entry in sorted(result.configs, key=lambda entry: entry.name)
        ]

    return await client.retry(attempt)


async def alter_configs(client: Client, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic or broker; None puts one back to its default."""
    request_resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    resource = request_resource(
        resource_type=kind,
        resource_name=name,
        configs=[
            messages.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=int(value is None), value=value)
            for key, value in changes.items()
        ],
    )
    request = messages.IncrementalAlterConfigsRequest(resources=[resource])
    node_id = _node_of(kind, name)

    async def attempt() -> None:
        answer: messages.IncrementalAlterConfigsResponse = await client.send(node_id, request)
        for result in answer.responses:
            raise_for(result.error_code, f"configs of `{name}`: {result.error_message}")

    await client.retry(attempt)


def _node_of(kind: int, name: str) -> int:
    """The broker to ask about a resource: a broker itself knows its own configs and loggers."""
    return int(name) if kind in (BROKER_RESOURCE, LOGGER_RESOURCE) and name else ANY_NODE
