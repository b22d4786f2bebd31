"""Requests that ask for much: others are served meanwhile, and a thing that is named often is told once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import Broker, turns
from penstock.broker.api import create_partitions, create_topics, delete_topics, describe_configs
from penstock.broker.configs.brokerconfig import load
from penstock.broker.context import Call
from penstock.broker.logs.folder import CLEAN_SHUTDOWN
from penstock.broker.resources import BROKER
from penstock.broker.topics.changes import CHANGES_MAX
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire import messages
from penstock.pyx.wire.header import encode_request
from support.asking import create, end_offset
from support.dataplane import Peer, batch, produce
from support.harness import BrokerProcess, WireConnection
from support.patience import until

MANY = 40
ASKED_S = 300.0
"""Thousands of topics in one request take seconds of a processor, which may have others to serve."""
Wanted = messages.CreateTopicsRequest.CreatableTopic
Asked = messages.DescribeConfigsRequest.DescribeConfigsResource


def test_configs_are_described_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    context: Any = SimpleNamespace(
        config=load(), topics=SimpleNamespace(get=lambda name: SimpleNamespace(configs={})), node_id=1
    )
    resources = [Asked(resource_type=2, resource_name=f"t{number}") for number in range(MANY)]
    request = messages.DescribeConfigsRequest(resources=resources)
    answer, others = beside_others(describe_configs.handle(context, request, Call(4, None, "", "")))
    assert len(answer.results) == MANY
    assert others >= MANY


def beside_others(handled: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """What a handler answers or raises, and how often the loop did other work meanwhile."""
    others = 0

    async def other(work: asyncio.Task[Any]) -> None:
        nonlocal others
        while not work.done():
            others += 1
            await asyncio.sleep(0)

    async def run() -> Any:
        work = asyncio.create_task(handled)
        await other(work)
        return work.exception() or work.result()

    return asyncio.run(run()), others


@pytest.mark.parametrize(
    ("handler", "request_of_many"),
    [
        (create_topics, messages.CreateTopicsRequest(topics=[Wanted(name=f"t{n}", num_partitions=9_999) for n in range(MANY)])),
        (
            create_partitions,
            messages.CreatePartitionsRequest(
                topics=[messages.CreatePartitionsRequest.CreatePartitionsTopic(name=f"u{n}", count=9_999) for n in range(MANY)]
            ),
        ),
        (delete_topics, messages.DeleteTopicsRequest(topic_names=[f"u{n}" for n in range(CHANGES_MAX + 1)])),
    ],
    ids=["create", "grow", "delete"],
)
def test_what_is_too_much_is_counted_in_turns(monkeypatch: pytest.MonkeyPatch, handler: Any, request_of_many: Any) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    there = SimpleNamespace(partitions=[])
    context: Any = SimpleNamespace(topics=SimpleNamespace(get=lambda name: there if name[0] == "u" else None))
    refused, others = beside_others(handler.handle(context, request_of_many, Call(1, None, "", "")))
    assert isinstance(refused, KafkaError) and refused.code == ErrorCode.POLICY_VIOLATION
    assert others >= MANY


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    with Broker(tmp_path) as broker, WireConnection(broker.bootstrap, ASKED_S) as asked:
        yield asked


def test_what_is_named_often_is_told_once(connection: WireConnection) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    connection.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
    configs = [Asked(resource_type=BROKER, resource_name="1")] * MANY
    (told,) = connection.ask(messages.DescribeConfigsRequest(resources=configs), 4).results
    assert len(told.configs) > MANY
    assert len(connection.ask(messages.DescribeGroupsRequest(groups=["g"] * MANY), 5).groups) == 1
    assert len(connection.ask(messages.ConsumerGroupDescribeRequest(group_ids=["g"] * MANY), 1).groups) == 1
    ids = messages.DescribeTransactionsRequest(transactional_ids=["x"] * MANY)
    assert len(connection.ask(ids, 0).transaction_states) == 1
    group = messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    assert len(connection.ask(messages.OffsetFetchRequest(groups=[group] * MANY), 8).groups) == 1
    producers = messages.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0] * MANY)
    (answer,) = connection.ask(messages.DescribeProducersRequest(topics=[producers] * 2), 0).topics
    assert len(answer.partitions) == 1


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
def test_topics_are_created_no_further_once_the_client_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, resets: bool
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns, "HALF_CLOSED_S", 0.0)
    with Broker(tmp_path) as broker, WireConnection(broker.bootstrap) as connection:
        _go_before_all_are_created(broker, connection, caplog, resets)


def _go_before_all_are_created(
    broker: Broker, connection: WireConnection, caplog: pytest.LogCaptureFixture, resets: bool
) -> None:
    topics = [Wanted(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(4_000)]

    def count() -> int:
        return len(connection.ask(messages.MetadataRequest(topics=None), 9).topics)

    asked = encode_request(messages.CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5, 1, "c")
    with caplog.at_level("INFO"), Peer(int(broker.bootstrap.rpartition(":")[2])) as going:
        going.send(asked)
        until(lambda: count() > 0, "a topic is created")
        if resets:
            going.reset()
        else:
            going.socket.close()
        until(lambda: "has gone; what is left of its request is not done" in caplog.text, "it is said that the client has gone")
    created = count()
    connection.ask(messages.CreateTopicsRequest(topics=[Wanted(name="last", num_partitions=1, replication_factor=1)]), 5)
    assert 0 < created < len(topics) and count() == created + 1


def test_what_kafka_would_not_write_as_one_batch_is_refused_as_a_whole(connection: WireConnection) -> None:
    def create_topics(count: int, partitions: int, **more: Any) -> set[int]:
        topics = [Wanted(name=f"t{number}", num_partitions=partitions, replication_factor=1) for number in range(count)]
        answer = connection.ask(messages.CreateTopicsRequest(topics=topics, timeout_ms=60_000, **more), 5)
        assert len(answer.topics) == count
        return {one.error_code for one in answer.topics}

    assert create_topics(5_001, 1, validate_only=True) == {ErrorCode.POLICY_VIOLATION}
    assert create_topics(1, CHANGES_MAX) == {ErrorCode.POLICY_VIOLATION}
    assert create_topics(200, 49, validate_only=True) == {ErrorCode.NONE}
    assert create_topics(1, 5) == {ErrorCode.NONE}
    assert create_topics(5_000, 1, validate_only=True) == {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    for grown, error in ((CHANGES_MAX + 6, ErrorCode.POLICY_VIOLATION), (7, ErrorCode.NONE)):
        more = [messages.CreatePartitionsRequest.CreatePartitionsTopic(name="t0", count=grown, assignments=None)]
        (result,) = connection.ask(messages.CreatePartitionsRequest(topics=more, timeout_ms=60_000), 3).results
        assert result.error_code == error


def test_a_stop_does_not_wait_for_the_expensive_requests_that_have_come(broker: BrokerProcess) -> None:
    """Two connections have sent 32 produces each, every one of which a thread needs long for."""
    pipelined = 32
    expensive = batch([bytes(60 << 20)], codec=1)
    create(broker, "expensive")
    port = int(broker.bootstrap.rpartition(":")[2])
    frames = [encode_request(produce("expensive", expensive, 9), 9, number, "c") for number in range(pipelined)]
    with Peer(port) as first, Peer(port) as second:
        for peer in (first, second):
            peer.send_all(frames)
        first.receive()
        answered = 1
        broker.signal(signal.SIGTERM)
        assert broker._reap() == 0
        assert (broker.data / CLEAN_SHUTDOWN).exists()
        for peer in (first, second):
            with contextlib.suppress(EOFError, ConnectionResetError):
                while peer.receive():
                    answered += 1
    broker.start()
    assert answered <= end_offset(broker, "expensive") < 2 * pipelined
