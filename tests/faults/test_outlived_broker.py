"""A broker that stood still while another process ran under its id: it isn't the one that the ISR means any more."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from support.cluster_clients import read
from support.cluster_world import PROPERTIES, WAIT_S, cluster
from support.harness import BrokerProcess
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka


def test_what_a_replacement_has_answered_outlives_the_broker_that_wakes(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with cluster(zookeeper, tmp_path, count=2) as world:
        world.create("t", 1, 2, min_insync_replicas="1")
        world.until_led("t", by={1, 2}, isr={1, 2})
        first = world.brokers[1]
        world.pause(1)
        arguments = ("--zookeeper", world.servers, "--id", "1", "--forget-log-dir", str(tmp_path / "broker-1"))
        other = BrokerProcess(tmp_path / "replacement", PROPERTIES, arguments).start()
        try:
            world.brokers[1] = other
            world.until_led("t", by={1, 2}, isr={1, 2})
            world.brokers[2].kill()
            world.until_led("t", by={1})
            producer = Producer({"bootstrap.servers": other.bootstrap, "acks": "all", "message.timeout.ms": 60_000})
            answered: list[tuple[int, int]] = []

            def note(_: object, one: Message) -> None:
                offset, value = one.offset(), one.value()
                assert offset is not None and value is not None
                answered.append((offset, int(value)))

            for number in range(20):
                producer.produce("t", str(number).encode(), on_delivery=note)
            assert producer.flush(WAIT_S) == 0 and len(answered) == 20
            first.signal(signal.SIGCONT)  # It asks for its id, and is refused.
            other.kill()
            until(lambda: not first.running, "the broker that stood still to end", first.log_text)
            assert "another one ran under the id 1" in first.log_text()
            other.arguments = other.arguments[:4]  # Its folder is known now.
            other.start()
            world.until_led("t", by={1})
            assert set(answered) <= set(read(world, "t", 20))
        finally:
            first.close()
            other.close()
