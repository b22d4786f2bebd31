"""A producer's records until they are sent: batches by partition, in order, within `buffer.memory`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.accumulator import Accumulator
from penstock.pipeline.clients.background import BackgroundLoop
from penstock.pipeline.clients.delivery import Batch, Delivery
from penstock.pipeline.clients.sender import Produced
from penstock.pyx.record.rawbatch import RawBatch, records

TP = "t", 0


class World:
    """An accumulator whose loop only notes which partitions were to be looked at."""

    def __init__(self, background: BackgroundLoop) -> None:
        self.woken: list[tuple[str, int]] = []
        config = properties.load(properties.PRODUCER, {"batch.size": 100, "buffer.memory": 1024, "linger.ms": 3_600_000})
        self.batches = Accumulator(config, background, self.woken.append, None)

    def add(self, value: bytes, timestamp_ms: int = 1, size: int = 200) -> Delivery:
        delivery = Delivery(timestamp_ms, None, None)
        queue = self.batches.queue
        queue.append(queue.line(TP), delivery, None, value, (), size, time.monotonic())
        return delivery

    def next(self) -> Batch:
        batch = self.batches.next(TP)
        assert isinstance(batch, Batch)
        return batch


@pytest.fixture
def world() -> Iterator[World]:
    background = BackgroundLoop("test")
    yield World(background)
    background.stop()


def test_a_batch_waits_for_more_records_until_it_is_full(world: World) -> None:
    first, second = world.add(b"a"), world.add(b"b")
    left_s = world.batches.next(TP)
    assert isinstance(left_s, float) and 0 < left_s < math.inf
    third = world.add(bytes(100))
    batch = world.next()
    world.batches.finish(batch, Produced(10), None)
    assert [first.result(0).offset, second.result(0).offset, third.done()] == [10, 11, False]
    assert set(world.woken) == {TP}


def test_who_finds_no_room_closes_what_is_open_and_gives_up_in_time(world: World) -> None:
    deliveries = [world.add(b"a") for _ in range(5)]
    with pytest.raises(KafkaError, match=r"buffer\.memory") as refused:
        world.add(b"b")
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    while isinstance(batch := world.batches.next(TP), Batch):
        world.batches.finish(batch, Produced(7), None)
    assert all(delivery.done() for delivery in deliveries)
    assert not world.add(b"b").done()


def test_batches_that_are_put_back_go_first_and_in_their_order(world: World) -> None:
    for _ in range(3):
        world.add(bytes(100))
    taken = [world.next(), world.next()]
    last = world.next()
    world.batches.put_back(TP, [last])
    world.batches.put_back(TP, taken)
    assert [world.next() for _ in range(3)] == [*taken, last]


def test_all_is_taken_but_what_is_overdue_only_when_it_is(world: World) -> None:
    world.add(bytes(100))
    world.add(b"a")
    assert world.batches.take_all(overdue=True) == []
    assert len(world.batches.take_all()) == 2
    assert (world.batches.next(TP), world.batches.undelivered) == (math.inf, 2)


def test_a_record_that_is_refused_leaves_no_batch_to_wait_for(world: World) -> None:
    with pytest.raises(ValueError):
        world.add(b"a", timestamp_ms=-5)
    world.batches.flush(0)
    assert world.batches.undelivered == 0


def test_a_failed_batch_fails_its_records_and_frees_its_memory(world: World) -> None:
    delivery = world.add(b"a", size=1024)
    with pytest.raises(TimeoutError):
        delivery.result(0)
    (batch,) = world.batches.take_all()
    world.batches.finish(batch, None, KafkaError(ErrorCode.INVALID_RECORD, "bad"))
    assert isinstance(delivery.exception(0), KafkaError)
    world.add(b"b", size=1024)


def test_a_closed_one_takes_nothing(world: World) -> None:
    world.batches.close()
    with pytest.raises(KafkaError, match="the producer is closed"):
        world.add(b"a")


class Interrupted(BaseException):
    """What a signal handler may raise, after any call."""


@pytest.mark.parametrize("at", range(1, 7))
def test_a_signal_handler_that_raises_as_a_batch_opens_or_closes_doubles_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    calls = 0

    def wake(tp: tuple[str, int]) -> None:
        nonlocal calls
        calls += 1
        world.woken.append(tp)
        if calls == at:
            raise Interrupted

    monkeypatch.setattr(world.batches, "_wake", wake)
    sent: list[Delivery] = []
    for number in range(4):
        with contextlib.suppress(Interrupted):
            sent.append(world.add(b"%d" % number * 60))
    taken = [batch for batch in world.batches.take_all() if batch.builder.count]
    assert len(set(taken)) == len(taken)
    offset = 0
    values: list[bytes] = []
    for batch in taken:
        found = [record.value or b"" for record in records(RawBatch(batch.builder.build()))]
        world.batches.finish(batch, Produced(offset), None)
        offset += len(found)
        values += found
    assert calls > at and values == sorted(set(values))
    assert all(delivery.done() for delivery in sent) and len(values) >= len(sent)
    assert world.batches.queue.queued == 0 == world.batches.queue.memory_bytes


def test_what_interrupts_a_send_in_its_own_thread_cannot_send(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def wake(tp: tuple[str, int]) -> None:
        try:
            world.add(b"inner")
        except RuntimeError as error:
            refused.append(str(error))

    monkeypatch.setattr(world.batches, "_wake", wake)
    deliveries = [world.add(bytes(100)) for _ in range(2)]
    monkeypatch.setattr(world.batches, "_wake", world.woken.append)
    assert len(refused) >= 2 and all("has interrupted" in said for said in refused)
    deliveries.append(world.add(b"later"))
    for batch in world.batches.take_all():
        world.batches.finish(batch, Produced(0), None)
    assert all(delivery.done() for delivery in deliveries)
