"""Interceptors (KIP-42) and the hooks of a producer's queue: what they see, what they change, and that none loses a record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.interceptors import Interceptor
from penstock.pipeline.clients.outgoing import Lists
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.producerrecord import ProducerRecord, QueuedBatch, RecordMetadata
from penstock.pipeline.clients.queuehandler import QueueHandler
from penstock.pyx.record.rawbatch import RawBatch, records
from support.flaky_broker import QUICK, Flaky, InThread
from support.patience import until

HOUR_MS = 3_600_000


def refuse_bad(raw: RawBatch) -> int:
    return int(ErrorCode.INVALID_RECORD) if b"bad" in bytes(raw) else 0


class Marker(Interceptor):
    """Adds its name to each value, and notes what became of the records."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.heard: list[tuple[RecordMetadata, Exception | None]] = []
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + self.name)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))

    def close(self) -> None:
        self.closed += 1


class Raiser(Interceptor):
    """Raises wherever it is asked."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ZeroDivisionError

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise ZeroDivisionError

    def close(self) -> None:
        raise ZeroDivisionError


class Forgetful(Interceptor):
    """Gives nothing back."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return None  # type: ignore[return-value]


def test_each_interceptor_gets_what_the_one_before_gave_and_hears_of_the_record() -> None:
    first, second = Marker(b"1"), Marker(b"2")
    called: list[str] = []
    with (
        InThread(Flaky(refuse=refuse_bad)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, interceptors=[first, second]) as producer,
    ):
        producer.send("t", None, b"v", 5, partition=1, on_delivery=lambda e, m: called.append(f"after {len(first.heard)}"))
        producer.flush(60)
        producer.send("t", None, b"bad", 6, partition=1)
        producer.flush(60)
        assert broker.values(1) == [b"v12"]
    assert called == ["after 1"]
    for one in (first, second):
        (stored, none), (failed, error) = one.heard
        assert (stored, none) == (RecordMetadata("t", 1, 0, 5), None)
        assert failed == RecordMetadata("t", 1, -1, 6) and isinstance(error, KafkaError)
        assert (error.code, one.closed) == (ErrorCode.INVALID_RECORD, 1)


def test_an_interceptor_sees_what_send_was_given_before_serializers() -> None:
    seen: list[ProducerRecord] = []

    class Look(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append(record)
            return record._replace(key=7, partition=1, headers=[("h", b"x")])

    with (
        InThread(Flaky()) as broker,
        Producer(
            f"127.0.0.1:{broker.port}",
            **QUICK,
            interceptors=[Look()],
            key_serializer=lambda n: b"%d" % n,
            value_serializer=str.encode,
        ) as producer,
    ):
        assert producer.send("t", 6, "text").result(60).partition == 1
        (stored,) = [record for raw in broker.log[1] for record in records(raw)]
        assert (stored.key, stored.value, stored.headers) == (b"7", b"text", (("h", b"x"),))
    assert seen == [ProducerRecord("t", 6, "text")]


@pytest.mark.parametrize("broken", [Raiser(), Forgetful()], ids=["raises", "forgets"])
@pytest.mark.parametrize("bulk", [False, True])
def test_an_interceptor_that_fails_loses_no_record_and_stops_no_other(
    broken: Interceptor, bulk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = Marker(b"1"), Marker(b"2")
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, interceptors=[first, broken, last]) as producer,
    ):
        if bulk:
            assert producer.send_many("t", values=[b"v"], partition=0).result(60) == 1
        else:
            assert producer.send("t", None, b"v", partition=0).result(60).offset == 0
        assert broker.values(0) == [b"v12"]
    assert [len(one.heard) for one in (first, last)] == [1, 1]
    assert f"on_send of the interceptor {type(broken).__name__} failed: the record goes on without it" in caplog.text


def test_interceptors_hear_of_a_record_that_send_refuses() -> None:
    marker = Marker(b"")
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, max_request_size=1024, interceptors=[marker]) as producer,
    ):
        for send in (
            lambda: producer.send("t", None, bytes(2000), partition=0),
            lambda: producer.send_many("t", values=[bytes(2000)], partition=0),
            lambda: producer.send("t", None, bytearray(2000)),
        ):
            with pytest.raises(KafkaError):
                send()
    assert [(metadata.partition, metadata.offset) for metadata, _ in marker.heard] == [(0, -1), (0, -1), (-1, -1)]
    assert all(isinstance(error, KafkaError) and error.code == ErrorCode.MESSAGE_TOO_LARGE for _, error in marker.heard)


def test_interceptors_hear_of_records_behind_one_that_send_many_refuses() -> None:
    marker = Marker(b"")
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, max_request_size=1024, interceptors=[marker]) as producer,
    ):
        with pytest.raises(KafkaError):
            producer.send_many("t", values=[b"a", bytes(2000), b"b", b"c"], timestamps=[1, 2, 3, 4], partition=0)
        producer.flush(60)
        assert broker.values(0) == [b"a"]
    heard = sorted((metadata.timestamp_ms, metadata.offset, error is None) for metadata, error in marker.heard)
    assert heard == [(1, 0, True), (2, -1, False), (3, -1, False), (4, -1, False)]


@pytest.mark.parametrize("as_columns", [False, True])
def test_interceptors_get_each_record_of_send_many(as_columns: bool) -> None:
    marker = Marker(b"!")
    keys: list[bytes | None] = [b"a", None, b""]
    values: list[bytes | None] = [b"0", b"1", b"2"]
    headers: list[list[tuple[str, bytes | None]]] = [[("h", b"x")], [], [("i", None), ("j", b"")]]
    lists = Lists(keys, values, [10, 20, 30], headers)
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=HOUR_MS, interceptors=[marker]) as producer,
    ):
        given: dict[str, Any] = {"columns": lists}
        if not as_columns:
            given = {"keys": keys, "values": values, "timestamps": [10, 20, 30], "headers": headers}
        sent = producer.send_many("t", **given, partition=1)
        producer.flush(60)
        assert (sent.result(0), len(broker.log[1])) == (3, 1)
        stored = [record for raw in broker.log[1] for record in records(raw)]
        assert [(one.key, one.value, one.timestamp_ms, list(one.headers)) for one in stored] == [
            (key, (value or b"") + b"!", at, given)
            for key, value, at, given in zip(keys, values, (10, 20, 30), headers, strict=True)
        ]
    assert marker.heard == [(RecordMetadata("t", 1, offset, 10 * offset + 10), None) for offset in range(3)]


def test_interceptors_and_record_ids_go_together() -> None:
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, record_id="key", interceptors=[Marker(b"!")]) as producer,
    ):
        sent = producer.send_many("t", [b"mine", None], [b"0", b"1"], partition=0)
        assert sent.result(60) == 2 and sent.columns is not None
        stored = [record for raw in broker.log[0] for record in records(raw)]
        ids = [sent.columns.key_data[start:end].tobytes() for start, end in pairwise(sent.columns.key_starts)]
        assert [one.key for one in stored] == ids and ids[0] == b"mine" and len(ids[1]) == 36
        assert producer.send("t", None, b"2", partition=0).record_id is not None


class Notes(QueueHandler):
    """Notes each stage; one may be told to raise at all of them."""

    def __init__(self, raising: bool = False, last: Sequence[ProducerRecord] = ()) -> None:
        self.raising = raising
        self.last = last
        self.notes: list[tuple[Any, ...]] = []

    def note(self, *what: Any) -> None:
        self.notes.append(what)
        if self.raising:
            raise ZeroDivisionError

    def before_enqueue(self, record: ProducerRecord) -> None:
        self.note("before", record.partition, record.value)

    def after_enqueue(self, record: ProducerRecord, accepted: bool) -> None:
        self.note("after", record.partition, record.value, accepted)

    def after_dequeue(self, batch: QueuedBatch) -> None:
        self.note("left", batch.topic, batch.partition, batch.records)

    def before_request(self, batches: Sequence[QueuedBatch]) -> None:
        self.note("request", *sorted((batch.partition, batch.records) for batch in batches))

    def last_batch(self) -> Iterable[ProducerRecord]:
        self.note("last")
        return self.last

    def dropped(self, batch: QueuedBatch, error: Exception) -> None:
        self.note("dropped", batch.partition, batch.records, getattr(error, "code", None))

    def close(self) -> None:
        self.note("close")

    def of(self, stage: str) -> list[tuple[Any, ...]]:
        return [what[1:] for what in self.notes if what[0] == stage]


def test_a_handler_hears_of_each_stage_in_its_order() -> None:
    notes = Notes(last=[ProducerRecord("t", None, b"bye", partition=0), ProducerRecord("t", None, 5)])
    with InThread(Flaky(refuse=refuse_bad)) as broker:
        with Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=HOUR_MS, handler=notes) as producer:
            producer.send("t", None, b"a", partition=0)
            producer.send("t", None, b"bad", partition=1)
            producer.flush(60)
        assert broker.values(0) == [b"a", b"bye"]
        assert len(broker.requests) == len(notes.of("request"))
    stages = [what[0] for what in notes.notes]
    assert stages[:4] == ["before", "after"] * 2 and stages[-1] == "close"
    assert notes.of("before") == [(0, b"a"), (1, b"bad"), (0, b"bye")]
    assert notes.of("after") == [(0, b"a", True), (1, b"bad", True), (0, b"bye", True)]
    assert sorted(notes.of("left")) == [("t", 0, 1), ("t", 0, 1), ("t", 1, 1)]
    assert sorted(batch for request in notes.of("request") for batch in request) == [(0, 1), (0, 1), (1, 1)]
    assert notes.of("dropped") == [(1, 1, ErrorCode.INVALID_RECORD)]
    assert stages.index("last") > stages.index("dropped")


@pytest.mark.parametrize("bulk", [False, True])
def test_hooks_that_raise_lose_no_record_and_stop_nothing(bulk: bool, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes(raising=True, last=[ProducerRecord("t", None, b"bye", partition=0)])
    with InThread(Flaky(refuse=refuse_bad)) as broker:
        with Producer(f"127.0.0.1:{broker.port}", **QUICK, batch_size=1, linger_ms=0, handler=notes) as producer:
            for value in (b"0", b"bad", b"1"):
                if bulk:
                    producer.send_many("t", values=[value], partition=0)
                else:
                    producer.send("t", None, value, partition=0)
            producer.flush(60)
        assert broker.values(0) == [b"0", b"1"]  # what `last_batch` would have given is all that is missing
    for stage in ("before", "after", "left", "request", "last", "dropped", "close"):
        assert notes.of(stage), stage
    assert "the hook after_dequeue failed: the records go on" in caplog.text


@pytest.mark.parametrize("given", [{"producer_type": "sync"}, {"queue_buffering_max_messages": 1, "max_block_ms": HOUR_MS}])
def test_close_ends_with_its_timeout_though_the_last_batch_has_no_answer(given: dict[str, Any]) -> None:
    """Neither an answer, nor room in the queue is waited for any longer."""
    notes = Notes(last=[ProducerRecord("t", None, b"bye", partition=0)] * 2)
    with InThread(Flaky()) as broker:
        producer = Producer(f"127.0.0.1:{broker.port}", **QUICK, **given, delivery_timeout_ms=HOUR_MS, handler=notes)
        producer.partitions_for("t")
        broker.answering.clear()
        closing = threading.Thread(target=producer.close, args=[0.3], daemon=True)
        closing.start()
        until(lambda: not closing.is_alive(), "the end of close")
    assert [code for *_, code in notes.of("dropped")][-1] == ErrorCode.NETWORK_EXCEPTION, "the producer was closed"


def test_a_handler_hears_of_a_record_that_the_full_queue_refuses() -> None:
    notes = Notes()
    with InThread(Flaky(lambda: "drop")) as broker:
        producer = Producer(
            f"127.0.0.1:{broker.port}", **QUICK, queue_buffering_max_messages=1, max_block_ms=2000, handler=notes
        )
        producer.send("t", None, b"a", partition=0)
        with pytest.raises(KafkaError, match=r"queue\.buffering\.max\.messages"):
            producer.send("t", None, b"b", partition=0)
        broker.fault = lambda: ""
        producer.close()
        assert broker.values(0) == [b"a"]
    assert notes.of("after") == [(0, b"a", True), (0, b"b", False)]
    assert notes.of("dropped") == [(0, 1, ErrorCode.REQUEST_TIMED_OUT)]


def test_a_handler_without_hooks_for_records_leaves_columns_as_they_are() -> None:
    class Requests(QueueHandler):
        def __init__(self) -> None:
            self.batches: list[QueuedBatch] = []

        def before_request(self, batches: Sequence[QueuedBatch]) -> None:
            self.batches += batches

    handler = Requests()
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=HOUR_MS, handler=handler) as producer,
    ):
        producer.send_many("t", values=[b"%d" % number for number in range(100)], partition=1)
        producer.flush(60)
        (stored,) = broker.log[1]
        assert handler.batches == [QueuedBatch("t", 1, 100, len(stored))]


def test_what_is_no_interceptor_and_no_handler_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for given in ({"interceptors": [object()]}, {"handler": object()}):
        with pytest.raises(TypeError, match="made out of"):
            Producer("127.0.0.1:1", **given)
