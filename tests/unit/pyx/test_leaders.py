"""Who is asked for a partition that another broker leads says which one (KIP-951): in Produce from version 10 on, in Fetch from
version 16 on. The bytes are those of the codec, which Kafka's own bytes are held against (test_wire_golden.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.wire.header import decode_response, encode_request, encode_response
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, batch, fetch, fetched, produce, produced, topic_id
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until

Address = tuple[int, str, int, str | None]
US, US_EPOCH, OTHER_EPOCH = 1, 50, 101
EPOCH = 6
CLIENTS: list[Address] = [(2, "two.example", 9092, None), (3, "three.example", 9093, "rack-3")]
BROKERS: list[Address] = [(2, "10.0.0.2", 19092, None)]


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(lambda request: None) as made:
        made.plane.set_addresses({"PLAINTEXT": CLIENTS, "BROKERS": BROKERS})
        yield made


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[str]:
    """Three partitions, which this broker leads with another one in sync."""
    name = topic_name("leaders")
    for index in range(3):
        LOGS.open_replica(name, topic_id(name), index, str(tmp_path), {})
        lead(name, index)
    yield name
    for index in range(3):
        LOGS.delete(name, index)


def lead(name: str, index: int, version: int = 0) -> None:
    assert LOGS.set_leader(
        name, index, broker_epoch=US_EPOCH, leader_epoch=EPOCH - 1, partition_epoch=version,
        replicas=[Replica(2, True, True, OTHER_EPOCH)], enough=2,
    )  # fmt: skip


def follow(name: str, index: int, leader: int = 2) -> None:
    assert LOGS.set_follower(
        name, index, broker_epoch=US_EPOCH, leader=leader, leader_epoch=EPOCH, partition_epoch=1, unclean_epoch=-1
    )


def ask(peer: Peer, request: ProduceRequest | FetchRequest, version: int) -> Message:
    """The answer, whose bytes are the codec's."""
    peer.send(encode_request(request, version, 7, "test"))
    return read(peer, ProduceResponse if isinstance(request, ProduceRequest) else FetchResponse, version)


def read(peer: Peer, kind: type[Message], version: int) -> Message:
    frame = peer.receive()
    number, answer = decode_response(kind, frame, version)
    assert encode_response(answer, version, number) == frame
    return answer


def endpoints(answer: Message) -> list[tuple[int, str, int, str | None]]:
    assert isinstance(answer, (ProduceResponse, FetchResponse))
    return [(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]


def named(answer: Message) -> list[tuple[int, int, int, int]]:
    """Index, error, leader and epoch of each partition."""
    if isinstance(answer, ProduceResponse):
        found = [(one.index, one) for topic in answer.responses for one in topic.partition_responses]
    else:
        assert isinstance(answer, FetchResponse)
        found = [(one.partition_index, one) for topic in answer.responses for one in topic.partitions]  # type: ignore[misc]
    return [(index, one.error_code, one.current_leader.leader_id, one.current_leader.leader_epoch) for index, one in found]


def produce_all(name: str, version: int, acks: int = -1, count: int = 3) -> ProduceRequest:
    request = produce(name, batch([b"x"]), version, acks)
    part = ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data = [part(index=index, records=batch([b"x"])) for index in range(count)]
    return request


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_produce_is_told_the_leader(served: Broker, topic: str, version: int, acks: int) -> None:
    follow(topic, 0)
    with served.connect() as peer:
        answer = ask(peer, produce(topic, batch([b"x"]), version, acks), version)
    assert isinstance(answer, ProduceResponse)
    assert produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert named(answer)[0][2:] == ((2, EPOCH) if version >= 10 else (-1, -1))
    assert endpoints(answer) == (CLIENTS[:1] if version >= 10 else [])


@pytest.mark.parametrize("version", [9, 12, 15, 16, 18])
def test_a_fetch_is_told_the_leader(served: Broker, topic: str, version: int) -> None:
    follow(topic, 0, leader=3)
    with served.connect() as peer:
        answer = ask(peer, fetch(topic, 0, version), version)
    assert isinstance(answer, FetchResponse)
    assert fetched(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert named(answer)[0][2:] == ((3, EPOCH) if version >= 16 else (-1, -1))
    assert endpoints(answer) == (CLIENTS[1:] if version >= 16 else [])


def test_a_fetch_of_an_older_epoch_is_told_the_newer_one(served: Broker, topic: str) -> None:
    follow(topic, 0)
    with served.connect() as peer:
        followed = ask(peer, fetch(topic, 0, 18, epoch=EPOCH - 2), 18)
        led = ask(peer, fetch(topic, 0, 18, index=1, epoch=EPOCH - 2), 18)
    fenced = int(ErrorCode.FENCED_LEADER_EPOCH)
    assert (named(followed), endpoints(followed)) == ([(0, fenced, 2, EPOCH)], CLIENTS[:1])
    assert named(led) == [(1, fenced, US, EPOCH - 1)]


def test_addresses_are_those_of_the_listener_that_was_asked(served: Broker, topic: str) -> None:
    follow(topic, 0)
    with served.between() as peer:
        assert endpoints(ask(peer, fetch(topic, 0, 18), 18)) == BROKERS
        assert endpoints(ask(peer, produce(topic, batch([b"x"]), 13), 13)) == BROKERS


def test_a_leader_without_an_address_is_named_alone(served: Broker, topic: str) -> None:
    follow(topic, 0, leader=9)
    with served.connect() as peer:
        for request, version in ((fetch(topic, 0, 18), 18), (produce(topic, batch([b"x"]), 13), 13)):
            answer = ask(peer, request, version)
            assert (named(answer)[0][2:], endpoints(answer)) == ((9, EPOCH), [])


@pytest.mark.parametrize("role", ["nobody leads", "fenced", "isolated"])
def test_nobody_is_named_where_no_leader_is_known(served: Broker, topic: str, role: str) -> None:
    if role == "nobody leads":
        follow(topic, 0, leader=-1)
    elif role == "isolated":
        assert (topic, 0) in LOGS.isolate(-1)  # Its time began within this millisecond, or before.
    else:
        LOGS.fence(topic, 0)
    refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    try:
        with served.connect() as peer:
            for request, version in ((fetch(topic, 0, 18), 18), (produce(topic, batch([b"x"]), 13), 13)):
                answer = ask(peer, request, version)
                assert (named(answer), endpoints(answer)) == ([(0, refused, -1, -1)], [])
    finally:
        LOGS.isolate(None)


def test_each_partition_of_a_request_has_its_own_leader(served: Broker, topic: str) -> None:
    follow(topic, 0, leader=3)
    follow(topic, 2, leader=2)
    refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    wanted = [(0, refused, 3, EPOCH), (1, 0, -1, -1), (2, refused, 2, EPOCH)]
    with served.connect() as peer:
        answer = ask(peer, produce_all(topic, 13, acks=1), 13)
        assert (named(answer), endpoints(answer)) == (wanted, CLIENTS)
        asked = fetch(topic, 0, 18)
        asked.topics[0].partitions += [
            FetchRequest.FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in (1, 2)
        ]
        answer = ask(peer, asked, 18)
        assert (named(answer), endpoints(answer)) == (wanted, CLIENTS)


def test_many_partitions_of_a_request_are_answered_as_one(served: Broker, topic: str) -> None:
    """A worker serves so many; the list of addresses has as many as there are leaders."""
    follow(topic, 0, leader=3)
    request = produce_all(topic, 13, acks=1, count=1)
    request.topic_data[0].partition_data *= 600
    refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with served.connect() as peer:
        answer = ask(peer, request, 13)
    assert (named(answer), endpoints(answer)) == ([(0, refused, 3, EPOCH)] * 600, CLIENTS[1:])


@pytest.mark.parametrize("version", [9, 10, 13])
def test_a_produce_that_waits_is_told_who_leads_once_the_lead_is_lost(served: Broker, topic: str, version: int) -> None:
    """One partition is refused at once, two wait, and one of those loses its leader: the answer names both leaders."""
    follow(topic, 2, leader=3)
    refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with served.connect() as peer:
        peer.send(encode_request(produce_all(topic, version), version, 7, "test"))
        until(lambda: [LOGS.offsets(topic, index).log_end for index in (0, 1)] == [1, 1], "the appends")
        assert peer.is_silent()
        LOGS.replica_fetched(
            topic, 1, replica=2, broker_epoch=OTHER_EPOCH, leader_epoch=EPOCH - 1, offset=1, last_epoch=EPOCH - 1, now_ms=1
        )
        assert peer.is_silent()
        follow(topic, 0)
        answer = read(peer, ProduceResponse, version)
        again = ask(peer, produce(topic, batch([b"y"]), version, 1, index=1), version)
    if version < 10:
        assert (named(answer), endpoints(answer)) == ([(0, refused, -1, -1), (1, 0, -1, -1), (2, refused, -1, -1)], [])
    else:
        assert named(answer) == [(0, refused, 2, EPOCH), (1, 0, -1, -1), (2, refused, 3, EPOCH)]
        assert endpoints(answer) == CLIENTS
    assert (named(again), endpoints(again)) == ([(1, 0, -1, -1)], [])
