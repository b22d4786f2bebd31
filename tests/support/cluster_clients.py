"""Clients of a cluster of broker processes, for tests: what they were answered, held against what is there."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from support.cluster_world import WAIT_S, ClusterProcesses
from support.patience import until


class Writer:
    """A producer in a thread, which notes what was answered."""

    def __init__(self, world: ClusterProcesses, topic: str, **properties: object) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": world.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 10_000,  # else a broker that stands still is waited for a minute
                "request.timeout.ms": 10_000,
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)  # It holds up nobody where a test fails.
        self.answered: list[tuple[int, int]] = []  # offset, number
        self.failed: list[str] = []

    def start(self) -> Writer:
        """Begin to write."""
        self._thread.start()
        return self

    def _write(self) -> None:
        number = 0
        while not self._ended.is_set():
            self._producer.produce(self._topic, str(number).encode(), partition=0, on_delivery=self._answered)
            number += 1
            self._producer.poll(0)
            time.sleep(0.001)
        self._producer.flush(WAIT_S)

    def _answered(self, error: object, message: Message) -> None:
        if error is None:
            offset, value = message.offset(), message.value()
            assert offset is not None and value is not None
            self.answered.append((offset, int(value)))
        else:
            self.failed.append(str(error))

    def wait_for(self, more: int, world: ClusterProcesses) -> None:
        """Until so many more are answered."""
        wanted = len(self.answered) + more
        until(lambda: len(self.answered) >= wanted, f"{more} answers more", world.log_text)

    def end(self) -> None:
        """Write no more, and wait for all answers."""
        self._ended.set()
        self._thread.join()


def read(world: ClusterProcesses, topic: str, up_to: int) -> list[tuple[int, int]]:
    """Offset and number of all records below an offset, as a consumer gets them."""
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "none", "enable.auto.commit": False})
    found: list[tuple[int, int]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def all_read() -> bool:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None and value is not None
                found.append((offset, int(value)))
            return bool(found) and found[-1][0] >= up_to - 1

        until(all_read, f"the records below {up_to}", lambda: f"{len(found)} are read\n{world.log_text()}")
    finally:
        consumer.close()
    return found


def write(world: ClusterProcesses, topic: str, count: int = 50) -> Writer:
    """Records that were answered."""
    writer = Writer(world, topic).start()
    writer.wait_for(count, world)
    writer.end()
    assert not writer.failed
    return writer


def check_answered(world: ClusterProcesses, topic: str, *writers: Writer) -> None:
    """What these were answered is there, and every offset once, whatever others wrote."""
    answered = {one for writer in writers for one in writer.answered}
    found = read(world, topic, max(offset for offset, _ in answered) + 1)
    assert answered <= set(found) and [offset for offset, _ in found] == list(range(len(found)))


def check(world: ClusterProcesses, topic: str, writer: Writer) -> None:
    """Nothing that was answered is lost, moved or doubled."""
    assert not writer.failed
    found = read(world, topic, max(offset for offset, _ in writer.answered) + 1)
    assert set(writer.answered) <= set(found)
    numbers = [number for _, number in found]
    assert numbers == sorted(set(numbers)) and [offset for offset, _ in found] == list(range(len(found)))
