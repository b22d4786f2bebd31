"""What a broker answers whose lead is new, or over, of where a log begins and ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from penstock.broker.api import list_offsets, offset_for_leader_epoch
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.wire.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest
from support.harness import topic_name
from support.logs import LOGS, TOPIC_ID, batch
from support.onloop import on_loop

T = TypeVar("T")
CALL = Call(0, None, "", "")


async def at_once(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


CONTEXT = cast(
    "Context",
    SimpleNamespace(
        log_manager=LOGS,
        topics=SimpleNamespace(
            check_leader_epoch=lambda *asked: None,
            partition=lambda *asked: None,
            logs=SimpleNamespace(moving=SimpleNamespace(retried=at_once)),
        ),
    ),
)


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """Three records of an earlier lead, and a new one, whose only follower hasn't fetched yet."""
    made = topic_name("led")
    LOGS.open_replica(made, TOPIC_ID, 0, str(tmp_path), {})
    lead(made, 1)
    for _ in range(3):
        LOGS.append_client(made, 0, batch())
    lead(made, 2)
    yield made
    LOGS.delete(made, 0)


def lead(name: str, epoch: int) -> None:
    assert LOGS.set_leader(
        name, 0, broker_epoch=9, leader_epoch=epoch, partition_epoch=epoch, replicas=[Replica(1, True, True, 8)], enough=1
    )


async def offset(name: str, timestamp: int, version: int) -> tuple[int, int]:
    """Error code and offset."""
    one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[one])])
    call: Any = Call(version, None, "", "")
    answer = (await list_offsets.handle(CONTEXT, request, call)).topics[0].partitions[0]
    return answer.error_code, answer.offset


@on_loop
async def test_a_new_leader_says_no_end_before_it_knows_how_far_the_one_before_has_shown_records(name: str) -> None:
    assert await offset(name, -1, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert await offset(name, 1, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert await offset(name, -1, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert await offset(name, -2, 5) == (0, 0)
    LOGS.replica_fetched(name, 0, replica=1, broker_epoch=8, leader_epoch=2, offset=3, last_epoch=1, now_ms=1)
    assert await offset(name, -1, 5) == (0, 3)


@on_loop
async def test_a_broker_that_follows_says_nothing_of_a_log(name: str) -> None:
    LOGS.set_follower(name, 0, broker_epoch=9, leader=1, leader_epoch=3, partition_epoch=3, unclean_epoch=-1)
    assert await offset(name, -1, 5) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert await offset(name, -2, 5) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=1)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[asked])
    answer = await offset_for_leader_epoch.handle(CONTEXT, OffsetForLeaderEpochRequest(topics=[topic]), CALL)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
