"""A producer's records until they are sent: batches by partition, in order, within `buffer.memory`."""

from __future__ import annotations

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
