"""librdkafka's clients in a thread each, as they come, while brokers are killed: when each of their operations began, and when
it was acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Self

LIMIT_S = 180.0
REST_S = 0.002  # between two operations
RETRY_S = 0.02  # behind one that failed


class StockClient(ABC):
    """Operations until the block's end. `acknowledged` has when each began and when it was acknowledged, in the latter order;
    `failures` has what librdkafka said of those that failed for good."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.until_acknowledged(time.monotonic())
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def until_acknowledged(self, began: float) -> float:
        """Wait for an operation that began at this time or later: when it was acknowledged. Raises TimeoutError, and what broke
        the client."""
        deadline, looked_at = time.monotonic() + LIMIT_S, 0
        while True:
            while looked_at < len(self.acknowledged):
                if self.acknowledged[looked_at][0] >= began:
                    return self.acknowledged[looked_at][1]
                looked_at += 1
            if self._broken is not None:
                raise self._broken
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was acknowledged for {LIMIT_S:g} s; {len(self.failures)} operations failed")
            time.sleep(REST_S)

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement, between one before `since` and the next one behind `until`. Those are
        there: `until_acknowledged` has waited for the latter."""
        times = [at for _, at in self.acknowledged]
        before = max((at for at in times if at <= since), default=since)
        behind = min(at for at in times if at >= until)
        within = sorted([before, *(at for at in times if since < at < until), behind])
        return max(later - earlier for earlier, later in itertools.pairwise(within))

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self._broken = error

    @abstractmethod
    def _work(self) -> None:
        """Operations, until `_ended` is set."""


class StockProducer(StockClient):
    """Records to the first partition of a topic with acks=all; `more` goes over the client's defaults."""

    def __init__(self, package: Any, bootstrap: str, topic: str, **more: object) -> None:
        super().__init__()
        self._producer = package.Producer({"bootstrap.servers": bootstrap, "acks": "all", **_quiet(more)})
        self._topic = topic

    def _work(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()

            def answered(error: object, message: object, began: float = began) -> None:
                if error is None:
                    self.acknowledged.append((began, time.monotonic()))
                else:
                    self.failures.append(str(error))

            self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=answered)
            self._producer.poll(REST_S)
        self._producer.flush(LIMIT_S)


class StockCommitter(StockClient):
    """Commits of a group's offset by a consumer that is no member. librdkafka leaves it to applications to try a commit again
    whose coordinator went, or moved, before it answered."""

    def __init__(self, package: Any, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self._package = package
        own = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        self._consumer = package.Consumer({**own, **_quiet({})})
        self._topic = topic
        error = package.KafkaError
        self._again = {
            *(error._TRANSPORT, error._TIMED_OUT, error._WAIT_COORD, error.REQUEST_TIMED_OUT),
            *(error.COORDINATOR_LOAD_IN_PROGRESS, error.COORDINATOR_NOT_AVAILABLE, error.NOT_COORDINATOR),
        }

    def _work(self) -> None:
        number = 0
        while not self._ended.is_set():
            began, number = time.monotonic(), number + 1
            offsets = [self._package.TopicPartition(self._topic, 0, number)]
            try:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            except self._package.KafkaException as error:
                if error.args[0].code() not in self._again:
                    self.failures.append(str(error))
                time.sleep(RETRY_S)
                continue
            self.acknowledged.append((began, time.monotonic()))
            time.sleep(REST_S)
        self._consumer.close()


class StockTransactions(StockClient):
    """Transactions of one record, tried again as librdkafka says."""

    def __init__(self, package: Any, bootstrap: str, topic: str, transactional_id: str) -> None:
        super().__init__()
        self._package = package
        own = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        self._producer = package.Producer({**own, **_quiet({})})
        self._topic = topic

    def _work(self) -> None:
        self._again(self._producer.init_transactions)
        while not self._ended.is_set():
            began = time.monotonic()
            self._producer.begin_transaction()
            self._producer.produce(self._topic, b"x" * 100, partition=0)
            try:
                self._again(self._producer.commit_transaction)
            except self._package.KafkaException as error:
                self.failures.append(str(error))
                if not error.args[0].txn_requires_abort():
                    raise
                self._again(self._producer.abort_transaction)
                continue
            self.acknowledged.append((began, time.monotonic()))

    def _again(self, call: Any) -> None:
        """Call until it isn't answered by an error that librdkafka calls retriable. Raises KafkaException."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                call()
                return
            except self._package.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)


def _quiet(more: dict[str, object]) -> dict[str, object]:
    """Without lines on standard error about each connection that is refused; `_` for `.` in the names."""
    return {"log_level": 0, **{name.replace("_", "."): value for name, value in more.items()}}
