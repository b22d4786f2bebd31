"""Transactions of which a power cut has taken records, where no other replica has them: none is committed in part.

Brokers are processes around a real ZooKeeper. A power cut is a kill, a `.lock` that another start of the machine has left, and
a log without its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.topic import TRANSACTION_STATE
from support.cluster_transactions import committed
from support.cluster_world import WAIT_S, ClusterProcesses, cluster, cut_power
from support.patience import until
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

HOMES = 4
FEW: dict[str, Any] = {"offsets_topic_num_partitions": HOMES, "transaction_state_log_num_partitions": HOMES}


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(zookeeper, tmp_path, **FEW) as made:
        yield made


class Writer:
    """A transactional producer that writes its number into two partitions, each of which one broker has alone.

    `loses` leads the second one, and doesn't coordinate its transactions.
    """

    def __init__(self, world: ClusterProcesses) -> None:
        self.world = world
        world.create("t", 3, 1)
        leaders = {index: world.until_led("t", by={1, 2, 3}, partition=index) for index in range(3)}
        self.producer = Producer(
            {"bootstrap.servers": world.bootstrap, "transactional.id": "x", "linger.ms": 0, "retry.backoff.max.ms": 200}
        )
        self.producer.init_transactions(WAIT_S)
        coordinates = world.until_led(TRANSACTION_STATE, by={1, 2, 3}, partition=java_hash_partition("x", HOMES))
        self.keeps, self.loses = sorted(leaders, key=lambda index: leaders[index] != coordinates)[:2]
        self.broker = world.brokers[leaders[self.loses]]

    def write(self, number: int) -> None:
        """Begin a transaction, and have its records acknowledged."""
        said: list[object] = []
        self.producer.begin_transaction()
        for index in (self.keeps, self.loses):
            self.producer.produce("t", b"%d" % number, partition=index, on_delivery=lambda error, _: said.append(error))
        assert self.producer.flush(WAIT_S) == 0 and said == [None, None]

    def commit(self) -> None:
        """Until it is answered. Raises KafkaException where it isn't committed."""
        while True:
            try:
                self.producer.commit_transaction(WAIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def refused(self) -> None:
        """The commit is refused for good: the producer was fenced, or has to abort."""
        with pytest.raises(KafkaException) as refused:
            self.commit()
        error = refused.value.args[0]
        assert error.fatal() or error.txn_requires_abort(), error

    def cut_power(self) -> None:
        """The second partition loses the records of the second transaction; the first has its record and its marker."""
        cut_power(self.broker, "t", 2, self.loses)

    def come_back(self) -> None:
        """The broker without them leads again."""
        self.broker.start()
        until(lambda: self.world.state("t", self.loses)["unclean_epoch"] >= 0, "an unclean election", self.world.log_text)
        self.world.until_led("t", by={1, 2, 3}, partition=self.loses)

    def check(self, *numbers: int) -> None:
        """These transactions are whole in both partitions, and no others; the next one is as well."""
        found = [committed(self.world, "t", index) for index in (self.keeps, self.loses)]
        assert found == [list(numbers), list(numbers)]


def until_logged(world: ClusterProcesses, words: str) -> None:
    until(lambda: any(words in broker.log_text() for broker in world.brokers.values()), words, world.log_text)


def test_a_transaction_that_lost_records_is_not_committed(world: ClusterProcesses) -> None:
    writer = Writer(world)
    writer.write(1)
    writer.commit()
    writer.write(2)
    writer.cut_power()
    writer.come_back()
    writer.refused()
    until_logged(world, "an unclean election may have taken records of its transaction in")
    writer.check(1)
    after = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": "x"})
    after.init_transactions(WAIT_S)
    writer.producer = after
    writer.write(3)
    writer.commit()
    writer.check(1, 3)


def test_a_commit_waits_for_a_leader_that_may_have_lost_records(world: ClusterProcesses) -> None:
    """The others don't know yet that its machine is dead when the commit is asked for."""
    writer = Writer(world)
    writer.write(1)
    writer.commit()
    writer.write(2)
    writer.cut_power()
    with ThreadPoolExecutor(1) as beside:
        refused = beside.submit(writer.refused)
        writer.come_back()
        refused.result()
    writer.check(1)
