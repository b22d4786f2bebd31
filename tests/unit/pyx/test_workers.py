"""Expensive requests go to worker threads: they hold up nobody, keep their order, have a bound, and end with their
client. One network thread has all connections here, and nothing is asserted about time: only about who is served first.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import FetchResponse, ProduceRequest, ProduceResponse
from support.dataplane import (
    TIMEOUT_S,
    Broker,
    Peer,
    batch,
    fetch,
    fetched,
    forget_all,
    lead,
    produce,
    produced,
    topic_id,
    values,
)
from support.logs import LOGS, NOW_MS

GZIP, ZSTD = 1, 4
INFLATED = 8 << 20
EXPENSIVE = batch([bytes(INFLATED)], codec=GZIP)
"""8 KB that inflate to 8 MiB."""
CHEAP = batch([b"x" * 100])
PIPELINED = 32
ASKED = 20
"""Requests of the client that others may not hold up, one after the other."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("workers")
    with Broker(threads=1) as made:
        for name in ("hostile", "honest", "ordered", "left", "several", "bounded", "turns"):
            lead(folder, name, max_message_bytes=64 << 20)
        lead(folder, "many", 600)
        lead(folder, "stamped", 2, log_append_time=1, max_message_bytes=64 << 20)
        lead(folder, "packed", compression_codec=ZSTD, compression_level=22, max_message_bytes=64 << 20)
        lead(folder, "old", max_message_bytes=64 << 20)
        yield made
    forget_all()


def frames(request: Message, version: int, count: int = PIPELINED) -> list[bytes]:
    return [encode_request(request, version, number, "c") for number in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls, up to TIMEOUT_S."""
    tick = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it never came true")


def answers_of(peer: Peer, count: int = PIPELINED, version: int = 9) -> list[ProduceResponse.PartitionProduceResponse]:
    """In their order, which the correlation ids show."""
    given = []
    for number in range(count):
        frame = peer.receive()
        assert struct.unpack(">i", frame[:4]) == (number,)
        given.append(produced(ProduceResponse.decode(frame[5 if version >= 9 else 4 :], version)))
    return given


def ask_honestly(served: Broker) -> None:
    with served.connect() as honest:
        for _ in range(ASKED):
            assert produced(honest.ask(produce("honest", CHEAP, 9), 9, ProduceResponse)).error_code == 0


def test_batches_that_inflate_to_much_hold_up_nobody(served: Broker) -> None:
    with served.connect() as first, served.connect() as second:
        for peer in (first, second):
            peer.send_all(frames(produce("hostile", EXPENSIVE, 9), 9))
        wait_until(lambda: served.plane.counters()["bytes_in"] >= len(EXPENSIVE))
        ask_honestly(served)
        assert LOGS.offsets("hostile", 0).log_end < 2 * PIPELINED
        for peer in (first, second):
            assert [one.error_code for one in answers_of(peer)] == [0] * PIPELINED
    assert LOGS.offsets("hostile", 0).log_end == 2 * PIPELINED


def test_conversions_for_old_clients_hold_up_nobody(served: Broker) -> None:
    with served.connect() as peer:
        assert produced(peer.ask(produce("old", EXPENSIVE, 9), 9, ProduceResponse)).error_code == 0
    before = served.plane.counters()["fetch_bytes"]

    def converted() -> float:
        return (served.plane.counters()["fetch_bytes"] - before) / size

    with served.connect() as peer:
        answer = fetched(peer.ask(fetch("old", 0, 1), 1, FetchResponse))
        assert values(answer) == [bytes(INFLATED)]
        size = len(bytes(answer.records or b""))
    before = served.plane.counters()["fetch_bytes"]
    worked = served.plane.counters()["worked"]
    with served.connect() as first, served.connect() as second:
        for peer in (first, second):
            peer.send_all(frames(fetch("old", 0, 1), 1))
        ask_honestly(served)
        assert converted() < 2 * PIPELINED
        for peer in (first, second):
            for number in range(PIPELINED):
                assert struct.unpack(">i", peer.receive()[:4]) == (number,)
    assert converted() == 2 * PIPELINED
    assert served.plane.counters()["worked"] - worked == 2 * PIPELINED


def test_a_turn_ends_by_what_its_requests_cost(served: Broker) -> None:
    """Those that are just not expensive enough for a worker: another connection isn't served behind all of them."""
    near = batch([bytes(900 << 10)], codec=GZIP)
    LOGS.hold("turns", 0)
    with served.connect() as first, served.connect() as honest, served.connect() as second:
        for peer, sent in ((first, near), (second, near), (honest, CHEAP)):
            held = LOGS.produces_held
            peer.send_all(frames(produce("turns", sent, 9), 9, 1 if peer is honest else 64))
            wait_until(lambda held=held: LOGS.produces_held > held)  # type: ignore[misc]
        LOGS.release("turns", 0)
        (given,) = answers_of(honest, 1)
        assert given.error_code == 0 and given.base_offset < 64
        for peer in (first, second):
            assert [one.error_code for one in answers_of(peer, 64)] == [0] * 64


def words(count: int) -> bytes:
    """Records that zstd takes long to compress at its highest level: about a second for a thousand of them."""
    dice = random.Random(1)
    known = [dice.randbytes(dice.randint(3, 12)) for _ in range(5000)]
    return batch([b"".join(dice.choices(known, k=200)) for _ in range(count)])


def test_light_jobs_do_not_wait_behind_heavy_ones(served: Broker) -> None:
    """One thread serves both kinds here. It compresses for one connection, and the other one waits."""
    heavy = words(3000)
    with served.connect() as first, served.connect() as second:
        for peer in (first, second):  # From then on it is known.
            assert produced(peer.ask(produce("packed", words(300), 9), 9, ProduceResponse)).error_code == 0
        end, worked = LOGS.offsets("packed", 0).log_end, served.plane.counters()["worked"]
        for peer in (first, second):
            peer.send_all(frames(produce("packed", heavy, 9), 9, 1))
        wait_until(lambda: served.plane.counters()["worked"] == worked + 2)
        with served.connect() as honest:
            light = produce("honest", batch([bytes(2 << 20)], codec=GZIP), 9)
            assert produced(honest.ask(light, 9, ProduceResponse)).error_code == 0
        assert served.plane.counters()["worked"] == worked + 3
        assert LOGS.offsets("packed", 0).log_end == end and second.is_silent(0)
        for peer in (first, second):
            assert [one.error_code for one in answers_of(peer, 1)] == [0]


def test_no_move_waits_for_records_to_be_compressed(served: Broker) -> None:
    """What takes a worker seconds comes before it enters the partition."""
    worked = served.plane.counters()["worked"]
    with served.connect() as peer:
        peer.send_all(frames(produce("packed", words(3000), 9), 9, 1))
        wait_until(lambda: served.plane.counters()["worked"] == worked + 1)
        LOGS.hold("packed", 0)
        assert not LOGS.held_appends("packed", 0)
        LOGS.release("packed", 0)
        assert [one.error_code for one in answers_of(peer, 1)] == [0]


def test_requests_of_a_connection_keep_their_order(served: Broker) -> None:
    """Those behind an expensive one don't overtake it: an idempotent producer would get an error."""
    records = [
        batch([bytes(INFLATED)] if n % 3 == 0 else [b"%d" % n], codec=GZIP, producer_id=7, producer_epoch=0, base_sequence=n)
        for n in range(PIPELINED)
    ]
    with served.connect() as peer:
        peer.send_all([encode_request(produce("ordered", one, 9), 9, n, "c") for n, one in enumerate(records)])
        given = answers_of(peer)
    assert [(one.error_code, one.base_offset) for one in given] == [(0, n) for n in range(PIPELINED)]


def test_a_client_that_has_gone_leaves_no_work(served: Broker) -> None:
    peer = served.connect()
    peer.send_all(frames(produce("left", EXPENSIVE, 9), 9))
    answers_of(peer, 1)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.socket.close()
    # The job that a worker has comes back, or is dropped; no other of the connection's begins.
    wait_until(lambda: not served.plane.counters()["connections"] and not served.plane.counters()["working_bytes"])
    assert 1 <= LOGS.offsets("left", 0).log_end < PIPELINED
    ask_honestly(served)


def test_what_waits_for_workers_has_a_bound(tmp_path: Path) -> None:
    bound = 1 << 20
    noise = os.urandom(300_000)
    records = batch([noise, bytes(3 << 20)], codec=ZSTD)
    most = 0
    lead(tmp_path, "bound", max_message_bytes=64 << 20)
    with Broker(threads=1, queued_bytes_max=bound) as broker:
        peers = [broker.connect() for _ in range(12)]
        for peer in peers:
            peer.send_all(frames(produce("bound", records, 9), 9, 2))
        for peer in peers:
            assert [one.error_code for one in answers_of(peer, 2)] == [0, 0]
            most = max(most, broker.plane.counters()["working_bytes"])
            peer.socket.close()
        counted = broker.plane.counters()
        assert counted["worked"] == 2 * len(peers) and counted["stalls"] > 0
        wait_until(lambda: broker.plane.counters()["working_bytes"] == 0)
    assert most <= bound
    LOGS.stop("bound", 0)


def test_a_stop_comes_between_requests(tmp_path: Path) -> None:
    """It waits for the one that is being served, not for those that have come; what was acknowledged is there."""
    lead(tmp_path, "stopped", max_message_bytes=64 << 20)
    broker = Broker(threads=1)
    with broker:
        peers = [broker.connect() for _ in range(2)]
        for peer in peers:
            peer.send_all(frames(produce("stopped", EXPENSIVE, 9), 9))
        answers_of(peers[0], 1)
    answered = 1
    for peer in peers:
        with peer:
            try:
                while True:
                    peer.receive()
                    answered += 1
            except (EOFError, ConnectionResetError):
                pass
    assert answered <= LOGS.offsets("stopped", 0).log_end < 2 * PIPELINED
    LOGS.stop("stopped", 0)


def test_what_is_cheap_is_served_by_network_threads(served: Broker) -> None:
    before = served.plane.counters()["worked"]
    small = batch([b"x" * 100] * 100, codec=GZIP)
    with served.connect() as peer:
        for records in (CHEAP, small, batch([os.urandom(900_000)])):
            assert produced(peer.ask(produce("several", records, 9), 9, ProduceResponse)).error_code == 0
        assert produced(peer.ask(produce("packed", CHEAP, 9), 9, ProduceResponse)).error_code == 0
        assert served.plane.counters()["worked"] == before
        # After an expensive one, and a cheap one in its place, it is as before.
        for records in (EXPENSIVE, CHEAP):
            assert produced(peer.ask(produce("several", records, 9), 9, ProduceResponse)).error_code == 0
        assert served.plane.counters()["worked"] == before + 2
        assert produced(peer.ask(produce("several", CHEAP, 9), 9, ProduceResponse)).error_code == 0
        assert served.plane.counters()["worked"] == before + 2


@pytest.mark.parametrize("what", ["compressed again", "many partitions", "large"])
def test_what_is_expensive_otherwise_goes_to_a_worker(served: Broker, what: str) -> None:
    before = served.plane.counters()["worked"]
    if what == "compressed again":
        request = produce("packed", batch([os.urandom(1000)] * 50), 9)
    elif what == "large":
        request = produce("several", batch([bytes(1000)] * 6000), 9)
    else:
        parts = [ProduceRequest.PartitionProduceData(index=n, records=CHEAP) for n in range(600)]
        topic = ProduceRequest.TopicProduceData(name="many", topic_id=topic_id("many"), partition_data=parts)
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    with served.connect() as peer:
        answer = peer.ask(request, 9, ProduceResponse)
    codes = {one.error_code for topic in answer.responses for one in topic.partition_responses}
    assert codes == {0}
    assert served.plane.counters()["worked"] == before + 1


def test_what_a_network_thread_began_to_validate_a_worker_validates_again(served: Broker) -> None:
    """The log's own timestamps aren't in the records yet: from a producer they would be wrong."""
    parts = [ProduceRequest.PartitionProduceData(index=n, records=one) for n, one in enumerate((CHEAP, EXPENSIVE))]
    topic = ProduceRequest.TopicProduceData(name="stamped", topic_id=topic_id("stamped"), partition_data=parts)
    with served.connect() as peer:
        answer = peer.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9, ProduceResponse)
    (one,) = answer.responses
    assert [(part.error_code, part.base_offset) for part in one.partition_responses] == [(0, 0)] * 2
    assert all(part.log_append_time_ms > NOW_MS for part in one.partition_responses)


def test_a_worker_refuses_what_a_network_thread_would(served: Broker) -> None:
    wrong = bytearray(EXPENSIVE)
    wrong[-1] ^= 0xFF
    end = LOGS.offsets("several", 0).log_end
    with served.connect() as peer:
        for records in (EXPENSIVE, bytes(wrong), EXPENSIVE):
            answer = produced(peer.ask(produce("several", records, 9), 9, ProduceResponse))
            assert answer.error_code == (0 if records == EXPENSIVE else ErrorCode.CORRUPT_MESSAGE)
        # Without an answer only a closed connection can say so.
        peer.send(encode_request(produce("several", bytes(wrong), 9, acks=0), 9, 1, "c"))
        assert peer.has_ended()
    assert LOGS.offsets("several", 0).log_end == end + 2
