"""What consumers of the classic protocol send each other through their group: subscriptions and assignments as bytes.

Both are a version and a message. Newer versions only add to the end, so of a newer one what is known is read.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.pyx.wire.header import decode_version
from penstock.pyx.wire.message import Message, WireError
from penstock.pyx.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

M = TypeVar("M", bound=Message)

PROTOCOL_TYPE = "consumer"
"""As JoinGroup names it; members of other types (Connect's) send each other other bytes."""


def read_subscription(data: bytes | memoryview) -> ConsumerProtocolSubscription:
    """A member's subscription, of JoinGroup. Raises WireError."""
    return _read(ConsumerProtocolSubscription, data)


def read_assignment(data: bytes | memoryview) -> ConsumerProtocolAssignment:
    """A member's partitions, of SyncGroup; no bytes are none. Raises WireError."""
    return _read(ConsumerProtocolAssignment, data) if len(data) else ConsumerProtocolAssignment()


def version_of(subscription: bytes) -> int:
    """The version of a subscription: what its member understands; the newest that is known for a newer one."""
    if len(subscription) < 2:
        return 0
    return max(0, min(decode_version(subscription)[0], ConsumerProtocolSubscription.MAX_VERSION))


def _read(kind: type[M], data: bytes | memoryview) -> M:
    version, body = decode_version(data)
    if version < 0:
        raise WireError(f"version {version}")
    return kind.decode(body, min(version, kind.MAX_VERSION), trailing=True)
