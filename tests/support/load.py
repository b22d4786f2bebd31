"""Load by confluent-kafka that writes down what it was told, for `history.check`.

As a program (`python -m support.load BOOTSTRAP TOPIC PARTITIONS`, where a test's own process can't reach the broker) it loads
until its standard input ends, and prints what was found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from support.history import FINAL, Assigned, Commit, End, History, Outcome, Poll, Send, check, decode, encode

PATIENCE_S = 90.0
# Errors of a delivery that certainly left nothing in the log.
NEVER_SENT = {KafkaError._PURGE_QUEUE, KafkaError._MSG_TIMED_OUT}


class Load:
    """Producers and a group member that run until `finish`, against a topic of `partitions` partitions.

    A producer rests for `rest_s` between two handfuls of values: a load that lasts for minutes must still be judged. A member
    stays for `stay_s`: more than the broker waits for others to join an empty group (`group.initial.rebalance.delay.ms`).
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, seed: int, *, rest_s: float = 0.0, stay_s: float = 3.0
    ) -> None:
        self.history = History()
        self.failures: list[BaseException] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._seed = seed
        self._rest_s = rest_s
        self._stay_s = stay_s
        self._assignment = 0
        self._committed: dict[int, int] = {}
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *bodies: Callable[[Load, str], None]) -> None:
        """Start a thread for each body, `idempotent`, `transactional` or `member`."""
        for number, body in enumerate(bodies):
            name = f"{body.__name__}{number}"
            thread = threading.Thread(target=self._guard, args=(body, name), name=name)
            self._threads.append(thread)
            thread.start()

    def _guard(self, body: Callable[[Load, str], None], name: str) -> None:
        try:
            body(self, name)
        except BaseException as error:  # noqa: BLE001 - raised again by finish()
            self.failures.append(error)

    def acknowledged(self) -> int:
        """How many values were acknowledged so far."""
        return sum(send.outcome is Outcome.OK for send in self.history.sends)

    def wait_for(self, acknowledged: int = 0, commits: int = 0, ends: int = 0) -> None:
        """Wait until so many more values and commits were acknowledged and ends seen: the broker serves again."""
        values, offsets = self.acknowledged() + acknowledged, self.committed() + commits
        seen = len(self.history.ends) + ends
        deadline = time.monotonic() + PATIENCE_S
        while self.acknowledged() < values or self.committed() < offsets or len(self.history.ends) < seen:
            assert time.monotonic() < deadline, f"{self.acknowledged()} of {values}, {self.committed()} commits"
            assert not self.failures, self.failures
            time.sleep(0.05)

    def committed(self) -> int:
        """How many commits of offsets were acknowledged so far."""
        return sum(commit.outcome is Outcome.OK for commit in self.history.commits)

    def finish(self, *, has_loss: bool = False) -> History:
        """Stop the load, read the whole topic, and hand out the history. has_loss: acknowledged records were lost lawfully; by
        that a producer may have ended, and a transaction may hang: what is open is read, too."""
        try:
            self.stop()
        except KafkaException:
            if not has_loss:
                raise
        self._final_read("read_uncommitted" if has_loss else "read_committed")
        return self.history

    def stop(self) -> None:
        """Stop the load and wait for its threads; raises what one of them died of."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} hangs"
        for failure in sorted(self.failures, key=lambda failure: isinstance(failure, KafkaException)):
            raise failure

    def idempotent(self, name: str) -> None:
        """Send value after value with an idempotent producer."""
        self._values(name, {"enable.idempotence": True})

    def plain(self, name: str) -> None:
        """The same without idempotence, one request in flight: what is sent again may stand twice, but in order."""
        self._values(name, {"enable.idempotence": False, "acks": "all", "max.in.flight": 1})

    def acks_one(self, name: str) -> None:
        """The same, acknowledged by the leader alone; on one node that means no less."""
        self._values(name, {"enable.idempotence": False, "acks": "1", "max.in.flight": 1})

    def _values(self, name: str, properties: dict[str, object]) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                **properties,
                "linger.ms": 2,
                "compression.type": "lz4",
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        dice = random.Random(f"{self._seed}{name}")
        number = 0
        while not self._ended.is_set():
            for _ in range(10):
                self._send(producer, name, number, dice.randrange(self._partitions), None, self.history.sends)
                number += 1
            producer.poll(0.005)
            self._ended.wait(self._rest_s)
        assert producer.flush(PATIENCE_S) == 0

    def transactional(self, name: str) -> None:
        """Send transactions of some values; one in five is aborted."""
        dice = random.Random(f"{self._seed}{name}")
        number = round_ = 0
        while not self._ended.is_set():
            producer = self._transactional_producer(name)
            healthy = producer is not None
            while producer is not None and healthy and not self._ended.is_set():
                sends: list[Send] = []
                for _ in range(8):
                    sends.append(self._plan(name, number, dice.randrange(self._partitions), f"{name}-{round_}"))
                    number += 1
                round_ += 1
                healthy = self._transaction(producer, sends, abort=dice.random() < 0.2)
                self.history.sends.extend(sends)
                self._ended.wait(self._rest_s)

    def _transactional_producer(self, name: str) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"{self._topic}-{name}",
                "transaction.timeout.ms": 30_000,
                "message.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(PATIENCE_S)
        except KafkaException:
            return None  # The broker is down for long; the caller tries again.
        return producer

    def _transaction(self, producer: Producer, sends: list[Send], *, abort: bool) -> bool:
        """One transaction; outcomes are written into the sends. False when the producer is of no more use."""
        try:
            producer.begin_transaction()
            for send in sends:
                self._produce(producer, send, lambda error, message, send=send: _place(send, error, message))
            producer.flush(PATIENCE_S)
            if abort:
                self._until_done(lambda: producer.abort_transaction(PATIENCE_S))
            else:
                self._until_done(lambda: producer.commit_transaction(PATIENCE_S))
        except KafkaException as caught:
            error = caught.args[0]
            outcome = Outcome.INFO
            if error.txn_requires_abort():
                self._until_done(lambda: producer.abort_transaction(PATIENCE_S))
                outcome = Outcome.FAIL
            self._settle(sends, outcome)
            return not error.fatal() and outcome is Outcome.FAIL
        self._settle(sends, Outcome.FAIL if abort else Outcome.OK)
        return True

    def _until_done(self, step: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return step()
            except KafkaException as caught:
                if not caught.args[0].retriable() or time.monotonic() > deadline:
                    raise

    @staticmethod
    def _settle(sends: list[Send], outcome: Outcome) -> None:
        for send in sends:
            send.outcome, send.ended = outcome, time.monotonic()

    def _plan(self, name: str, number: int, partition: int, transaction: str | None) -> Send:
        now = time.monotonic()
        value = f"{name}-{number}-{partition}"
        return Send(name, number, partition, value, Outcome.INFO, None, now, now, transaction)

    def _produce(self, producer: Producer, send: Send, on_delivery: Callable[..., None]) -> None:
        while True:
            try:
                producer.produce(self._topic, encode(send.value), partition=send.partition, on_delivery=on_delivery)
                return
            except BufferError:
                producer.poll(0.1)

    def _send(self, producer: Producer, name: str, number: int, partition: int, txn: str | None, into: list[Send]) -> None:
        send = self._plan(name, number, partition, txn)
        into.append(send)

        def delivered(error: KafkaError | None, message: Message) -> None:
            _place(send, error, message)
            send.ended = time.monotonic()
            if error is None:
                send.outcome = Outcome.OK

        self._produce(producer, send, delivered)

    def member(self, name: str) -> None:
        """Read as a member of a group, commit what was read, leave now and then and come back."""
        group = f"{self._topic}-group"
        while not self._ended.is_set():
            consumer = self._consumer(group)
            seen: dict[int, int] = {}

            def assigned(client: Consumer, partitions: list[TopicPartition], seen: dict[int, int] = seen) -> None:
                seen.clear()
                self._begin(client, group, partitions)

            consumer.subscribe([self._topic], on_assign=assigned)
            deadline = time.monotonic() + self._stay_s
            while not self._ended.is_set() and time.monotonic() < deadline:
                self._poll(consumer, name, seen)
                self._commit(consumer, group, seen)
            consumer.close()

    def _begin(self, consumer: Consumer, group: str, partitions: list[TopicPartition]) -> None:
        """Write down where the member will begin; every assignment is told apart by its number."""
        self._assignment += 1
        started = time.monotonic()
        try:
            committed = consumer.committed(partitions, PATIENCE_S)
        except KafkaException:
            return
        positions = {one.partition: max(0, one.offset) for one in committed}
        self.history.assigned.append(Assigned(group, positions, started))

    def _poll(self, consumer: Consumer, name: str, seen: dict[int, int]) -> None:
        started = time.monotonic()
        messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
        records = [(m.partition(), m.offset(), decode(m.value())) for m in messages]
        if records:
            seen.update({partition: offset + 1 for partition, offset, _ in records})
            self.history.polls.append(Poll(name, self._assignment, records, started, time.monotonic()))

    def _commit(self, consumer: Consumer, group: str, seen: dict[int, int]) -> None:
        if not seen or seen == self._committed:
            return
        started = time.monotonic()
        outcome = Outcome.OK
        try:
            consumer.commit(offsets=[TopicPartition(self._topic, p, o) for p, o in seen.items()], asynchronous=False)
        except KafkaException:
            outcome = Outcome.INFO
        if outcome is Outcome.OK:
            self._committed = dict(seen)
        self.history.commits.append(Commit(group, dict(seen), outcome, started, time.monotonic()))

    def watcher(self, name: str) -> None:
        """Ask again and again where the partitions end."""
        # The high watermark: the last stable offset waits for transactions of others.
        consumer = self._consumer(f"{self._topic}-{name}", isolation="read_uncommitted")
        while not self._ended.wait(0.1):
            for partition in range(self._partitions):
                started = time.monotonic()
                try:
                    _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), 5)
                except KafkaException:
                    # The broker is down. A librdkafka that begins at its bootstrap addresses again has forgotten the topic, and
                    # doesn't ask for it by itself.
                    with contextlib.suppress(KafkaException):
                        consumer.list_topics(self._topic, 5)
                    continue
                self.history.ends.append(End(partition, end, started, time.monotonic()))
        consumer.close()

    def _consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def _final_read(self, isolation: str) -> None:
        """Read every partition from its start to the end that it has now."""
        consumer = self._consumer(f"{self._topic}-final", isolation)
        for partition in range(self._partitions):
            where = TopicPartition(self._topic, partition, OFFSET_BEGINNING)
            end = self._final_end(consumer, where)
            consumer.assign([where])
            deadline = time.monotonic() + PATIENCE_S
            while True:
                started = time.monotonic()
                assert started < deadline, f"the final read of {partition} stands before {end}"
                messages = [message for message in consumer.consume(1000, 0.2) if message.error() is None]
                records = [(m.partition(), m.offset(), decode(m.value())) for m in messages]
                if records:
                    self.history.polls.append(Poll(FINAL, 0, records, started, time.monotonic()))
                # The position also passes control and aborted records, which are never shown.
                if consumer.position([where])[0].offset >= end or end == 0:
                    break
        consumer.close()

    @staticmethod
    def _final_end(consumer: Consumer, where: TopicPartition) -> int:
        """The end of a partition, asked again where its leader's lease is over for a moment: librdkafka doesn't."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return int(consumer.get_watermark_offsets(where, PATIENCE_S)[1])
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _place(send: Send, error: KafkaError | None, message: Message) -> None:
    """Write down the offset of a delivery report."""
    if error is None:
        send.offset = message.offset()


def main() -> None:
    """Prints `began` once clients are served, at the end a line of JSON: the values that were acknowledged, the anomalies."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("bootstrap")
    options.add_argument("topic")
    options.add_argument("partitions", type=int)
    given = options.parse_args()
    load = Load(given.bootstrap, given.topic, given.partitions, seed=1, rest_s=0.02, stay_s=10.0)
    load.start(Load.idempotent, Load.transactional, Load.member, Load.watcher)
    try:
        load.wait_for(acknowledged=200, commits=1, ends=1)
        print("began", flush=True)
        sys.stdin.read()
        load.wait_for(acknowledged=200, commits=1, ends=1)
    finally:
        history = load.finish()
    anomalies = [f"{one.kind}: {one.what}" for one in check(history)]
    print(json.dumps({"acknowledged": load.acknowledged(), "anomalies": anomalies}), flush=True)


if __name__ == "__main__":
    main()
