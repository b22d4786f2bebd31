"""How long requests take, by phase: golden counts of a load that the test knows, slow ones, and who is connected."""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.pyx.net.border import BOUNDS_S, RequestTimes, bucket_for
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import FetchResponse, ListOffsetsRequest, MetadataRequest, ProduceResponse
from support.dataplane import Broker, Peer, api_versions, batch, echo, fetch, fetched, lead, produce, produced
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until

PHASES = ("total", "queue", "local", "waiting", "send")
SECOND = 10**9


@pytest.fixture
def served() -> Iterator[Broker]:
    """A data plane of the test's own, which has counted nothing yet."""
    with Broker() as made:
        yield made


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[str]:
    made = topic_name("times")
    lead(tmp_path, made, partitions=2)
    yield made
    for index in range(2):
        LOGS.delete(made, index)


def counted(served: Broker) -> Counter[str]:
    """Requests by name, which all phases have alike."""
    times = served.plane.request_times()
    by_phase = {
        phase: Counter({name: sum(one.counts) for (name, its), one in times.items() if its == phase}) for phase in PHASES
    }
    assert all(counts == by_phase["total"] for counts in by_phase.values())
    return by_phase["total"]


def settled(served: Broker, **expected: int) -> dict[tuple[str, str], RequestTimes]:
    """The times once all requests are counted: a thread counts an answer after it has sent it."""
    until(lambda: counted(served) == Counter(expected), f"counts of {expected}")
    return served.plane.request_times()


def most_s(times: RequestTimes) -> float:
    """A bound of the longest one."""
    longest = max(bucket for bucket, count in enumerate(times.counts) if count)
    return BOUNDS_S[longest] if longest < len(BOUNDS_S) else float("inf")


def ask_produce(peer: Peer, name: str, version: int = 9) -> None:
    assert produced(peer.ask(produce(name, batch([b"x"]), version), version, ProduceResponse)).error_code == 0


# --- buckets --------------------------------------------------------------------------------------------------
def test_there_are_eight_buckets_for_each_power_of_two() -> None:
    assert len(BOUNDS_S) == 208 and list(BOUNDS_S) == sorted(set(BOUNDS_S))
    assert BOUNDS_S[0] == 1.125e-6 and BOUNDS_S[7] == 2e-6 and BOUNDS_S[-1] == pytest.approx(67.108864)
    assert all(upper / lower <= 1.125 + 1e-9 for lower, upper in itertools.pairwise(BOUNDS_S))


@given(st.one_of(st.integers(-5, 10**6), st.integers(0, 100 * SECOND), st.integers(0, 2**62)))
def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(ns: int) -> None:
    bucket = bucket_for(ns)
    if bucket < len(BOUNDS_S):
        assert ns <= round(BOUNDS_S[bucket] * SECOND)
    if bucket > 0:
        assert ns > round(BOUNDS_S[bucket - 1] * SECOND)


@given(st.integers(0, len(BOUNDS_S) - 1))
def test_a_bound_belongs_to_its_bucket(bucket: int) -> None:
    bound_ns = round(BOUNDS_S[bucket] * SECOND)
    assert (bucket_for(bound_ns), bucket_for(bound_ns + 1)) == (bucket, bucket + 1)


# --- golden counts --------------------------------------------------------------------------------------------
def test_each_request_is_counted_once_by_name_and_version(served: Broker, topic: str) -> None:
    sent: Counter[tuple[str, int]] = Counter()
    with served.connect() as one, served.connect() as two:
        for number in range(60):
            peer = (one, two)[number % 2]
            version = 3 + number % 11
            ask_produce(peer, topic, version)
            sent["Produce", version] += 1
        for version in range(4, 19):
            assert fetched(one.ask(fetch(topic, 0, version), version, FetchResponse)).error_code == 0
            sent["FetchConsumer", version] += 1
        for version in (1, 9, 12):
            two.send(encode_request(MetadataRequest(topics=None), version, version, "test"))
            two.receive()
            sent["Metadata", version] += 1
        settled(served, Produce=60, FetchConsumer=15, Metadata=3)
        assert served.plane.requests_by_version() == dict(sent)


def test_produces_that_come_together_are_counted_each(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        frames = [encode_request(produce(topic, batch([b"x"]), 9 + n % 2), 9 + n % 2, n, "test") for n in range(200)]
        peer.send_all(frames)
        for _ in frames:
            peer.receive()
        settled(served, Produce=200)
        assert served.plane.requests_by_version() == {("Produce", 9): 100, ("Produce", 10): 100}


def test_what_has_no_answer_is_counted_too(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        silent = [encode_request(produce(topic, batch([b"x"]), 9, acks=0), 9, n, "test") for n in range(5)]
        peer.send_all([*silent, encode_request(fetch(topic, 0, 12), 12, 6, "test"), *silent])
        peer.receive()
        settled(served, Produce=10, FetchConsumer=1)


def test_one_behind_a_fetch_that_waits_has_its_own_time(served: Broker, topic: str) -> None:
    """A produce, with an answer or without, is served at once, and its answer waits for that of the fetch."""
    with served.connect() as peer, served.connect() as other:
        frames = [
            encode_request(fetch(topic, 0, 12, max_wait_ms=600_000, index=1), 12, 1, "test"),
            encode_request(produce(topic, batch([b"x"]), 9, acks=0), 9, 2, "test"),
            encode_request(produce(topic, batch([b"x"]), 9), 9, 3, "test"),
        ]
        peer.send_all(frames)
        until(lambda: LOGS.offsets(topic, 0).log_end == 2, "the produces behind a fetch")
        time.sleep(0.3)
        assert produced(other.ask(produce(topic, batch([b"x"]), 9, index=1), 9, ProduceResponse)).error_code == 0
        assert [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(2)] == [1, 3]
        times = settled(served, Produce=3, FetchConsumer=1)
    assert times["FetchConsumer", "waiting"].sum_ns >= SECOND // 4
    assert times["Produce", "send"].sum_ns >= SECOND // 4  # Of the one with an answer.
    assert times["Produce", "waiting"].sum_ns == 0


def test_the_phases_add_up(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        for _ in range(50):
            ask_produce(peer, topic)
            peer.ask(fetch(topic, 0, 12), 12, FetchResponse)
            peer.send(api_versions())
            peer.receive()
        times = settled(served, Produce=50, FetchConsumer=50, ApiVersions=50)
    for name in ("Produce", "FetchConsumer", "ApiVersions"):
        parts = sum(times[name, phase].sum_ns for phase in PHASES[1:])
        assert times[name, "total"].sum_ns == parts > 0


def test_a_connection_that_closes_takes_what_was_not_sent_along(served: Broker, topic: str) -> None:
    with served.connect() as peer:
        ask_produce(peer, topic)
        waits = served.plane.counters()["fetch_waits"]
        peer.send(encode_request(fetch(topic, 1, 12, max_wait_ms=600_000), 12, 1, "test"))
        until(lambda: served.plane.counters()["fetch_waits"] > waits, "a fetch that waits")
        peer.reset()
    until(lambda: served.plane.counters()["connections"] == 0, "the end of the connection")
    settled(served, Produce=1)


def test_answers_that_a_peer_does_not_take_are_counted_once_it_does(served: Broker, topic: str) -> None:
    """Many small ones, more than a connection keeps timings of; and large ones, which are sent out of files."""
    value = b"v" * 10_000
    for _ in range(40):
        LOGS.append(topic, 0, batch([value]))
    with served.connect(receive_buffer=65536) as peer:
        fetches = [encode_request(fetch(topic, 0, 12, partition_max_bytes=1 << 22), 12, n, "test") for n in range(3)]
        produces = [encode_request(produce(topic, batch([b"x"]), 9, index=1), 9, n, "test") for n in range(3000)]
        peer.send_all([*fetches, *produces[:100]])
        for n, frame in enumerate(produces[100:], 100):
            peer.send(frame)
            if n % 100 == 0:
                peer.receive()
        for _ in range(3003 - 29):
            peer.receive()
        settled(served, Produce=3000, FetchConsumer=3)


# --- what the control plane serves ----------------------------------------------------------------------------
def test_the_control_plane_says_what_of_its_service_was_work(topic: str) -> None:
    with Broker(lambda request: None) as served, served.connect() as peer:
        peer.send(api_versions(1))
        (request,) = served.wait_held(1)
        time.sleep(0.2)
        begun_ns = time.monotonic_ns()
        time.sleep(0.3)
        served.plane.answer(request.token, echo(request), begun_ns, SECOND // 10)
        peer.receive()
        times = settled(served, ApiVersions=1)
    assert times["ApiVersions", "queue"].sum_ns >= SECOND // 5
    assert times["ApiVersions", "local"].sum_ns == SECOND // 10
    assert times["ApiVersions", "waiting"].sum_ns >= SECOND // 5


def test_work_is_never_longer_than_the_time_that_there_was(topic: str) -> None:
    with Broker(lambda request: None) as served, served.connect() as peer:
        peer.send(api_versions(1))
        (request,) = served.wait_held(1)
        begun_ns = time.monotonic_ns()
        served.plane.answer(request.token, echo(request), begun_ns, 1 << 62)
        peer.receive()
        times = settled(served, ApiVersions=1)
    assert times["ApiVersions", "local"].sum_ns <= time.monotonic_ns() - begun_ns
    assert times["ApiVersions", "waiting"].sum_ns == 0


# --- slow requests --------------------------------------------------------------------------------------------
def test_slow_requests_name_client_and_topic(topic: str) -> None:
    with Broker(slow_request_ms=200) as served, served.connect() as peer:
        LOGS.hold(topic, 0)
        before = LOGS.produces_held
        frame = encode_request(produce(topic, batch([b"x"]), 9), 9, 1, "a client")
        peer.send(frame)
        until(lambda: LOGS.produces_held > before, "a held produce")
        time.sleep(0.3)
        LOGS.release(topic, 0)
        peer.receive()
        ask_produce(peer, topic)  # This one isn't slow, unless the machine makes it so.
        settled(served, Produce=2)
        slow, *others = served.plane.slow_requests()
        assert all(one.queue_ns + one.local_ns + one.send_ns >= SECOND // 5 for one in others)
        assert (slow.request, slow.client_id, slow.topic, slow.bytes) == ("Produce", "a client", topic, len(frame))
        assert slow.peer == f"127.0.0.1:{peer.socket.getsockname()[1]}"
        assert slow.queue_ns >= SECOND // 5 and slow.waiting_ns == 0
        assert abs(slow.when_ms - time.time() * 1000) < 600_000
        assert served.plane.slow_requests() == []
        assert served.plane.slow_counts() == {"Produce": 1 + len(others)}


def test_a_fetch_that_waits_for_records_is_not_slow(topic: str) -> None:
    with Broker(slow_request_ms=100) as served, served.connect() as peer:
        peer.ask(fetch(topic, 0, 12, max_wait_ms=300), 12, FetchResponse)
        times = settled(served, FetchConsumer=1)
        assert times["FetchConsumer", "waiting"].sum_ns >= SECOND // 4
        took_ns = times["FetchConsumer", "total"].sum_ns - times["FetchConsumer", "waiting"].sum_ns
        assert served.plane.slow_counts() == {"FetchConsumer": int(took_ns >= SECOND // 10)}


@pytest.mark.parametrize(("slow_request_ms", "slow"), [(0, 0), (1, 600)])
def test_slow_requests_that_nobody_takes_are_counted(slow_request_ms: int, slow: int) -> None:
    with Broker(lambda request: None, threads=1, slow_request_ms=slow_request_ms) as served, served.connect() as peer:
        for number in range(600):
            peer.send(api_versions(number))
            if number % 50 == 49:
                held = served.wait_held(number + 1)[-50:]
                time.sleep(0.01)
                for request in held:
                    served.plane.answer(request.token, echo(request))
                for _ in held:
                    peer.receive()
        settled(served, ApiVersions=600)
        assert served.plane.slow_counts() == {"ApiVersions": slow}
        assert len(served.plane.slow_requests()) == min(slow, 256)
        assert served.plane.counters()["slow_requests_lost"] == max(slow - 256, 0)


def test_a_threshold_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="slow_request_ms"):
        Broker(slow_request_ms=-1)


# --- threads --------------------------------------------------------------------------------------------------
def test_threads_that_have_nothing_to_do_are_alive_and_idle(served: Broker, topic: str) -> None:
    before = {one.name: one for one in served.plane.threads()}
    assert sorted(before) == ["network-0", "network-1", "reader-0", "reader-1", "worker-0", "worker-1", "worker-2"]
    until(
        lambda: all(one.beats > before[one.name].beats for one in served.plane.threads() if one.name.startswith("network")),
        "a beat of each network thread",
    )
    for one in served.plane.threads():
        if not one.name.startswith("network"):
            assert (one.beats, one.busy_ns, one.waiting) == (0, 0, True)


def test_busy_time_never_goes_back_and_holds_what_was_done(served: Broker, topic: str) -> None:
    with served.connect_each()[0] as peer:
        busy = {one.name: one.busy_ns for one in served.plane.threads()}
        for _ in range(300):
            ask_produce(peer, topic)
            now = {one.name: one.busy_ns for one in served.plane.threads()}
            assert all(now[name] >= busy[name] for name in now)
            busy = now
        times = settled(served, Produce=300)
    assert sum(one.busy_ns for one in served.plane.threads()) >= times["Produce", "local"].sum_ns


def test_connections_of_threads_by_listener(served: Broker) -> None:
    peers = served.connect_each()

    def each() -> list[dict[str, int]]:
        return [one.connections for one in served.plane.threads() if one.name.startswith("network")]

    until(lambda: each() == [{"PLAINTEXT": 1, "BROKERS": 0}] * 2, "a connection of each network thread")
    peers[0].socket.close()
    until(lambda: sorted(one["PLAINTEXT"] for one in each()) == [0, 1], "the end of one")
    peers[1].socket.close()


# --- connections ----------------------------------------------------------------------------------------------
def test_connections_say_who_is_there(served: Broker, topic: str) -> None:
    with served.connect() as one, served.connect() as two:
        frame = encode_request(produce(topic, batch([b"x"]), 9), 9, 1, 'né\n"1"')
        one.send(frame)
        answer = one.receive()
        two.send(encode_request(ListOffsetsRequest(topics=[]), 1, 1, None))
        two.receive()
        settled(served, Produce=1, ListOffsets=1)  # What has gone is counted after that.
        figures = {int(found.peer.rpartition(":")[2]): found for found in served.plane.connections()}
        first, second = (figures[peer.socket.getsockname()[1]] for peer in (one, two))
        assert (first.client_id, first.listener, first.requests) == ('né\n"1"', "PLAINTEXT", 1)
        assert (first.bytes_in, first.bytes_out) == (len(frame) + 4, len(answer) + 4)
        assert (second.client_id, second.requests) == ("", 1)
        assert (first.software_name, first.software_version) == ("", "")
        assert 0 <= first.idle_ms <= first.age_ms
        one.send(encode_request(produce(topic, batch([b"x"]), 9), 9, 1, "c" * 1000))
        one.receive()
        assert {found.client_id for found in served.plane.connections()} == {"", "c" * 64}
        assert len(served.plane.connections(1)) == 1


def test_the_software_of_clients_is_counted_while_they_are_connected() -> None:
    with Broker(lambda request: None) as served, served.connect() as one, served.connect() as two, served.connect() as third:
        until(lambda: served.plane.software() == {("", ""): 3}, "three clients")
        for peer in (one, two):
            peer.send(api_versions())
        for request in served.wait_held(2):
            served.plane.name_software(request.token, "librdkafka", "2.3.0" + "0" * 100)
        known = ("librdkafka", ("2.3.0" + "0" * 100)[:40])
        until(lambda: served.plane.software() == {("", ""): 1, known: 2}, "the names of two clients")
        assert {(found.software_name, found.software_version) for found in served.plane.connections()} == {("", ""), known}
        two.reset()
        until(lambda: served.plane.software() == {("", ""): 1, known: 1}, "the end of one")
        third.socket.close()


def test_connections_that_come_and_go_are_read_whole(served: Broker, topic: str) -> None:
    """Each says the same of itself twice: a figure put together of two connections would show."""
    ids = ["a" * 64, "b" * 64]
    for round_ in range(60):
        peers = [served.connect() for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.send_all([encode_request(produce(topic, batch([b"x"]), 9), 9, n, ids[(number + n) % 2]) for n in range(8)])
        for found in served.plane.connections():
            assert found.client_id in ("", *ids)
        for peer in peers:
            if round_ % 2:
                peer.reset()
            else:
                peer.socket.close()


def test_refusals_are_answers_like_others(served: Broker) -> None:
    with served.connect() as peer:
        answer = produced(peer.ask(produce("nowhere", batch([b"x"]), 9), 9, ProduceResponse))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        settled(served, Produce=1)
