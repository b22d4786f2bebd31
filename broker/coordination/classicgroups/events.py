"""What a classic group is asked, what it answers, and what its appends were for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.broker.coordination.classicgroups.state import Member, Protocols


@dataclass(slots=True)
class Join:
    """JoinGroup. `fresh_member_id` is used if the member has none. Answered by JoinResult."""

    token: object
    member_id: str
    fresh_member_id: str
    instance_id: str | None
    require_known_member: bool
    can_skip_assignment: bool
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols


@dataclass(slots=True)
class JoinResult:
    """Members are given to the leader only: (member id, instance id, metadata)."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()


@dataclass(slots=True)
class Sync:
    """SyncGroup; assignments come from the leader. Answered by SyncResult."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(slots=True)
class SyncResult:
    """The member's assignment, and what the group agreed on."""

    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True)
class Heartbeat:
    """Heartbeat. Answered by an error code."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(slots=True)
class Leave:
    """LeaveGroup of (member id, instance id) pairs. Answered by (error, [error of each])."""

    token: object
    members: Sequence[tuple[str, str | None]]


@dataclass(slots=True)
class AfterAssignment:
    generation: int
    assignment: dict[str, bytes]


@dataclass(slots=True)
class AfterStaticSwap:
    """A static member came back with a new id while the group was stable; see `_static_member_returned`."""

    member_id: str
    old: Member
    old_leader: str | None
    generation: int
    can_skip_assignment: bool


@dataclass(slots=True)
class AfterDelete:
    token: object


@dataclass(slots=True)
class AfterEmpty:
    """An empty generation was stored; nobody waits for it."""
