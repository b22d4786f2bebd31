"""Compacted topics through a real broker and real clients, the coordinators' own topics among them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from penstock.pyx.log.checkpoint import read_checkpoint
from support.asking import shrink_segments
from support.harness import BrokerProcess
from support.patience import until

QUICK = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "delete.retention.ms": "100"}
WAIT_S = 60.0

Pairs = list[tuple[bytes, bytes | None]]


def create(broker: BrokerProcess, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (created,) = admin.create_topics([NewTopic(topic, 1, 1, config={**COMPACTED, **configs})]).values()
    created.result()


def produce(broker: BrokerProcess, topic: str, pairs: Pairs, **properties: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **properties})
    for key, value in pairs:
        producer.produce(topic, value, key=key, partition=0)
    assert producer.flush(WAIT_S) == 0


def consume(broker: BrokerProcess, topic: str, offset: int = OFFSET_BEGINNING) -> list[tuple[int, bytes, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error():
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def compacted_to(broker: BrokerProcess, topic: str) -> int:
    """How far any partition of the topic was compacted in this and earlier lives of the broker."""
    found = re.findall(rf"compacted topic={re.escape(topic)} partition=\d+ to offset (\d+)", broker.log_text())
    return max(map(int, found), default=0)


def test_only_the_newest_values_stay_and_tombstones_vanish(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**QUICK)
    create(broker, "t")
    for turn in range(3):
        produce(broker, "t", [(b"k%d" % i, b"%d" % turn) for i in range(50)], **{"compression.type": "zstd"})
    produce(broker, "t", [(b"k%d" % i, None) for i in range(0, 50, 2)])
    time.sleep(0.2)  # older than segment.ms
    produce(broker, "t", [(b"end", b"1")])
    until(lambda: compacted_to(broker, "t") >= 175, "compaction")
    wanted = [(100 + i, b"k%d" % i, b"2") for i in range(1, 50, 2)]

    def vanished() -> bool:
        produce(broker, "t", [(b"end", b"1")])
        return all(value is not None for _, _, value in consume(broker, "t"))

    until(vanished, "tombstones to go")
    found = consume(broker, "t")
    assert found[:25] == wanted and {key for _, key, _ in found[25:]} == {b"end"}
    assert consume(broker, "t", 7)[:25] == wanted, "a position in a hole goes on with what follows"
    assert consume(broker, "t", 120)[0][0] == 121
    broker.kill()
    broker.start()
    assert consume(broker, "t")[:25] == wanted
    assert read_checkpoint(broker.data / "cleaner-offset-checkpoint")[("t", 0)] >= 175


def test_readers_of_committed_records_see_no_aborted_one(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**QUICK)
    create(broker, "t", **{"delete.retention.ms": "86400000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    producer.init_transactions(WAIT_S)
    for turn in range(6):
        producer.begin_transaction()
        for i in range(5):
            producer.produce("t", b"good%d" % turn if turn % 2 else b"bad", key=b"k%d" % i, partition=0)
        producer.flush()
        producer.commit_transaction() if turn % 2 else producer.abort_transaction()
        time.sleep(0.15)
    produce(broker, "t", [(b"end", b"1")])
    until(lambda: compacted_to(broker, "t") >= 30, "compaction")
    for _ in range(2):
        found = consume(broker, "t")
        assert {key: value for _, key, value in found} == {
            **{b"k%d" % i: b"good5" for i in range(5)},
            b"end": b"1",
        }
        assert b"bad" not in {value for _, _, value in found}
        broker.kill()
        broker.start()


@pytest.mark.parametrize(
    ("delays", "suffix"), [("compact.cleaned=delay:3000", "cleaned"), ("compact.swapping=delay:300", "swap")]
)
def test_once_compaction_is_altered_away_it_removes_nothing(
    make_broker: Callable[..., BrokerProcess], delays: str, suffix: str
) -> None:
    """A pass that is about to put its files in the place of others, or does so, when the policy is altered."""
    broker = make_broker(**QUICK, **{"log.cleaner.enable": False})
    create(broker, "t")
    for turn in range(4):
        produce(broker, "t", [(b"k%d" % i, b"%d" % turn) for i in range(5)])
        time.sleep(0.2)  # older than segment.ms
    broker.stop()
    broker.properties["log.cleaner.enable"] = True
    broker.environment["PENSTOCK_FAILPOINTS"] = delays
    broker.start()
    until(lambda: any((broker.data / "t-0").glob(f"*.{suffix}")), "a pass")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    found = consume(broker, "t")
    broker.stop()  # which waits for the pass
    broker.environment.clear()
    broker.start()
    assert consume(broker, "t") == found


def commit(broker: BrokerProcess, groups: int, turn: int) -> None:
    for number in range(groups):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"g{number}"})
        for step in range(20):
            consumer.commit(offsets=[TopicPartition("t", 0, turn * 1000 + step + number)], asynchronous=False)
        consumer.close()


def committed(broker: BrokerProcess, groups: int) -> list[int]:
    found = []
    for number in range(groups):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"g{number}"})
        found.append(consumer.committed([TopicPartition("t", 0)], WAIT_S)[0].offset)
        consumer.close()
    return found


def test_groups_positions_survive_compaction_restart_and_kill(make_broker: Callable[..., BrokerProcess]) -> None:
    topic = "__consumer_offsets"
    broker = make_broker(**QUICK, **{"offsets.topic.num.partitions": 2})
    shrink_segments(broker, topic, 1000)
    create(broker, "t")
    for turn, end in enumerate((broker.kill, broker.stop, broker.kill)):
        before = len(re.findall("compacted topic=" + topic, broker.log_text()))
        commit(broker, 4, turn)
        until(lambda: len(re.findall("compacted topic=" + topic, broker.log_text())) > before + 1, "compaction")  # noqa: B023
        assert committed(broker, 4) == [turn * 1000 + 19 + number for number in range(4)]
        end()
        broker.start()
        assert committed(broker, 4) == [turn * 1000 + 19 + number for number in range(4)]
    sizes = [path.stat().st_size for path in broker.data.glob(topic + "-*/*.log")]
    assert sum(sizes) < 12_000, "240 commits of about 150 bytes were made"


def test_transactional_ids_survive_compaction_and_kill(make_broker: Callable[..., BrokerProcess]) -> None:
    topic = "__transaction_state"
    broker = make_broker(**QUICK, **{"transaction.state.log.num.partitions": 1})
    shrink_segments(broker, topic, 1000)
    create(broker, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    producer.init_transactions(WAIT_S)
    for turn in range(20):
        producer.begin_transaction()
        producer.produce("t", b"%d" % turn, key=b"k", partition=0)
        producer.commit_transaction(WAIT_S)
    until(lambda: compacted_to(broker, topic) > 20, "compaction")
    broker.kill()
    broker.start()
    again = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    again.init_transactions(WAIT_S)
    again.begin_transaction()
    again.produce("t", b"again", key=b"k", partition=0)
    again.commit_transaction(WAIT_S)
    assert consume(broker, "t")[-1][1:] == (b"k", b"again")
    with pytest.raises(Exception, match=r"(?i)fenced|epoch|fatal"):
        producer.begin_transaction()
        producer.produce("t", b"late", key=b"k", partition=0)
        producer.commit_transaction(WAIT_S)


def test_a_corrupt_log_is_left_alone_and_the_others_go_on(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**QUICK, **{"log.cleaner.enable": "false"})
    for topic in ("corrupt", "well"):
        create(broker, topic)
        for turn in range(2):
            produce(broker, topic, [(b"k", b"%d" % turn)])
            time.sleep(0.3)
        produce(broker, topic, [(b"end", b"1")])
    until(lambda: len(list(broker.data.glob("*-0/*.log"))) >= 4, "sealed segments")
    assert not (broker.data / "cleaner-offset-checkpoint").exists()
    assert broker.stop() == 0
    path: Path = min((broker.data / "corrupt-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)
    broker.properties["log.cleaner.enable"] = "true"
    broker.start()
    until(lambda: compacted_to(broker, "well") > 0, "the other topic")
    until(lambda: "not compacted any more" in broker.log_text(), "a line")
    produce(broker, "well", [(b"k", b"2")])
    time.sleep(0.3)
    produce(broker, "well", [(b"k", b"3")])
    until(lambda: len(re.findall("compacted topic=well", broker.log_text())) > 1, "a second pass")
    assert len(re.findall("not compacted any more", broker.log_text())) == 1
    assert "topic=corrupt partition=0 is not compacted any more until the broker restarts" in broker.log_text()
    produce(broker, "corrupt", [(b"k", b"2")])


def test_a_deleted_topics_offset_is_forgotten(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker(**QUICK)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for turn in range(2):
        create(broker, "t")
        for value in range(3 - turn):
            produce(broker, "t", [(b"k", b"%d" % value)] * 10)
            time.sleep(0.15)
        produce(broker, "t", [(b"end", b"1")])
        reached = len(re.findall("compacted topic=t ", broker.log_text()))
        until(lambda: len(re.findall("compacted topic=t ", broker.log_text())) >= max(1, reached), "compaction")  # noqa: B023
        until(lambda: len(consume(broker, "t")) <= 13, "one value")
        admin.delete_topics(["t"])["t"].result()
    create(broker, "other")
    for value in range(3):
        produce(broker, "other", [(b"k", b"%d" % value)])
        time.sleep(0.15)
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    until(lambda: ("other", 0) in read_checkpoint(checkpoint), "a checkpoint")
    assert ("t", 0) not in read_checkpoint(checkpoint)
