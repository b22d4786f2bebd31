"""Requests that ask for much: others are served meanwhile, and a thing that is named often is told once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import Broker, turns
from penstock.broker.api import describe_configs
from penstock.broker.configs.brokerconfig import load
from penstock.broker.context import Call
from penstock.broker.logs.folder import CLEAN_SHUTDOWN
from penstock.broker.resources import BROKER
from penstock.pyx.wire import messages
from penstock.pyx.wire.header import encode_request
from support.asking import create, end_offset
from support.dataplane import Peer, batch, produce
from support.harness import BrokerProcess, WireConnection

MANY = 40
Asked = messages.DescribeConfigsRequest.DescribeConfigsResource


def test_configs_are_described_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    context: Any = SimpleNamespace(
        config=load(), topics=SimpleNamespace(get=lambda name: SimpleNamespace(configs={})), node_id=1
    )
    resources = [Asked(resource_type=2, resource_name=f"t{number}") for number in range(MANY)]
    others = 0

    async def other(work: asyncio.Task[Any]) -> None:
        nonlocal others
        while not work.done():
            others += 1
            await asyncio.sleep(0)

    async def run() -> Any:
        request = messages.DescribeConfigsRequest(resources=resources)
        work = asyncio.create_task(describe_configs.handle(context, request, Call(4, None, "", "")))
        await other(work)
        return await work

    assert len(asyncio.run(run()).results) == MANY
    assert others >= MANY


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    with Broker(tmp_path) as broker, WireConnection(broker.bootstrap) as asked:
        yield asked


def test_what_is_named_often_is_told_once(connection: WireConnection) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    connection.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
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
