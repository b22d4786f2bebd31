"""Partitions that move between log folders while clients write and read: nobody hears an error, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.pyx.wire.requests import fetch_request
from support.dataplane import Peer, batch
from support.harness import topic_name
from support.moves import Folders

MOVES = 20
IN_FLIGHT = 5
VERSION = 9
LATEST = -1


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    made = Folders(tmp_path_factory.mktemp("folders"))
    yield made
    made.broker.close()


class Moves:
    """Moves a partition between two folders, one time after another, until MOVES of them are over."""

    def __init__(self, folders: Folders, topic: str) -> None:
        self._folders = folders
        self._key = (topic, 0)
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._move)

    def _move(self) -> None:
        try:
            here = self._folders.described()[self._key][0][0]
            for _ in range(MOVES):
                here = "b" if here != "b" else "c"
                assert self._folders.ask(self._key, here) == 0
                assert self._folders.settle()[self._key] == here
        finally:
            self.over.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.wait()
        self._thread.join()


class Pipelining(threading.Thread):
    """An idempotent producer of raw frames, IN_FLIGHT at a time, until `over`; `codes` are those of its answers."""

    def __init__(self, port: int, topic: str, producer_id: int, over: threading.Event) -> None:
        super().__init__()
        self.codes: list[int] = []
        self.sent = 0
        self._port, self._topic, self._id, self._over = port, topic, producer_id, over

    def run(self) -> None:
        with Peer(self._port) as peer:
            waiting: deque[int] = deque()
            while not self._over.is_set() or waiting:
                while len(waiting) < IN_FLIGHT and not self._over.is_set():
                    peer.send(self._frame(self.sent))
                    waiting.append(self.sent)
                    self.sent += 1
                number, message = decode_response(ProduceResponse, peer.receive(), VERSION)
                assert number == waiting.popleft()
                self.codes.append(message.responses[0].partition_responses[0].error_code)

    def _frame(self, sequence: int) -> bytes:
        records = batch([self.value(sequence)], producer_id=self._id, producer_epoch=0, base_sequence=sequence)
        one = ProduceRequest.PartitionProduceData(index=0, records=records)
        topic = ProduceRequest.TopicProduceData(name=self._topic, partition_data=[one])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
        return encode_request(request, VERSION, sequence, "test")

    def value(self, sequence: int) -> bytes:
        return b"%d %d" % (self._id, sequence)


class Asking(threading.Thread):
    """Asks for the end of a partition, and for what lies there, until `over`."""

    def __init__(self, port: int, topic: str, over: threading.Event) -> None:
        super().__init__()
        self.codes: list[int] = []
        self._port, self._topic, self._over = port, topic, over

    def run(self) -> None:
        own = ListOffsetsRequest
        latest = own.ListOffsetsTopic(
            name=self._topic,
            partitions=[own.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)],
        )
        with Peer(self._port) as peer:
            while not self._over.is_set():
                asked = own(replica_id=-1, isolation_level=0, topics=[latest])
                offsets = peer.ask(asked, 5, ListOffsetsResponse)
                end = offsets.topics[0].partitions[0]
                fetch = fetch_request(self._topic, 0, max(end.offset, 0), 1 << 20, 100)
                answer = peer.ask(fetch, 12, FetchResponse)
                self.codes += [end.error_code, answer.responses[0].partitions[0].error_code]


def test_no_request_is_refused(folders: Folders) -> None:
    topic = topic_name("load")
    folders.create(topic, 1, segment_bytes=1 << 20)
    port = int(folders.broker.bootstrap.rpartition(":")[2])
    with Moves(folders, topic) as moves:
        producers = [Pipelining(port, topic, 7000 + i, moves.over) for i in range(3)]
        asking = Asking(port, topic, moves.over)
        for thread in [*producers, asking]:
            thread.start()
    for thread in [*producers, asking]:
        thread.join()
    found = folders.values((topic, 0))
    for one in producers:
        assert set(one.codes) == {0} and len(one.codes) == one.sent
        prefix = one.value(0).split()[0] + b" "
        assert [value for value in found if value.startswith(prefix)] == [one.value(i) for i in range(one.sent)]
    assert asking.codes and set(asking.codes) == {0}
    said = re.findall(rf"moved topic={topic} .* closed for [0-9.]+ ms, (\d+) produces held", folders.broker.log_text())
    assert len(said) == MOVES and sum(map(int, said)) > 0


def with_confluent(bootstrap: str, topic: str, over: threading.Event) -> list[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 20})
    values: list[bytes] = []
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    while not over.is_set():
        values.append(b"%d" % len(values))
        producer.produce(topic, values[-1], partition=0, on_delivery=told)
        producer.poll(0.001)
    assert producer.flush(60) == 0
    assert failed == []
    return values


def with_aiokafka(bootstrap: str, topic: str, over: threading.Event) -> list[bytes]:
    async def run() -> list[bytes]:
        values: list[bytes] = []
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        sent = []
        while not over.is_set():
            values.append(b"%d" % len(values))
            sent.append(await producer.send(topic, values[-1], partition=0))
            await asyncio.sleep(0.001)
        await asyncio.gather(*sent)
        await producer.stop()
        return values

    return asyncio.run(run())


def with_kafka_python(bootstrap: str, topic: str, over: threading.Event) -> list[bytes]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1)
    values: list[bytes] = []
    sent = []
    while not over.wait(0.001):
        values.append(b"%d" % len(values))
        sent.append(producer.send(topic, values[-1], partition=0))
    producer.flush(60)
    for one in sent:
        one.get(60)
    producer.close()
    return values


@pytest.mark.parametrize("client", [with_confluent, with_aiokafka, with_kafka_python])
def test_clients_lose_nothing(folders: Folders, client: Callable[[str, str, threading.Event], list[bytes]]) -> None:
    topic = topic_name("clients")
    folders.create(topic, 1, segment_bytes=1 << 20)
    with Moves(folders, topic) as moves:
        values = client(folders.broker.bootstrap, topic, moves.over)
    assert values and folders.values((topic, 0)) == values
