"""What all groups obey: broker properties of both protocols, and the config resources of single groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.config import ConfigError

INT_MAX = (1 << 31) - 1


class MigrationPolicy(Enum):
    """`group.consumer.migration.policy`: which protocol's groups with members may become the other's."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(slots=True, frozen=True)
class GroupSettings:
    """What a group's own config resource may say otherwise than the broker; ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """The broker properties that groups obey, by Kafka's names; times in ms."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    consumer: GroupSettings = GroupSettings()
    consumer_max_size: int = INT_MAX
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_interval_ms: int = 600_000


def group_config(config: Mapping[str, Any]) -> GroupConfig:
    """From the broker's properties."""
    return GroupConfig(
        min_session_timeout_ms=config["group.min.session.timeout.ms"],
        max_session_timeout_ms=config["group.max.session.timeout.ms"],
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        max_size=config["group.max.size"],
        offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        consumer=GroupSettings(
            config["group.consumer.session.timeout.ms"],
            config["group.consumer.heartbeat.interval.ms"],
            config["group.consumer.assignment.interval.ms"],
        ),
        consumer_max_size=config["group.consumer.max.size"],
        consumer_assignors=tuple(config["group.consumer.assignors"]),
        migration=MigrationPolicy(config["group.consumer.migration.policy"].lower()),
        regex_refresh_interval_ms=config["group.consumer.regex.refresh.interval.ms"],
    )


def check_bounds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the properties of groups fit each other, as Kafka asks at its start."""
    pairs = [("group.min.session.timeout.ms", "group.max.session.timeout.ms")]
    for kind in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        least, value, most = (f"group.consumer.{bound}{kind}" for bound in ("min.", "", "max."))
        pairs += [(least, value), (value, most)]
    for low, high in pairs:
        if config[low] > config[high]:
            raise ConfigError(f"{low}={config[low]} is above {high}={config[high]}")
    session, heartbeat = "group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms"
    if config[heartbeat] >= config[session]:
        raise ConfigError(f"{heartbeat}={config[heartbeat]} has to be below {session}={config[session]}")
