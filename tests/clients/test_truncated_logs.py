"""A consumer whose partition's log was cut back by an unclean election, on three brokers: it never reads over the place where
the log parts from what was read (KIP-320). The brokers are ours, or nodes of Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Cluster
from penstock.pipeline.clients.consumer import Consumer, Gaps, LogTruncatedError
from penstock.pipeline.clients.producer import Producer
from penstock.pipeline.clients.simpleconsumer import SimpleConsumer
from support.failpoint_cells import WHOLE
from support.moving_cluster import PROPERTIES, MovingCluster
from support.moving_kafka import MovingKafka
from support.patience import until

LIMIT_S = 120.0
TOPIC, TP = "t", ("t", 0)
KEPT, CUT = 10, 20
"""So many records both replicas have, and so many more the one that is lost."""
THIRD = [f"third {number}" for number in range(5)]
"""What the other one, once it leads, has at the offsets of the lost ones."""


APACHE = [pytest.param("apache", marks=pytest.mark.kafka)] if WHOLE else []
"""Its nodes take minutes; a run of all tests leaves them out."""


@pytest.fixture(params=["ours", *APACHE])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MovingCluster]:
    """Three brokers in this process, or three nodes of Apache Kafka."""
    if request.param == "ours":
        with Cluster(properties=PROPERTIES) as ours:
            yield ours
    else:
        with MovingKafka(tmp_path / "kafka") as kafka:
            yield kafka


def create(cluster: MovingCluster) -> None:
    """A partition on brokers 1 and 2, one of which may lead with less than the other had."""
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    topic = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config=configs)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([topic])[TOPIC].result(LIMIT_S)
    until(lambda: cluster.leader(TOPIC, 0) == 1 and set(cluster.isr(TOPIC, 0)) == {1, 2}, "both replicas to be in sync")


def put(cluster: MovingCluster, word: str, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        sent = [producer.send(TOPIC, value=f"{word} {number}".encode(), partition=0) for number in range(count)]
        producer.flush(LIMIT_S)
        for one in sent:
            one.result()


def reader(cluster: MovingCluster, reset: str, group: str | None = None) -> Consumer:
    """A consumer of the partition that has its position from its group, if it is of one."""
    given = {"auto.offset.reset": reset, "enable.auto.commit": False, "group.id": group}
    consumer = Consumer(cluster.bootstrap, **{key: value for key, value in given.items() if value is not None})
    consumer.assign([TP])
    return consumer


def read(consumer: Consumer, count: int) -> list[str]:
    """The next so many records; more may be taken."""
    got: list[str] = []
    while len(got) < count:
        more = consumer.poll(LIMIT_S)
        assert more, got
        got += [(record.value or b"").decode() for record in more]
    return got[:count]


def read_all(consumer: Consumer) -> None:
    consumer.seek(TP, 0)
    assert read(consumer, KEPT + CUT)[-1] == f"second {CUT - 1}"


def check_stopped(consumer: Consumer) -> None:
    """It stands still with the reason, until somebody says where it goes on."""
    for timeout_s in (LIMIT_S, 0.0):  # It is raised at once, then after each poll that other partitions gave nothing to.
        with pytest.raises(LogTruncatedError, match="was cut back") as caught:
            consumer.poll(timeout_s)
    assert caught.value.truncation.position.offset == KEPT + CUT
    assert caught.value.truncation.end == KEPT
    consumer.seek(TP, caught.value.truncation.end)
    assert read(consumer, len(THIRD)) == THIRD
    assert consumer.gaps == Gaps()


def check_gone_on(consumer: Consumer) -> None:
    """It goes on where the logs part, and has counted that."""
    assert read(consumer, len(THIRD)) == THIRD
    assert consumer.gaps == Gaps(resets=1, truncations=1, taken_back=CUT)


def read_simply(consumer: SimpleConsumer) -> tuple[int, int]:
    """Read all; where that ends, and the leader epoch of the last batch."""
    fetched = consumer.fetch(*TP, 0)
    while fetched.next_offset < KEPT + CUT:
        fetched = consumer.fetch(*TP, fetched.next_offset)
    return fetched.next_offset, fetched.leader_epoch


def check_fetches(consumer: SimpleConsumer, offset: int, leader_epoch: int = -1) -> None:
    """A fetch at the end of what was read says where the log was cut back; one from there on gives what it has since."""
    for _ in range(2):
        with pytest.raises(LogTruncatedError) as caught:
            consumer.fetch(*TP, offset, leader_epoch=leader_epoch)
    assert caught.value.truncation.end == KEPT
    got = consumer.fetch(*TP, KEPT).records
    assert [(record.value or b"").decode() for record in got][: len(THIRD)] == THIRD


def test_a_log_that_was_cut_back_is_noticed(cluster: MovingCluster) -> None:
    create(cluster)
    put(cluster, "first", KEPT)
    resets = ("none", "earliest", "latest")
    readers = [reader(cluster, reset) for reset in resets]
    late = [reader(cluster, reset) for reset in resets]
    grouped = {reset: reader(cluster, reset, f"group-{reset}") for reset in resets}
    simple = [SimpleConsumer(cluster.bootstrap) for _ in range(2)]
    try:
        for consumer in grouped.values():  # The topic of positions is made by that, for which all brokers have to be there.
            consumer.seek(TP, 0)
            read(consumer, KEPT)
            consumer.commit()
        cluster.kill(2, expire=True)
        until(lambda: set(cluster.isr(TOPIC, 0)) == {1}, "the other replica to be out of sync")
        put(cluster, "second", CUT)
        for consumer in (*readers, *late, *grouped.values()):
            read_all(consumer)
        for consumer in grouped.values():
            consumer.commit()
            consumer.close()
        ends = [read_simply(one) for one in simple]
        cluster.kill(1, expire=True)
        cluster.start(2)
        until(lambda: cluster.leader(TOPIC, 0) == 2, "the replica that lacks records to lead")
        put(cluster, "third", len(THIRD))  # The log is shorter now than what was read.
        check_fetches(simple[0], ends[0][0])
        check_stopped(readers[0])
        check_gone_on(readers[1])
        check_gone_on(readers[2])
        for check, reset in ((check_stopped, "none"), (check_gone_on, "earliest"), (check_gone_on, "latest")):
            with reader(cluster, reset, f"group-{reset}") as again:
                check(again)
        put(cluster, "fourth", KEPT + CUT)  # It has the offset that comes next again.
        check_fetches(simple[1], ends[1][0])
        with SimpleConsumer(cluster.bootstrap) as another:
            check_fetches(another, *ends[1])
        check_stopped(late[0])
        for consumer in late[1:]:
            check_gone_on(consumer)
        with reader(cluster, "earliest", "group-earliest") as again:
            check_gone_on(again)
    finally:
        for client in (*readers, *late, *simple):
            client.close()
