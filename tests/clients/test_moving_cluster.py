"""Our clients and stages against three brokers, of which the leader, the controller and the coordinators are killed in turn.

The brokers are ours, or nodes of Apache Kafka, whose failovers take seconds: a run of all tests tries one of those, `make
failovers` each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients import logs
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord
from penstock.pipeline.clients.producer import Delivery, Producer
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.etl.clusterview import SHORT_TIMEOUTS, ClusterView
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch
from penstock.pyx.wire.messages import MetadataRequest
from support import dedupe_world, mirror_world, moving_cluster
from support.failpoint_cells import WHOLE
from support.harness import BrokerProcess
from support.moving_cluster import PROPERTIES, MovingCluster
from support.moving_kafka import MovingKafka
from support.patience import until
from support.transaction_turns import take_turns, values_of

LIMIT_S = 120.0
TURNS = 80
KILLS = 6
KILLS_OF_KAFKA = 4 if WHOLE else 2
OURS = pytest.param("ours")
APACHE = pytest.param("apache", marks=pytest.mark.kafka)

on_each = pytest.mark.parametrize("cluster", [OURS, *([APACHE] if WHOLE else [])], indirect=True)
on_both = pytest.mark.parametrize("cluster", [OURS, APACHE], indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MovingCluster]:
    """Three brokers in this process, or three nodes of Apache Kafka."""
    if request.param == "ours":
        with Cluster(properties=PROPERTIES) as ours:
            yield ours
    else:
        with MovingKafka(tmp_path / "kafka") as kafka:
            yield kafka


def moving(cluster: MovingCluster, topic: str) -> AbstractContextManager[threading.Event]:
    """Kill brokers meanwhile, as often as their failovers let a test do so."""
    return moving_cluster.moving(cluster, topic, KILLS if isinstance(cluster, Cluster) else KILLS_OF_KAFKA)


def create(cluster: MovingCluster, *names: str) -> None:
    """Topics of two partitions."""

    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics(dict.fromkeys(names, 2))

    asyncio.run(work())


def wake_coordinators(cluster: MovingCluster) -> None:
    """Have the coordinators' topics made, so that somebody leads them; `t` has two partitions."""
    with Producer(cluster.bootstrap, transactional_id="first") as producer:
        producer.begin()
        producer.send("t", value=b"first", partition=1)
        producer.send_offsets({("t", 1): 0}, "first")
        producer.commit()


@on_each
def test_a_producer_and_a_group_lose_nothing_and_read_in_order(cluster: MovingCluster) -> None:
    create(cluster, "t")
    wake_coordinators(cluster)
    group = {"group.id": "readers", "auto.offset.reset": "earliest", "session.timeout.ms": 30_000, "enable.auto.commit": False}
    sent: list[Delivery] = []
    got: list[ConsumerRecord] = []
    with Producer(cluster.bootstrap, linger_ms=1, batch_size=500) as producer, Consumer(cluster.bootstrap, **group) as consumer:
        consumer.subscribe(["t"])
        with moving(cluster, "t") as done:
            while not done.is_set():
                sent += [producer.send("t", value=b"%d" % (len(sent) + i), partition=0) for i in range(20)]
                got += consumer.poll(0.05)
        producer.flush(LIMIT_S)
        assert [delivery.result().offset for delivery in sent] == list(range(len(sent)))
        while sum(record.partition == 0 for record in got) < len(sent):
            more = consumer.poll(LIMIT_S)
            assert more, (len(got), len(sent))
            got += more
        consumer.commit()
    values = [record.value for record in got if record.partition == 0]
    assert values == [b"%d" % number for number in range(len(sent))], "a record twice, missing, or in another order"
    with Consumer(cluster.bootstrap, **group) as again:
        again.subscribe(["t"])
        assert again.poll(2.0) == [], "the group's position is what it has committed"


@on_each
def test_transactions_are_whole_and_their_positions_are_theirs(cluster: MovingCluster) -> None:
    create(cluster, "t")
    wake_coordinators(cluster)

    async def run(done: threading.Event) -> int:
        async with Admin(cluster.bootstrap) as client:
            tp = ("t", 0)
            turns = await take_turns(client, tp, 10, lambda turn: turn < TURNS or not done.is_set())
            ends = await client.list_offsets({tp: LATEST}, isolation="read_committed")
            assert ends[tp].offset > 0
            return turns

    with moving(cluster, "t") as done:
        turns = asyncio.run(run(done))
    expected = values_of(turns, 10)
    with Consumer(cluster.bootstrap, **{"isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("t", 0)])
        got: list[bytes | None] = []
        while len(got) < len(expected):
            more = consumer.poll(LIMIT_S)
            assert more, len(got)
            got += [record.value for record in more]
    assert got == expected


async def seen(admin: Admin, topic: str) -> set[int]:
    """A topic's partitions, as some broker shows them. Raises KafkaError: the controller hasn't told that one yet."""
    return set((await admin.metadata([topic], refresh=True)).topic(topic).partitions)


async def delete(admin: Admin, cluster: MovingCluster, topic: str) -> None:
    """Delete it, and wait until it isn't shown. A broker of Kafka's that loses its controller over the request sends it to
    the next controller, and says that a topic is missing if the first one has deleted it."""
    try:
        await admin.delete_topics([topic])
    except KafkaError as error:
        if isinstance(cluster, Cluster) or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    async with asyncio.timeout(LIMIT_S):
        while topic in (await admin.metadata([topic], refresh=True)).topics:  # noqa: ASYNC110 - nothing tells it but asking
            await asyncio.sleep(0.05)


@on_each
def test_admin_work_goes_on(cluster: MovingCluster) -> None:
    create(cluster, "t")
    wake_coordinators(cluster)

    async def work(done: threading.Event) -> int:
        made = 0
        async with Admin(cluster.bootstrap) as admin:
            while not done.is_set():
                name = f"made-{made}"
                await admin.create_topics({name: 3}, replication_factor=2)  # One of three may be away.
                assert await admin.retry(partial(seen, admin, name)) == {0, 1, 2}
                await delete(admin, cluster, name)
                assert await admin.committed("first", [("t", 1)]) == {("t", 1): (0, "")}
                made += 1
        return made

    with moving(cluster, "t") as done:
        assert asyncio.run(work(done)) > 0


@on_both
def test_a_mirror_into_a_cluster_copies_everything_once(
    tmp_path: Path, cluster: MovingCluster, shared_broker: BrokerProcess
) -> None:
    with mirror_world.World(tmp_path, {"EWR": shared_broker}, cluster, penstock_mirror_batch_bytes=3000) as w:
        w.fill(5)
        w.mirror.start()
        w.await_copied()
        with moving(cluster, w.topic) as done:
            while not done.wait(0.1):
                w.fill(2)
                w.fill_transactions("ca")
        w.finish()


@on_each
def test_a_mirror_out_of_a_cluster_copies_everything_once(
    tmp_path: Path, cluster: MovingCluster, shared_broker: BrokerProcess
) -> None:
    with mirror_world.World(tmp_path, {"EWR": cluster}, shared_broker, penstock_mirror_batch_bytes=3000) as w:
        w.fill(5)
        create(cluster, "t")
        wake_coordinators(cluster)
        w.mirror.start()
        w.await_copied()
        with moving(cluster, w.topic) as done:
            while not done.wait(0.1):
                w.fill_transactions("ca")
        w.fill(5)
        w.finish()


@on_each
def test_dedupe_on_a_cluster_drops_repeats_and_nothing_else(tmp_path: Path, cluster: MovingCluster) -> None:
    with dedupe_world.World(tmp_path, cluster, penstock_dedupe_batch_bytes=4000) as w:
        w.fill(3)
        w.stage.start()
        w.await_done()
        with moving(cluster, w.topic) as done:
            while not done.is_set():
                w.produce()
        w.finish()


def test_a_new_leader_that_knows_less_than_the_one_before_has_shown_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log has the batch, and until its follower fetches it doesn't know that the batch is committed: stages and the audit
    would take the log for another one."""
    monkeypatch.setattr(logs, "BATCH_WAIT_MS", 50)
    lags = {"replica.fetch.wait.max.ms": 30_000, "replica.lag.time.max.ms": 60_000}
    with Cluster(properties={**PROPERTIES, **lags}) as cluster:
        successor = cluster.controller  # It tells the next leader, which is to be cut off from the follower, through no link.
        leader, follower = sorted({1, 2, 3} - {successor})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 1, replication_factor=-1, replica_assignment=[[leader, successor, follower]])])[
            "t"
        ].result(LIMIT_S)
        until(lambda: cluster.isr("t", 0) == {1, 2, 3}, "all to be in sync")

        async def look() -> RawBatch | None:
            async with Admin(cluster.bootstrap) as client:
                builder = BatchBuilder()
                builder.append(None, b"committed", 0)
                await Sender(client).submit(("t", 0), [builder.build()])
                cluster.cut(successor, follower)
                cluster.kill(leader, expire=True)
                until(lambda: cluster.leader("t", 0) == successor, "the next one to lead")
                looking = asyncio.create_task(client.batch_at(("t", 0), 0))
                await asyncio.wait({looking}, timeout=2.0)
                cluster.heal()
                return await looking

        found = asyncio.run(look())
        assert found is not None and found.record_count == 1


def test_a_leader_that_gives_no_answer_is_looked_for_again() -> None:
    """Also where whoever asks it says nothing to the client of its failure."""
    with Cluster(properties=PROPERTIES) as cluster:
        create(cluster, "t")

        async def work() -> int:
            async with Admin(cluster.bootstrap, **{"default.api.timeout.ms": 30_000}) as admin:
                leader = await admin.leader("t", 0)
                cluster.kill(leader, expire=True)
                until(lambda: cluster.leader("t", 0) not in (leader, -1), "another leader")

                async def ask() -> int:
                    asked = await admin.leader("t", 0)
                    await admin.send(asked, MetadataRequest(topics=[]))
                    return asked

                return await admin.retry(ask)

        assert asyncio.run(work()) in cluster.running


def test_a_night_waits_for_an_answer_until_a_leader_that_died_is_replaced() -> None:
    with Cluster(properties={**PROPERTIES, "zookeeper.session.timeout.ms": 8000}) as cluster:
        create(cluster, "t")

        async def work() -> Mapping[TopicPartition, int]:
            view = ClusterView("the aggregate cluster", cluster.bootstrap, SHORT_TIMEOUTS)
            try:
                assert await view.offsets([("t", 0)], LATEST) == {("t", 0): 0}
                cluster.kill(cluster.leader("t", 0))
                return await view.offsets([("t", 0)], LATEST)
            finally:
                await view.close()

        assert asyncio.run(work()) == {("t", 0): 0}
