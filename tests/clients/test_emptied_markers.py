"""Markers that compaction has emptied, since nothing of their transaction is left: a start passes over them in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from penstock.broker.tools.logcommand import command
from penstock.broker.topic import GROUP_OFFSETS
from support.asking import create
from support.harness import BrokerProcess, WireConnection
from support.patience import until
from support.transaction_wire import commit_offset, end_and_go_on, init

WAIT_S = 120.0
SOON: dict[str, object] = {
    "log.roll.ms": 50,
    "log.cleaner.delete.retention.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "offsets.topic.num.partitions": 1,
    "log.cleaner.backoff.ms": 50,
    "log.roll.jitter.ms": 0,
    "log.retention.check.interval.ms": 50,
}


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_loads_a_log_with_emptied_markers(make_broker: Callable[..., BrokerProcess], commit: bool) -> None:
    """The group's position is as it was, and no line calls the log wrong."""
    broker = make_broker(**SOON)
    assert create(broker, "t").topics[0].error_code == 0
    with WireConnection(broker.bootstrap) as wire:
        error, *owner = init(wire, "x")
        assert error == 0
        assert commit_offset(wire, "x", "g", (owner[0], owner[1]), "t", 5) == 0
        assert end_and_go_on(wire, "x", (owner[0], owner[1]), commit, 5)[0] == 0
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    offset = 3

    def emptied() -> bool:
        nonlocal offset
        offset += 1
        group.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        return "control=emptied" in CliRunner().invoke(command, ["dump", str(broker.data / f"{GROUP_OFFSETS}-0")]).output

    until(emptied, "a pass that empties the marker", broker.log_text)
    group.close()
    broker.kill()
    said = len(broker.log_text())
    broker.start()
    again = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    assert [one.offset for one in again.committed([TopicPartition("t", 0)], WAIT_S)] == [offset]
    again.close()
    assert " ERROR " not in broker.log_text()[said:]
