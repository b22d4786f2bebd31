"""Our own producer, consumer and asyncio core against our broker, and a part of it against Apache Kafka."""

from __future__ import annotations

import asyncio
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from penstock.config import ConfigError
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import EARLIEST, LATEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord, CorruptBatchError, Gaps
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.partitionbuffer import PartitionBuffer
from penstock.pipeline.clients.partitioner import partition_for
from penstock.pipeline.clients.producer import Delivery, Producer
from penstock.pipeline.clients.properties import CODECS
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.clients.transaction import Fenced, TransactionalSender, TransactionState
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.crc import crc32c
from penstock.pyx.record.rawbatch import HEADER_SIZE, records
from support.harness import BrokerProcess
from support.patience import until
from support.transaction_turns import take_turns, transactional_batch, values_of

TopicPartition = tuple[str, int]
EARLY = {"auto.offset.reset": "earliest"}
QUICK_GROUP = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000, "enable.auto.commit": False}
LIMIT_S = 120.0


@pytest.fixture(params=["penstock", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """A cluster that tests share: ours, and Apache Kafka."""
    name = "shared_broker" if request.param == "penstock" else "apache_kafka"
    address = request.getfixturevalue(name).bootstrap
    assert isinstance(address, str)
    return address


@pytest.fixture
def make_topic(bootstrap: str, new_topic: Callable[[str], str]) -> Callable[..., str]:
    """A function that creates a topic: `make_topic(partitions)`."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = new_topic("ours")

        async def work() -> None:
            async with Admin(bootstrap) as admin:
                named = {key.replace("_", "."): value for key, value in configs.items()}
                await admin.create_topics({name: partitions}, configs=named)

        asyncio.run(work())
        return name

    return make


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until so many records came."""
    got: list[ConsumerRecord] = []
    for _ in range(int(LIMIT_S)):
        got += consumer.poll(1.0)
        if len(got) >= count:
            return got
    raise AssertionError(f"{len(got)} of {count} records came")


async def read_all(client: Admin, tp: TopicPartition, isolation: str = "read_committed") -> list[bytes | None]:
    """Every value of a partition from its start to its end, once no transaction in it is open: Apache Kafka answers the end
    of a transaction before its markers are written.
    """
    end = await client.end_offset(tp, "read_uncommitted")
    stable = -1
    async with asyncio.timeout(LIMIT_S):
        while stable < end:
            stable = await client.end_offset(tp, "read_committed")
            await asyncio.sleep(0 if stable == end else 0.01)
    fetcher = Fetcher(client, isolation=isolation, max_wait_ms=100)  # type: ignore[arg-type]  # the same
    fetcher.assign({tp: 0})
    values: list[bytes | None] = []
    async with asyncio.timeout(LIMIT_S):
        while fetcher.position(tp) < end:
            for fetched in await fetcher.fetch():
                assert fetched.error is None
                values += [record.value for batch in fetched.batches for record in records(batch)]
    await fetcher.close()
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(bootstrap: str, make_topic: Callable[..., str], codec: str) -> None:
    topic = make_topic(3)
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    with Producer(bootstrap, compression_type=codec) as producer:
        sent = [
            producer.send(topic, b"key%d" % (i % 7), None if i % 10 == 0 else b"v%d" % i, 1000 + i, headers) for i in range(500)
        ]
    with Consumer(bootstrap, **EARLY) as consumer:
        consumer.assign([(topic, p) for p in range(3)])
        got = {(r.partition, r.offset): r for r in take(consumer, 500)}
    for i, delivery in enumerate(sent):
        where = delivery.result()
        record = got.pop((where.partition, where.offset))
        assert record[3:] == (1000 + i, b"key%d" % (i % 7), None if i % 10 == 0 else b"v%d" % i, tuple(headers))
        assert where.partition == partition_for(b"key%d" % (i % 7), 3)
    assert not got


def test_bulk_by_lists_and_by_columns(bootstrap: str, make_topic: Callable[..., str]) -> None:
    first, second = make_topic(2), make_topic(2)
    keys = [None if i % 11 == 0 else b"k%d" % i for i in range(5000)]
    values = [b"value-%d" % i for i in range(5000)]
    with Producer(bootstrap, batch_size=20_000, compression_type="lz4") as producer:
        assert producer.send_many(first, keys, values, range(5000)).result(LIMIT_S) == 5000
        with Consumer(bootstrap, **EARLY) as consumer:
            consumer.assign([(first, 0), (first, 1)])
            rows = 0
            while rows < 5000:
                for polled in consumer.poll_columns(5.0):
                    assert polled.first == 0
                    rows += len(polled.columns)
                    bulk = producer.send_many(second, columns=polled.columns, partition=polled.partition)
                    assert bulk.result(LIMIT_S) == len(polled.columns)
    with Consumer(bootstrap, **EARLY) as consumer:
        consumer.assign([(second, 0), (second, 1)])
        got = take(consumer, 5000)
    assert sorted((r.timestamp_ms, r.key, r.value) for r in got) == [(i, keys[i], values[i]) for i in range(5000)]
    assert all(r.partition == partition_for(r.key, 2) for r in got if r.key is not None)
    for p in (0, 1):
        offsets = np.array([r.offset for r in got if r.partition == p])
        assert (np.diff(offsets) == 1).all()


def test_arrow_has_what_columns_have(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    values = [b"%d" % i for i in range(300)]
    with Producer(bootstrap) as producer, Consumer(bootstrap, **EARLY) as consumer:
        producer.send_many(topic, values, values, headers=[[("h", value)] for value in values]).result(LIMIT_S)
        consumer.assign([(topic, 0), (topic, 1)])
        got: list[dict[str, Any]] = []
        while len(got) < 300:
            for batch in consumer.poll_arrow(5.0):
                got += batch.to_pylist()
        assert consumer.poll_arrow(0.0) == []
        assert sum(consumer.positions().values()) == 300
    assert sorted(row["value"] for row in got) == sorted(values)
    for row in got:
        assert (row["topic"], row["partition"], row["key"]) == (topic, partition_for(row["key"], 2), row["value"])
        assert row["headers"] == [{"name": b"h", "value": row["value"]}]


def test_columns_carry_headers(bootstrap: str, make_topic: Callable[..., str]) -> None:
    first, second = make_topic(1), make_topic(2)
    headers = [() if i % 3 == 0 else (("a", b"%d" % i), ("b", None), ("ü", b"")) for i in range(300)]
    values = [b"%d" % i for i in range(300)]
    with Producer(bootstrap, batch_size=2000) as producer, Consumer(bootstrap, **EARLY) as consumer:
        assert producer.send_many(first, values, values, headers=headers).result(LIMIT_S) == 300
        consumer.assign([(first, 0)])
        rows = 0
        while rows < 300:
            for polled in consumer.poll_columns(5.0):
                rows += len(polled.columns)
                producer.send_many(second, columns=polled.columns).result(LIMIT_S)
        consumer.assign([(second, 0), (second, 1)])
        got = take(consumer, 300)
    assert {r.value: r.headers for r in got} == {value: tuple(one) for value, one in zip(values, headers, strict=True)}
    with Producer(bootstrap) as producer, pytest.raises(ValueError, match="one length"):
        producer.send_many(first, values, headers=headers[1:])


def test_columns_of_more_than_can_be_opened_at_once(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic, size = new_topic("zeros"), 40 << 20
    with Producer(broker.bootstrap, compression_type="zstd", max_request_size=size + 1000) as producer:
        for _ in range(9):  # an answer of some kilobytes, 360 MiB of records
            producer.send(topic, None, bytes(size), partition=0).result(LIMIT_S)
    offsets: list[int] = []
    with Consumer(broker.bootstrap, **EARLY) as consumer:
        consumer.assign([(topic, 0)])
        while len(offsets) < 9:
            for polled in consumer.poll_columns(5.0):
                assert len(polled.columns.value_data) == size * len(polled.columns)
                offsets += polled.columns.offsets.tolist()
                assert consumer.position((topic, 0)) == len(offsets)
    assert offsets == list(range(9))


def test_polls_of_both_kinds_share_one_stock(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """Columns begin with what `poll` left, also in the middle of a batch; and the other way round."""
    topic = make_topic(1)
    with Producer(bootstrap, batch_size=1000, compression_type="lz4") as producer:
        producer.send_many(topic, None, [b"%0100d" % i for i in range(200)])
    with Consumer(bootstrap, **EARLY, max_poll_records=3) as consumer:
        consumer.assign([(topic, 0)])
        offsets: list[int] = []
        for turn in range(200):
            if turn % 2 == 0:
                offsets += [record.offset for record in consumer.poll(1.0)]
            else:
                for polled in consumer.poll_columns(1.0):
                    offsets += polled.columns.offsets[polled.first :].tolist()
            assert consumer.position((topic, 0)) == len(offsets)
            if len(offsets) == 200:
                break
    assert offsets == list(range(200))


def test_a_poll_is_not_held_up_by_a_broker_that_hangs(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """The questions that a poll needs (topics, committed offsets) outlast it; they are not given up with it either."""
    topic = new_topic("hangs")
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"k", b"v").result(LIMIT_S)
    limits = {"default.api.timeout.ms": 4000, "request.timeout.ms": 60_000, "enable.auto.commit": False}
    with Consumer(broker.bootstrap, **EARLY, **limits, group_id=new_topic("group")) as member:
        member.subscribe([topic])
        with Consumer(broker.bootstrap, **EARLY, **limits, group_id=new_topic("group")) as alone:
            alone.assign([(topic, 0)])
            broker.signal(signal.SIGSTOP)
            try:
                for consumer in (member, alone):
                    assert [consumer.poll(0) for _ in range(10)] == [[]] * 10
            finally:
                broker.signal(signal.SIGCONT)
            assert [record.value for record in take(alone, 1)] == [b"v"]
        assert [record.value for record in take(member, 1)] == [b"v"]


def test_transactions_of_the_producer(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    group = f"group-{topic}"
    with Producer(bootstrap, transactional_id=f"tx-{topic}") as producer:
        for i in range(6):
            producer.begin()
            producer.send(topic, value=b"%d" % i, partition=i % 2)
            producer.send(topic, value=b"%d" % i, partition=(i + 1) % 2)
            producer.send_offsets({(topic, 0): i}, group)
            producer.flush(LIMIT_S)  # so that aborted records are in the log
            if i % 3 == 2:
                producer.abort()
            else:
                producer.commit()
    expected = {b"0", b"1", b"3", b"4"}
    with Consumer(bootstrap, **EARLY, **{"isolation.level": "read_committed", "group.id": group}) as consumer:
        assert consumer.committed([(topic, 0), (topic, 1)]) == {(topic, 0): (4, ""), (topic, 1): None}
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.seek((topic, 0), 0)
        got = take(consumer, 8)
        assert sorted((r.partition, r.value or b"") for r in got) == sorted((p, v) for p in (0, 1) for v in expected)
        assert consumer.poll(0.2) == []
    with Consumer(bootstrap, **EARLY) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert len(take(consumer, 12)) == 12


def test_a_block_that_ends_in_a_transaction_aborts_it(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """Readers would wait for it until it times out, here for longer than a test lasts."""
    topic = make_topic()
    with (
        suppress(KeyboardInterrupt),
        Producer(bootstrap, transactional_id=f"block-{topic}", transaction_timeout_ms=900_000) as producer,
    ):
        producer.begin()
        aborted = producer.send(topic, b"k", b"aborted")
        producer.flush()
        raise KeyboardInterrupt
    assert aborted.result().offset == 0
    with Producer(bootstrap) as producer:
        producer.send(topic, b"k", b"after")
    with Consumer(bootstrap, **EARLY, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in take(consumer, 1)] == [b"after"]


def test_raw_batches_exactly_once_and_fenced(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    tps = [(topic, 0), (topic, 1)]

    async def run() -> None:
        async with Admin(bootstrap) as client:
            old = TransactionalSender(client, f"raw-{topic}")
            await old.init()
            committed: list[bytes] = []
            for turn in range(6):
                await old.begin()
                values = [[b"%d-%d" % (turn, i), b"x"] for i in range(12)]
                sends = [old.send_raw(tp, [transactional_batch(old, tp, *v)]) for v in values for tp in tps]
                offsets = await asyncio.gather(*sends)
                assert offsets == sorted(offsets)
                await old.send_offsets(f"g-{topic}", {tps[0]: (turn, f"m{turn}")})
                if turn % 2:
                    await old.abort()
                else:
                    await old.commit()
                    committed += [value for pair in values for value in pair]
            assert await read_all(client, tps[0]) == await read_all(client, tps[1]) == committed
            assert await client.committed(f"g-{topic}", tps) == {tps[0]: (4, "m4"), tps[1]: None}
            new = TransactionalSender(client, f"raw-{topic}")
            await old.begin()
            await old.send_raw(tps[0], [transactional_batch(old, tps[0], b"never")])
            await new.init()
            with pytest.raises(Fenced):
                await old.send_raw(tps[0], [transactional_batch(old, tps[0], b"refused")])
                await old.commit()
            assert old.state is TransactionState.FENCED
            with pytest.raises(Fenced):
                await old.begin()
            await new.begin()
            await new.send_raw(tps[0], [transactional_batch(new, tps[0], b"next")])
            await new.commit()
            assert await read_all(client, tps[0]) == [*committed, b"next"]

    asyncio.run(run())


def test_nothing_is_sent_behind_a_commit_under_way(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    tp = (topic, 0)

    async def run() -> None:
        async with Admin(bootstrap) as client:
            sender = TransactionalSender(client, f"behind-{topic}")
            await sender.init()
            await sender.begin()
            await sender.send_raw(tp, [transactional_batch(sender, tp, b"a")])
            commit = asyncio.create_task(sender.commit())
            await asyncio.sleep(0)
            late = transactional_batch(sender, tp, b"late")
            with pytest.raises(KafkaError) as caught:
                await sender.send_raw(tp, [late])
            assert caught.value.code == ErrorCode.INVALID_TXN_STATE
            await commit
            assert await read_all(client, tp, "read_uncommitted") == [b"a"]

    asyncio.run(run())


def test_init_in_the_middle_of_a_transaction_starts_afresh(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """A stage that starts over does not wait for what its last turn left under way."""
    topic = make_topic(1)
    tp = (topic, 0)

    async def run() -> None:
        async with Admin(bootstrap) as client:
            sender = TransactionalSender(client, f"over-{topic}")
            await sender.init()
            for turn in range(5):
                await sender.begin()
                left = [sender.submit(tp, [transactional_batch(sender, tp, b"left")]) for _ in range(8)]
                await asyncio.sleep(0.003 * turn)
                await sender.init()
                assert all(future.done() for future in left)
                await sender.begin()
                await sender.send_raw(tp, [transactional_batch(sender, tp, b"%d" % turn)])
                await sender.commit()
            assert await read_all(client, tp) == [b"%d" % turn for turn in range(5)]

    asyncio.run(run())


def test_abort_of_undecided_batches_starts_a_new_epoch(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """A sequence that was allocated and never stored must not leave a gap in front of the next transaction."""
    topic = make_topic(1)
    tp = (topic, 0)

    async def run() -> None:
        async with Admin(bootstrap) as client:
            sender = TransactionalSender(client, f"gap-{topic}")
            await sender.init()
            epoch = sender.producer_epoch
            await sender.begin()
            await sender.send_raw(tp, [transactional_batch(sender, tp, b"a")])
            sender.next_sequence(tp, 5)
            await sender.abort()
            assert sender.producer_epoch > epoch
            await sender.begin()
            await sender.send_raw(tp, [transactional_batch(sender, tp, b"b")])
            await sender.commit()
            assert await read_all(client, tp) == [b"b"]

    asyncio.run(run())


def test_group_shares_partitions_and_goes_on_after_a_leave(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)
    group = {"group.id": f"group-{topic}", **EARLY, **QUICK_GROUP}
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % i for i in range(300)], [b"v"] * 300)
    events: list[tuple[str, str, int]] = []

    def member(name: str) -> Consumer:
        consumer = Consumer(bootstrap, **group)

        def revoked(tps: list[TopicPartition]) -> None:
            consumer.commit()
            events.append((name, "-", len(tps)))

        consumer.subscribe([topic], on_assigned=lambda tps: events.append((name, "+", len(tps))), on_revoked=revoked)
        return consumer

    with member("a") as a:
        assert len({(r.partition, r.offset) for r in take(a, 300)}) == 300
        b = member("b")
        for _ in range(200):
            a.poll(0.1)
            assert b.poll(0.1) == [], "what `a` committed when it gave partitions up is not read again"
            if len(a.assignment()) + len(b.assignment()) == 3 and b.assignment():
                break
        assert {len(a.assignment()), len(b.assignment())} == {1, 2}
        b.close()
        for _ in range(200):
            a.poll(0.1)
            if len(a.assignment()) == 3:
                break
        assert len(a.assignment()) == 3
    assert events[0] == ("a", "+", 3) and events[1] == ("a", "-", 3)


def test_static_member_comes_back_without_a_rebalance(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    group = {"group.id": f"group-{topic}", **EARLY, **QUICK_GROUP}
    revoked: list[list[TopicPartition]] = []
    with Consumer(bootstrap, **group, **{"group.instance.id": "one"}) as stays:
        stays.subscribe([topic], on_revoked=revoked.append)
        goes = Consumer(bootstrap, **group, **{"group.instance.id": "two"})
        goes.subscribe([topic])
        for _ in range(200):
            stays.poll(0.1)
            goes.poll(0.1)
            if goes.assignment() == [(topic, 1)] and stays.assignment() == [(topic, 0)]:
                break
        assert goes.assignment() == [(topic, 1)]
        revoked.clear()
        goes.close()
        with Consumer(bootstrap, **group, **{"group.instance.id": "two"}) as back:
            back.subscribe([topic])
            for _ in range(600):
                stays.poll(0.05)
                back.poll(0.05)
                if back.assignment():
                    break
            assert (back.assignment(), stays.assignment(), revoked) == ([(topic, 1)], [(topic, 0)], [])


def test_a_member_that_does_not_poll_loses_its_partitions(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    group = {"group.id": f"group-{topic}", **EARLY, **QUICK_GROUP}
    lost: list[list[TopicPartition]] = []
    with (
        Consumer(bootstrap, **group, **{"max.poll.interval.ms": 2000}) as sleeps,
        Consumer(bootstrap, **group) as waits,
    ):
        sleeps.subscribe([topic], on_revoked=lost.append)
        until(lambda: sleeps.poll(0.1) == [] and sleeps.assignment() == [(topic, 0)], "the first member's partition")
        waits.subscribe([topic])
        for _ in range(100):
            waits.poll(0.2)
            if waits.assignment():
                break
        assert waits.assignment() == [(topic, 0)]
        with pytest.raises(KafkaError) as caught:
            sleeps.commit({(topic, 0): 0})
        assert caught.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        sleeps.poll(0.1)
        assert lost == [[(topic, 0)]]


def test_a_topic_that_comes_later_is_read(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("later")
    group = {"group.id": f"group-{topic}", **EARLY, **QUICK_GROUP, "allow.auto.create.topics": False}
    with Consumer(shared_broker.bootstrap, **group) as consumer:
        consumer.subscribe([topic])
        assert consumer.poll(0.3) == []
        with Producer(shared_broker.bootstrap) as producer:
            producer.send(topic, value=b"x").result(LIMIT_S)
        assert take(consumer, 1)[0].value == b"x"


def test_pattern_subscription_and_auto_commit(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    group = {"group.id": f"group-{topic}", **EARLY, "heartbeat.interval.ms": 100}
    with Producer(bootstrap) as producer:
        producer.send(topic, value=b"x")
    with Consumer(bootstrap, **group) as consumer:
        consumer.subscribe(re.compile(".*" + re.escape(topic)))
        assert take(consumer, 1)[0].value == b"x"
    with Consumer(bootstrap, **group) as consumer:
        assert consumer.committed([(topic, 0)]) == {(topic, 0): (1, "")}


def test_commits_without_waiting_are_of_the_positions_when_they_were_asked_for(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    tp = (topic, 0)
    answers: queue.Queue[KafkaError | None] = queue.Queue()
    revoked: list[list[TopicPartition]] = []
    with Producer(bootstrap) as producer:
        producer.send_many(topic, None, [b"v"] * 10)
    with Consumer(bootstrap, **{"group.id": f"group-{topic}", **EARLY, **QUICK_GROUP}) as consumer:
        consumer.subscribe([topic], on_revoked=revoked.append)
        take(consumer, 10)
        consumer.commit_async({tp: (4, "note")}, answers.put)
        assert answers.get(timeout=LIMIT_S) is None
        assert consumer.committed([tp]) == {tp: (4, "note")}
        consumer.commit_async(callback=answers.put)
        consumer.seek(tp, 0)
        assert answers.get(timeout=LIMIT_S) is None
        assert consumer.committed([tp]) == {tp: (10, "")}
        consumer.commit_async({tp: "4"}, answers.put)  # type: ignore[dict-item]  # the answer is an error, not success
        assert isinstance(answers.get(timeout=LIMIT_S), KafkaError)
        assert consumer.committed([tp]) == {tp: (10, "")}
        consumer.unsubscribe()
        assert (revoked, consumer.assignment()) == ([[tp]], [])
    with Consumer(bootstrap) as consumer, pytest.raises(ConfigError, match="committed offsets need"):
        consumer.commit_async({tp: 4}, answers.put)


def test_what_a_poll_took_as_a_signal_handler_raised_is_given_out_by_the_next(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, take = new_topic("interrupted"), PartitionBuffer.take_records
    calls = 0

    def interrupted(buffer: PartitionBuffer, most: int) -> list[ConsumerRecord]:
        nonlocal calls
        calls += 1
        taken = take(buffer, most)
        if calls in (1, 3):
            raise KeyboardInterrupt
        return taken

    with Producer(shared_broker.bootstrap) as producer:
        for number in range(60):
            producer.send(topic, value=b"%d" % number, partition=0)
    given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 20}
    with Consumer(shared_broker.bootstrap, group_id=topic, **given) as consumer:
        consumer.assign([(topic, 0)])
        monkeypatch.setattr(PartitionBuffer, "take_records", interrupted)
        got: list[int] = []
        while len(got) < 60:
            with suppress(KeyboardInterrupt):
                got += [int(record.value or b"") for record in consumer.poll(10)]
            consumer.commit()
            if got:
                assert consumer.committed([(topic, 0)]) == {(topic, 0): (len(got), "")}
        assert got == [*range(60)] and calls > 3


def test_seek_positions_and_errors(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    tp = (topic, 0)
    with Producer(bootstrap) as producer:
        producer.send_many(topic, None, [b"%d" % i for i in range(100)], range(1000, 1100)).result(LIMIT_S)
    with Consumer(bootstrap, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([tp])
        with pytest.raises(KafkaError) as caught:
            consumer.poll(LIMIT_S)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(tp, 42)
        assert [r.offset for r in take(consumer, 58)] == list(range(42, 100))
        assert consumer.position(tp) == 100
        consumer.seek_to({tp: 1010})
        polled = consumer.poll_columns(LIMIT_S)[0]
        assert polled.columns.offsets[polled.first] == 10 and polled.columns.value(polled.first) == b"10"
        consumer.seek(tp, 1_000_000)
        for _ in range(2):  # Each says so at once: nothing else can come.
            with pytest.raises(KafkaError) as caught:
                consumer.poll(3600)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek_to({tp: EARLIEST})
        assert take(consumer, 100)[0].offset == 0
        consumer.seek_to({tp: LATEST})
        consumer.pause(tp)
        assert consumer.poll(0.1) == []


def test_out_of_range_resets_when_asked_to(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    with Producer(bootstrap) as producer:
        producer.send(topic, value=b"x")
    with Consumer(bootstrap, **EARLY) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1_000_000)
        assert take(consumer, 1)[0].offset == 0
        assert consumer.gaps == Gaps(resets=1, taken_back=1_000_000)


def test_admin_topics_and_offsets(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2, retention_ms="12345678")

    async def run() -> None:
        async with Admin(bootstrap) as admin:
            with pytest.raises(KafkaError) as caught:
                await admin.create_topics({topic: 2})
            assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
            await admin.create_topics({topic: 2}, exist_ok=True)
            assert (await admin.describe_configs(TOPIC_RESOURCE, topic))["retention.ms"] == "12345678"
            await admin.create_partitions({topic: 3})
            assert await admin.leader(topic, 2) >= 0
            await admin.commit(f"g-{topic}", {(topic, 0): (7, "seven")})
            committed = await admin.committed(f"g-{topic}", [(topic, 0), (topic, 1)])
            assert committed == {(topic, 0): (7, "seven"), (topic, 1): None}
            assert await admin.all_committed(f"g-{topic}") == {(topic, 0): (7, "seven")}
            ends = await admin.list_offsets({(topic, p): LATEST for p in range(3)})
            assert {at.offset for at in ends.values()} == {0}
            await admin.delete_topics([topic])
        # The controller knows every topic: further tries would go on for as long as the client is patient.
        async with Admin(bootstrap, **{"default.api.timeout.ms": 2**31 - 1}) as patient:
            for change in (patient.delete_topics([topic]), patient.create_partitions({topic: 4})):
                with pytest.raises(KafkaError) as caught:
                    await change
                assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(run())


@pytest.mark.parametrize("event", ["call", "return"])
@pytest.mark.parametrize("name", ["__enter__", "__exit__"])
def test_ctrl_c_while_a_condition_is_entered_or_left_hangs_nobody(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str], name: str, event: str
) -> None:
    """Python delivers a signal where one of its own functions begins or ends: a condition has both, a lock has none."""
    code = getattr(threading.Condition, name).__code__

    def interrupt(frame: FrameType, what: str, _: object) -> Any:
        if frame.f_code is code and what == event:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    topic = new_topic("interrupted")
    producer = Producer(shared_broker.bootstrap)
    producer.send(topic, b"k", b"v").result(LIMIT_S)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            producer.send(topic, b"k", b"v")
    finally:
        sys.settrace(before)
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()


@pytest.fixture
def killed_often(broker: BrokerProcess) -> Iterator[tuple[BrokerProcess, threading.Event]]:
    """A broker that is killed and started again while a test runs, until its event is set."""
    done = threading.Event()

    def work() -> None:
        for _ in range(3):
            if done.wait(0.4):
                return
            broker.kill()
            broker.start()

    thread = threading.Thread(target=work)
    thread.start()
    yield broker, done
    done.set()
    thread.join()


def test_producer_and_consumer_survive_kills(killed_often: tuple[BrokerProcess, threading.Event]) -> None:
    broker, _ = killed_often
    with (
        Producer(broker.bootstrap, linger_ms=1, batch_size=500) as producer,
        Consumer(broker.bootstrap, **EARLY) as consumer,
    ):
        producer.partitions_for("t")  # creates it
        consumer.assign([("t", 0)])
        sent: list[Delivery] = []
        got: list[ConsumerRecord] = []
        while len(sent) < 15_000:
            sent += [producer.send("t", value=b"%d" % (len(sent) + i), partition=0) for i in range(50)]
            got += consumer.poll(0.005)  # long enough that the kills come while records are on their way
        producer.flush(LIMIT_S)
        assert [delivery.result().offset for delivery in sent] == list(range(len(sent)))
        got += take(consumer, len(sent) - len(got))
        assert [r.value for r in got] == [b"%d" % i for i in range(len(sent))]


def test_transactions_survive_kills(killed_often: tuple[BrokerProcess, threading.Event]) -> None:
    """Committed turns are there whole and once, in order; the position in the group says which they are."""
    broker, _ = killed_often

    async def run() -> None:
        async with Admin(broker.bootstrap) as client:
            await client.create_topics({"t": 1})
            tp = ("t", 0)
            await take_turns(client, tp, 20, lambda turn: turn < 60)
            expected = values_of(60, 20)
            assert await read_all(client, tp) == expected

    asyncio.run(asyncio.wait_for(run(), 120))


def corrupt(value: bytes) -> bytes:
    """A batch that is right by header and CRC, and whose payload cannot be inflated."""
    builder = BatchBuilder(CODECS["zstd"])
    builder.append(None, value * 50, 0)
    batch = bytearray(builder.build())
    batch[HEADER_SIZE : HEADER_SIZE + 8] = b"\xff" * 8
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def write_corrupt(bootstrap: str, topic: str) -> None:
    """A good batch, a corrupt one and two good ones; in another partition a good one.

    A broker opens every batch and refuses the corrupt one, unless it is to believe headers.
    """

    async def write() -> None:
        async with Admin(bootstrap) as client:
            await client.create_topics({topic: 2}, configs={"penstock.validate.records": "headers"})
            sender = Sender(client, idempotent=False)
            for p, batches in {0: ["good", "bad", "good", "good"], 1: ["good"]}.items():
                for kind in batches:
                    builder = BatchBuilder()
                    builder.append(None, b"good", 0)
                    data = corrupt(b"x") if kind == "bad" else builder.build()
                    await sender.submit((topic, p), [data])

    asyncio.run(write())


@pytest.mark.parametrize("form", [[], ["--json"], ["--columns", "records.parquet"]], ids=["lines", "json", "columns"])
def test_a_corrupt_batch_ends_the_command_with_the_way_past_it(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str], tmp_path: Path, form: list[str]
) -> None:
    topic = new_topic("corrupt-command")
    write_corrupt(shared_broker.bootstrap, topic)
    command = [sys.executable, "-m", "penstock", "consume", "-b", shared_broker.bootstrap, *form]

    def consume(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    stopped = consume(f"{topic}:0", "--from", "earliest")
    (said,) = stopped.stderr.strip().splitlines()
    assert stopped.returncode == 1
    assert f"`{topic}` partition 0: the batch at offset 1 cannot be read" in said
    way = re.search(r"`penstock consume (.*?)` goes on", said)
    assert way is not None
    assert consume(*shlex.split(way[1])).returncode == 0


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_corrupt_batch_stops_its_partition_until_it_is_passed(
    shared_broker: BrokerProcess, new_topic: Callable[[str], str], as_columns: bool
) -> None:
    topic = new_topic("corrupt")
    write_corrupt(shared_broker.bootstrap, topic)
    with Consumer(shared_broker.bootstrap, **EARLY) as consumer:

        def poll() -> list[tuple[int, int]]:
            if as_columns:
                return [(c.partition, int(at)) for c in consumer.poll_columns(1.0) for at in c.columns.offsets]
            return [(r.partition, r.offset) for r in consumer.poll(1.0)]

        consumer.assign([(topic, 0), (topic, 1)])
        got: list[tuple[int, int]] = []
        errors: list[CorruptBatchError] = []
        for _ in range(20):
            try:
                got += poll()
            except CorruptBatchError as error:
                errors.append(error)
            if len(errors) == 2:
                break
        assert sorted(got) == [(0, 0), (1, 0)]
        last = errors[1]
        assert (last.tp, last.offset, last.next_offset) == ((topic, 0), 1, 2)
        assert last.raw is not None and len(last.raw) > HEADER_SIZE
        assert consumer.position((topic, 0)) == 1
        consumer.seek(last.tp, last.next_offset)
        got = []
        while len(got) < 2:
            got += poll()
        assert sorted(got) == [(0, 2), (0, 3)]


def test_a_recreated_topic_is_not_read_on(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """The position belongs to a topic that is gone: the fetcher says so and waits for a seek."""
    topic = new_topic("again")
    tp = (topic, 0)

    async def run() -> None:
        async with Admin(shared_broker.bootstrap, **{"metadata.max.age.ms": 100}) as client:
            await client.create_topics({topic: 1})
            fetcher = Fetcher(client, max_wait_ms=50)
            fetcher.assign({tp: 0})
            assert await fetcher.fetch() == []
            await client.delete_topics([topic])
            await client.create_topics({topic: 1})
            async with asyncio.timeout(LIMIT_S):
                while not (fetched := await fetcher.fetch()):
                    pass
            assert isinstance(fetched[0].error, KafkaError)
            assert fetched[0].error.code == ErrorCode.INCONSISTENT_TOPIC_ID
            assert await fetcher.fetch() == []
            fetcher.seek(tp, 0)
            assert await fetcher.fetch() == []
            await fetcher.close()

    asyncio.run(run())
