"""The configs that a group of the consumer protocol may have of its own (KIP-848, KIP-1092's names).

Each stands over a property of the broker, which also bounds it: `group.consumer.min.*` and `group.consumer.max.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.broker.configs.brokerconfig import BrokerConfig, ConfigSource, Described
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.configs.topicconfig import ConfigType, checked, text_of
from penstock.errors import ErrorCode, KafkaError

# Config -> help. `consumer.x` stands over `group.consumer.x`, between `group.consumer.min.x` and `.max.x`.
GROUP_CONFIGS = {
    "consumer.assignment.interval.ms": "Least time between two assignments of the group.",
    "consumer.heartbeat.interval.ms": "How often the group's members send heartbeats.",
    "consumer.session.timeout.ms": "Time without a heartbeat after which a member is out.",
}


def parse_group_config(name: str, text: str) -> int:
    """The value of a group's config, whatever the broker's bounds are. Raises KafkaError INVALID_CONFIG."""
    if name not in GROUP_CONFIGS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
    return int(checked(name, text, ConfigType.INT, SCHEMA.properties[f"group.{name}"].parse))


def check_group_configs(config: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Raise KafkaError INVALID_CONFIG for a name or a value that no group can have."""
    for name, text in texts.items():
        value = parse_group_config(name, text)
        short = name.removeprefix("consumer.")
        least, most = f"group.consumer.min.{short}", f"group.consumer.max.{short}"
        if value < config[least]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to {least}")
        if value > config[most]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {most}")


def describe_group(config: BrokerConfig, texts: Mapping[str, str]) -> list[Described]:
    """Every config of a group that has these of its own."""
    described = []
    for name, doc in GROUP_CONFIGS.items():
        behind = f"group.{name}"
        source = ConfigSource.STATIC_BROKER if behind in config.given else ConfigSource.DEFAULT
        layers = [(behind, text_of(config[behind]), source)]
        if name in texts:
            layers.insert(0, (name, texts[name], ConfigSource.GROUP))
        described.append(
            Described(name, layers[0][1], layers[0][2], ConfigType.INT, doc, read_only=False, synonyms=tuple(layers))
        )
    return described
