"""Transactions v2 (KIP-890) on the wire and with real clients: late requests, implicit adding, an epoch a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock.broker import Broker as InProcess
from penstock.errors import ErrorCode as E
from penstock.pipeline import Producer
from penstock.pyx.wire.header import encode_request
from penstock.pyx.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    UpdateFeaturesRequest,
    WriteTxnMarkersRequest,
)
from support.asking import metadata
from support.harness import BrokerProcess, WireConnection
from support.kafka_jars import KAFKA_VERSION, java
from support.transaction_wire import (
    add,
    batch,
    commit_offset,
    end,
    end_and_go_on,
    init,
    produce,
    produce_request,
)

Names = Callable[[str], str]
PATIENCE_S = 60.0


@pytest.fixture
def topic(shared_broker: BrokerProcess, new_topic: Names) -> str:
    """A topic of two partitions."""
    name = new_topic("v2")
    with WireConnection(shared_broker.bootstrap) as wire:
        create(wire, name)
    return name


def create(wire: WireConnection, name: str) -> None:
    kind = CreateTopicsRequest
    made = kind(topics=[kind.CreatableTopic(name=name, num_partitions=2, replication_factor=1)], timeout_ms=10_000)
    assert wire.ask(made, 4).topics[0].error_code == 0


def read(broker: BrokerProcess | InProcess, topic: str) -> list[bytes]:
    """All committed values; fails while a transaction hangs."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "v2",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    client.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(2)])
    values: list[bytes] = []
    ends: set[int] = set()
    while len(ends) < 2:
        message = client.poll(PATIENCE_S)
        assert message is not None, (values, ends)
        if message.error() is not None:
            ends.add(message.partition())
        else:
            values.append(message.value())
    client.close()
    return sorted(values)


def open_transactions(wire: WireConnection, topic: str) -> list[int]:
    """Producers with an open transaction in the topic's partitions, by the logs."""
    asked = DescribeProducersRequest(topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 1])])
    partitions = wire.ask(asked, 0).topics[0].partitions
    return [p.producer_id for part in partitions for p in part.active_producers if p.current_txn_start_offset >= 0]


@pytest.mark.parametrize("version", [12, 13])
def test_a_produce_adds_its_partition_and_each_end_raises_the_epoch(
    shared_broker: BrokerProcess, new_topic: Names, topic: str, version: int
) -> None:
    name, group = new_topic("id"), new_topic("group")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *owner = init(wire, name)
        first = (owner[0], owner[1])
        assert produce(wire, name, version, (topic, 0, batch(first, 0, b"a")), (topic, 1, batch(first, 0, b"b"))) == [0, 0]
        [state] = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
        assert [(found.topic, found.partitions) for found in state.topics] == [(topic, [0, 1])]
        assert produce(wire, name, version, (topic, 0, batch(first, 1, b"c"))) == [0]
        assert commit_offset(wire, name, group, first, topic, 5) == 0
        second = (first[0], first[1] + 1)
        assert end_and_go_on(wire, name, first, True, 5) == (0, second)
        assert end_and_go_on(wire, name, first, True, 5) == (0, second), "asked again"
        assert end(wire, name, first, False, 5) == E.INVALID_TXN_STATE
        assert produce(wire, name, version, (topic, 0, batch(second, 0, b"dropped"))) == [0]
        assert end(wire, name, first, True, 5) == E.PRODUCER_FENCED, "late: it must not end the next transaction"
        assert end_and_go_on(wire, name, second, False, 5) == (0, (first[0], first[1] + 2))
        assert open_transactions(wire, topic) == []
    assert read(shared_broker, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("version", "told"),
    [(3, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)],
)
def test_a_late_produce_of_the_first_protocol_opens_nothing(
    shared_broker: BrokerProcess, new_topic: Names, topic: str, version: int, told: E, commit: bool
) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        assert produce(wire, name, version, (topic, 0, batch(owner, 0))) == [told], "never added"
        assert add(wire, name, owner, 3, (topic, 0)) == [0]
        assert produce(wire, name, version, (topic, 0, batch(owner, 0, b"a")), (topic, 1, batch(owner, 0))) == [0, told]
        assert end(wire, name, owner, commit, 4) == 0
        assert produce(wire, name, version, (topic, 0, batch(owner, 1, b"late"))) == [told]
        assert add(wire, name, owner, 3, (topic, 1)) == [0]
        assert produce(wire, name, version, (topic, 0, batch(owner, 1, b"late"))) == [told], "nor in the next one"
        assert produce(wire, name, version, (topic, 1, batch(owner, 0, b"next"))) == [0]
        assert end(wire, name, owner, True, 4) == 0
        assert open_transactions(wire, topic) == []
    assert read(shared_broker, topic) == ([b"a", b"next"] if commit else [b"next"])


def test_a_late_produce_of_version_2_is_fenced_by_its_epoch(shared_broker: BrokerProcess, new_topic: Names, topic: str) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        assert produce(wire, name, 12, (topic, 0, batch(owner, 0, b"a"))) == [0]
        error, following = end_and_go_on(wire, name, owner, True, 5)
        assert error == 0
        late = [(topic, 0, batch(owner, 1, b"late")), (topic, 1, batch(owner, 0, b"late"))]
        assert produce(wire, name, 12, *late) == [E.INVALID_PRODUCER_EPOCH] * 2
        assert produce(wire, name, 12, (topic, 1, batch(following, 3))) == [E.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert produce(wire, new_topic("other"), 12, (topic, 0, batch(following, 0))) == [E.INVALID_PRODUCER_ID_MAPPING]
        assert produce(wire, name, 12, (topic, 1, batch(following, 0, b"b"))) == [0]
        assert end(wire, name, following, True, 5) == 0
        assert open_transactions(wire, topic) == []
    assert read(shared_broker, topic) == [b"a", b"b"]


def test_a_transaction_that_took_too_long_is_over_and_its_producer_may_go_on(
    shared_broker: BrokerProcess, new_topic: Names, topic: str
) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name, timeout_ms=1_000)
        owner, following = (both[0], both[1]), (both[0], both[1] + 1)
        assert produce(wire, name, 12, (topic, 0, batch(owner, 0, b"late"))) == [0]
        deadline = time.monotonic() + PATIENCE_S
        described = DescribeTransactionsRequest(transactional_ids=[name])
        while wire.ask(described, 0).transaction_states[0].transaction_state != "CompleteAbort":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert produce(wire, name, 12, (topic, 0, batch(owner, 1, b"late"))) == [E.INVALID_PRODUCER_EPOCH]
        assert end(wire, name, owner, True, 4) == E.PRODUCER_FENCED
        assert end(wire, name, owner, True, 5) == E.INVALID_TXN_STATE
        assert end_and_go_on(wire, name, owner, False, 5) == (0, following)
        assert init(wire, name, producer_id=owner[0], producer_epoch=owner[1]) == (0, *following)
        assert produce(wire, name, 12, (topic, 0, batch(following, 0, b"next"))) == [0]
        assert end(wire, name, following, True, 5) == 0
    assert read(shared_broker, topic) == [b"next"]


def test_a_broker_that_does_not_verify_still_adds_partitions_of_version_2() -> None:
    with InProcess(properties={"transaction.partition.verification.enable": False}) as broker:
        with WireConnection(broker.bootstrap) as wire:
            create(wire, "t")
            _, *both = init(wire, "x")
            owner = (both[0], both[1])
            assert produce(wire, "x", 7, (("t", 0, batch(owner, 0)))) == [0], "nobody is asked"
            assert add(wire, "x", owner, 3, ("t", 0)) == [0]
            assert produce(wire, "x", 12, ("t", 1, batch(owner, 0, b"y"))) == [0]
            assert end(wire, "x", owner, True, 5) == 0
            assert open_transactions(wire, "t") == []
        assert read(broker, "t") == [b"x", b"y"]


def test_without_a_transactional_id_there_is_no_transaction(shared_broker: BrokerProcess, topic: str) -> None:
    with WireConnection(shared_broker.bootstrap) as wire:
        for version in (3, 9, 13):
            refused = produce(wire, None, version, (topic, 0, batch((7, 0), 0)))
            assert refused == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        assert produce(wire, "any", 12, (topic, 0, batch((7, 0), 0, b"plain", transactional=False))) == [0]
        assert open_transactions(wire, topic) == []


def test_requests_behind_one_that_begins_a_transaction_stay_in_order(
    shared_broker: BrokerProcess, new_topic: Names, topic: str
) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        records = [batch(owner, number, b"%02d" % number) for number in range(20)]
        requests = [produce_request(wire, name, 12, (topic, 0, one)) for one in records]
        silent = produce_request(wire, name, 12, (topic, 1, batch(owner, 0, b"20")), acks=0)
        for number, request in enumerate([*requests[:10], silent, *requests[10:]]):
            wire.send(encode_request(request, 12, 100 + number, "test"))
        answers = [int.from_bytes(wire.receive()[:4], "big") for _ in requests]
        assert answers == [100 + n for n in range(21) if n != 10], "acks=0 has no answer"
        assert end(wire, name, owner, True, 5) == 0
    assert read(shared_broker, topic) == [b"%02d" % number for number in range(21)]


def test_corrupt_and_foreign_requests_leave_no_trace(shared_broker: BrokerProcess, new_topic: Names, topic: str) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        corrupt = bytearray(batch(owner, 0))
        corrupt[-1] ^= 1
        parts = [(topic, 0, bytes(corrupt)), (topic, 7, batch(owner, 0)), ("__transaction_state", 0, batch(owner, 0))]
        assert produce(wire, name, 12, *parts) == [
            E.CORRUPT_MESSAGE,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.INVALID_TOPIC_EXCEPTION,
        ]
        [state] = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
        assert [found.topic for found in state.topics] in ([], [topic])
        assert end(wire, name, owner, False, 5) == 0
    with WireConnection(shared_broker.bootstrap) as wire:
        whole = encode_request(produce_request(wire, name, 12, (topic, 0, batch(owner, 0))), 12, 1, "test")
        wire.send(whole[:-20])
        with pytest.raises((EOFError, OSError)):
            wire.receive()


def test_verify_only(shared_broker: BrokerProcess, new_topic: Names, topic: str) -> None:
    name = new_topic("id")
    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        assert add(wire, name, owner, 4, (topic, 0), verify=True) == [E.TRANSACTION_ABORTABLE]
        assert add(wire, name, owner, 5, (topic, 0), verify=True) == [E.TRANSACTION_ABORTABLE]
        assert add(wire, name, owner, 5, (topic, 0)) == [0]
        assert add(wire, name, owner, 5, (topic, 0), (topic, 1), verify=True) == [0, E.TRANSACTION_ABORTABLE]
        assert add(wire, "", owner, 5, (topic, 0), verify=True) == [E.INVALID_REQUEST]
        assert end(wire, name, owner, False, 5) == 0


def test_a_late_marker_of_version_2_ends_no_later_transaction(
    shared_broker: BrokerProcess, new_topic: Names, topic: str
) -> None:
    name, kind = new_topic("id"), WriteTxnMarkersRequest

    def mark(wire: WireConnection, epoch: int, transaction_version: int) -> int:
        part = kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])
        marker = kind.WritableTxnMarker(
            producer_id=owner[0],
            producer_epoch=epoch,
            transaction_result=False,
            topics=[part],
            coordinator_epoch=metadata(shared_broker, "__transaction_state").topics[0].partitions[0].leader_epoch,
            transaction_version=transaction_version,
        )
        return int(wire.ask(kind(markers=[marker]), 2).markers[0].topics[0].partitions[0].error_code)

    with WireConnection(shared_broker.bootstrap) as wire:
        _, *both = init(wire, name)
        owner = (both[0], both[1])
        assert produce(wire, name, 12, (topic, 0, batch(owner, 0, b"a"))) == [0]
        _, following = end_and_go_on(wire, name, owner, True, 5)
        assert mark(wire, following[1], 2) == 0, "once more, while nothing is open"
        assert produce(wire, name, 12, (topic, 0, batch(following, 0, b"b"))) == [0]
        assert mark(wire, following[1], 2) == E.INVALID_PRODUCER_EPOCH
        assert mark(wire, owner[1], 0) == E.INVALID_PRODUCER_EPOCH
        assert open_transactions(wire, topic) == [owner[0]]
        assert end(wire, name, following, True, 5) == 0
    assert read(shared_broker, topic) == [b"a", b"b"]


def test_transactions_are_listed_by_a_pattern(shared_broker: BrokerProcess, new_topic: Names) -> None:
    one, other = new_topic("pattern-one"), new_topic("pattern-two")
    with WireConnection(shared_broker.bootstrap) as wire:
        init(wire, one)
        init(wire, other)

        def listed(pattern: str | None, **filters: Any) -> set[str]:
            answer = wire.ask(ListTransactionsRequest(transactional_id_pattern=pattern, **filters), 2)
            assert answer.error_code == 0
            return {state.transactional_id for state in answer.transaction_states} & {one, other}

        assert listed("pattern-one.*") == {one}
        assert listed("one") == set(), "the whole id has to fit"
        assert listed("") == listed(None) == {one, other}
        assert listed("pattern.*", state_filters=["Ongoing"]) == set()
        bad = wire.ask(ListTransactionsRequest(transactional_id_pattern="(ab"), 2)
        assert bad.error_code == E.INVALID_REGULAR_EXPRESSION


def test_features_are_told_and_changed(broker: BrokerProcess) -> None:
    kind = UpdateFeaturesRequest

    def levels(wire: WireConnection) -> tuple[int, dict[str, int]]:
        answer = wire.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
        assert {f.name for f in answer.supported_features} >= {"transaction.version", "group.version"}
        return answer.finalized_features_epoch, {f.name: f.max_version_level for f in answer.finalized_features}

    def update(wire: WireConnection, version: int, level: int, kind_of: int = 1, **given: Any) -> int:
        one = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind_of)
        answer = wire.ask(kind(feature_updates=[one], **given), version)
        done = [one.feature] if version < 2 and not answer.error_code else []
        assert [(result.feature, result.error_code) for result in answer.results] == [(name, 0) for name in done]
        return int(answer.error_code)

    with WireConnection(broker.bootstrap) as wire:
        epoch, before = levels(wire)
        assert (before["transaction.version"], before["group.version"]) == (2, 1)
        assert update(wire, 2, 1) == E.INVALID_UPDATE_VERSION, "less takes a downgrade"
        assert update(wire, 1, 3) == E.INVALID_UPDATE_VERSION
        assert update(wire, 2, 0, 2, validate_only=True) == 0
        assert levels(wire) == (epoch, before)
        assert update(wire, 2, 0, 2) == 0
        assert "transaction.version" not in levels(wire)[1] and levels(wire)[0] > epoch
    broker.close()
    broker.start()
    with WireConnection(broker.bootstrap) as wire:
        assert "transaction.version" not in levels(wire)[1], "it is kept"
        assert update(wire, 1, 2) == 0
        assert levels(wire)[1]["transaction.version"] == 2
        old = wire.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
        assert all(feature.min_version > 0 for feature in old.supported_features), "clients of version 3 fail on 0"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("point", ["before_append", "after_append", "before_marker", "after_markers"])
def test_killed_while_it_ends_a_transaction_goes_on_as_it_was_decided(broker: BrokerProcess, point: str, commit: bool) -> None:
    with WireConnection(broker.bootstrap) as wire:
        create(wire, "t")
        init(wire, "makes the topic")
    broker.kill()
    passage = {"before_append": 4, "after_append": 3, "before_marker": 2, "after_markers": 1}[point]
    broker.environment["PENSTOCK_FAILPOINTS"] = f"coordinator.{point}=kill@{passage}"
    broker.start()
    with WireConnection(broker.bootstrap) as wire:
        _, *both = init(wire, "x")
        owner = (both[0], both[1])
        parts = [("t", n, batch(owner, 0, b"%d" % n)) for n in range(2)]
        assert produce(wire, "x", 12, *parts) == [0, 0]
        with pytest.raises((EOFError, OSError)):
            end(wire, "x", owner, commit, 5)
    broker.close()
    broker.environment.clear()
    broker.start()
    with WireConnection(broker.bootstrap) as wire:
        following = (owner[0], owner[1] + 1)
        answer = end_and_go_on(wire, "x", owner, commit, 5)
        while answer[0] == E.CONCURRENT_TRANSACTIONS:  # The markers follow when the partitions' logs are open.
            time.sleep(0.05)
            answer = end_and_go_on(wire, "x", owner, commit, 5)
        assert answer == (0, following), "asked again"
        assert produce(wire, "x", 12, ("t", 0, batch(following, 0, b"next"))) == [0]
        assert end(wire, "x", following, True, 5) == 0
        assert open_transactions(wire, "t") == []
    assert read(broker, "t") == ([b"0", b"1", b"next"] if commit else [b"next"])


def test_our_producer_speaks_it_and_the_first_protocol(broker: BrokerProcess) -> None:
    with WireConnection(broker.bootstrap) as wire:
        create(wire, "t")

        def epoch() -> int:
            [state] = wire.ask(DescribeTransactionsRequest(transactional_ids=["ours"]), 0).transaction_states
            return int(state.producer_epoch)

        for level, grows in ((2, 1), (0, 0)):
            kind = UpdateFeaturesRequest
            one = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=3 - level)
            if level != 2:
                assert wire.ask(kind(feature_updates=[one]), 2).error_code == 0
            producer = Producer(broker.bootstrap, transactional_id="ours")
            for turn, commit in enumerate((True, False, True)):
                producer.begin()
                for partition in range(2):
                    producer.send("t", value=b"%d-%d" % (level, turn), partition=partition)
                producer.flush()
                before = epoch()
                (producer.commit if commit else producer.abort)()
                assert epoch() == before + grows
            producer.close()
        assert open_transactions(wire, "t") == []
    assert read(broker, "t") == sorted(b"%d-%d" % (level, turn) for level in (0, 2) for turn in (0, 2) for _ in range(2))


def test_a_transaction_with_a_broker_inside_the_process_and_its_faults() -> None:
    with InProcess() as broker:
        with WireConnection(broker.bootstrap) as wire:
            create(wire, "t")
        for plant in (lambda: None, lambda: broker.faults.delay("Produce", 0.1), lambda: broker.faults.drop("Produce")):
            plant()
            with Producer(broker.bootstrap, transactional_id="inside") as producer:
                producer.begin()
                for number in range(3):
                    producer.send("t", value=b"%d" % number, partition=0).result(PATIENCE_S)
                producer.commit()
        with WireConnection(broker.bootstrap) as wire:
            assert open_transactions(wire, "t") == []
        assert read(broker, "t") == sorted([b"0", b"1", b"2"] * 3)


@pytest.mark.kafka
@pytest.mark.parametrize(("jars", "ends_with"), [(KAFKA_VERSION, 2), ("3.9.1", 0)])
def test_javas_producer_and_kafkas_dump_of_the_coordinators_log(broker: BrokerProcess, jars: str, ends_with: int) -> None:
    with WireConnection(broker.bootstrap) as wire:
        create(wire, "t")

    java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "t", "--num-records", "2000", "--record-size", "20", "--throughput", "-1"),
        *("--transactional-id", "java", "--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}"),
        version=jars,
    )
    assert len(read(broker, "t")) == 2000
    features = java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap, "describe")
    assert "transaction.version" in features and "FinalizedVersionLevel: 2" in features
    broker.close()
    logs = [path for path in broker.data.glob("__transaction_state-*/*.log") if path.stat().st_size > 0]
    assert len(logs) == 1
    dumped = java("org.apache.kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", str(logs[0]))
    values = [line for line in dumped.splitlines() if "producerId" in line and "CompleteCommit" in line]
    assert values or "transactionStatus" in dumped, dumped[:2000]
    assert (f'"clientTransactionVersion":{ends_with}' in dumped) == (ends_with == 2), dumped[-2000:]
