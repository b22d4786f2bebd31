"""Batches of idempotent producers that are refused for a moment while later ones are on their way: none is overtaken."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, batch, produce, produced, topic_id
from support.harness import topic_name
from support.logs import LOGS

VERSIONS = [9, 13]  # by the topic's name, and by its id
NOT_LEADER, STORAGE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR
CLIENTS_MAY, NOBODY_MAY = 0, 2


class Partition:
    """One with a name of its own, whose log is opened and closed by a test."""

    def __init__(self, root: Path) -> None:
        self.name = topic_name("refused")
        self.root = root

    def announce(self) -> None:
        LOGS.announce(self.name, topic_id(self.name), 0)

    def open(self, **config: int) -> None:
        LOGS.lead(self.name, topic_id(self.name), 0, 0, str(self.root), config)

    def fill(self) -> None:
        """A first record: an empty log takes a producer from its first batch only."""
        LOGS.append_client(self.name, 0, batch([b"first"]))

    def sequences(self, producer_id: int = 1) -> list[int]:
        """The first sequences of a producer's batches in the log."""
        raws = split(LOGS.read(self.name, 0, 0, 1 << 20))
        return [raw.base_sequence for raw in raws if raw.producer_id == producer_id]


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    made = Partition(tmp_path)
    yield made
    if (made.name, 0) in LOGS.partitions():
        LOGS.delete(made.name, 0)


def frame(name: str, version: int, sequence: int, *, producer: int = 1, epoch: int = 0, transactional: bool = False) -> bytes:
    records = batch([b"x"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)
    request = produce(name, records, version)
    request.transactional_id = "t" if transactional else None
    return encode_request(request, version, sequence, "test")


def answers(peer: Peer, version: int, count: int) -> list[int]:
    found = []
    for _ in range(count):
        _, message = decode_response(ProduceResponse, peer.receive(), version)
        found.append(produced(message).error_code)
    return found


def ask(peer: Peer, version: int, frames: Sequence[bytes]) -> list[int]:
    """The error codes of produces that come together."""
    peer.send_all(frames)
    return answers(peer, version, len(frames))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_later_batch_waits_for_one_that_was_refused(served: Broker, partition: Partition, version: int) -> None:
    partition.announce()
    with served.connect() as peer:
        assert ask(peer, version, [frame(partition.name, version, 0)]) == [NOT_LEADER]
        partition.open()
        again = [frame(partition.name, version, sequence) for sequence in (1, 2)]
        assert ask(peer, version, again) == [NOT_LEADER] * 2
        assert ask(peer, version, [frame(partition.name, version, sequence) for sequence in range(4)]) == [0] * 4
    assert partition.sequences() == [0, 1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
def test_so_it_is_where_the_topic_was_not_known(served: Broker, partition: Partition, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    with served.connect() as peer:
        assert ask(peer, version, [frame(partition.name, version, 0)]) == [unknown]
        partition.open()
        assert ask(peer, version, [frame(partition.name, version, 1)]) == [unknown]
        assert ask(peer, version, [frame(partition.name, version, sequence) for sequence in range(2)]) == [0, 0]
    assert partition.sequences() == [0, 1]


def test_so_it_is_where_the_disk_was_full(served: Broker, partition: Partition) -> None:
    partition.open()
    with served.connect() as peer:
        LOGS.set_space(str(partition.root), NOBODY_MAY)
        assert ask(peer, 9, [frame(partition.name, 9, sequence) for sequence in range(2)]) == [STORAGE] * 2
        LOGS.set_space(str(partition.root), CLIENTS_MAY)
        assert ask(peer, 9, [frame(partition.name, 9, sequence) for sequence in (1, 0, 1)]) == [STORAGE, 0, 0]
    assert partition.sequences() == [0, 1]


def test_a_transaction_of_an_unknown_producer_has_no_hole(served: Broker, partition: Partition) -> None:
    partition.announce()
    with served.connect() as peer:
        begun = [frame(partition.name, 9, sequence, transactional=True) for sequence in (70, 71)]
        assert ask(peer, 9, begun[:1]) == [NOT_LEADER]
        partition.open(verify_transactions=0)
        partition.fill()
        assert ask(peer, 9, begun[1:]) == [NOT_LEADER]
        assert ask(peer, 9, begun) == [0, 0]
    assert partition.sequences() == [70, 71]


def test_a_producer_whose_state_has_expired_goes_on(served: Broker, partition: Partition) -> None:
    partition.open()
    partition.fill()
    with served.connect() as peer:
        assert ask(peer, 9, [frame(partition.name, 9, 500)]) == [0]
        LOGS.set_space(str(partition.root), NOBODY_MAY)
        assert ask(peer, 9, [frame(partition.name, 9, 900, producer=2)]) == [STORAGE]
        LOGS.set_space(str(partition.root), CLIENTS_MAY)
        assert ask(peer, 9, [frame(partition.name, 9, 900, producer=2)]) == [0]
    assert (partition.sequences(), partition.sequences(2)) == ([500], [900])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_another_leader_has_taken_is_not_waited_for(served: Broker, partition: Partition, version: int) -> None:
    name = partition.name
    LOGS.open_replica(name, topic_id(name), 0, str(partition.root), {})
    with served.connect() as peer:
        assert ask(peer, version, [frame(name, version, sequence) for sequence in (0, 1)]) == [NOT_LEADER] * 2
        # The client sends the first one to another broker, whose log this one follows; then this one leads.
        assert LOGS.set_follower(name, 0, broker_epoch=7, leader=2, leader_epoch=3, partition_epoch=1, unclean_epoch=-1)
        LOGS.append_replica(name, 0, batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0))
        assert ask(peer, version, [frame(name, version, 3)]) == [NOT_LEADER]
        assert LOGS.set_leader(name, 0, broker_epoch=7, leader_epoch=4, partition_epoch=2, replicas=[], enough=1)
        assert ask(peer, version, [frame(name, version, sequence) for sequence in (1, 2, 3)]) == [0] * 3
    assert partition.sequences() == [0, 1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_leader_waits_for_what_nobody_has_taken(served: Broker, partition: Partition, version: int) -> None:
    name = partition.name
    LOGS.open_replica(name, topic_id(name), 0, str(partition.root), {})
    with served.connect() as peer:
        assert ask(peer, version, [frame(name, version, 0)]) == [NOT_LEADER]
        assert LOGS.set_leader(name, 0, broker_epoch=7, leader_epoch=4, partition_epoch=2, replicas=[], enough=1)
        partition.fill()
        assert ask(peer, version, [frame(name, version, 1)]) == [NOT_LEADER]
        assert ask(peer, version, [frame(name, version, sequence) for sequence in (0, 1)]) == [0] * 2
    assert partition.sequences() == [0, 1]


def test_nobody_else_waits(served: Broker, partition: Partition) -> None:
    """Not another producer, not another connection, and not the same producer once it has a new epoch."""
    partition.announce()
    with served.connect() as peer, served.connect() as other:
        assert ask(peer, 9, [frame(partition.name, 9, 0, producer=producer) for producer in (1, 2)]) == [NOT_LEADER] * 2
        partition.open()
        partition.fill()
        assert ask(peer, 9, [frame(partition.name, 9, 5, producer=3)]) == [0]
        assert ask(other, 9, [frame(partition.name, 9, 1, producer=2)]) == [0]
        assert ask(peer, 9, [frame(partition.name, 9, sequence, epoch=1) for sequence in (0, 1)]) == [0, 0]
        assert ask(peer, 9, [frame(partition.name, 9, 2)]) == [ErrorCode.INVALID_PRODUCER_EPOCH]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_that_never_had_a_record_takes_a_producer_from_its_first_batch(
    served: Broker, partition: Partition, version: int
) -> None:
    """Also if its client has connected again since the first one was refused (KAFKA-15591, as Kafka 4.5 does)."""
    partition.announce()
    with served.connect() as peer:
        assert ask(peer, version, [frame(partition.name, version, 0)]) == [NOT_LEADER]
    partition.open()
    with served.connect() as peer:
        early = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert ask(peer, version, [frame(partition.name, version, at) for at in (1, 0, 1)]) == [early, 0, 0]
    assert partition.sequences() == [0, 1]


def test_after_the_largest_sequence_comes_0(served: Broker, partition: Partition) -> None:
    last = 2**31 - 1
    partition.announce()
    with served.connect() as peer:
        assert ask(peer, 9, [frame(partition.name, 9, last)]) == [NOT_LEADER]
        partition.open()
        partition.fill()
        assert ask(peer, 9, [frame(partition.name, 9, 0)]) == [NOT_LEADER]
        assert ask(peer, 9, [frame(partition.name, 9, sequence) for sequence in (last, 0, 1)]) == [0] * 3
    assert partition.sequences() == [last, 0, 1]


def many_refused(topic: str, partitions: int) -> ProduceRequest:
    records = batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0)
    many = [ProduceRequest.PartitionProduceData(index=index, records=records) for index in range(partitions)]
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=many)
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])


def test_a_connection_with_too_many_refusals_loses_its_own(served: Broker, partition: Partition) -> None:
    """More refusals than are remembered: whose they are is no worse off than without, and nobody else loses anything."""
    partition.announce()
    with served.connect() as peer, served.connect() as other:
        assert ask(peer, 9, [frame(partition.name, 9, 0)]) == [NOT_LEADER]
        for _ in range(2):
            other.ask(many_refused(topic_name("unknown"), 70_000), 9, ProduceResponse)
        assert ask(other, 9, [frame(partition.name, 9, 0, producer=2)]) == [NOT_LEADER]
        partition.open()
        for one, producer in ((peer, 1), (other, 2)):
            sent = [frame(partition.name, 9, sequence, producer=producer) for sequence in (1, 0, 1)]
            assert ask(one, 9, sent) == [NOT_LEADER, 0, 0]


def test_a_name_that_no_topic_may_have_is_not_kept(served: Broker) -> None:
    """Nor is it a reason to hold its length in memory once for each of its partitions."""
    before = resident_bytes()
    with served.connect() as peer:
        answer = peer.ask(many_refused("x" * 32_000, 8_000), 9, ProduceResponse)
    assert {part.error_code for part in answer.responses[0].partition_responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert resident_bytes() - before < 100 << 20  # 256 MB if each had its own


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_string_that_is_longer_than_kafka_has_any_is_malformed(served: Broker) -> None:
    name = b"x" * 0x8000
    size = bytearray(encode_request(many_refused("NAME", 1), 9, 1, "c"))
    at = size.index(b"\x05NAME")
    size[at : at + 5] = b"\x81\x80\x02" + name  # a compact length: one more than the string's
    with served.connect() as peer:
        peer.send(bytes(size))
        assert peer.has_ended()
    assert served.plane.closures()[-1].reason == "closed_malformed"
