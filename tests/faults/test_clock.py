"""A wall clock that is set ahead or back while the broker runs, or between two runs: nobody waits for it, and nothing goes
before its time."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from penstock.broker import lasttime
from penstock.errors import ErrorCode
from penstock.pyx.log.checkpoint import read_checkpoint
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import ConsumerGroupHeartbeatRequest as Heartbeat
from penstock.pyx.wire.messages import (
    CreateTopicsRequest,
    DescribeProducersRequest,
    ListTransactionsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from support import transaction_wire as tx
from support.asking import create, produce
from support.clock import Clock
from support.harness import BrokerProcess, WireConnection, topic_name
from support.patience import until
from support.scraping import scrape_at

Make = Callable[..., BrokerProcess]
HOUR_S, MONTH_S, WAIT_S = 3600, 31 * 24 * 3600, 30.0


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
def test_a_group_is_assigned_its_partitions_while_the_clock_is_behind(make_broker: Make, clock: Clock, restarted: bool) -> None:
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


OFTEN = {
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 100,
    "offsets.retention.check.interval.ms": 100,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.retention.ms": 7 * 24 * HOUR_S * 1000,
}


class Kept:
    """A record, a committed offset, a producer's state and a transactional id, each of which has a life of its own."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        create(broker, "t")
        assert produce(broker, "t", 1) == 0
        consumer = self._consumer()
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()
        with WireConnection(broker.bootstrap) as wire:
            assert tx.init(wire, "a")[0] == ErrorCode.NONE
            _, producer_id, _ = tx.init(wire, None)
            builder = BatchBuilder()
            assert builder.append(None, b"x", time.time_ns() // 1_000_000)
            batch = builder.build(producer_id, 0, 0, False)
            assert tx.produce(wire, None, 8, ("t", 0, batch)) == [0]

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": "old", "enable.auto.commit": False})

    def left(self) -> tuple[int, int, int, int]:
        """The log start, the committed offset (or none's), and how many producers and transactional ids there are."""
        consumer = self._consumer()
        partition = TopicPartition("t", 0)
        (committed,) = consumer.committed([partition], WAIT_S)
        log_start, _ = consumer.get_watermark_offsets(partition, WAIT_S)
        consumer.close()
        kind = DescribeProducersRequest.TopicRequest
        with WireConnection(self._broker.bootstrap) as wire:
            asked = DescribeProducersRequest(topics=[kind(name="t", partition_indexes=[0])])
            producers = wire.ask(asked, 0).topics[0].partitions[0].active_producers
            names = wire.ask(ListTransactionsRequest(), 0).transaction_states
        return log_start, committed.offset, len(producers), len(names)


def test_nothing_is_deleted_because_the_clock_jumps_ahead(make_broker: Make, clock: Clock) -> None:
    """As long as the broker can't know whether the clock is right; what is too much is deleted all the same."""
    broker = make_broker(environment=clock.environment, **OFTEN)
    kept = Kept(broker)
    before = kept.left()
    clock.set_ahead(MONTH_S)
    until(lambda: "has jumped ahead" in broker.log_text(), "the warning", broker.log_text)
    delete_by_size(broker)
    assert kept.left() == before
    clock.set_ahead(0)
    until(lambda: "is right again" in broker.log_text(), "the end of the warning", broker.log_text)
    delete_by_size(broker)
    assert kept.left() == before
    assert broker.log_text().count("has jumped ahead") == 1


def test_a_clock_that_stays_ahead_is_believed(make_broker: Make, clock: Clock) -> None:
    broker = make_broker(environment=clock.environment, **OFTEN, **{"penstock.clock.settle.ms": 3000})
    kept = Kept(broker)
    clock.set_ahead(MONTH_S)
    until(lambda: kept.left() == (2, OFFSET_INVALID, 0, 0), "the end of all that is old", broker.log_text)
    assert "and is believed" in broker.log_text()


def test_figures_show_the_clock_as_it_is(make_broker: Make, clock: Clock) -> None:
    """A broker at rest asks for the time every few minutes only."""
    broker = make_broker(environment=clock.environment, **{"penstock.http.listen": "127.0.0.1:0"})
    for ahead_s, settled, jumps in ((0, 1, 0), (MONTH_S, 0, 1), (0, 1, 1), (MONTH_S, 0, 2)):
        clock.set_ahead(ahead_s)
        found = scrape_at(f"http://{broker.http}")
        assert (found("penstock_clock_settled"), found("penstock_clock_jumps_total")) == (settled, jumps)


@pytest.mark.parametrize("noted", ["as it was", "damaged", "not there"])
def test_nothing_is_deleted_at_a_start_whose_clock_is_ahead(make_broker: Make, clock: Clock, noted: str) -> None:
    """It can't tell a wrong clock from a month without a broker. Without its note of the time it goes by the checkpoints."""
    broker = make_broker(environment=clock.environment, **OFTEN)
    kept = Kept(broker)
    before = kept.left()
    assert broker.stop() == 0
    note = broker.data / lasttime.NAME
    if noted == "damaged":
        note.write_bytes(note.read_bytes().replace(b"known_ms 1", b"known_ms 2"))
    elif noted == "not there":
        note.unlink()
    clock.set_ahead(MONTH_S)
    broker.start()
    assert "the clock may be wrong" in broker.log_text()
    assert ("is damaged: the time of the last checkpoints" in broker.log_text()) == (noted == "damaged")
    delete_by_size(broker)
    assert kept.left() == before
    broker.restart()  # What is noted now isn't the time that nobody believes.
    delete_by_size(broker)
    assert kept.left() == before
    clock.set_ahead(0)
    until(lambda: "is right again" in broker.log_text(), "the end of the warning", broker.log_text)
    delete_by_size(broker)
    assert kept.left() == before


def test_a_broker_that_was_off_for_a_month_deletes_what_is_old_once_its_clock_has_settled(
    make_broker: Make, clock: Clock
) -> None:
    """But never positions of a mirror or a dedupe, which say what was copied: it says that they stay."""
    broker = make_broker(environment=clock.environment, **OFTEN, **{"penstock.clock.settle.ms": 3000})
    kept = Kept(broker)
    stages = ("penstock-mirror.m.s", "penstock-dedupe.d")
    for group in stages:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()
    assert broker.stop() == 0
    clock.set_ahead(MONTH_S)
    broker.start()
    # A producer counts as seen when the broker starts.
    until(lambda: kept.left() == (2, OFFSET_INVALID, 1, 0), "the end of all that is old", broker.log_text)
    assert "and is believed" in broker.log_text()
    with WireConnection(broker.bootstrap) as wire:
        assert [position(wire, group) for group in stages] == [1, 1]
    for group in stages:
        assert f"`penstock groups delete {group}`" in broker.log_text()
    assert broker.log_text().count("positions of mirror and dedupe never expire") == len(stages)


def test_a_short_pause_is_no_reason_to_doubt_the_clock(make_broker: Make, clock: Clock) -> None:
    """Upgrades must not put off what is due, however many there are in an hour."""
    broker = make_broker(environment=clock.environment, **OFTEN)
    assert broker.stop() == 0
    noted_ms = lasttime.read([broker.data])
    clock.set_ahead(HOUR_S // 2)
    broker.start()
    until(lambda: lasttime.read([broker.data]) != noted_ms, "the note of a start", broker.log_text)
    broker.kill()
    clock.set_ahead(HOUR_S)
    broker.start()
    assert "the clock may be wrong" not in broker.log_text()


def delete_by_size(broker: BrokerProcess) -> None:
    """Retention by size deletes something, twice: whole rounds of upkeep come by, each with a sweep of what is committed."""
    topic = topic_name("by-size")
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.bytes", value="0")],
    )
    with WireConnection(broker.bootstrap) as wire:
        assert wire.ask(CreateTopicsRequest(topics=[wanted]), 5).topics[0].error_code == ErrorCode.NONE
    line = re.compile(f"deleted 1 segments, .* topic={topic}")
    for times in (1, 2):

        def deleted(times: int = times) -> bool:
            return len(line.findall(broker.log_text())) == times

        assert produce(broker, topic, 1) == 0
        until(deleted, "retention by size", broker.log_text)


def test_flush_ms_holds_while_the_clock_is_behind(make_broker: Make, clock: Clock) -> None:
    broker = make_broker(environment=clock.environment, **{"log.flush.offset.checkpoint.interval.ms": 100})
    create(broker, "t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        "t",
        incremental_configs=[ConfigEntry("flush.ms", "200", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def flushed() -> int:
        return read_checkpoint(broker.data / "recovery-point-offset-checkpoint").get(("t", 0), 0)

    assert produce(broker, "t", 10) == 0
    until(lambda: flushed() >= 9, "a flush by the right clock", broker.log_text)
    clock.set_ahead(-HOUR_S)
    assert produce(broker, "t", 10) == 0
    until(lambda: flushed() >= 19, "a flush by the clock that is behind", broker.log_text)


def sweep(broker: BrokerProcess, group: str) -> None:
    """The groups are looked at for what is old: an offset that may stay for a millisecond goes."""
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
    with WireConnection(broker.bootstrap) as wire:
        answer = wire.ask(OffsetCommitRequest(group_id=group, retention_time_ms=1, topics=[topic]), 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        until(lambda: position(wire, group) == -1, "a sweep", broker.log_text)


def position(wire: WireConnection, group: str) -> int:
    """What a group has committed, -1 for nothing."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    answer = wire.ask(OffsetFetchRequest(group_id=group, topics=[topic]), 5)
    return int(answer.topics[0].partitions[0].committed_offset)


def test_a_quiet_group_keeps_its_positions_when_its_last_member_leaves(make_broker: Make, clock: Clock) -> None:
    """For as long as positions are kept, from then on."""
    broker = make_broker(environment=clock.environment, **OFTEN, **{"penstock.clock.settle.ms": 0})
    create(broker, "t")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    consumer.close()
    member = Member(broker, "t")
    until(lambda: member.has_all(1), "the assignment", broker.log_text)
    clock.set_ahead(MONTH_S)
    sweep(broker, "first")
    member.leave()
    sweep(broker, "second")
    with WireConnection(broker.bootstrap) as wire:
        assert position(wire, "g") == 5
    broker.restart()
    sweep(broker, "third")
    with WireConnection(broker.bootstrap) as wire:
        assert position(wire, "g") == 5
        clock.set_ahead(2 * MONTH_S)
        until(lambda: position(wire, "g") == -1, "the end of the retention", broker.log_text)
