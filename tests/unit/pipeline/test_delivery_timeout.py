"""`delivery.timeout.ms` bounds a record's life, from `send` to its answer, wherever the record is (KIP-91).

The broker gives no answer, or refuses, until a test says otherwise, so that times decide what happens when, and never what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.config import INT_MAX
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.delivery import Delivery
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.sender import Produced, Sender
from penstock.pyx.record.builder import BatchBuilder
from support import asking
from support.flaky_broker import QUICK, Flaky, InThread
from support.patience import until

LIMIT_S = 100
SOON_S = 0.3
PATIENT: dict[str, Any] = {**QUICK, "request.timeout.ms": INT_MAX}
IN_WORDS = r"within `delivery\.timeout\.ms`"


def batch(value: bytes, sequence: int, producer_id: int = 7) -> bytes:
    builder = BatchBuilder()
    builder.append(None, value, 0)
    return builder.build(producer_id, 0, sequence)


def test_records_fail_in_time_under_way_and_waiting_for_their_turn() -> None:
    """Of a partition's batches at most five are under way; the first alone, until the broker knows the producer."""
    told: list[Any] = []
    limits = {**PATIENT, "delivery.timeout.ms": int(SOON_S * 1000), "batch.num.messages": 1}
    thread = InThread(Flaky())
    with thread as broker, Producer(f"127.0.0.1:{broker.port}", **limits) as producer:
        producer.partitions_for("t")
        broker.answering.clear()
        sent = [producer.send("t", None, b"%d" % i, partition=0, on_delivery=lambda *one: told.append(one)) for i in range(20)]
        for delivery in sent:
            with pytest.raises(KafkaError, match=IN_WORDS) as caught:
                delivery.result(LIMIT_S)
            assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        producer.flush(LIMIT_S)
        assert [getattr(error, "code", None) for error, _ in told] == [ErrorCode.REQUEST_TIMED_OUT] * 20

        thread.loop.loop.call_soon_threadsafe(broker.answering.set)
        later: list[Delivery] = []

        def is_stored() -> bool:
            later.append(producer.send("t", None, b"later %d" % len(later), partition=0))
            return later[-1].exception(LIMIT_S) is None

        until(is_stored, "a record that is stored")
        values = broker.values(0)
        assert len(values) == len(set(values)) and values[-1] == b"later %d" % (len(later) - 1)


def in_loop(play: Callable[[Flaky, Client], Any]) -> None:
    async def work() -> None:
        broker = await Flaky().start()
        async with asyncio.timeout(LIMIT_S), Client(f"127.0.0.1:{broker.port}", **PATIENT) as client:
            await play(broker, client)
        broker.answering.set()
        await broker.stop()

    asyncio.run(work())


def soon() -> float:
    return asyncio.get_running_loop().time() + SOON_S


async def outcome(future: asyncio.Future[Produced]) -> int | None:
    """The code that a batch failed with, None if it is stored."""
    try:
        await future
    except KafkaError as error:
        return error.code
    return None


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_batch_does_not_fail_with_the_one_before_it_whose_time_is_over(idempotent: bool) -> None:
    """An idempotent one has a sequence number that can't be stored any more, and hears that: it goes again under another id."""

    async def play(broker: Flaky, client: Client) -> None:
        sender = Sender(client, idempotent=idempotent)
        first = sender.submit(("t", 0), [batch(b"first", 0)], soon())
        second = sender.submit(("t", 0), [batch(b"second", 1)])
        broker.fault = lambda: "" if first.done() else "not_leader"
        assert await outcome(first) == ErrorCode.REQUEST_TIMED_OUT
        assert await outcome(second) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if idempotent else None)

    in_loop(play)


def test_nothing_is_drained_while_a_request_may_still_be_carried_out() -> None:
    """A marker that overtook it would leave the batch outside of its transaction."""

    async def play(broker: Flaky, client: Client) -> None:
        sender = Sender(client)
        assert await outcome(sender.submit(("t", 0), [batch(b"known", 0)])) is None
        broker.answering.clear()
        assert await outcome(sender.submit(("t", 0), [batch(b"late", 1)], soon())) == ErrorCode.REQUEST_TIMED_OUT
        draining = asyncio.create_task(sender.drain())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not draining.done()
        broker.answering.set()
        await draining
        assert broker.values(0) == [b"known", b"late"]

    in_loop(play)


def test_a_batch_of_another_producer_goes_once_the_one_whose_time_is_over_has_its_answer() -> None:
    async def play(broker: Flaky, client: Client) -> None:
        sender = Sender(client)
        assert await outcome(sender.submit(("t", 0), [batch(b"known", 0)])) is None
        broker.answering.clear()
        assert await outcome(sender.submit(("t", 0), [batch(b"late", 1)], soon())) == ErrorCode.REQUEST_TIMED_OUT
        behind = sender.submit(("t", 0), [batch(b"behind", 2)])
        other = sender.submit(("t", 0), [batch(b"other", 0, producer_id=8)])
        broker.answering.set()
        assert [await outcome(behind), await outcome(other)] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None]
        assert broker.values(0) == [b"known", b"late", b"other"]

    in_loop(play)


def test_a_batch_that_lingers_has_time_for_a_request_unless_somebody_says_otherwise() -> None:
    """As in Kafka: 120 s by default, or more where `linger.ms` is."""
    deadlines = []
    choices: list[dict[str, Any]] = [{}, {"delivery.timeout.ms": 200_000}]
    for given in choices:
        with (
            InThread(Flaky()) as broker,
            Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=150_000, request_timeout_ms=30_000, **given) as producer,
        ):
            delivery = producer.send("t", None, b"v", partition=0)
            deadlines.append(delivery._batch.deadline - delivery._batch.ripe_at)
            producer.flush(LIMIT_S)
    assert deadlines == pytest.approx([30, 50])


def test_a_transaction_with_records_whose_time_is_over_can_only_be_aborted(penstock_broker: Broker) -> None:
    """One of them is sent again and again, the others wait for their turn."""
    asking.create(penstock_broker, "t")
    limits: dict[str, Any] = {**QUICK, "delivery.timeout.ms": 2000, "batch.num.messages": 1, "transactional.id": "one"}
    with Producer(penstock_broker.bootstrap, **limits) as producer:
        penstock_broker.faults.error("Produce", "NOT_LEADER_OR_FOLLOWER", times=1_000_000)
        producer.begin()
        sent = [producer.send("t", None, b"lost", partition=0) for _ in range(20)]
        assert all(isinstance(delivery.exception(LIMIT_S), KafkaError) for delivery in sent)
        with pytest.raises(KafkaError) as caught:
            producer.commit()
        assert caught.value.code == ErrorCode.TRANSACTION_ABORTABLE
        producer.abort()
        penstock_broker.faults.clear()

        def commit() -> bool:
            producer.begin()
            try:
                producer.send("t", None, b"kept", partition=0)
                producer.commit()
            except KafkaError:
                producer.abort()
                return False
            return True

        until(commit, "a commit")
    given = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(penstock_broker.bootstrap, **given) as reader:
        reader.assign([("t", 0)])
        read: list[bytes | None] = []

        def has_read() -> bool:
            read.extend(record.value for record in reader.poll(0.1))
            return bool(read)

        until(has_read, "a record")
        assert read == [b"kept"]
