"""While logs are still recovered after a crash, topics are made and deleted as ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker, server
from penstock.broker.logs import opening
from penstock.errors import ErrorCode
from penstock.pyx.wire.messages import InitProducerIdRequest
from support.harness import WireConnection

WAIT_S = 120.0
SLOW, WAITING = "slow", "waiting"


@pytest.fixture
def go_on() -> threading.Event:
    """Set, it lets the slow logs be opened."""
    return threading.Event()


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: threading.Event) -> Iterator[Broker]:
    """A broker whose logs of one topic take until the test ends to be opened, on all threads that open logs."""
    broker = Broker(tmp_path / "data", properties={"num.recovery.threads.per.data.dir": 2}).start()
    make(broker, SLOW, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    make(broker, WAITING)
    for topic, partition, megabytes in ((SLOW, 0, 2), (SLOW, 1, 2), (WAITING, 0, 3)):
        for _ in range(megabytes):
            producer.produce(topic, "x" * 900_000, partition=partition)
    assert producer.flush(WAIT_S) == 0
    broker.stop()
    (broker.data / ".kafka_cleanshutdown").unlink()  # as after a crash
    lead = opening.lead

    def slowly(logs: Any, job: opening.Job, *rest: Any) -> None:
        assert job.topic.name != SLOW or go_on.wait(WAIT_S)
        lead(logs, job, *rest)

    monkeypatch.setattr(opening, "lead", slowly)
    monkeypatch.setattr(server, "OPEN_FIRST_S", 0.1)
    broker.start()
    try:
        yield broker
    finally:
        go_on.set()
        broker.stop()


def make(broker: Broker, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(WAIT_S)


def test_a_topic_is_made_and_deleted_meanwhile(broker: Broker) -> None:
    make(broker, "new")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["new"])["new"].result(WAIT_S)


def test_a_topic_whose_logs_wait_to_be_opened_is_deleted_at_once(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert set(admin.list_topics().topics) == {SLOW, WAITING}
    admin.delete_topics([WAITING])[WAITING].result(WAIT_S)
    assert not (broker.data / f"{WAITING}-0").exists()
    make(broker, WAITING)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(WAITING, "new")
    assert producer.flush(WAIT_S) == 0


def test_nobody_gets_a_producer_id_that_a_log_may_know(broker: Broker, go_on: threading.Event) -> None:
    """The logs know ids that a lost or an old metadata store does not."""
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    go_on.set()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(SLOW, "new")
    assert producer.flush(WAIT_S) == 0
