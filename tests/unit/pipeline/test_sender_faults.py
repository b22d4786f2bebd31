"""The sender and the producer against a broker that fails at random: nothing lost, doubled or reordered.

Its faults come from a seed, which a failing test prints by its id.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.sender import Produced, Sender
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, records
from support.flaky_broker import QUICK, Flaky, InThread, faults


def batch(value: bytes, sequence: int, count: int = 1) -> bytes:
    builder = BatchBuilder()
    for i in range(count):
        builder.append(None, value + b".%d" % i, 0)
    return builder.build(7, 0, sequence)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_batch_is_sent_again_as_often_as_retries_say(retries: int) -> None:
    """Kafka's `retries`; the broker counts what comes."""

    async def run() -> int:
        tries = 0

        def refuse() -> str:
            nonlocal tries
            tries += 1
            return "not_leader"

        broker = await Flaky(refuse).start()

        def produce() -> None:
            with Producer(f"127.0.0.1:{broker.port}", retries=retries, linger_ms=0, **QUICK) as producer:
                with pytest.raises(KafkaError) as caught:
                    producer.send("t", b"k", b"v", partition=0).result(60)
                assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

        await asyncio.to_thread(produce)
        await broker.stop()
        return tries

    assert asyncio.run(run()) == retries + 1


@pytest.mark.parametrize(("seed", "partitions"), [(seed, 2 if seed % 2 else 7) for seed in range(12)])
def test_each_batch_is_stored_once_and_in_order(seed: int, partitions: int) -> None:
    async def run() -> None:
        broker = await Flaky(faults(seed, 0.3 / partitions), partitions).start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK) as client:
            sender = Sender(client)
            dice = random.Random(seed)
            sequences = [0] * partitions
            expected: list[list[bytes]] = [[] for _ in range(partitions)]
            futures: list[asyncio.Future[Produced]] = []
            for i in range(150):
                p, count = dice.randrange(partitions), dice.randrange(1, 4)
                futures.append(sender.submit(("t", p), [batch(b"%d" % i, sequences[p], count)]))
                sequences[p] += count
                expected[p] += [b"%d.%d" % (i, j) for j in range(count)]
                if dice.random() < 0.2:
                    await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await asyncio.gather(*futures)
            assert [broker.values(p) for p in range(partitions)] == expected
            assert broker.versions == {13}
        await broker.stop()

    asyncio.run(run())


def test_a_refused_batch_fails_those_behind_it_and_no_other_partition() -> None:
    async def run() -> None:
        def refuse(raw: RawBatch) -> int:
            return int(ErrorCode.INVALID_RECORD) if b"bad" in bytes(raw) else 0

        broker = await Flaky(refuse=refuse).start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK) as client:
            sender = Sender(client)
            sent = [(0, b"a"), (0, b"bad"), (0, b"c"), (1, b"d")]
            futures = [sender.submit(("t", p), [batch(value, {0: i, 1: 0}[p])]) for i, (p, value) in enumerate(sent)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            codes = [result.code if isinstance(result, KafkaError) else 0 for result in results]
            assert codes == [0, ErrorCode.INVALID_RECORD, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
            assert broker.values(0) == [b"a.0"]
        await broker.stop()

    asyncio.run(run())


def test_delivery_ends_in_an_error_when_no_broker_comes_back() -> None:
    async def run() -> None:
        broker = await Flaky().start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK, **{"delivery.timeout.ms": 3000}) as client:
            sender = Sender(client)
            await sender.submit(("t", 0), [batch(b"a", 0)])
            broker.fault = lambda: "drop"
            with pytest.raises(KafkaError) as caught:
                await sender.submit(("t", 0), [batch(b"b", 1)])
            assert caught.value.retriable
        await broker.stop()

    asyncio.run(run())


PARTITIONS = 100


async def send_to_all(sender: Sender, sequence: int, partitions: int = PARTITIONS) -> None:
    await asyncio.gather(*(sender.submit(("t", p), [batch(b"%d" % sequence, sequence)]) for p in range(partitions)))


@pytest.mark.parametrize("transactional_id", [None, "one"])
def test_batches_of_many_partitions_go_in_one_request(transactional_id: str | None) -> None:
    async def gate(tp: object) -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        broker = await Flaky(partitions=PARTITIONS).start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK) as client:
            sender = Sender(client, transactional_id=transactional_id, gate=None if transactional_id is None else gate)
            await send_to_all(sender, 0)  # the leader is found, and each partition has stored a batch of the producer
            broker.requests.clear()
            await send_to_all(sender, 1)
            assert [sorted(numbers) for numbers in broker.requests] == [list(range(PARTITIONS))]
            assert broker.identities == {transactional_id}
            assert [broker.values(p) for p in range(PARTITIONS)] == [[b"0.0", b"1.0"]] * PARTITIONS
        await broker.stop()

    asyncio.run(run())


def test_batches_wait_for_company_while_enough_requests_have_no_answer() -> None:
    async def run() -> None:
        broker = await Flaky(partitions=20).start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK) as client:
            sender = Sender(client)
            await send_to_all(sender, 0, 20)
            broker.requests.clear()
            broker.answering.clear()
            futures = []
            for p in range(20):
                futures.append(sender.submit(("t", p), [batch(b"x", 1)]))
                for _ in range(3):
                    await asyncio.sleep(0)
            broker.answering.set()
            await asyncio.gather(*futures)
            assert broker.requests == [[0], [1], [2], [3], [4], list(range(5, 20))]
        await broker.stop()

    asyncio.run(run())


def test_each_partition_of_an_answer_has_an_outcome_of_its_own() -> None:
    """Refused, too large, to be tried again, left out of the answer: none of that touches the other partitions."""
    script: list[str] = []
    refused = {b"bad": ErrorCode.INVALID_RECORD, b"large": ErrorCode.MESSAGE_TOO_LARGE}

    def refuse(raw: RawBatch) -> int:
        return next((int(code) for word, code in refused.items() if word in bytes(raw)), 0)

    async def run() -> None:
        broker = await Flaky(lambda: script.pop(0) if script else "", partitions=6, refuse=refuse).start()
        async with Client(f"127.0.0.1:{broker.port}", **QUICK) as client:
            sender = Sender(client)
            await send_to_all(sender, 0, 6)
            broker.requests.clear()
            script[:] = ["", "", "not_leader", "", "leave_out", "error_after"]
            sent = [b"a", b"bad", b"c", b"large", b"e", b"f"]
            futures = [sender.submit(("t", p), [batch(value, 1)]) for p, value in enumerate(sent)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            codes = [result.code if isinstance(result, KafkaError) else 0 for result in results]
            assert codes == [0, ErrorCode.INVALID_RECORD, 0, ErrorCode.MESSAGE_TOO_LARGE, 0, 0]
            assert broker.requests[0] == [0, 1, 2, 3, 4, 5]
            assert sorted(p for numbers in broker.requests[1:] for p in numbers) == [2, 4, 5]
            stored = [[b"0.0", value + b".0"] if value not in refused else [b"0.0"] for value in sent]
            assert [broker.values(p) for p in range(6)] == stored
        await broker.stop()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(6))
def test_producer_keeps_order_and_count_through_faults(seed: int) -> None:
    with (
        InThread(Flaky(faults(seed, 0.2))) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, batch_size=100, linger_ms=0) as producer,
    ):
        sent = [producer.send("t", None, b"%d" % i, partition=i % 2) for i in range(600)]
        producer.flush(60)
        assert [d.result().offset for d in sent] == [i // 2 for i in range(600)]
        for p in range(2):
            assert broker.values(p) == [b"%d" % i for i in range(p, 600, 2)]


def test_batches_that_linger_for_one_leader_go_together() -> None:
    with (
        InThread(Flaky(partitions=PARTITIONS)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, linger_ms=500) as producer,
    ):
        for turn in range(2):
            broker.requests.clear()
            sent = [producer.send("t", None, b"v", partition=p) for p in range(PARTITIONS)]
            assert [delivery.result(60).offset for delivery in sent] == [turn] * PARTITIONS
        assert sum(map(len, broker.requests)) == PARTITIONS
        assert len(broker.requests) <= PARTITIONS // 4


def test_a_request_is_not_larger_than_asked_for_unless_one_batch_is() -> None:
    with (
        InThread(Flaky(partitions=PARTITIONS)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, max_request_size=1024, batch_size=4096) as producer,
    ):
        for p in range(PARTITIONS):
            for size in (100,) if p else (900, 900):
                producer.send("t", None, b"x" * size, partition=p)
        producer.flush(60)
        assert any(len(numbers) > 1 for numbers in broker.requests)
        assert all(size <= 1024 or numbers == [0] for size, numbers in zip(broker.sizes, broker.requests, strict=True))
        assert max(broker.sizes) > 1024
        assert sum(map(len, broker.requests)) == PARTITIONS


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_that_there_is_not_is_refused_for_one_record_and_for_many(number: int) -> None:
    with (
        InThread(Flaky()) as broker,
        Producer(f"127.0.0.1:{broker.port}", partitioner=lambda topic, key, count: number, **QUICK) as producer,
    ):
        for send in (lambda: producer.send("t", b"k", b"v"), lambda: producer.send_many("t", [b"k"], [b"v"])):
            with pytest.raises(KafkaError, match=f"partition {number}: it has 2") as refused:
                send()
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("seed", range(4))
def test_producer_loses_only_what_the_broker_refuses(seed: int) -> None:
    """A refused batch must not take the batches behind it along, whatever else goes wrong at the same time."""

    def refuse(raw: RawBatch) -> int:
        return int(ErrorCode.MESSAGE_TOO_LARGE) if any(b"bad" in (r.value or b"") for r in records(raw)) else 0

    with (
        InThread(Flaky(faults(seed, 0.1 if seed else 0.0), refuse=refuse)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK, batch_size=1, linger_ms=0) as producer,
    ):
        values = [b"bad" if i % 50 == 25 else b"%d" % i for i in range(300)]
        sent = [producer.send("t", None, value, partition=0) for value in values]
        producer.flush(60)
        errors = [delivery.exception() for delivery in sent]
        assert all((error is not None) >= (value == b"bad") for error, value in zip(errors, values, strict=True))
        stored = [value for value, error in zip(values, errors, strict=True) if error is None]
        assert len(stored) >= 294 - 5 * 6 * bool(seed)  # a lost answer beside a refusal leaves batches undecided
        kept = broker.values(0)
        assert [value for value in kept if value in set(stored)] == stored
        assert len(kept) == len(set(kept))


def test_callbacks_get_metadata_or_error() -> None:
    told: list[tuple[Any, Any]] = []
    refused = int(ErrorCode.INVALID_TIMESTAMP)
    with (
        InThread(Flaky(refuse=lambda raw: refused if b"bad" in bytes(raw) else 0)) as broker,
        Producer(f"127.0.0.1:{broker.port}", **QUICK) as producer,
    ):
        for value in (b"good", b"bad"):
            producer.send("t", None, value, partition=0, on_delivery=lambda e, m: told.append((e, m)))
            producer.flush(10)
    assert told[0][0] is None and told[0][1][:3] == ("t", 0, 0)
    assert told[1][0].code == refused and told[1][1] is None


def test_a_callback_that_raises_or_waits_does_not_stop_the_producer() -> None:
    with InThread(Flaky()) as broker, Producer(f"127.0.0.1:{broker.port}", **QUICK) as producer:

        def bad(error: object, metadata: object) -> None:
            producer.flush()

        def worse(error: object, metadata: object) -> None:
            raise ZeroDivisionError

        producer.send("t", None, b"a", partition=0, on_delivery=bad)
        producer.send("t", None, b"b", partition=1, on_delivery=worse)
        producer.flush(10)
        assert producer.send("t", None, b"c", partition=0).result(10).offset == 1


def test_send_blocks_by_memory_and_then_raises() -> None:
    with InThread(Flaky(lambda: "drop")) as broker:
        limits = {"buffer.memory": 4096, "max.block.ms": 200, "batch.size": 512, "delivery.timeout.ms": 60_000}
        producer = Producer(f"127.0.0.1:{broker.port}", **(QUICK | limits))
        with pytest.raises(KafkaError, match=r"buffer\.memory"):
            for _ in range(100):
                producer.send("t", None, b"x" * 200, partition=0)
        broker.fault = lambda: ""
        producer.close()
        assert 0 < len(broker.values(0)) < 100
