"""Transactional producers in threads, over a cluster that fails, and what is left of their transactions for consumers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.cluster_world import WAIT_S, ClusterProcesses
from support.patience import until


class Transactions:
    """A producer, again and again under one transactional id. Each transaction writes its number once into every partition of
    a topic; each third one is aborted.
    """

    def __init__(self, world: ClusterProcesses, topic: str, partitions: int, name: str, first: int = 0) -> None:
        self._world = world
        self._topic = topic
        self._partitions = partitions
        self._name = name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = first
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.said: list[str] = []

    def start(self) -> Transactions:
        """Begin."""
        self._thread.start()
        return self

    def end(self) -> None:
        """Begin no further transaction, and wait for the last one."""
        self._ended.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive(), self._said()

    def wait_for(self, more: int) -> None:
        """Until so many more are committed."""
        wanted = len(self.committed) + more
        until(lambda: len(self.committed) >= wanted, f"{more} transactions of {self._name} more", self._said)

    def _said(self) -> str:
        return f"{self.said[-10:]}\n{self._world.log_text()}"

    def _run(self) -> None:
        while not self._ended.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self._world.bootstrap,
                    "transactional.id": self._name,
                    "transaction.timeout.ms": 20_000,
                    "linger.ms": 0,
                    "topic.metadata.refresh.fast.interval.ms": 100,
                    "retry.backoff.max.ms": 200,
                }
            )
            try:
                producer.init_transactions(WAIT_S)
                while not self._ended.is_set():
                    self._transact(producer)
            except KafkaException as error:
                self.said.append(str(error))  # Its next producer goes on.

    def _transact(self, producer: Producer) -> None:
        number, self._next = self._next, self._next + 1
        commit = number % 3 != 0
        self.unknown.append(number)
        producer.begin_transaction()
        try:
            for partition in range(self._partitions):
                producer.produce(self._topic, str(number).encode(), partition=partition)
            if commit:
                self._until_done(lambda: producer.commit_transaction(WAIT_S))
            else:
                producer.flush(WAIT_S)  # An abort drops what was not sent.
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.said.append(str(error))
            commit = False
        if not commit:
            self._until_done(lambda: producer.abort_transaction(WAIT_S))
        self.unknown.remove(number)
        (self.committed if commit else self.aborted).append(number)

    def _until_done(self, end: Callable[[], None]) -> None:
        while True:
            try:
                end()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self.said.append(str(error))
            else:
                return


def committed(world: ClusterProcesses, topic: str, partition: int) -> list[int]:
    """The numbers that consumers of committed records get, up to where the partition ends once nothing is open in it."""
    properties = {
        "bootstrap.servers": world.bootstrap,
        "group.id": "none",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "topic.metadata.refresh.fast.interval.ms": 100,
    }
    consumer = Consumer({**properties, "isolation.level": "read_committed"})
    plain = Consumer({**properties, "isolation.level": "read_uncommitted"})
    found: list[int] = []
    ends: dict[str, int] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])

        def whole() -> bool:
            for message in consumer.consume(500, 0.2):
                error, value, offset = message.error(), message.value(), message.offset()
                if error is None:
                    assert value is not None
                    found.append(int(value))
                elif error.code() == KafkaError._PARTITION_EOF and offset is not None:
                    ends["stable"] = offset
            ends["end"] = plain.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)[1]
            return ends.get("stable") == ends["end"]

        until(whole, f"the end of {topic}-{partition}", lambda: f"{ends}\n{world.log_text()}")
    finally:
        consumer.close()
        plain.close()
    return found


def check(world: ClusterProcesses, topic: str, partitions: int, every: Iterable[Transactions]) -> None:
    """Each transaction is in all of its partitions or in none, once, in order, as its producer was told; none hangs."""
    read = [committed(world, topic, partition) for partition in range(partitions)]
    for one in every:
        mine = {*one.committed, *one.aborted, *one.unknown}
        seen = [[number for number in numbers if number in mine] for numbers in read]
        assert all(numbers == seen[0] for numbers in seen), f"in some of its partitions only: {_odd(seen)}"
        assert seen[0] == sorted(set(seen[0])), "twice, or out of order"
        assert set(one.committed) <= set(seen[0]), f"lost: {set(one.committed) - set(seen[0])}"
        assert not set(one.aborted) & set(seen[0]), "aborted, and shown"


def _odd(seen: list[list[int]]) -> list[int]:
    counts = Counter(number for numbers in seen for number in numbers)
    return [number for number, count in counts.items() if count != len(seen)]
