"""Requests that are empty, odd or damaged, for every API in every version: an answer or a closed connection."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator

import pytest

from penstock.broker.dispatch import registry
from penstock.pyx.wire.header import REQUESTS, encode_request
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import MetadataRequest, ProduceRequest
from support.harness import BrokerProcess, WireConnection

SEED = 20130101
MUTATIONS = 12
# How long a request may wait for an answer that it need not have (a fetch, a group that gathers).
ANSWER_S = 0.3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of this file alone, whose log is searched for failed handlers."""
    properties = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    broker = BrokerProcess(tmp_path_factory.mktemp("bad") / "broker", properties).start()
    yield broker
    broker.close()


def frames(key: int) -> Iterator[bytes]:
    """Requests with nothing in them, then damaged in random places and cut at random places."""
    dice = random.Random(SEED + key)
    low, high = registry()[key].versions
    for version in range(low, high + 1):
        try:
            request = ProduceRequest(acks=1) if key == 0 else REQUESTS[key]()  # acks=0 has no answer
            whole = encode_request(request, version, 1, "odd")
        except WireError:
            continue  # Its defaults are not for this version.
        yield whole
        for _ in range(MUTATIONS):
            damaged = bytearray(whole)
            for _ in range(dice.randint(1, 3)):
                # The key and the version stay, so that the damage reaches this handler.
                damaged[dice.randrange(8, len(damaged))] = dice.choice((0, 1, 2, 5, 127, 128, 255))
            yield bytes(damaged[: dice.randint(10, len(damaged))] if dice.random() < 0.3 else damaged)
            yield bytes(damaged) + dice.randbytes(dice.randint(1, 40))


# What brokers ask of each other a single node doesn't know: `test_between_brokers.py`.
SERVED = sorted(registry())


@pytest.mark.parametrize("key", SERVED, ids=lambda key: registry()[key].name)
def test_damaged_requests_stop_nothing(target: BrokerProcess, key: int) -> None:
    answered = 0
    for frame in frames(key):
        with WireConnection(target.bootstrap, timeout_s=ANSWER_S) as wire:
            wire.send(frame)
            with contextlib.suppress(EOFError, ConnectionError, TimeoutError):
                wire.receive()
                answered += 1
    assert answered > 0, "none was only odd"
    with WireConnection(target.bootstrap) as wire:
        assert wire.ask(MetadataRequest(topics=None), 12).controller_id == 1
    failed = re.findall(r"api=\w+ version=\d+ failed.*(?:\n(?!20\d\d-).*)*", target.log_text())
    assert not failed, failed[0]
