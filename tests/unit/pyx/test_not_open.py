"""Partitions that exist but whose logs aren't open, as the network threads answer them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import FetchResponse, ProduceResponse
from support.dataplane import Broker, batch, fetch, fetched, produce, produced, topic_id
from support.logs import LOGS

NAME = "not-open"
ANSWERS = ((False, ErrorCode.NOT_LEADER_OR_FOLLOWER), (True, ErrorCode.KAFKA_STORAGE_ERROR))


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    LOGS.announce(NAME, topic_id(NAME), 0)
    with Broker() as made:
        yield made
    LOGS.withdraw(NAME, 0)


@pytest.mark.parametrize(("offline", "code"), ANSWERS)
@pytest.mark.parametrize("version", [9, 13])
def test_produce_is_to_be_tried_again(served: Broker, offline: bool, code: ErrorCode, version: int) -> None:
    LOGS.announce(NAME, topic_id(NAME), 0, offline)
    with served.connect() as peer:
        one = produced(peer.ask(produce(NAME, batch([b"x"]), version), version, ProduceResponse))
    assert (one.error_code, one.base_offset, one.record_errors) == (code, -1, [])


@pytest.mark.parametrize(("offline", "code"), ANSWERS)
@pytest.mark.parametrize("version", [11, 16])
def test_fetch_does_not_wait(served: Broker, offline: bool, code: ErrorCode, version: int) -> None:
    LOGS.announce(NAME, topic_id(NAME), 0, offline)
    with served.connect() as peer:
        one = fetched(peer.ask(fetch(NAME, 0, version, max_wait_ms=60_000), version, FetchResponse))
    assert one.error_code == code
