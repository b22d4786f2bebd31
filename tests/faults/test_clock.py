"""A wall clock that is set ahead or back while the broker runs: nobody waits for it, and nothing goes before its time."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from asking import create
from clock import Clock
from harness import BrokerProcess, WireConnection
from patience import until

from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import ConsumerGroupHeartbeatRequest as Heartbeat

Make = Callable[..., BrokerProcess]
HOUR_S = 3600


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


class Member:
    """A member of a group of KIP-848 that asks when it is told to."""

    def __init__(self, broker: BrokerProcess, topic: str, name: str | None = None) -> None:
        self._broker, self._topic = broker, topic
        self._name = name or base64.urlsafe_b64encode(topic.encode() + b"member").decode()
        self._epoch = 0
        self.owned: set[int] = set()

    def beat(self) -> None:
        first = self._epoch == 0
        request = Heartbeat(
            group_id="g",
            member_id=self._name,
            member_epoch=self._epoch,
            rebalance_timeout_ms=60_000 if first else -1,
            subscribed_topic_names=[self._topic] if first else None,
            topic_partitions=[] if first else None,
        )
        with WireConnection(self._broker.bootstrap) as wire:
            answer = wire.ask(request, 1)
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {index for one in answer.assignment.topic_partitions for index in one.partitions}

    def has_all(self, count: int) -> bool:
        self.beat()
        return self.owned == set(range(count))

    def leave(self) -> None:
        with WireConnection(self._broker.bootstrap) as wire:
            answer = wire.ask(Heartbeat(group_id="g", member_id=self._name, member_epoch=-1), 1)
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch = 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_is_assigned_its_partitions_while_the_clock_is_behind(
    make_broker: Make, clock: Clock, restarted: bool
) -> None:
    broker = make_broker(environment=clock.environment)
    create(broker, "t", partitions=4)
    member = Member(broker, "t")
    until(lambda: member.has_all(4), "the first assignment", broker.log_text)
    clock.set_ahead(-HOUR_S)
    member.leave()
    if restarted:
        broker.restart()
    member = Member(broker, "t")
    until(lambda: member.has_all(4), "an assignment by the clock that is behind", broker.log_text)
