"""What clients hear of groups and transactional ids whose part of the coordinator's log can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.errors import ErrorCode
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire import messages
from penstock.pyx.wire.message import Message
from support.harness import WireConnection

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
ONE_PARTITION = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def spoil(log: Path, key: bytes) -> None:
    """Append a batch with a record of that key whose value nobody can read."""
    builder = BatchBuilder(max_bytes=1000)
    assert builder.append(key, b"\0\x7f", 1)
    end = split(log.read_bytes())[-1].next_offset
    with log.open("ab") as file:
        file.write(end.to_bytes(8, "big") + builder.build()[8:])


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireConnection]:
    data = tmp_path_factory.mktemp("corrupt")
    broker = Broker(data, properties=ONE_PARTITION)
    with broker:
        with WireConnection(broker.bootstrap) as asked:
            asked.ask(messages.CreateTopicsRequest(topics=[new_topic("t")], timeout_ms=60_000), 5)
            assert asked.ask(commit(), 8).topics[0].partitions[0].error_code == 0
            assert asked.ask(init(), 4).error_code == 0
        broker.stop()
        name = "0" * 20 + ".log"
        spoil(data / f"{GROUP_OFFSETS}-0" / name, b"\0\2\0\1h")
        spoil(data / f"{TRANSACTION_STATE}-0" / name, b"\0\0\0\1x")
        broker.start()
        with WireConnection(broker.bootstrap) as asked:
            yield asked


def new_topic(name: str) -> messages.CreateTopicsRequest.CreatableTopic:
    return messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)


def commit(generation: int = -1) -> messages.OffsetCommitRequest:
    own = messages.OffsetCommitRequest
    partition = own.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = own.OffsetCommitRequestTopic(name="t", partitions=[partition])
    return own(group_id="g", generation_id_or_member_epoch=generation, topics=[topic])


def init() -> messages.InitProducerIdRequest:
    return messages.InitProducerIdRequest(transactional_id="y", transaction_timeout_ms=1000)


def test_nobody_hears_that_nothing_is_committed(connection: WireConnection) -> None:
    """A client that did would begin at the end or the start."""
    own = messages.OffsetFetchRequest
    old = own(group_id="g", topics=[own.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert connection.ask(old, 1).topics[0].partitions[0].error_code == NOT_AVAILABLE
    assert connection.ask(old, 5).error_code == NOT_AVAILABLE
    group = own.OffsetFetchRequestGroup(group_id="g", topics=[own.OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    (answer,) = connection.ask(own(groups=[group]), 8).groups
    assert answer.error_code == NOT_AVAILABLE


@pytest.mark.parametrize("generation", [-1, 7])
def test_nobody_may_commit(connection: WireConnection, generation: int) -> None:
    for version in (8, 9):
        answer = connection.ask(commit(generation), version)
        assert answer.topics[0].partitions[0].error_code == NOT_AVAILABLE


JOIN = messages.JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    protocol_type="consumer",
    protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range")],
)
TRANSACTION = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
    transactional_id="x",
    producer_id=0,
    topics=[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])],
)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (JOIN, 2),
        (messages.HeartbeatRequest(group_id="g", member_id="m"), 3),
        (messages.SyncGroupRequest(group_id="g", member_id="m"), 3),
        (messages.LeaveGroupRequest(group_id="g", member_id="m"), 2),
        (messages.DescribeGroupsRequest(groups=["g"]), 5),
        (messages.ConsumerGroupDescribeRequest(group_ids=["g"]), 0),
        (messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1), 1),
        (messages.DeleteGroupsRequest(groups_names=["g"]), 2),
        (messages.OffsetDeleteRequest(group_id="g"), 0),
        (init(), 4),
        (messages.EndTxnRequest(transactional_id="x", producer_id=0), 3),
        (messages.AddOffsetsToTxnRequest(transactional_id="x", producer_id=0, group_id="g"), 3),
        (messages.AddPartitionsToTxnRequest(transactions=[TRANSACTION]), 4),
        (
            messages.AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=TRANSACTION.topics),
            3,
        ),
        (messages.DescribeTransactionsRequest(transactional_ids=["x"]), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
def test_the_coordinator_is_not_available(connection: WireConnection, request_: Message, version: int) -> None:
    answer = connection.ask(request_, version)
    assert NOT_AVAILABLE in codes(answer)


def codes(struct: object) -> set[int]:
    """Every error code in an answer."""
    found = set()
    for name in getattr(struct, "__slots__", ()):
        value = getattr(struct, name)
        if name in ("error_code", "partition_error_code"):
            found.add(value)
        for item in value if isinstance(value, list) else ():
            found |= codes(item)
    return found
