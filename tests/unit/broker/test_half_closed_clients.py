"""Clients of a whole broker that shut their sending half down at once: each answer comes, whoever gives it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
)
from support import transaction_wire
from support.asking import create, metadata
from support.dataplane import Peer, batch, fetch, fetched, produce, produced
from support.harness import BrokerProcess, WireConnection

LONG_MS = 600_000


def ask_all(peer: Peer, *asked: tuple[Message, int]) -> None:
    """Send requests, numbered from 0, and shut the sending half down."""
    peer.send_all([encode_request(request, version, n, "test") for n, (request, version) in enumerate(asked)])
    peer.end_sending()


def test_answers_of_the_control_plane_and_of_the_network_threads(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str]
) -> None:
    topic = new_topic("half")
    create(shared_broker, topic)
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    end = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])])
    with Peer(shared_broker.port) as peer:
        ask_all(
            peer,
            (produce(topic, batch([b"x"]), 9), 9),
            (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), 12),
            (produce(topic, batch([b"y"]), 9, acks=0), 9),
            (end, 7),
        )
        assert decode_response(ProduceResponse, peer.receive(), 9)[0] == 0
        number, described = decode_response(MetadataResponse, peer.receive(), 12)
        assert (number, described.topics[0].name) == (1, topic)
        number, offsets = decode_response(ListOffsetsResponse, peer.receive(), 7)
        assert (number, offsets.topics[0].partitions[0].offset) == (3, 2)
        assert peer.has_ended()


def test_a_transaction_that_begins_with_its_last_request(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """Its coordinator is asked meanwhile, and writes a log of its own."""
    topic, name = new_topic("half"), new_topic("transaction")
    create(shared_broker, topic)
    with WireConnection(shared_broker.bootstrap) as wire:
        error, producer_id, epoch = transaction_wire.init(wire, name, 5)
    assert error == 0
    (described,) = metadata(shared_broker, topic).topics
    records = batch([b"x"], producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
    request = produce(topic, records, 13, transactional_id=name)
    request.topic_data[0].topic_id = described.topic_id
    with Peer(shared_broker.port) as peer:
        ask_all(peer, (request, 13))
        _, answer = decode_response(ProduceResponse, peer.receive(), 13)
        assert (produced(answer).error_code, produced(answer).base_offset) == (0, 0)
        assert peer.has_ended()


def test_a_long_poll_is_answered_when_the_broker_stops(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker()
    create(broker, "half")
    with Peer(broker.port) as peer:
        ask_all(peer, (produce("half", batch([b"x"]), 9), 9), (fetch("half", 1, 12, max_wait_ms=LONG_MS), 12))
        assert produced(decode_response(ProduceResponse, peer.receive(), 9)[1]).base_offset == 0
        assert peer.is_silent()
        broker.stop()
        number, answer = decode_response(FetchResponse, peer.receive(), 12)
        assert (number, fetched(answer).error_code) == (1, 0)
        assert peer.has_ended()
