"""Hundreds of clients hold the broker's memory for requests: others' large requests go on, and the log says who it was."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import confluent_kafka
import pytest

from penstock.bench.hoarders import Hoarders
from support.asking import create
from support.harness import BrokerProcess, topic_name
from support.patience import until

MIB = 1 << 20
HOARDERS = 500
RECORDS = 200
RECORD_BYTES = 400_000


@pytest.fixture(autouse=True)
def _descriptors() -> None:
    """The test's own process holds the other ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def produce_large(broker: BrokerProcess, topic: str) -> None:
    """Whatever a stock producer does with large batches: all of them must be delivered."""
    failed: list[object] = []
    delivered: list[int] = []

    def told(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            delivered.append(message.offset() or 0)
        else:
            failed.append(error)

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for n in range(RECORDS):
        producer.produce(topic, n.to_bytes(4, "big") * (RECORD_BYTES // 4), on_delivery=told)
        producer.poll(0)
    left = producer.flush(60)
    assert (left, failed) == (0, []), broker.log_text()
    assert sorted(delivered) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("announced", "sent", "every_s"),
    [
        pytest.param(100 * MIB, 300_000, 0.0, id="that announce the largest request"),
        pytest.param(900_000, 600_000, 0.0, id="that announce an ordinary one"),
        pytest.param(900_000, 600_000, 0.5, id="that send a byte now and then"),
    ],
)
def test_large_requests_go_on_beside_clients_that_hold_memory(
    tmp_path: Path, announced: int, sent: int, every_s: float
) -> None:
    properties = {"queued.max.request.bytes": 64 * MIB, "penstock.request.memory.patience.ms": 1000}
    broker = BrokerProcess(tmp_path / "data", properties)
    broker.start()
    try:
        topic = topic_name("large")
        assert create(broker, topic).topics[0].error_code == 0
        with Hoarders(broker.port, HOARDERS, announced, sent, every_s) as hoarders:
            produce_large(broker, topic)
            until(lambda: "memory for requests was short" in broker.log_text(), "the broker to say it")
            until(lambda: hoarders.closed > 0, "them to be closed")
        said = re.findall(r"^.*memory for requests was short.*$", broker.log_text(), re.MULTILINE)
        assert len(said) == 1  # Once a minute.
        assert "127.0.0.1" in said[0]
        assert broker.stop() == 0
    finally:
        broker.close()
