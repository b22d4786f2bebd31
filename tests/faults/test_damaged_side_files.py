"""A broker whose partitions' side files were damaged while it was down, as its clients see it: fetches, searches by time,
retention, and what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.harness import BrokerProcess
from support.one_partition import consume
from support.patience import until

RECORDS = 200
HOUR_MS = 3_600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path / "data",
        {
            "log.retention.check.interval.ms": 100,
            "log.initial.task.delay.ms": 0,
            "log.flush.offset.checkpoint.interval.ms": 200,
        },
    ).start()
    yield process
    process.close()


def filled(broker: BrokerProcess, topic: str) -> int:
    """Committed and aborted transactions by turns, in several segments, fresh records; answers the first timestamp."""
    settings = {"segment.bytes": "1200", "index.interval.bytes": "150", "retention.ms": str(HOUR_MS)}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result()
    first_ms = int(time.time() * 1000) - RECORDS
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions()
    for number in range(RECORDS // 10):
        producer.begin_transaction()
        for i in range(10):
            at = number * 10 + i
            producer.produce(topic, b"%d" % at, timestamp=first_ms + at, partition=0)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    return first_ms


def recovery_point(broker: BrokerProcess, topic: str) -> int:
    path = broker.data / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.startswith(f"{topic} ")), default=0)


def by_time(broker: BrokerProcess, topic: str, first_ms: int) -> list[int]:
    """The offset of the first record at each time."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    found = []
    for at in range(0, RECORDS, 7):
        (answer,) = reader.offsets_for_times([TopicPartition(topic, 0, first_ms + at)], timeout=30)
        assert answer.error is None
        found.append(answer.offset)
    reader.close()
    return found


DAMAGES: dict[str, Callable[[bytearray], bytes | None]] = {
    "gone": lambda data: None,
    "zeros": lambda data: bytes(len(data)),
    "cleared": lambda data: bytes(byte & 0x0F for byte in data),
    "one bit": lambda data: bytes(data[:-5]) + bytes([data[-5] ^ 1]) + bytes(data[-4:]),
}


@pytest.mark.parametrize(
    ("how", "clean", "checks"),
    [("gone", True, True), ("zeros", False, True), ("one bit", True, True), ("cleared", True, False)],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_clients_see_what_the_batches_say(
    broker: BrokerProcess, new_topic: Callable[[str], str], suffix: str, how: str, clean: bool, checks: bool
) -> None:
    topic = new_topic("hurt")
    first_ms = filled(broker, topic)
    folder = broker.data / f"{topic}-0"
    timed = by_time(broker, topic, first_ms)
    committed = [number for number in range(RECORDS) if number // 10 % 2 == 0]
    until(lambda: recovery_point(broker, topic) > RECORDS // 2, "most segments are flushed", broker.log_text)
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    if not checks:
        for path in folder.glob("*.checks"):
            path.unlink()
    damaged = sorted(folder.glob(f"*{suffix}"))
    assert len(damaged) > 1
    for path in damaged:
        data = DAMAGES[how](bytearray(path.read_bytes()))
        if data is None:
            path.unlink()
        elif path.stat().st_size > 4:
            path.write_bytes(data)
    broker.start()
    assert consume(broker, topic, "read_committed") == (committed, None)
    assert consume(broker, topic, "read_uncommitted") == (list(range(RECORDS)), None)
    assert by_time(broker, topic, first_ms) == timed
    assert min(int(path.stem) for path in folder.glob("*.log")) == 0, "retention has deleted fresh records"
    if checks:  # Else an entry that nobody looks up may stay wrong.
        assert "rebuilt from its batches" in broker.log_text()
