"""A broker whose log lost its beginning or its end while it was down, as a consumer group sees it that had read to the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker.tools.logcommand import command
from penstock.errors import ErrorCode
from penstock.pyx.log.checkpoint import OURS, parse_offsets
from penstock.pyx.log.endslots import NAME
from support.asking import end_offset, metadata, produce
from support.harness import BrokerProcess
from support.patience import until

TOPIC, OTHER = "kept", "other"
RECORDS, AGAIN = 8, 3
BYTES = 400_000
"""Two records fit a segment."""
WAIT_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", {"log.flush.offset.checkpoint.interval.ms": 3_600_000}).start()
    yield process
    process.close()


def send(broker: BrokerProcess, first: int, count: int) -> None:
    """Records that say their numbers, one to a batch; all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.max.bytes": 1_000_000})
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%08d" % number + os.urandom(BYTES), partition=0)
        assert producer.flush(WAIT_S) == 0


def read(broker: BrokerProcess, count: int) -> list[tuple[int, int]]:
    """What the group reads next, offsets and numbers, committed."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "error", "enable.auto.commit": False}
    )
    try:
        (where,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=WAIT_S)
        consumer.assign([TopicPartition(TOPIC, 0, where.offset if where.offset >= 0 else OFFSET_BEGINNING)])
        found: list[tuple[int, int]] = []
        while len(found) < count and (message := consumer.poll(WAIT_S)) is not None:
            if message.error():
                raise KafkaException(message.error())
            value, offset = message.value(), message.offset()
            assert value is not None and offset is not None
            found.append((offset, int(value[:8])))
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, found[-1][0] + 1)], asynchronous=False)
        return found
    finally:
        consumer.close()


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data / f"{TOPIC}-0").glob("*.log"))


def first_gone(broker: BrokerProcess) -> None:
    segments(broker)[0].unlink()


def last_gone(broker: BrokerProcess) -> None:
    segments(broker)[-1].unlink()


def last_empty(broker: BrokerProcess) -> None:
    os.truncate(segments(broker)[-1], 0)


def cut_at_a_batch(broker: BrokerProcess) -> None:
    path = segments(broker)[-1]
    data, ends = path.read_bytes(), [0]
    while size := int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"):  # Zeros may follow, of a broker that was killed.
        ends.append(ends[-1] + 12 + size)
    os.truncate(path, ends[-2])


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("damage", [first_gone, last_gone, last_empty, cut_at_a_batch])
def test_a_group_that_read_to_the_end_gets_each_later_record_once(
    broker: BrokerProcess, damage: Callable[[BrokerProcess], None], ended: str
) -> None:
    create(broker, 1 << 20)
    send(broker, 0, RECORDS)
    assert [number for _, number in read(broker, RECORDS)] == list(range(RECORDS))
    if ended == "killed":
        if damage is first_gone:
            ours = broker.data / OURS
            until(lambda: (TOPIC, 0) in parse_offsets(ours.read_bytes())[0], "a checkpoint after a segment was sealed")
        broker.kill()
    else:
        assert broker.stop() == 0
    damage(broker)
    refused_then_accepted(broker)


def create(broker: BrokerProcess, segment_bytes: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(TOPIC, 1, 1, config={"segment.bytes": str(segment_bytes)}), NewTopic(OTHER, 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result()


def refused_then_accepted(broker: BrokerProcess) -> None:
    """All records were acknowledged and read, and some are gone."""
    broker.start()
    assert produce(broker, OTHER, 1) == ErrorCode.NONE, "other partitions serve"
    assert produce(broker, TOPIC, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    (partition,) = metadata(broker, TOPIC).topics[0].partitions
    assert partition.offline_replicas == [0] or partition.error_code
    said = broker.log_text()
    assert "can't be opened and is offline" in said and "penstock log accept" in said
    assert broker.stop() == 0
    folder = str(broker.data / f"{TOPIC}-0")
    assert CliRunner().invoke(command, ["verify", folder]).exit_code == 1
    done = CliRunner().invoke(command, ["accept", "--yes", folder])
    assert done.exit_code == 0, done.output
    broker.start()
    assert end_offset(broker, TOPIC) == RECORDS
    send(broker, RECORDS, AGAIN)
    assert read(broker, AGAIN) == [(number, number) for number in range(RECORDS, RECORDS + AGAIN)]


@pytest.mark.parametrize("damage", [last_gone, last_empty, cut_at_a_batch])
def test_a_kill_right_after_the_acknowledgements_hides_no_loss(
    broker: BrokerProcess, damage: Callable[[BrokerProcess], None]
) -> None:
    """No checkpoint knows of a record: only the slot of the log does. A start of the machine after it is no way out."""
    create(broker, 1 << 30)
    send(broker, 0, RECORDS)
    assert [number for _, number in read(broker, RECORDS)] == list(range(RECORDS))
    broker.kill()
    known = parse_offsets((broker.data / OURS).read_bytes())[0]
    assert (TOPIC, 0) not in known or known[TOPIC, 0].log_end == 0
    damage(broker)
    broker.start()
    assert produce(broker, TOPIC, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    broker.kill()
    (broker.data / NAME).unlink()
    refused_then_accepted(broker)


def test_a_broker_outlives_somebody_who_cuts_the_file_of_ends(broker: BrokerProcess) -> None:
    """Its network threads store in it."""
    create(broker, 1 << 30)
    send(broker, 0, 2)
    os.truncate(broker.data / NAME, 0)
    send(broker, 2, RECORDS - 2)
    assert [number for _, number in read(broker, RECORDS)] == list(range(RECORDS))
    assert broker.stop() == 0
    assert NAME in broker.log_text()
    broker.start()
    assert end_offset(broker, TOPIC) == RECORDS


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("damage", [Path.unlink, partial(os.truncate, length=0)])
def test_a_compacted_topic_that_lost_its_middle_stays_closed(
    make_broker: Callable[..., BrokerProcess], damage: Callable[[Path], None], ended: str
) -> None:
    broker = make_broker(**{"log.cleaner.backoff.ms": 100})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"segment.bytes": str(1 << 20), "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config), NewTopic(OTHER, 1, 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.max.bytes": 1_000_000})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%08d" % number + os.urandom(BYTES), b"%d" % number, partition=0)
        assert producer.flush(WAIT_S) == 0
    ours = broker.data / OURS

    def compacted() -> bool:
        known = parse_offsets(ours.read_bytes())[0].get((TOPIC, 0))
        return known is not None and known.first_dirty >= RECORDS - 2 <= known.recovery_point

    until(compacted, "all sealed segments are compacted")
    if ended == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    lost = segments(broker)[1]
    damage(lost)
    broker.start()
    assert produce(broker, OTHER, 1) == ErrorCode.NONE, "other partitions serve"
    assert produce(broker, TOPIC, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert "records of offsets 2 to 3 are missing" in broker.log_text()
    assert broker.stop() == 0
    folder = str(broker.data / f"{TOPIC}-0")
    assert CliRunner().invoke(command, ["verify", folder]).exit_code == 1
    done = CliRunner().invoke(command, ["accept", "--yes", folder])
    assert done.exit_code == 0 and "offsets 2 to 3 are lost" in done.output, done.output
    broker.start()
    assert [number for _, number in read(broker, RECORDS - 2)] == [0, 1, *range(4, RECORDS)]
    assert end_offset(broker, TOPIC) == RECORDS
