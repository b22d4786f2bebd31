"""Names as long as the wire carries them don't stop the group that they come to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.pyx.wire import messages
from penstock.pyx.wire.messages import JoinGroupRequest, SyncGroupRequest
from support.harness import WireConnection

LONGEST = 32_767
PROPERTIES = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[WireConnection]:
    with Broker(tmp_path, properties=PROPERTIES) as broker, WireConnection(broker.bootstrap) as asked:
        yield asked


def join(connection: WireConnection, instance_id: str) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x")
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[protocol],
    )
    return connection.ask(request, 5)


def test_a_member_with_the_longest_instance_id(connection: WireConnection) -> None:
    instance_id = "i" * LONGEST
    joined = join(connection, instance_id)
    assert not joined.error_code
    assert joined.member_id.startswith("iii")
    assigned = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=instance_id,
        assignments=[assigned],
    )
    assert bytes(connection.ask(request, 3).assignment) == b"all"
    (group,) = connection.ask(messages.DescribeGroupsRequest(groups=["g"]), 5).groups
    assert group.group_state == "Stable"
