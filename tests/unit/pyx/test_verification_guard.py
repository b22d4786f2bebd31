"""A produce that begins a transaction, when something comes between the question to its coordinator and its append."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.net.border import Request
from penstock.pyx.record.rawbatch import marker, split
from penstock.pyx.wire.header import decode_response, encode_request
from penstock.pyx.wire.messages import ProduceResponse
from support.dataplane import Broker, Peer, batch, produce, produced, topic_id
from support.harness import topic_name
from support.logs import LOGS, NOW_MS

VERSIONS = [9, 12]  # verified, and added
AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS
DAY_MS = 24 * 3_600_000


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with Broker(lambda request: None) as made:
        yield made


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("guard")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {"verify_transactions": 1})
    lead(made, 1)
    yield made
    LOGS.delete(made, 0)


def lead(name: str, epoch: int) -> None:
    assert LOGS.set_leader(name, 0, broker_epoch=1, leader_epoch=epoch, partition_epoch=epoch, replicas=[], enough=1)


def frame(name: str, version: int, producer: int = 1, epoch: int = 0, sequence: int = 0) -> bytes:
    records = batch([b"x"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return encode_request(produce(name, records, version, transactional_id="t"), version, sequence, "test")


def send(served: Broker, peer: Peer, one: bytes) -> Request:
    """What the control plane gets."""
    held = len(served.held)
    peer.send(one)
    return served.wait_held(held + 1)[held]


def answer(served: Broker, peer: Peer, request: Request, guard: int) -> int:
    """Append it; the error code that the client gets."""
    served.plane.answer_produce(request, given) if (given := served.plane.append_produce(request, {}, guard)) else None
    return produced(decode_response(ProduceResponse, peer.receive(), request.api_version)[1]).error_code


def end(name: str, producer: int = 1, epoch: int = 0) -> None:
    LOGS.append(name, 0, marker(True, producer, epoch, 0, NOW_MS))


def count(name: str) -> int:
    """Data batches in the log."""
    found = 0
    where = LOGS.offsets(name, 0)
    at = where.log_start
    while at < where.log_end:
        for raw in split(LOGS.read(name, 0, at, 1 << 20)):
            found += not raw.is_control
            at = raw.next_offset
    return found


def another_role(name: str) -> None:
    LOGS.fence(name, 0)
    lead(name, 2)


def another_lead(name: str) -> None:
    lead(name, 2)


def a_cut(name: str) -> None:
    LOGS.append_client(name, 0, batch([b"plain"]))
    LOGS.truncate(name, 0, 0)


def a_marker_that_is_forgotten(name: str) -> None:
    end(name)
    LOGS.reconfigure(name, 0, {"producer_id_expiration_ms": 1, "verify_transactions": 1})
    LOGS.upkeep(name, 0, NOW_MS + 100 * 365 * DAY_MS, retain=False)
    assert LOGS.producers(name, 0) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("between", [end, another_role, another_lead, a_cut, a_marker_that_is_forgotten])
def test_what_comes_between_makes_the_answer_worthless(
    served: Broker, name: str, version: int, between: Callable[[str], None]
) -> None:
    with served.connect() as peer:
        request = send(served, peer, frame(name, version))
        question = served.plane.unverified(request)
        assert [one.partition for one in question.batches] == [(name, 0)]
        between(name)
        assert (answer(served, peer, request, question.guard), count(name)) == (AGAIN, 0)
        request = send(served, peer, frame(name, version))
        question = served.plane.unverified(request)
        assert (answer(served, peer, request, question.guard), count(name)) == (0, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_concerns_others_does_not(served: Broker, name: str, version: int) -> None:
    with served.connect() as peer:
        request = send(served, peer, frame(name, version))
        question = served.plane.unverified(request)
        end(name, producer=2)
        LOGS.append_client(name, 0, batch([b"plain"]))
        assert answer(served, peer, request, question.guard) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_begins_a_transaction_unasked(served: Broker, name: str, version: int) -> None:
    with served.connect() as peer:
        request = send(served, peer, frame(name, version))
        assert (answer(served, peer, request, 0), count(name)) == (AGAIN, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_that_went_on_when_it_was_looked_at_begins_no_other(served: Broker, name: str, version: int) -> None:
    with served.connect() as peer:
        held = len(served.held)
        peer.send_all([frame(name, version), frame(name, version, sequence=1)])
        request, late = served.wait_held(held + 2)[held:]  # The first one holds up the second.
        assert answer(served, peer, request, served.plane.unverified(request).guard) == 0
        question = served.plane.unverified(late)
        assert question.batches == []
        end(name)
        assert (answer(served, peer, late, question.guard), count(name)) == (AGAIN, 1)


def test_a_partition_that_verifies_nothing_still_has_what_a_coordinator_adds_guarded(served: Broker, name: str) -> None:
    LOGS.reconfigure(name, 0, {"verify_transactions": 0})
    with served.connect() as peer:
        request = send(served, peer, frame(name, 12))
        question = served.plane.unverified(request)
        end(name)
        assert (answer(served, peer, request, question.guard), count(name)) == (AGAIN, 0)


def test_offsets_of_a_group_are_guarded_in_the_same_way(name: str) -> None:
    logs, records = LOGS, batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    guard = logs.guard()
    assert logs.is_guarded(name, 0, 1, 0, guard)
    end(name, producer=2)
    assert logs.is_guarded(name, 0, 1, 0, guard)
    end(name)
    assert not logs.is_guarded(name, 0, 1, 0, guard)
    guard = logs.guard()
    another_role(name)
    assert not logs.is_guarded(name, 0, 1, 0, guard)
    logs.append(name, 0, records)
    assert logs.is_guarded(name, 0, 1, 0, 0), "it goes on"
    assert not logs.is_guarded(name, 0, 1, 1, 0), "but not in another epoch"
