"""Messages one by one: loops over a consumer, and the streams of a connector, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import pytest

from penstock.config import ConfigError
from penstock.errors import KafkaError
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.streams import ConsumerConnector, MessageStream
from support import asking
from support.harness import BrokerProcess
from support.patience import until

Names = Callable[[str], str]
QUICK = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "heartbeat.interval.ms": 100,
    "session.timeout.ms": 6000,
    "metadata.max.age.ms": 300,
}
LIMIT_S = 120.0


class Reader(threading.Thread):
    """Reads a stream until it ends."""

    def __init__(self, stream: MessageStream, work: Callable[[ConsumerRecord], None] = lambda message: None) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.messages: list[ConsumerRecord] = []
        self._work = work
        self.start()

    def run(self) -> None:
        for message in self.stream:
            self.messages.append(message)
            self._work(message)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that the stream has now."""
        return self.stream._consumer.assignment()


def fill(broker: BrokerProcess, topic: str, partitions: int, each: int, first: int = 0) -> None:
    with Producer(broker.bootstrap) as producer:
        for i in range(first, first + each):
            for partition in range(partitions):
                producer.send(topic, None, b"%d" % i, partition=partition)


def read_all(readers: Sequence[Reader], count: int) -> list[ConsumerRecord]:
    """What the readers have read once so many messages have come."""
    until(lambda: sum(len(reader.messages) for reader in readers) >= count, f"{count} messages")
    return [message for reader in readers for message in reader.messages]


def loop_until(messages: Iterable[ConsumerRecord], into: list[ConsumerRecord], count: int) -> None:
    """Begin loops over messages until so many have come in all; each ends when none comes for a while."""

    def loop() -> bool:
        into.extend(messages)
        return len(into) >= count

    until(loop, f"{count} messages")


def test_each_partition_is_in_one_stream(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = new_topic("streams")
    asking.create(shared_broker, topic, partitions=4)
    with ConsumerConnector(shared_broker.bootstrap, group_id=new_topic("group"), **QUICK) as connector:
        readers = [Reader(stream) for stream in connector.create_message_streams({topic: 3})[topic]]
        until(lambda: sorted(len(reader.partitions) for reader in readers) == [1, 1, 2], "all streams' partitions")
        fill(shared_broker, topic, 4, 100)
        messages = read_all(readers, 400)
        assert len(messages) == len({(message.partition, message.offset) for message in messages}) == 400
        for reader in readers:
            assert {(topic, message.partition) for message in reader.messages} == set(reader.partitions)
        # range, in the order of the ids: the first gets one more, and neighbours stay together.
        by_id = sorted(readers, key=lambda reader: reader.stream.client_id)
        assert [reader.partitions for reader in by_id] == [[(topic, 0), (topic, 1)], [(topic, 2)], [(topic, 3)]]
    for reader in readers:
        reader.join(LIMIT_S)
        assert not reader.is_alive(), "shutdown ends the loop"


def test_one_to_four_consumers_share_three_partitions(shared_broker: BrokerProcess, new_topic: Names) -> None:
    """The table of Kafka's design: consumers come one after the other, then go."""
    topic, group = new_topic("table"), new_topic("group")
    asking.create(shared_broker, topic, partitions=3)
    connectors: list[ConsumerConnector] = []
    readers: list[Reader] = []

    def shares() -> list[int]:
        return [len(reader.partitions) for reader in readers if reader.is_alive()]

    try:
        for wanted in ([3], [2, 1], [1, 1, 1], [1, 1, 1, 0]):
            name = f"c{len(connectors) + 1}"
            connectors.append(ConsumerConnector(shared_broker.bootstrap, group_id=group, client_id=name, **QUICK))
            readers.append(Reader(connectors[-1].create_message_streams({topic: 1})[topic][0]))
            until(lambda: shares() == wanted, f"{name} joins: {wanted}", lambda: str(shares()))  # noqa: B023
        for wanted in ([1, 1, 1], [2, 1], [3]):
            gone = readers[len(readers) - len(wanted) - 1]
            connectors[len(connectors) - len(wanted) - 1].shutdown()
            gone.join(LIMIT_S)
            until(lambda: shares() == wanted, f"one leaves: {wanted}", lambda: str(shares()))  # noqa: B023
        held = [tp for reader in readers if reader.is_alive() for tp in reader.partitions]
        assert sorted(held) == [(topic, n) for n in range(3)]
    finally:
        for connector in connectors:
            connector.shutdown()


def test_a_filter_takes_topics_that_come_later(shared_broker: BrokerProcess, new_topic: Names) -> None:
    prefix = new_topic("filter")
    asking.create(shared_broker, f"{prefix}-a", f"{prefix}-secret")
    with ConsumerConnector(shared_broker.bootstrap, group_id=new_topic("group"), **QUICK) as connector:
        streams = connector.create_message_streams_by_filter(2, allow=f"{prefix}-.*", deny=".*-secret|.*-hidden")
        readers = [Reader(stream) for stream in streams]
        for name in ("a", "secret"):
            fill(shared_broker, f"{prefix}-{name}", 1, 5)
        read_all(readers, 5)
        asking.create(shared_broker, f"{prefix}-hidden", f"{prefix}-b")
        for name in ("hidden", "b"):
            fill(shared_broker, f"{prefix}-{name}", 1, 5)
        until(lambda: {m.topic for r in readers for m in r.messages} == {f"{prefix}-a", f"{prefix}-b"}, "the later topic")


def test_a_loop_ends_when_no_message_comes_and_another_goes_on(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = new_topic("timeout")
    fill(shared_broker, topic, 1, 5)
    given = {**QUICK, "consumer.timeout.ms": 2000}
    with ConsumerConnector(shared_broker.bootstrap, group_id=new_topic("group"), **given) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        read: list[ConsumerRecord] = []
        loop_until(stream, read, 5)
        fill(shared_broker, topic, 1, 3, first=5)
        loop_until(stream, read, 8)
        assert [message.value for message in read] == [b"%d" % i for i in range(8)]


def test_commits_of_another_thread_count_what_was_given_out(shared_broker: BrokerProcess, new_topic: Names) -> None:
    """The messages are one batch, of which the stream has given out four."""
    topic, group = new_topic("commit"), new_topic("group")
    with Producer(shared_broker.bootstrap) as producer:
        producer.send_many(topic, values=[b"%d" % i for i in range(10)])
    enough, stop = threading.Event(), threading.Event()

    def work(message: ConsumerRecord) -> None:
        if message.offset == 3:
            enough.set()
            stop.wait(LIMIT_S)

    with ConsumerConnector(shared_broker.bootstrap, group_id=group, **QUICK) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        reader = Reader(stream, work)
        assert enough.wait(LIMIT_S)
        connector.commit_offsets()
        with Consumer(shared_broker.bootstrap, group_id=group) as other:
            assert other.committed([(topic, 0)]) == {(topic, 0): (4, "")}
        stop.set()
        read_all([reader], 10)
    with Consumer(shared_broker.bootstrap, group_id=group) as other:
        assert other.committed([(topic, 0)]) == {(topic, 0): (4, "")}, "shutdown commits only with `enable.auto.commit`"


def test_shutdown_commits_what_was_given_out_and_no_more(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("shutdown"), new_topic("group")
    with Producer(shared_broker.bootstrap) as producer:
        producer.send_many(topic, values=[b"%d" % i for i in range(10)])
    given = {**QUICK, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000}
    with ConsumerConnector(shared_broker.bootstrap, group_id=group, **given) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert [next(stream).value for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(StopIteration):
        next(stream)
    with Consumer(shared_broker.bootstrap, group_id=group) as other:
        assert other.committed([(topic, 0)]) == {(topic, 0): (3, "")}


def test_callbacks_that_commit_do_not_wait_for_each_other(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("callbacks"), new_topic("group")
    asking.create(shared_broker, topic, partitions=4)
    revoked: list[tuple[str, int]] = []

    def give_back(tps: list[tuple[str, int]]) -> None:
        first.commit_offsets()
        revoked.extend(tps)

    with ConsumerConnector(shared_broker.bootstrap, group_id=group, **QUICK) as first:
        readers = [Reader(stream) for stream in first.create_message_streams({topic: 2}, on_revoked=give_back)[topic]]
        until(lambda: all(len(reader.partitions) == 2 for reader in readers), "both streams' partitions")
        fill(shared_broker, topic, 4, 10)
        read_all(readers, 40)
        with ConsumerConnector(shared_broker.bootstrap, group_id=group, **QUICK) as second:
            readers += [Reader(stream) for stream in second.create_message_streams({topic: 2})[topic]]
            until(lambda: all(len(reader.partitions) == 1 for reader in readers), "all four streams' partitions")
            fill(shared_broker, topic, 4, 10, first=10)
            messages = read_all(readers, 80)
        assert len(messages) == len({(message.partition, message.offset) for message in messages}) == 80
        assert set(revoked) >= {(topic, n) for n in range(4)}


def test_shutdown_ends_all_streams_though_callbacks_raise(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = new_topic("raising")
    asking.create(shared_broker, topic, partitions=3)
    ends = threading.get_ident()

    def refuse(tps: list[tuple[str, int]]) -> None:
        if threading.get_ident() == ends:
            raise ValueError(f"{tps} stay")

    connector = ConsumerConnector(shared_broker.bootstrap, group_id=new_topic("group"), **QUICK)
    streams = connector.create_message_streams({topic: 3}, on_revoked=refuse)[topic]
    readers = [Reader(stream) for stream in streams]
    until(lambda: all(len(reader.partitions) == 1 for reader in readers), "each stream's partition")
    with pytest.raises(ValueError, match="stay"):
        connector.shutdown()
    until(lambda: not any(reader.is_alive() for reader in readers), "the end of all loops")


def test_a_connector_refuses_what_makes_no_streams(shared_broker: BrokerProcess, new_topic: Names) -> None:
    with pytest.raises(ConfigError, match=r"message streams need `group\.id`"):
        ConsumerConnector(shared_broker.bootstrap)
    with ConsumerConnector(shared_broker.bootstrap, group_id=new_topic("group"), **QUICK) as connector:
        with pytest.raises(ConfigError, match="needs at least one stream, not 0"):
            connector.create_message_streams({"t": 0})
        with pytest.raises(ConfigError, match="needs `allow` or `deny`"):
            connector.create_message_streams_by_filter(1)
        with pytest.raises(ConfigError, match=r"`\(` is no regular expression"):
            connector.create_message_streams_by_filter(1, allow="(")
        connector.create_message_streams({"t": 1})
        with pytest.raises(KafkaError, match="a connector makes its streams once"):
            connector.create_message_streams({"t": 1})


def test_a_loop_over_a_consumer_commits_exactly_what_it_had(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = new_topic("loop"), new_topic("group")
    asking.create(shared_broker, topic, partitions=2)
    fill(shared_broker, topic, 2, 20)
    given = {**QUICK, "consumer.timeout.ms": 2000, "group.id": group}
    seen: list[ConsumerRecord] = []
    with Consumer(shared_broker.bootstrap, **given) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            seen.append(record)
            assert consumer.position((topic, record.partition)) == record.offset + 1
            if len(seen) == 25:
                break
        consumer.commit()
    with Consumer(shared_broker.bootstrap, **given) as consumer:
        consumer.subscribe([topic])
        loop_until(consumer, seen, 40)
    assert len(seen) == len({(record.partition, record.offset) for record in seen}) == 40


@pytest.mark.parametrize("ends", ["loop", "poll"])
def test_a_block_that_an_error_ends_commits_nothing_that_was_being_worked_on(
    shared_broker: BrokerProcess, new_topic: Names, ends: str
) -> None:
    topic, group = new_topic("raised"), new_topic("group")
    with Producer(shared_broker.bootstrap) as producer:
        producer.send_many(topic, values=[b"%d" % i for i in range(10)])
    given = {**QUICK, "enable.auto.commit": True, "auto.commit.interval.ms": 3_600_000, "group.id": group}

    def work(consumer: Consumer) -> None:
        consumer.subscribe([topic])
        for record in consumer if ends == "loop" else consumer.poll(LIMIT_S):
            if record.offset == 3:
                raise ArithmeticError

    with pytest.raises(ArithmeticError), Consumer(shared_broker.bootstrap, **given) as consumer:
        work(consumer)
    with Consumer(shared_broker.bootstrap, group_id=group) as other:
        assert other.committed([(topic, 0)]) == {(topic, 0): None}


def test_a_loop_over_a_consumer_follows_seeks_pauses_and_polls(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic = new_topic("seek")
    with Producer(shared_broker.bootstrap) as producer:
        producer.send_many(topic, values=[b"%d" % i for i in range(10)])
    with Consumer(shared_broker.bootstrap, **QUICK) as consumer:
        consumer.assign([(topic, 0)])
        records = iter(consumer)
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        consumer.seek((topic, 0), 7)
        assert next(records).offset == 7
        assert [record.offset for record in consumer.poll(5.0)] == [8, 9]
        consumer.seek((topic, 0), 1)
        assert next(records).offset == 1
        (columns,) = consumer.poll_columns(5.0)
        assert columns.columns.offsets[columns.first :].tolist() == list(range(2, 10))
        consumer.seek((topic, 0), 5)
        assert next(records).offset == 5
        consumer.pause((topic, 0))
        assert consumer.poll_one(0.3) is None
        consumer.resume((topic, 0))
        assert next(records).offset == 6
