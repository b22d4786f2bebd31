"""Transactions of which a power cut has taken records, markers or states, where no other replica has them: none is committed in
part, and none hangs.

Brokers are processes around a real ZooKeeper. A power cut is a kill, a `.lock` that another start of the machine has left, and
a log without its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.broker.coordination.statelog import java_hash_partition
from penstock.broker.topic import TRANSACTION_STATE
from penstock.errors import ErrorCode as E
from penstock.pyx.wire.messages import FindCoordinatorRequest
from support.cluster_transactions import committed
from support.cluster_world import WAIT_S, ClusterProcesses, cluster, cut_power
from support.harness import WireConnection
from support.patience import until
from support.transaction_wire import Owner, batch, end_and_go_on, init, produce
from support.zookeeper import ZooKeeper

pytestmark = pytest.mark.kafka

HOMES = 4
AGAIN = (
    E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR,
    E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip
FEW: dict[str, Any] = {"offsets_topic_num_partitions": HOMES, "transaction_state_log_num_partitions": HOMES}


@pytest.fixture
def world(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(zookeeper, tmp_path, **FEW) as made:
        yield made


class Writer:
    """A transactional producer that writes its number into two partitions, each of which one broker has alone.

    `broker` leads the second one, and doesn't coordinate its transactions. apart: nor does the leader of the first.
    """

    def __init__(self, world: ClusterProcesses, *, apart: bool = False) -> None:
        self.world = world
        world.create("t", 3, 1)
        leaders = {index: world.until_led("t", by={1, 2, 3}, partition=index) for index in range(3)}
        self.producer = Producer(
            {"bootstrap.servers": world.bootstrap, "transactional.id": "x", "linger.ms": 0, "retry.backoff.max.ms": 200}
        )
        self.producer.init_transactions(WAIT_S)
        coordinates = world.until_led(TRANSACTION_STATE, by={1, 2, 3}, partition=java_hash_partition("x", HOMES))
        own, *others = sorted(leaders, key=lambda index: leaders[index] != coordinates)
        self.keeps, self.loses = others if apart else (own, others[0])
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


@pytest.mark.parametrize("keep", [0, 1])
def test_a_transaction_that_its_coordinator_has_forgotten_is_aborted(zookeeper: ZooKeeper, tmp_path: Path, keep: int) -> None:
    """So many of its states are left; the logs that it has written to lack nothing."""
    with cluster(zookeeper, tmp_path, **FEW, transaction_state_log_replication_factor=1) as world:
        writer = Writer(world, apart=True)
        writer.write(1)
        writer.commit()
        writer.write(2)
        home = java_hash_partition("x", HOMES)
        coordinator = world.brokers[world.leader(TRANSACTION_STATE, home)]
        cut_power(coordinator, TRANSACTION_STATE, keep, home)
        coordinator.start()
        until(lambda: world.state(TRANSACTION_STATE, home)["unclean_epoch"] >= 0, "an unclean election", world.log_text)
        until_logged(world, "a transaction that no coordinator would have ended was aborted")
        writer.check(1)
        writer.refused()
        writer.producer = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": "x"})
        writer.producer.init_transactions(WAIT_S)
        writer.write(3)
        writer.commit()
        writer.check(1, 3)


class EpochWriter:
    """A producer of transactions v2, which have an epoch each. It writes into a partition that one broker has alone."""

    def __init__(self, world: ClusterProcesses) -> None:
        self.world = world
        world.create("t", 3, 1, segment_ms="9223372036854775807")  # Its records are old: a marker would begin a segment.
        leaders = [world.until_led("t", by={1, 2, 3}, partition=index) for index in range(3)]
        with WireConnection(world.bootstrap.split(",")[0]) as wire:
            wire.ask(FindCoordinatorRequest(key="x", key_type=1), 3)
        self.coordinator = world.until_led(TRANSACTION_STATE, by={1, 2, 3}, partition=java_hash_partition("x", HOMES))
        self.partition = next(index for index, leader in enumerate(leaders) if leader != self.coordinator)
        self.broker = world.brokers[leaders[self.partition]]
        self.owner: Owner = (-1, -1)

    def until_taken(self, broker: int, ask: Callable[[WireConnection], int]) -> None:
        """Until a broker has answered without an error; those that a client tries again may come before."""
        errors: list[int] = []

        def is_taken() -> bool:
            with WireConnection(self.world.brokers[broker].bootstrap) as wire:
                errors.append(ask(wire))
            assert errors[-1] in (E.NONE, *AGAIN), errors
            return not errors[-1]

        until(is_taken, "an answer without an error", self.world.log_text)

    def begin(self) -> None:
        """InitProducerId."""

        def ask(wire: WireConnection) -> int:
            error, *owner = init(wire, "x")
            self.owner = owner[0], owner[1]
            return error

        self.until_taken(self.coordinator, ask)

    def write(self, number: int) -> None:
        """The first record of a transaction."""
        leader = self.world.until_led("t", by={1, 2, 3}, partition=self.partition)
        part = ("t", self.partition, batch(self.owner, 0, b"%d" % number))
        self.until_taken(leader, lambda wire: produce(wire, "x", 12, part)[0])

    def end(self, commit: bool) -> None:
        """EndTxn, which raises the epoch."""
        ended, going_on = self.owner, self.owner

        def ask(wire: WireConnection) -> int:
            nonlocal going_on
            error, going_on = end_and_go_on(wire, "x", ended, commit, 5)
            return error

        self.until_taken(self.coordinator, ask)
        self.owner = going_on


@pytest.mark.parametrize("commit", [True, False])
def test_the_marker_of_a_complete_transaction_is_written_again(world: ClusterProcesses, commit: bool) -> None:
    """It is lost with the tail of its log. The next transaction of the producer has another outcome, and doesn't join it."""
    writer = EpochWriter(world)
    writer.begin()
    writer.write(1)
    writer.end(commit)
    cut_power(writer.broker, "t", 1, writer.partition)
    writer.broker.start()
    until(lambda: world.state("t", writer.partition)["unclean_epoch"] >= 0, "an unclean election", world.log_text)
    writer.write(2)
    writer.end(not commit)
    assert committed(world, "t", writer.partition) == [1 if commit else 2]
