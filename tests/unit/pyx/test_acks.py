"""Produces with acks=all that wait for other replicas, whose fetches are made by hand and come over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.net.border import Request
from penstock.pyx.record.rawbatch import marker
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceResponse
from support.dataplane import (
    Broker,
    Peer,
    batch,
    fetch,
    fetched,
    produce,
    produced,
    topic_id,
    transactional,
    values,
)
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until

US_EPOCH, EPOCHS = 50, {1: 101, 2: 102}
VERSION = 9


def control(request: Request) -> None:
    """Nothing is answered but by the test."""


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(control) as made:
        yield made


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("acks")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {})
    lead(made)
    yield made
    LOGS.delete(made, 0)


def lead(name: str, epoch: int = 3, version: int = 0, isr: tuple[int, ...] = (1, 2), enough: int = 2) -> None:
    """This broker leads; `isr`: the others that are in sync."""
    replicas = [Replica(one, one in isr, one in isr, EPOCHS[one]) for one in EPOCHS]
    assert LOGS.set_leader(
        name, 0, broker_epoch=US_EPOCH, leader_epoch=epoch, partition_epoch=version, replicas=replicas, enough=enough
    )


def follow(name: str, epoch: int, version: int) -> None:
    assert LOGS.set_follower(
        name, 0, broker_epoch=US_EPOCH, leader=1, leader_epoch=epoch, partition_epoch=version, unclean_epoch=-1
    )


def put(name: str, value: bytes, number: int = 7, acks: int = -1, timeout_ms: int = 60_000, **producer: int) -> bytes:
    request = produce(name, batch([value], **producer), VERSION, acks)
    request.timeout_ms = timeout_ms
    return encode_request(request, VERSION, number, "test")


def outcome(peer: Peer) -> tuple[int, int, int]:
    """Number, error code and offset of the next answer to a produce."""
    number, answer = decode_response(ProduceResponse, peer.receive(), VERSION)
    one = produced(answer)
    return number, one.error_code, one.base_offset


def replica_fetch(name: str, replica: int, offset: int, *, last: int = 3, epoch: int = 3, **more: Any) -> FetchRequest:
    one = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last, log_start_offset=0,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    topic = FetchRequest.FetchTopic(topic_id=topic_id(name), partitions=[one])
    state = FetchRequest.ReplicaState(replica_id=replica, replica_epoch=more.pop("broker_epoch", EPOCHS.get(replica, 1)))
    return FetchRequest(replica_state=state, min_bytes=1, topics=[topic], **{"max_wait_ms": 0, **more})


def ask(peer: Peer, name: str, replica: int, offset: int, **more: int) -> FetchResponse.PartitionData:
    return fetched(peer.ask(replica_fetch(name, replica, offset, **more), 17, FetchResponse))


def test_an_answer_waits_until_all_in_sync_replicas_have_fetched_past_it(served: Broker, name: str) -> None:
    with served.connect() as producer, served.connect() as consumer, served.between() as one, served.between() as two:
        producer.send(put(name, b"first"))
        taken = ask(one, name, 1, 0, last=-1, max_wait_ms=60_000)
        assert (taken.error_code, taken.high_watermark, values(taken)) == (0, 0, [b"first"])
        seen = fetched(consumer.ask(fetch(name, 0, 12), 12, FetchResponse))
        assert (seen.error_code, seen.high_watermark, values(seen)) == (0, 0, [])
        assert ask(one, name, 1, 1).high_watermark == 0
        assert ask(two, name, 2, 0, last=-1).high_watermark == 0
        assert producer.is_silent()
        assert ask(two, name, 2, 1).high_watermark == 1
        assert outcome(producer) == (7, 0, 0)
        seen = fetched(consumer.ask(fetch(name, 0, 12), 12, FetchResponse))
        assert (seen.high_watermark, values(seen)) == (1, [b"first"])


def test_acks_of_the_leader_alone_wait_for_nobody(served: Broker, name: str) -> None:
    with served.connect() as peer:
        peer.send(put(name, b"1", acks=1))
        assert outcome(peer) == (7, 0, 0)
        assert LOGS.offsets(name, 0).high_watermark == 0


def appended(name: str, end: int) -> bool:
    """Whether the log ends there."""
    return LOGS.offsets(name, 0).log_end == end


def test_later_requests_of_a_connection_are_appended_meanwhile(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        lead(name, version=1, isr=(1,))
        for n in range(20):
            peer.send(put(name, b"%d" % n, n))
        until(partial(appended, name, 20), "all to be appended")
        peer.send(put(name, b"quick", 20, acks=1))
        until(lambda: LOGS.offsets(name, 0).log_end == 21, "all to be appended")
        assert peer.is_silent()
        ask(one, name, 1, 5)
        assert [outcome(peer) for _ in range(5)] == [(n, 0, n) for n in range(5)]
        assert peer.is_silent()
        ask(one, name, 1, 21)
        assert [outcome(peer) for _ in range(16)] == [(n, 0, n) for n in range(5, 21)]


def test_requests_that_come_together_are_answered_each(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        lead(name, version=1, isr=(1,))
        peer.send_all([put(name, b"%d" % n, n, acks=-1 if n % 2 else 1) for n in range(8)])
        until(lambda: LOGS.offsets(name, 0).log_end == 8, "all to be appended")
        assert outcome(peer) == (0, 0, 0)  # It waits for nobody, and is the first.
        ask(one, name, 1, 4)
        assert [outcome(peer) for _ in range(4)] == [(n, 0, n) for n in range(1, 5)]
        assert peer.is_silent()
        ask(one, name, 1, 8)
        assert [outcome(peer) for _ in range(3)] == [(n, 0, n) for n in range(5, 8)]


def test_requests_that_come_together_have_each_its_own_time(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        lead(name, version=1, isr=(1,))
        peer.send_all([put(name, b"%d" % n, n, timeout_ms=60_000 if n else 1) for n in range(4)])
        until(partial(appended, name, 4), "all to be appended")
        assert outcome(peer) == (0, ErrorCode.REQUEST_TIMED_OUT, -1)
        assert peer.is_silent()
        ask(one, name, 1, 4)
        assert [outcome(peer) for _ in range(3)] == [(n, 0, n) for n in range(1, 4)]


def test_more_requests_together_than_a_connection_may_have_waiting_are_served(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        lead(name, version=1, isr=(1,))
        peer.send_all([put(name, b"x", n) for n in range(150)])
        for end in (62, 124, 150):
            until(lambda end=end: LOGS.offsets(name, 0).log_end >= end, "as many as may wait to be appended")  # type: ignore[misc]
            ask(one, name, 1, LOGS.offsets(name, 0).log_end)
        assert [outcome(peer) for _ in range(150)] == [(n, 0, n) for n in range(150)]


def test_a_consumer_that_waits_is_woken_by_the_high_watermark_alone(served: Broker, name: str) -> None:
    with served.connect() as peer, served.connect() as consumer, served.between() as one:
        lead(name, version=1, isr=(1,))
        consumer.send(encode_request(fetch(name, 0, 12, max_wait_ms=60_000), 12, 5, "test"))
        peer.send(put(name, b"x", acks=1))
        outcome(peer)
        assert consumer.is_silent()
        ask(one, name, 1, 1)
        assert values(fetched(decode_response(FetchResponse, consumer.receive(), 12)[1])) == [b"x"]


def test_too_few_in_sync_replicas_refuse_acks_of_all_before_the_append(served: Broker, name: str) -> None:
    lead(name, version=1, isr=())
    with served.connect() as peer:
        peer.send(put(name, b"x"))
        assert outcome(peer) == (7, ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        assert LOGS.offsets(name, 0).log_end == 0
        peer.send(put(name, b"x", acks=1))
        assert outcome(peer) == (7, 0, 0)
        lead(name, version=2, isr=(1,))
        peer.send(put(name, b"y", timeout_ms=1))
        assert outcome(peer) == (7, ErrorCode.REQUEST_TIMED_OUT, -1)


def test_the_time_of_a_request_ends_its_wait(served: Broker, name: str) -> None:
    with served.connect() as peer:
        peer.send(put(name, b"x", timeout_ms=20))
        assert outcome(peer) == (7, ErrorCode.REQUEST_TIMED_OUT, -1)
        peer.send(put(name, b"y", timeout_ms=60_000))
        until(lambda: LOGS.offsets(name, 0).log_end == 2, "the append")
        lead(name, version=1, isr=())
        assert outcome(peer) == (7, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)
    figures = LOGS.topic_figures()[0][name]
    assert (figures.produce_requests, figures.failed_produces) == (2, 2)


def test_a_lost_lead_ends_all_waits(served: Broker, name: str) -> None:
    with served.connect() as peer:
        peer.send(put(name, b"x"))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
        assert (name, 0) in LOGS.fence_all()
        assert outcome(peer) == (7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        peer.send(put(name, b"x"))
        assert outcome(peer) == (7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_lead_that_was_lost_and_won_again_acknowledges_nothing_of_before(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        peer.send(put(name, b"x"))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
        follow(name, 4, 1)
        lead(name, epoch=5, version=2, isr=(1,))
        ask(one, name, 1, 1, epoch=5)
        assert LOGS.offsets(name, 0).high_watermark == 1
        assert outcome(peer) == (7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_lead_that_goes_on_in_a_new_epoch_keeps_its_waits(served: Broker, name: str) -> None:
    with served.connect() as peer, served.between() as one:
        peer.send(put(name, b"x"))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
        lead(name, epoch=4, version=1, isr=(1,))
        assert peer.is_silent()
        ask(one, name, 1, 1, epoch=4)
        assert outcome(peer) == (7, 0, 0)


def test_a_batch_that_is_sent_again_waits_like_its_first_copy(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    with served.connect() as first, served.connect() as again, served.between() as one:
        first.send(put(name, b"x", producer_id=1, producer_epoch=0, base_sequence=0))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
        again.send(put(name, b"x", producer_id=1, producer_epoch=0, base_sequence=0))
        again.send(put(name, b"y", 8, acks=1, producer_id=1, producer_epoch=0, base_sequence=1))
        until(lambda: LOGS.offsets(name, 0).log_end == 2, "the next append")
        assert again.is_silent() and first.is_silent()
        ask(one, name, 1, 1)
        assert outcome(first) == (7, 0, 0) and outcome(again) == (7, 0, 0) and outcome(again) == (8, 0, 1)


def test_a_large_request_waits_after_its_worker(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.reconfigure(name, 0, {"max_message_bytes": 16 << 20})
    worked = served.plane.counters()["worked"]
    with served.connect() as peer, served.between() as one:
        peer.send(put(name, bytes(6 << 20)))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
        assert peer.is_silent()
        ask(one, name, 1, 1)
        assert outcome(peer) == (7, 0, 0)
    assert served.plane.counters()["worked"] > worked


def test_a_request_that_the_control_plane_appends_waits_too(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.reconfigure(name, 0, {"verify_transactions": 1})
    held = len(served.held)
    with served.connect() as peer, served.between() as one:
        request = produce(name, batch([b"x"], **transactional(1, 0)), VERSION, -1, transactional_id="t")
        request.timeout_ms = 60_000
        peer.send(encode_request(request, VERSION, 7, "test"))
        handed = served.wait_held(held + 1)[held]
        answer = served.plane.append_produce(handed, {}, served.plane.unverified(handed).guard)
        assert answer is not None
        served.plane.answer_produce(handed, answer)
        assert peer.is_silent()
        ask(one, name, 1, 1)
        assert outcome(peer) == (7, 0, 0)


def test_a_request_that_is_synced_waits_for_other_replicas_as_well(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.reconfigure(name, 0, {"flush_messages": 1})
    held = len(served.held)
    with served.connect() as peer, served.between() as one:
        peer.send(put(name, b"x"))
        assert served.plane.serve_flushing(served.wait_held(held + 1)[held])
        assert peer.is_silent()
        ask(one, name, 1, 1)
        assert outcome(peer) == (7, 0, 0)


def test_a_client_that_goes_leaves_nothing_behind(served: Broker, name: str) -> None:
    closed = served.plane.counters()["connections_closed"]
    peer = served.connect()
    peer.send(put(name, b"x"))
    until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
    peer.reset()
    until(lambda: served.plane.counters()["connections_closed"] > closed, "the connection's end")
    with served.between() as one, served.between() as two:
        ask(one, name, 1, 1)
        assert ask(two, name, 2, 1).high_watermark == 1


def test_a_stop_answers_who_waits(name: str) -> None:
    with Broker(control) as stopped:
        peer = stopped.connect()
        peer.send(put(name, b"x"))
        until(lambda: LOGS.offsets(name, 0).log_end == 1, "the append")
    assert outcome(peer)[1] == ErrorCode.REQUEST_TIMED_OUT


# --- followers' fetches
def test_a_replica_id_counts_between_brokers_only(served: Broker, name: str) -> None:
    LOGS.append_client(name, 0, batch([b"x"]))
    with served.connect() as peer:
        one = ask(peer, name, 1, 0, last=-1)
        assert (one.error_code, values(one)) == (0, [])
        assert [mark.end for mark in LOGS.marks(name, 0)] == [0, 0]
        assert all(mark.broker_epoch == -1 for mark in LOGS.marks(name, 0))


def test_what_a_leader_refuses_a_replica(served: Broker, name: str) -> None:
    LOGS.append_client(name, 0, batch([b"x"]))
    with served.between() as peer:
        assert ask(peer, name, 9, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ask(peer, name, 1, 0, epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert ask(peer, name, 1, 0).error_code == 0
        assert ask(peer, name, 1, 0, broker_epoch=100).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert ask(peer, name, 1, 1, last=-1).error_code == 0
        parted = ask(peer, name, 1, 1, last=2)
        assert (parted.error_code, parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (0, 2, 0)
        parted = ask(peer, name, 1, 5)
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (3, 1)
        assert [mark.end for mark in LOGS.marks(name, 0)] == [1, 0]
        assert ask(peer, name, 1, 0, epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert LOGS.replica_state(name, 0).role == "fenced"
        assert ask(peer, name, 1, 0, epoch=3).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_that_has_waited_says_nothing_new(served: Broker, name: str) -> None:
    with served.between() as peer, served.between() as other:
        peer.send(encode_request(replica_fetch(name, 1, 0, last=-1, max_wait_ms=60_000), 17, 3, "test"))
        until(lambda: LOGS.marks(name, 0)[0].broker_epoch == EPOCHS[1], "the mark")
        before = LOGS.marks(name, 0)[0]
        ask(other, name, 2, 0, last=-1)
        LOGS.append_client(name, 0, batch([b"x"]))
        assert values(fetched(decode_response(FetchResponse, peer.receive(), 17)[1])) == [b"x"]
        assert LOGS.marks(name, 0)[0] == before


def test_a_fetch_that_waits_hears_that_the_lead_is_lost(served: Broker, name: str) -> None:
    with served.between() as peer:
        peer.send(encode_request(replica_fetch(name, 1, 0, last=-1, max_wait_ms=60_000), 17, 3, "test"))
        until(lambda: LOGS.marks(name, 0)[0].broker_epoch == EPOCHS[1], "the mark")
        LOGS.fence(name, 0)
        answer = decode_response(FetchResponse, peer.receive(), 17)[1]
        assert fetched(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_session_goes_on_for_partitions_that_it_does_not_name(served: Broker, name: str) -> None:
    LOGS.append_client(name, 0, batch([b"x"]))
    with served.between() as peer:
        begun = peer.ask(replica_fetch(name, 1, 1, session_epoch=0), 17, FetchResponse)
        assert begun.session_id != 0
        first = LOGS.marks(name, 0)[0]
        going = replica_fetch(name, 1, 0, session_id=begun.session_id, session_epoch=1)
        going.topics = []
        assert peer.ask(going, 17, FetchResponse).error_code == 0
        again = LOGS.marks(name, 0)[0]
        assert again.end == 1 and again.fetched_ms >= first.fetched_ms
        # Under a newer registration nobody has said that offset.
        going.session_epoch = 2
        going.replica_state = FetchRequest.ReplicaState(replica_id=1, replica_epoch=500)
        peer.ask(going, 17, FetchResponse)
        assert LOGS.marks(name, 0)[0].broker_epoch == EPOCHS[1]


def test_a_member_that_bounced_is_waited_for_until_the_controller_has_named_it(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.append_client(name, 0, batch([b"x"]))
    with served.between() as peer:
        assert ask(peer, name, 1, 1, broker_epoch=300).high_watermark == 0
        named = [Replica(1, True, True, 300), Replica(2, False, False, 102)]
        assert LOGS.set_leader(name, 0, broker_epoch=US_EPOCH, leader_epoch=3, partition_epoch=2, replicas=named, enough=2)
        assert LOGS.offsets(name, 0).high_watermark == 1


def test_a_replica_that_may_enter_is_told_of(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.append_client(name, 0, batch([b"x"]))
    LOGS.take_entrants()
    with served.between() as one, served.between() as two:
        ask(one, name, 1, 1)
        ask(two, name, 2, 0, last=-1)
        assert LOGS.take_entrants() == []
        ask(two, name, 2, 1)
        assert LOGS.take_entrants() == [(name, 0)]
        assert LOGS.take_entrants() == []


# --- readers
def test_a_read_ends_where_its_bounds_were_taken(served: Broker, name: str) -> None:
    """At the high watermark, or at the last stable offset: though the segment goes on, and there is room for all of it."""
    lead(name, version=1, isr=(1,))
    LOGS.append(name, 0, batch([b"a"]))
    LOGS.append(name, 0, batch([b"x"], **transactional(1, 0)))
    LOGS.append(name, 0, batch([b"b"]))
    with served.between() as one, served.connect() as reader:
        for taken, committed in ((1, [b"a"]), (2, [b"a"]), (3, [b"a"])):
            ask(one, name, 1, taken)
            for isolation, most in ((0, [b"a", b"x", b"b"][:taken]), (1, committed)):
                read = fetched(reader.ask(fetch(name, 0, 12, isolation_level=isolation), 12, FetchResponse))
                assert (read.high_watermark, values(read)) == (taken, most)


def test_a_transaction_ends_for_readers_when_its_marker_is_committed(served: Broker, name: str) -> None:
    lead(name, version=1, isr=(1,))
    LOGS.append(name, 0, batch([b"x"], **transactional(1, 0)))
    LOGS.append(name, 0, marker(True, 1, 0, 0, 1_700_000_000_000))
    LOGS.append(name, 0, batch([b"y"]))
    with served.between() as peer:
        ask(peer, name, 1, 1)
        assert LOGS.offsets(name, 0)[1:4] == (0, 1, 3)
        ask(peer, name, 1, 2)
        assert LOGS.offsets(name, 0)[1:4] == (2, 2, 3)
        ask(peer, name, 1, 3)
        assert LOGS.offsets(name, 0)[1:4] == (3, 3, 3)


def test_a_log_that_is_opened_hides_transactions_whose_markers_may_not_be_committed(tmp_path: Path) -> None:
    name = topic_name("acks")
    LOGS.lead(name, topic_id(name), 0, 0, str(tmp_path), {})
    LOGS.append(name, 0, batch([b"x"], **transactional(1, 0)))
    LOGS.append(name, 0, marker(True, 1, 0, 0, 1_700_000_000_000))
    LOGS.append(name, 0, batch([b"y"]))
    LOGS.stop(name, 0)
    LOGS.open_replica(name, topic_id(name), 0, str(tmp_path), {}, clean=True)
    end = LOGS.replica_state(name, 0).high_watermark
    assert LOGS.offsets(name, 0)[1:4] == (0, end, 3)
    lead(name, isr=(1,))
    for offset, stable in ((1, 0), (2, 2), (3, 3)):
        LOGS.replica_fetched(name, 0, replica=1, broker_epoch=EPOCHS[1], leader_epoch=3, offset=offset, last_epoch=0, now_ms=1)
        assert LOGS.offsets(name, 0).last_stable == stable
    LOGS.delete(name, 0)


def test_a_new_leader_does_not_say_where_the_log_ends_before_it_knows(served: Broker, name: str) -> None:
    for n in range(3):
        LOGS.append_client(name, 0, batch([b"%d" % n]))
    lead(name, epoch=4, version=1, isr=(1,))
    LOGS.check_leads(name, 0)
    with pytest.raises(Exception, match="OFFSET_NOT_AVAILABLE"):
        LOGS.check_leads(name, 0, latest=True)
    LOGS.replica_fetched(name, 0, replica=1, broker_epoch=EPOCHS[1], leader_epoch=4, offset=3, last_epoch=3, now_ms=1)
    LOGS.check_leads(name, 0, latest=True)
    follow(name, 5, 2)
    with pytest.raises(Exception, match="NOT_LEADER_OR_FOLLOWER"):
        LOGS.check_leads(name, 0)


def test_nobody_but_a_leader_serves_clients(served: Broker, name: str) -> None:
    LOGS.append_client(name, 0, batch([b"x"]))
    with served.connect() as peer, served.connect() as waiting:
        waiting.send(encode_request(fetch(name, 0, 12, max_wait_ms=60_000), 12, 5, "test"))
        assert waiting.is_silent()
        follow(name, 4, 1)
        assert fetched(decode_response(FetchResponse, waiting.receive(), 12)[1]).error_code == 6
        assert fetched(peer.ask(fetch(name, 0, 12), 12, FetchResponse)).error_code == 6
        peer.send(put(name, b"x", acks=1))
        assert outcome(peer) == (7, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        lead(name, epoch=5, version=2, isr=())
        peer.send(put(name, b"x", acks=1))
        assert outcome(peer) == (7, 0, 1)
