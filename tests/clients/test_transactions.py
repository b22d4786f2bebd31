"""Transactions of stock clients: all or nothing through aborts, zombies, timeouts and kill -9 at each step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock.broker.coordination.transactioncoordinator  # noqa: F401  (declares the failpoints)
from penstock.errors import ErrorCode
from penstock.failpoints import declared
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire.messages import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import java
from support.transaction_wire import add, commit_offset, end, init

Names = Callable[[str], str]
PATIENCE_S = 60.0
PARTITIONS = 3


def create(broker: BrokerProcess, name: str, partitions: int = PARTITIONS) -> str:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = client.create_topics([NewTopic(name, partitions, 1)]).values()
    future.result()
    return name


def producer(broker: BrokerProcess, name: str, **properties: object) -> Producer:
    """A transactional producer that has been let in."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "retry.backoff.ms": 20}
    made = Producer({**settings, **properties})
    made.init_transactions(PATIENCE_S)
    return made


def reader(broker: BrokerProcess, group: str = "reader", isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def read(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[str]:
    """All that a consumer sees up to the end of each partition."""
    client = reader(broker, isolation=isolation)
    client.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
    values: list[str] = []
    ends: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ends) < PARTITIONS:
        assert time.monotonic() < deadline, (values, ends)
        message = client.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            ends.add(message.partition())
        else:
            values.append(message.value().decode())
    client.close()
    return sorted(values)


def committed(broker: BrokerProcess, topic: str, group: str) -> int:
    """A group's offset of partition 0, once it is stable; -1001 if there is none."""
    client = reader(broker, group)
    [part] = client.committed([TopicPartition(topic, 0)], PATIENCE_S)
    client.close()
    return int(part.offset)


def send(sender: Producer, topic: str, word: str) -> None:
    """One record to each partition."""
    for partition in range(PARTITIONS):
        sender.produce(topic, word, partition=partition)
    assert sender.flush(PATIENCE_S) == 0


def send_offset(sender: Producer, broker: BrokerProcess, topic: str, group: str, offset: int) -> None:
    member = reader(broker, group)
    sender.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], member.consumer_group_metadata(), PATIENCE_S)
    member.close()


def test_committed_records_and_offsets_show_aborted_ones_do_not(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("txn")), new_topic("group")
    sender = producer(shared_broker, new_topic("id"))
    for word, offset in (("one", 10), ("two", 20), ("three", 30)):
        sender.begin_transaction()
        send(sender, topic, word)
        send_offset(sender, shared_broker, topic, group, offset)
        if word == "two":
            sender.abort_transaction(PATIENCE_S)
            assert committed(shared_broker, topic, group) == 10
        else:
            sender.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == sorted(["one", "three"] * PARTITIONS)
    assert len(read(shared_broker, topic, "read_uncommitted")) == 3 * PARTITIONS
    assert committed(shared_broker, topic, group) == 30


def test_an_open_transaction_hides_its_records_and_offsets(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(shared_broker, new_topic("open")), new_topic("group")
    sender = producer(shared_broker, new_topic("id"))
    sender.begin_transaction()
    send(sender, topic, "open")
    send_offset(sender, shared_broker, topic, group, 5)
    assert read(shared_broker, topic) == []
    with WireConnection(shared_broker.bootstrap) as wire:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        for stable, expected in ((True, ErrorCode.UNSTABLE_OFFSET_COMMIT), (False, ErrorCode.NONE)):
            asked = OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
            [part] = wire.ask(asked, 7).topics[0].partitions
            assert (part.committed_offset, part.error_code) == (-1, expected)
    sender.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == ["open"] * PARTITIONS
    assert committed(shared_broker, topic, group) == 5


def test_a_newer_producer_fences_the_zombie_and_undoes_its_work(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group, name = create(shared_broker, new_topic("zombie")), new_topic("group"), new_topic("id")
    zombie = producer(shared_broker, name)
    zombie.begin_transaction()
    send(zombie, topic, "zombie")
    send_offset(zombie, shared_broker, topic, group, 99)
    newer = producer(shared_broker, name)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    newer.begin_transaction()
    send(newer, topic, "newer")
    send_offset(newer, shared_broker, topic, group, 1)
    newer.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == ["newer"] * PARTITIONS
    assert committed(shared_broker, topic, group) == 1


def test_a_transaction_that_takes_too_long_is_aborted(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, name = create(shared_broker, new_topic("late")), new_topic("id")
    sender = producer(shared_broker, name, **{"transaction.timeout.ms": 5000, "message.timeout.ms": 4900})
    sender.begin_transaction()
    send(sender, topic, "late")
    deadline = time.monotonic() + PATIENCE_S
    with WireConnection(shared_broker.bootstrap) as wire:
        described = DescribeTransactionsRequest(transactional_ids=[name])
        while wire.ask(described, 0).transaction_states[0].transaction_state != "CompleteAbort":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with pytest.raises(KafkaException):
        sender.commit_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == []


def test_kill_9_in_the_middle_of_a_transaction(broker: BrokerProcess, new_topic: Names) -> None:
    topic, group = create(broker, new_topic("killed")), new_topic("group")
    sender = producer(broker, "tx")
    sender.begin_transaction()
    send(sender, topic, "before")
    send_offset(sender, broker, topic, group, 7)
    broker.kill()
    broker.start()
    assert read(broker, topic) == [], "still open"
    send(sender, topic, "after")
    sender.commit_transaction(PATIENCE_S)
    assert read(broker, topic) == sorted(["before", "after"] * PARTITIONS)
    assert committed(broker, topic, group) == 7
    broker.kill()
    broker.start()
    assert read(broker, topic) == sorted(["before", "after"] * PARTITIONS)
    assert committed(broker, topic, group) == 7


# The passages of one transaction: which are tried, and how the transaction ends. Its appends are those of its
# producer id, its partitions, its group's partition, its offset, the decision, the completion.
IN_CLUSTERS = {"coordinator.before_markers"}  # tried by tests/faults/test_cluster_transactions.py
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "coordinator.before_append": {"commit": (1, 4, 5, 6), "abort": (6,)},
    "coordinator.after_append": {"commit": (5,), "abort": (5,)},
    "coordinator.before_marker": {"commit": (1, 3, 4), "abort": (3,)},
    "coordinator.after_markers": {"commit": (1,), "abort": ()},
}
CASES = [(point, ends, n) for point, tried in STEPS.items() for ends, passages in tried.items() for n in passages]


def test_every_failpoint_of_the_coordinators_is_tried() -> None:
    assert set(declared("coordinator.")) == set(STEPS) | IN_CLUSTERS


def test_killed_at_each_step_a_transaction_is_whole_or_nothing(broker: BrokerProcess, new_topic: Names) -> None:
    topic = create(broker, new_topic("steps"))
    with WireConnection(broker.bootstrap) as wire:  # The coordinators make their topics.
        assert _whole_transaction(wire, "first", topic, "first", b"first", True)
    for point, ends, passage in CASES:
        name = f"{point}-{ends}-{passage}"
        broker.kill()
        broker.environment["PENSTOCK_FAILPOINTS"] = f"{point}=kill@{passage}"
        broker.start()
        told = False
        try:
            with WireConnection(broker.bootstrap) as wire:
                told = _whole_transaction(wire, name, topic, name, name.encode(), ends == "commit")
        except (OSError, EOFError):
            pass
        broker.close()
        assert not told, f"{name}: killed before the last answer"
        broker.environment.clear()
        broker.start()
        with WireConnection(broker.bootstrap) as wire:  # A successor ends what was left open.
            while init(wire, name)[0] == ErrorCode.CONCURRENT_TRANSACTIONS:
                pass
        outcome = (read(broker, topic).count(name), committed(broker, topic, name))
        decided = ends == "commit" and (point, passage) not in [("coordinator.before_append", n) for n in (1, 2, 3, 4, 5)]
        assert outcome == ((PARTITIONS, 3) if decided else (0, -1001)), name


def _whole_transaction(wire: WireConnection, name: str, topic: str, group: str, word: bytes, commit: bool) -> bool:
    """All steps of a transaction over three partitions and a group; whether all were answered well."""
    error, producer_id, epoch = init(wire, name)
    owner = (producer_id, epoch)
    assert error == 0
    assert add(wire, name, owner, 3, *[(topic, n) for n in range(PARTITIONS)]) == [0] * PARTITIONS
    batch = BatchBuilder()
    batch.append(None, word, 1)
    records = batch.build(producer_id, epoch, 0, True)
    parts = [ProduceRequest.PartitionProduceData(index=n, records=records) for n in range(PARTITIONS)]
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=parts)
    produced = wire.ask(ProduceRequest(transactional_id=name, acks=-1, timeout_ms=1000, topic_data=[data]), 9)
    assert [part.error_code for part in produced.responses[0].partition_responses] == [0] * PARTITIONS
    offsets = AddOffsetsToTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group)
    assert wire.ask(offsets, 3).error_code == 0
    assert commit_offset(wire, name, group, owner, topic, 3) == 0
    assert end(wire, name, owner, commit, 3) == 0
    return True


def test_aiokafka_consumes_transforms_produces(shared_broker: BrokerProcess, new_topic: Names) -> None:
    source, target = create(shared_broker, new_topic("source"), 1), create(shared_broker, new_topic("target"), 1)
    group, name = new_topic("group"), new_topic("id")

    async def run() -> list[bytes]:
        plain = AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap)
        await plain.start()
        for number in range(10):
            await plain.send_and_wait(source, b"%d" % number)
        await plain.stop()
        part = AioTopicPartition(source, 0)
        for goes_well in (False, True):
            sender = AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap, transactional_id=name)
            await sender.start()
            member = AIOKafkaConsumer(
                source,
                bootstrap_servers=shared_broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
            await member.start()
            await sender.begin_transaction()
            for _ in range(10):
                record = await member.getone()
                await sender.send(target, record.value * 2)
            await sender.send_offsets_to_transaction({part: 10}, group)
            await (sender.commit_transaction() if goes_well else sender.abort_transaction())
            await member.stop()
            await sender.stop()
        check = AIOKafkaConsumer(
            target,
            bootstrap_servers=shared_broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await check.start()
        got = [(await check.getone()).value for _ in range(10)]
        await check.stop()
        return got

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == [b"%d" % n * 2 for n in range(10)]
    assert committed(shared_broker, source, group) == 10


@pytest.mark.kafka
def test_javas_transactional_producer_and_transactions_tool(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, name = create(shared_broker, new_topic("java")), new_topic("id")

    where = ["--bootstrap-server", shared_broker.bootstrap]
    java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "3000", "--record-size", "20", "--throughput", "-1"),
        *("--transactional-id", name, "--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={shared_broker.bootstrap}"),
    )
    assert len(read(shared_broker, topic)) == 3000
    tool = "org.apache.kafka.tools.TransactionsCommand"
    assert name in java(tool, *where, "list")
    assert "CompleteCommit" in java(tool, *where, "describe", "--transactional-id", name)


# --- on the wire ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_of_every_version(shared_broker: BrokerProcess, new_topic: Names, version: int) -> None:
    topic, group, name = create(shared_broker, new_topic("wire"), 1), new_topic("group"), new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        error, producer_id, epoch = init(wire, name, version)
        owner = (producer_id, epoch)
        assert (error, epoch) == (0, 0)
        assert add(wire, name, owner, version, (topic, 0)) == [0]
        offsets = AddOffsetsToTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id=group)
        if version < 5:  # From 5 on TxnOffsetCommit adds the group's partition itself.
            before = commit_offset(wire, name, group, owner, topic, version)
            assert before == (ErrorCode.INVALID_TXN_STATE if version < 4 else ErrorCode.TRANSACTION_ABORTABLE)
            assert wire.ask(offsets, version).error_code == 0
        assert commit_offset(wire, name, group, owner, topic, version) == 0
        assert end(wire, name, owner, True, version) == 0
    assert committed(shared_broker, topic, group) == 3


@pytest.mark.parametrize(("version", "fenced"), [(1, "INVALID_PRODUCER_EPOCH"), (3, "PRODUCER_FENCED")])
def test_zombies_are_told_by_version(shared_broker: BrokerProcess, new_topic: Names, version: int, fenced: str) -> None:
    topic, name = create(shared_broker, new_topic("wire"), 1), new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, producer_id, epoch = init(wire, name)
        zombie = (producer_id, epoch)
        assert add(wire, name, zombie, 3, (topic, 0)) == [0]
        assert init(wire, name)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        assert init(wire, name) == (0, producer_id, epoch + 2)
        code = ErrorCode[fenced]
        assert add(wire, name, zombie, version, (topic, 0)) == [code]
        assert end(wire, name, zombie, True, version) == code
        offsets = AddOffsetsToTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id="g")
        assert wire.ask(offsets, version).error_code == code
        late = commit_offset(wire, name, "g", zombie, topic, 3)
        assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        old = init(wire, name, 3, producer_id=producer_id, producer_epoch=epoch)
        assert old[0] == ErrorCode.INVALID_PRODUCER_EPOCH
        assert end(wire, name, (producer_id + 1, 0), True, version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert end(wire, new_topic("nobody"), zombie, True, 3) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert end(wire, name, (producer_id, epoch + 2), True, version) == ErrorCode.INVALID_TXN_STATE


def test_partitions_that_cannot_be_added(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, name = create(shared_broker, new_topic("wire"), 1), new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, producer_id, epoch = init(wire, name)
        mixed: Sequence[tuple[str, int]] = [(topic, 0), (topic, 5), ("nowhere", 0), ("__consumer_offsets", 0)]
        assert add(wire, name, (producer_id, epoch), 3, *mixed) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ]
        assert end(wire, name, (producer_id, epoch), True, 3) == ErrorCode.INVALID_TXN_STATE


def test_init_producer_id_refusals_and_plain_ids(shared_broker: BrokerProcess, new_topic: Names) -> None:
    with WireConnection(shared_broker.bootstrap) as wire:
        ids = [init(wire, None)[1] for _ in range(3)]
        assert len(set(ids)) == 3
        assert init(wire, "")[0] == ErrorCode.INVALID_REQUEST
        assert init(wire, new_topic("id"), producer_id=5)[0] == ErrorCode.INVALID_REQUEST
        long = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=2_000_000_000)
        assert wire.ask(long, 4).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_offsets_of_a_transaction_are_fenced_by_member(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, group, name = create(shared_broker, new_topic("wire"), 1), new_topic("group"), new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, producer_id, epoch = init(wire, name)
        owner = (producer_id, epoch)
        gone = commit_offset(wire, name, group, owner, topic, 5, generation_id_or_member_epoch=3, member_id="gone")
        assert gone == ErrorCode.ILLEGAL_GENERATION, "no such group"
        assert commit_offset(wire, name, group, owner, topic, 5) == 0
        gone = commit_offset(wire, name, group, owner, topic, 5, generation_id_or_member_epoch=3, member_id="gone")
        assert gone == ErrorCode.UNKNOWN_MEMBER_ID
        assert end(wire, name, owner, False, 4) == 0


def test_transactions_are_described_and_listed(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, name = create(shared_broker, new_topic("wire"), 1), new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, producer_id, epoch = init(wire, name)
        add(wire, name, (producer_id, epoch), 3, (topic, 0))
        [one, two] = wire.ask(DescribeTransactionsRequest(transactional_ids=[name, "nobody"]), 0).transaction_states
        assert (one.transaction_state, one.producer_id, one.transaction_timeout_ms) == (
            "Ongoing",
            producer_id,
            60_000,
        )
        assert [(found.topic, found.partitions) for found in one.topics] == [(topic, [0])]
        assert two.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        asked = ListTransactionsRequest(state_filters=["Ongoing", "Odd"], producer_id_filters=[producer_id])
        listed = wire.ask(asked, 1)
        assert [found.transactional_id for found in listed.transaction_states] == [name]
        assert listed.unknown_state_filters == ["Odd"]
        asked.duration_filter = 3_600_000
        assert wire.ask(asked, 1).transaction_states == []
        assert end(wire, name, (producer_id, epoch), False, 3) == 0


def test_an_operator_ends_a_hanging_transaction(shared_broker: BrokerProcess, new_topic: Names) -> None:
    topic, name = create(shared_broker, new_topic("hang")), new_topic("id")
    sender = producer(shared_broker, name)
    sender.begin_transaction()
    send(sender, topic, "hangs")
    kind = WriteTxnMarkersRequest
    with WireConnection(shared_broker.bootstrap) as wire:
        [state] = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
        topics = [kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 1, 2, 9])]
        marker = kind.WritableTxnMarker(
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=0,
        )
        answer = wire.ask(kind(markers=[marker]), 1)
        errors = [part.error_code for part in answer.markers[0].topics[0].partitions]
        assert errors == [0, 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    sender.abort_transaction(PATIENCE_S)
    assert read(shared_broker, topic) == []
