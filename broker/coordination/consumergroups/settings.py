"""What a group's own config resource (type 32) says otherwise than the broker; the texts were checked when set."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.configs.groupconfig import GroupSettings

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


def settings_of(configs: Mapping[str, str], default: GroupSettings) -> GroupSettings:
    """The settings of a group with these configs of its own."""
    if not configs:
        return default
    return GroupSettings(
        int(configs.get(SESSION, default.session_timeout_ms)),
        int(configs.get(HEARTBEAT, default.heartbeat_interval_ms)),
        int(configs.get(ASSIGNMENT, default.assignment_interval_ms)),
    )
