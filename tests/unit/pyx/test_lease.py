"""A leader whose lease is over, asked over a real socket; `broker/cluster/lease.py` says what it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.cluster import lease
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.net.border import Request
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import FetchRequest, FetchResponse, ProduceResponse
from support.dataplane import Broker, Peer, batch, fetch, fetched, produce, produced, topic_id, values
from support.harness import topic_name
from support.logs import LOGS
from support.patience import until

US, US_EPOCH, OTHER_EPOCH = 1, 50, 102
VERSION = 9
OVER = 1
"""A lease that has ended long ago."""


def control(request: Request) -> None:
    """Nothing comes here."""


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(control) as made:
        yield made


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("lease")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {})
    lead(made)
    yield made
    LOGS.set_lease(None)
    LOGS.isolate(None)
    LOGS.delete(made, 0)


def lead(name: str, version: int = 0, *, members: tuple[int, ...] = (2,), sole: bool = False, epoch: int = 3) -> None:
    """This broker leads; members: the others in MAX."""
    replicas = [Replica(2, 2 in members, 2 in members, OTHER_EPOCH)]
    assert LOGS.set_leader(
        name, 0, broker_epoch=US_EPOCH, leader_epoch=epoch, partition_epoch=version, replicas=replicas, enough=1, sole=sole
    )


def put(peer: Peer, name: str, acks: int, timeout_ms: int = 60_000) -> None:
    request = produce(name, batch([b"x"]), VERSION, acks)
    request.timeout_ms = timeout_ms
    peer.send(encode_request(request, VERSION, 7, "test"))


def error(peer: Peer) -> int:
    return produced(decode_response(ProduceResponse, peer.receive(), VERSION)[1]).error_code


def replicate(peer: Peer, name: str, offset: int) -> FetchResponse.PartitionData:
    """The other replica fetches."""
    one = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=3, fetch_offset=offset, last_fetched_epoch=3 if offset else -1, log_start_offset=0,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=OTHER_EPOCH)
    topic = FetchRequest.FetchTopic(topic_id=topic_id(name), partitions=[one])
    return fetched(peer.ask(FetchRequest(replica_state=state, min_bytes=1, max_wait_ms=0, topics=[topic]), 17, FetchResponse))


def end(name: str) -> int:
    return LOGS.offsets(name, 0).log_end


@pytest.mark.parametrize("elr", [(), (2,)])
@pytest.mark.parametrize("members", [(), (2,)])
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("acks", [1, -1])
def test_what_is_answered_without_the_lease_is_what_the_rule_says(
    served: Broker, name: str, acks: int, is_silent: bool, members: tuple[int, ...], elr: tuple[int, ...]
) -> None:
    with served.connect() as client, served.between() as other:
        replicate(other, name, 0)
        lead(name, 1, members=members, sole=not members and not elr)
        LOGS.set_lease(OVER)
        LOGS.isolate(-1 if is_silent else lease.SILENCE_MS)
        put(client, name, acks)
        wanted = lease.produce_error(False, acks, US, (US, *members), elr, 3_000 if is_silent and members else 0)
        if wanted == ErrorCode.NONE and acks == -1 and members:
            until(lambda: end(name) == 1, "the append")
            replicate(other, name, 1)
        assert error(client) == wanted
        assert end(name) == (1 if wanted == ErrorCode.NONE else 0)


def test_a_lease_that_lasts_and_none_at_all_change_nothing(served: Broker, name: str) -> None:
    with served.connect() as client:
        for until_ms in (None, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 60_000):
            LOGS.set_lease(until_ms)
            put(client, name, 1)
            assert error(client) == ErrorCode.NONE
            LOGS.check_leads(name, 0, latest=True)


def test_without_an_answer_the_connection_says_that_nothing_is_taken(served: Broker, name: str) -> None:
    LOGS.set_lease(OVER)
    with served.connect() as client:
        put(client, name, 0)
        assert client.has_ended()
    assert end(name) == 0


def test_the_end_of_the_log_is_not_told_but_what_is_committed_is_read(served: Broker, name: str) -> None:
    with served.connect() as client, served.between() as other:
        put(client, name, 1)
        assert error(client) == ErrorCode.NONE
        replicate(other, name, 1)
        LOGS.set_lease(OVER)
        LOGS.check_leads(name, 0)
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            LOGS.check_leads(name, 0, latest=True)
        assert values(fetched(client.ask(fetch(name, 0, 12), 12, FetchResponse))) == [b"x"]
        lead(name, 1, members=(), sole=True)
        LOGS.check_leads(name, 0, latest=True)


def test_a_leader_that_is_cut_off_answers_those_who_wait_and_refuses_clients_until_its_follower_is_back(
    served: Broker, name: str
) -> None:
    with served.connect() as producer, served.connect() as consumer, served.between() as other:
        replicate(other, name, 0)
        put(producer, name, -1)
        consumer.send(encode_request(fetch(name, 0, 12, max_wait_ms=60_000), 12, 5, "test"))
        until(lambda: end(name) == 1, "the append")
        LOGS.set_lease(OVER)
        assert (name, 0) in LOGS.isolate(-1)
        assert error(producer) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert fetched(decode_response(FetchResponse, consumer.receive(), 12)[1]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            LOGS.check_leads(name, 0)
        assert LOGS.replica_state(name, 0).role == "leader"
        # Followers are served: it is by their fetches that it sees them again.
        taken = replicate(other, name, 1)
        assert (taken.error_code, taken.high_watermark) == (0, 1)
        assert (name, 0) not in LOGS.isolate(60_000)
        put(producer, name, -1)
        until(lambda: end(name) == 2, "the append")
        replicate(other, name, 2)
        assert error(producer) == ErrorCode.NONE


def test_another_role_ends_the_isolation(served: Broker, name: str) -> None:
    LOGS.set_lease(OVER)
    assert (name, 0) in LOGS.isolate(-1)
    LOGS.set_lease(None)
    lead(name, 1, epoch=4)
    with served.connect() as client:
        put(client, name, 1)
        assert error(client) == ErrorCode.NONE
