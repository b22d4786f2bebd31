"""The events that only a consumer group knows, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.broker.coordination.consumergroups.state import Partitions


@dataclass(slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat; None is "as before". Answered by HeartbeatResult.

    `member_epoch` 0 joins, -1 leaves, -2 leaves for a while (static members). `topics` are sorted. `resolved` are
    the topics that match `pattern`, None if it wasn't evaluated yet. `owned` is what the member says that it owns.
    """

    token: object
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    resolved: frozenset[str] | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(slots=True)
class HeartbeatResult:
    """What a member hears; the assignment only when it has to know it."""

    error: int
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class PatternsResolved:
    """Subscriptions by pattern were evaluated against the topics of that version of the catalog."""

    found: Mapping[str, frozenset[str]]
    version: int
