"""A producer's queue: when batches go, what happens when it is full, `producer.type`, and where single records end up."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from penstock.config import INT_MAX, LONG_MAX, ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.delivery import BulkDelivery, Delivery
from penstock.pipeline.clients.outgoing import Lists
from penstock.pipeline.clients.producer import Producer
from penstock.pyx.record.rawbatch import RawBatch
from support.flaky_broker import QUICK, Flaky, InThread
from support.patience import until

HOUR_MS = 3_600_000
FULL = r"5 records wait, as many as `queue.buffering.max.messages` allows"


def values(count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


def send_all(producer: Producer, count: int, bulk: bool) -> list[Delivery] | BulkDelivery:
    if bulk:
        return producer.send_many("t", values=values(count), partition=0)
    return [producer.send("t", None, value, partition=0) for value in values(count)]


def knows(producer: Producer) -> bool:
    """Whether it knows the topic by now: without `max.block.ms` nothing waits for that."""
    with suppress(KafkaError):
        return producer.partitions_for("t") == [0, 1]
    return False


@pytest.mark.parametrize("bulk", [False, True])
def test_a_batch_goes_when_it_has_as_many_records_as_asked_for(bulk: bool) -> None:
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, batch_num_messages=3, linger_ms=HOUR_MS) as producer,
    ):
        sent = send_all(producer, 9, bulk)
        assert sent.result(60) == 9 if isinstance(sent, BulkDelivery) else [d.result(60).offset for d in sent] == list(range(9))
        late = producer.send("t", None, b"9", partition=0)
        assert not late.done()
        producer.flush(60)
        assert [batch.record_count for batch in broker.log[0]] == [3, 3, 3, 1]
        assert broker.values(0) == values(10)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("block_ms", [0, 200])
def test_a_full_queue_is_said_in_words_and_loses_nothing_that_is_in_it(bulk: bool, block_ms: int) -> None:
    with InThread(Flaky(lambda: "drop")) as broker:
        producer = Producer(
            f"127.0.0.1:{broker.port}", **QUICK, queue_buffering_max_messages=5, max_block_ms=block_ms, linger_ms=0
        )
        until(lambda: knows(producer), "the topic")
        with pytest.raises(KafkaError, match=FULL) as refused:
            send_all(producer, 6, bulk)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        broker.fault = lambda: ""
        producer.close()
        assert broker.values(0) == values(5)


@pytest.mark.parametrize("bulk", [False, True])
def test_who_waits_for_room_in_the_queue_gets_it(bulk: bool) -> None:
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, queue_buffering_max_messages=7, linger_ms=HOUR_MS) as producer,
    ):
        send_all(producer, 100, bulk)
        producer.flush(60)
        assert broker.values(0) == values(100)
        assert max(batch.record_count for batch in broker.log[0]) <= 7


def test_a_producer_that_waits_for_room_goes_on_when_the_broker_does() -> None:
    with (
        InThread(Flaky(lambda: "drop")) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, queue_buffering_max_messages=5) as producer,
    ):
        sender = threading.Thread(target=send_all, args=(producer, 20, False))
        sender.start()
        broker.fault = lambda: ""
        sender.join(60)
        producer.flush(60)
        assert broker.values(0) == values(20)


def test_sync_gives_back_what_is_stored_and_raises_what_is_not() -> None:
    def refuse(raw: RawBatch) -> int:
        return int(ErrorCode.INVALID_RECORD) if b"bad" in bytes(raw) else 0

    with (
        InThread(Flaky(refuse=refuse)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, producer_type="sync") as producer,
    ):
        one = producer.send("t", None, b"0", partition=0)
        many = producer.send_many("t", values=[b"1", b"2"], partition=0)
        assert (one.done(), many.done(), broker.values(0)) == (True, True, values(3))
        for send in (
            lambda: producer.send("t", None, b"bad", partition=0),
            lambda: producer.send_many("t", values=[b"bad"], partition=0),
        ):
            with pytest.raises(KafkaError) as refused:
                send()
            assert refused.value.code == ErrorCode.INVALID_RECORD
        assert producer.send("t", None, b"3", partition=0).result(0).offset == 3


@pytest.mark.parametrize("bulk", [0, 3])
def test_offsets_count_the_records_of_send_many_that_are_in_the_same_batch(bulk: int) -> None:
    """The offset of a single record behind them was too small by their number."""
    with InThread(Flaky()) as broker, Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=HOUR_MS) as producer:
        before = producer.send("t", None, b"x", partition=0)
        if bulk:
            producer.send_many("t", values=values(bulk), partition=0)
        behind = producer.send("t", None, b"y", partition=0)
        producer.flush(60)
        assert len(broker.log[0]) == 1
        for delivery, value in ((before, b"x"), (behind, b"y")):
            assert broker.values(0)[delivery.result(0).offset] == value


OLD_NAMES: list[tuple[str, Any, str, Any]] = [
    ("queue.time", 7, "linger.ms", 7),
    ("queue.buffering.max.ms", 7, "linger.ms", 7),
    ("queue.size", 9, "queue.buffering.max.messages", 9),
    ("queue.enqueue.timeout.ms", 0, "max.block.ms", 0),
    ("queue.enqueueTimeout.ms", -1, "max.block.ms", LONG_MAX),
    ("metadata.broker.list", "a:1,b:2", "bootstrap.servers", ["a:1", "b:2"]),
    ("request.required.acks", -1, "acks", "-1"),
    ("message.send.max.retries", 3, "retries", 3),
    ("compression.codec", "gzip", "compression.type", "gzip"),
]


@pytest.mark.parametrize(("old", "given", "name", "value"), OLD_NAMES)
def test_old_names_are_taken(old: str, given: object, name: str, value: object) -> None:
    for written in (old, old.replace(".", "_")):
        assert properties.load(properties.PRODUCER, {written: given})[name] == value


def test_old_names_are_names_of_properties_and_none_themselves() -> None:
    for old, name in properties.ALIASES["producer"].items():
        assert name in properties.PRODUCER.properties and old not in properties.PRODUCER.properties


def test_two_names_of_one_property_are_refused() -> None:
    for given in ({"linger.ms": 5, "queue.time": 6}, {"queue.time": 6, "linger_ms": 5}):
        with pytest.raises(ConfigError, match=r"another name of `linger.ms` are given"):
            properties.load(properties.PRODUCER, given)


@pytest.mark.parametrize("name", ["zk.connect", "serializer.class", "interceptor.classes", "callback.handler"])
def test_what_has_another_way_here_is_refused_with_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers|constructor"):
        properties.load(properties.PRODUCER, {name: "x"})


def test_the_defaults_bound_neither_batches_nor_the_queue_by_number() -> None:
    config = properties.load(properties.PRODUCER, {})
    assert (config["producer.type"], config["batch.num.messages"]) == ("async", INT_MAX)
    assert config["queue.buffering.max.messages"] == INT_MAX


def test_columns_may_begin_behind_a_batch_that_is_nearly_full() -> None:
    """Columns fill what is left of a batch, whatever is asked for first."""
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, batch_num_messages=4, linger_ms=HOUR_MS) as producer,
    ):
        producer.send("t", None, b"first", partition=0)
        columns = Lists(None, values(10), np.full(10, 1, np.int64), None)
        producer.send_many("t", columns=columns, partition=0)
        producer.flush(60)
        assert [batch.record_count for batch in broker.log[0]] == [4, 4, 3]
        assert broker.values(0) == [b"first", *values(10)]
