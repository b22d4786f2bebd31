"""What is counted of topics: loads whose figures the test knows, through sockets; sums that never go back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import TopicFigures
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from support.dataplane import Broker, Peer, batch, fetch, fetch_topic, fetched, lead, produce, produced, topic_id
from support.harness import topic_name
from support.logs import LOGS
from support.messagesets import Message, pack_set
from support.patience import until

NOTHING = TopicFigures(0, 0, 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def peer(served: Broker) -> Iterator[Peer]:
    with served.connect() as made:
        yield made


def by_topic() -> dict[str, TopicFigures]:
    return LOGS.topic_figures()[0]


def totals() -> TopicFigures:
    return LOGS.topic_figures()[1]


@dataclass
class Expected:
    """What a test has done to a topic of its own."""

    name: str
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TopicFigures._fields, 0))

    def count(self, **more: int) -> None:
        for key, n in more.items():
            self.done[key] += n

    def check(self) -> None:
        assert by_topic()[self.name] == TopicFigures(**self.done)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Expected]:
    made = Expected(topic_name("figures"))
    lead(tmp_path, made.name, partitions=3)
    made.check()
    yield made
    for index in range(3):
        if (made.name, index) in LOGS.partitions():
            LOGS.delete(made.name, index)


def put(peer: Peer, topic: Expected, records: bytes, messages: int, version: int, error: int = 0, index: int = 0) -> None:
    """Produce, and note what is counted of it."""
    answer = produced(peer.ask(produce(topic.name, records, version, index=index), version, ProduceResponse))
    assert answer.error_code == error
    topic.count(produce_requests=1)
    if error:
        topic.count(failed_produces=1)
    else:
        topic.count(messages_in=messages, bytes_in=len(records))


def take(peer: Peer, topic: Expected, offset: int, version: int, error: int = 0, index: int = 0) -> int:
    """Fetch, and note what is counted of it. Answers the bytes of records."""
    one = fetched(peer.ask(fetch(topic.name, offset, version, index=index), version, FetchResponse))
    assert one.error_code == error
    n = len(one.records or b"")
    topic.count(fetch_requests=1, bytes_out=n, failed_fetches=int(error != 0))
    return n


@pytest.mark.parametrize("version", range(14))
def test_each_version_is_counted(peer: Peer, topic: Expected, version: int) -> None:
    rng = random.Random(version)
    for number in range(20):
        values = [b"%d" % number * rng.randint(1, 50)] * rng.randint(1, 9)
        if version < 3:
            records = pack_set(1, [Message(n, None, value, 1_700_000_000_000) for n, value in enumerate(values)])
        else:
            records = batch(values, codec=rng.choice([0, 1, 2, 3, 4] if version >= 7 else [0, 1, 2, 3]))
        put(peer, topic, records, len(values), version, index=rng.randrange(3))
    topic.check()


@pytest.mark.parametrize("version", range(18))
def test_each_version_that_fetches_is_counted(peer: Peer, topic: Expected, version: int) -> None:
    """Those before 4 get messages that are converted: what they get is counted."""
    for _ in range(5):
        put(peer, topic, batch([b"v" * 100] * 7), 7, 9)
    assert take(peer, topic, 0, version) > 0
    assert take(peer, topic, 34, version) > 0
    assert take(peer, topic, 35, version) == 0
    take(peer, topic, 36, version, ErrorCode.OFFSET_OUT_OF_RANGE)
    topic.check()


def test_refusals_are_counted_by_topic(peer: Peer, topic: Expected) -> None:
    good = batch([b"x"])
    rotten = good[:-1] + bytes([good[-1] ^ 1])
    put(peer, topic, rotten, 1, 9, ErrorCode.CORRUPT_MESSAGE)  # by the log
    put(peer, topic, b"", 0, 9, ErrorCode.INVALID_RECORD)  # before it is asked
    put(peer, topic, batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0), 1, 9)
    out_of_order = batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=7)
    put(peer, topic, out_of_order, 1, 9, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    topic.check()


def test_a_batch_that_comes_again_is_a_request_without_messages(peer: Peer, topic: Expected) -> None:
    again = batch([b"x"] * 3, producer_id=1, producer_epoch=0, base_sequence=0)
    put(peer, topic, again, 3, 9)
    assert produced(peer.ask(produce(topic.name, again, 9), 9, ProduceResponse)).error_code == 0
    topic.count(produce_requests=1)
    topic.check()


def test_an_empty_message_set_is_a_request_that_did_not_fail(peer: Peer, topic: Expected) -> None:
    put(peer, topic, b"", 0, 2)
    topic.check()


def test_what_has_no_answer_is_counted(served: Broker, topic: Expected) -> None:
    good = batch([b"x"] * 4)
    rotten = good[:-1] + bytes([good[-1] ^ 1])
    with served.connect() as peer:
        frames = [encode_request(produce(topic.name, good, 9, acks=0), 9, number, "test") for number in range(10)]
        peer.send_all([*frames, encode_request(produce(topic.name, rotten, 9, acks=0), 9, 10, "test")])
        assert peer.has_ended()
    topic.count(produce_requests=11, messages_in=40, bytes_in=10 * len(good), failed_produces=1)
    topic.check()


def test_requests_that_are_appended_together_are_counted_one_by_one(peer: Peer, topic: Expected) -> None:
    records = [batch([b"%d" % n] * (n + 1)) for n in range(30)]
    peer.send_all([encode_request(produce(topic.name, one, 9, index=n % 2), 9, n, "test") for n, one in enumerate(records)])
    for _ in records:
        peer.receive()
    topic.count(produce_requests=30, messages_in=sum(range(1, 31)), bytes_in=sum(map(len, records)))
    topic.check()


def test_requests_that_a_worker_serves_are_counted(peer: Peer, topic: Expected) -> None:
    builder = BatchBuilder(codec=1, max_bytes=64 << 20)  # It inflates to more than a network thread serves.
    for _ in range(40):
        assert builder.append(None, b"v" * 100_000, 1_700_000_000_000)
    put(peer, topic, builder.build(), 40, 9)
    large = batch([b"v" * 5_000_000])
    put(peer, topic, large, 1, 9, ErrorCode.MESSAGE_TOO_LARGE)
    topic.check()


def test_what_is_not_here_is_counted_in_the_sum_alone(peer: Peer) -> None:
    name = topic_name("nowhere")
    before = totals()
    assert produced(peer.ask(produce(name, batch([b"x"]), 9), 9, ProduceResponse)).error_code != 0
    assert fetched(peer.ask(fetch(name, 0, 12), 12, FetchResponse)).error_code != 0
    after = totals()
    assert name not in by_topic()
    assert (after.produce_requests - before.produce_requests, after.failed_produces - before.failed_produces) == (1, 1)
    assert (after.fetch_requests - before.fetch_requests, after.failed_fetches - before.failed_fetches) == (1, 1)


def test_a_session_asks_for_each_of_its_partitions_each_time(peer: Peer, topic: Expected) -> None:
    places = [FetchRequest.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(3)]
    opening = FetchRequest(min_bytes=1, session_id=0, session_epoch=0, topics=[fetch_topic(topic.name, 12, places)])
    session = peer.ask(opening, 12, FetchResponse).session_id
    topic.count(fetch_requests=3)
    for epoch in range(1, 5):
        records = batch([b"x" * epoch])
        put(peer, topic, records, 1, 9, index=1)
        moved = [FetchRequest.FetchPartition(partition=1, fetch_offset=epoch - 1, partition_max_bytes=1 << 20)]
        going_on = FetchRequest(
            min_bytes=1, session_id=session, session_epoch=epoch, topics=[fetch_topic(topic.name, 12, moved)]
        )
        answer = peer.ask(going_on, 12, FetchResponse)
        assert len(answer.responses) == 1 and fetched(answer).records is not None
        topic.count(fetch_requests=3, bytes_out=len(records))
    topic.check()


def test_a_fetch_that_waits_is_counted_once(served: Broker, topic: Expected) -> None:
    with served.connect() as waiting, served.connect() as peer:
        waits = served.plane.counters()["fetch_waits"]
        waiting.send(encode_request(fetch(topic.name, 0, 12, max_wait_ms=600_000, min_bytes=200), 12, 1, "test"))
        until(lambda: served.plane.counters()["fetch_waits"] > waits, "a fetch that waits")
        sent = 0
        while sent < 200:
            records = batch([b"x"])
            sent += len(records)
            put(peer, topic, records, 1, 9)
        waiting.receive()
    topic.count(fetch_requests=1, bytes_out=sent)
    topic.check()


def test_a_partition_that_moves_goes_on_counting(peer: Peer, topic: Expected, tmp_path: Path) -> None:
    for number in range(4):
        put(peer, topic, batch([b"x"] * 5), 5, 9)
        LOGS.stop(topic.name, 0, announced=True)
        put(peer, topic, batch([b"x"]), 1, 9, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        take(peer, topic, 0, 12, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        topic.check()
        LOGS.lead(topic.name, topic_id(topic.name), 0, 0, str(tmp_path), {}, clean=number % 2 == 0)
        take(peer, topic, 0, 12)
        topic.check()


def test_records_of_a_leader_are_no_producers(topic: Expected) -> None:
    LOGS.append_replica(topic.name, 2, batch([b"x"] * 3))
    topic.check()


def test_the_coordinators_appends_are_counted(topic: Expected) -> None:
    records = batch([b"x"] * 3)
    LOGS.append(topic.name, 2, records)
    topic.count(produce_requests=1, messages_in=3, bytes_in=len(records))
    topic.check()


def test_sizes_and_offsets_of_partitions(peer: Peer, topic: Expected) -> None:
    for index in range(3):
        for _ in range(index + 1):
            put(peer, topic, batch([b"x" * 100]), 1, 9, index=index)
    LOGS.stop(topic.name, 0, announced=True)  # One that isn't open has no size.
    mine = sorted(one for one in LOGS.partition_figures() if one[0] == topic.name)
    assert mine == [(topic.name, index, LOGS.size_bytes(topic.name, index), 0, index + 1) for index in (1, 2)]


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_never_goes_back(peer: Peer, tmp_path: Path, seed: int) -> None:
    """Topics come, go, move and come again under load; the sum is that of all that was ever done."""
    rng = random.Random(seed)
    names = [topic_name("sum") for _ in range(3)]
    here: set[str] = set()
    expected = totals()
    for _ in range(150):
        name = rng.choice(names)
        action = rng.choice(["lead", "delete", "move", "put", "put", "put", "take", "rot"])
        if action == "lead" and name not in here:
            lead(tmp_path, name, partitions=2)
            assert by_topic()[name] == NOTHING
            here.add(name)
        elif action == "delete" and name in here:
            for index in range(2):
                LOGS.retire(name, index)
            for index in range(2):
                LOGS.delete(name, index)
            assert name not in by_topic()
            here.discard(name)
        elif action == "move" and name in here:
            LOGS.stop(name, 1, announced=True)
            LOGS.lead(name, topic_id(name), 1, 0, str(tmp_path), {})
        elif action == "put":
            records = batch([b"x"] * rng.randint(1, 5))
            answer = produced(peer.ask(produce(name, records, 9, index=1), 9, ProduceResponse))
            assert (answer.error_code == 0) == (name in here)
            grown = {"produce_requests": 1, "failed_produces": int(name not in here)}
            if name in here:
                grown |= {"bytes_in": len(records), "messages_in": int.from_bytes(records[57:61], "big")}
            expected = _plus(expected, **grown)
        elif action == "rot":
            request = ProduceRequest(acks=1, timeout_ms=1, topic_data=produce(name, b"", 9).topic_data)
            assert produced(peer.ask(request, 9, ProduceResponse)).error_code != 0
            expected = _plus(expected, produce_requests=1, failed_produces=1)
        elif action == "take":
            one = fetched(peer.ask(fetch(name, 0, 12, index=1), 12, FetchResponse))
            assert (one.error_code == 0) == (name in here)
            expected = _plus(
                expected, fetch_requests=1, failed_fetches=int(name not in here), bytes_out=len(one.records or b"")
            )
        assert totals() == expected
    for name in here:
        for index in range(2):
            LOGS.delete(name, index)
    assert totals() == expected


def _plus(figures: TopicFigures, **more: int) -> TopicFigures:
    return figures._replace(**{key: getattr(figures, key) + n for key, n in more.items()})
