"""A follower inside the test process gets all that confluent-kafka writes to a broker, byte for byte."""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer

from penstock.errors import ErrorCode
from penstock.pyx.net.fetcher import Fetchers
from penstock.pyx.record.rawbatch import RawBatch, split
from penstock.pyx.wire.messages import FetchRequest
from support import asking
from support.harness import BrokerProcess, WireConnection, topic_name
from support.logs import LOGS
from support.patience import until
from support.replicas import BROKER_EPOCH, LEADER, follow, set_role

NODE = 3
PARTITIONS = 3
CONFIG = {"segment_bytes": 1 << 20}


class Dialler:
    """The part of the control plane that answers news: it dials, and can cut what it has dialled."""

    def __init__(self, fetchers: Fetchers, broker: BrokerProcess) -> None:
        self.fetchers = fetchers
        self.broker = broker
        self.others: list[tuple[str, int]] = []  # kinds of news that ask for nothing, and their errors
        self.dialled = 0
        self._shared: list[socket.socket] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()
        for one in self._shared:
            one.close()

    def _run(self) -> None:
        while not self._stopping:
            if not select.select([self.fetchers.news_fd], [], [], 0.02)[0]:
                continue
            for one in self.fetchers.take_news():
                if one.kind in ("wanted", "disconnected"):
                    self._dial(one.leader, one.thread)
                else:
                    self.others.append((one.kind, one.error))

    def _dial(self, leader: int, thread: int) -> None:
        while True:
            try:
                made = socket.create_connection(("127.0.0.1", self.broker.port))
                break
            except ConnectionRefusedError:
                if self._stopping:
                    return
                time.sleep(0.01)
        made.setblocking(False)
        self._shared.append(made.dup())
        self.fetchers.connect(leader, thread, made.detach())
        self.dialled += 1

    def cut(self, dice: random.Random) -> None:
        """End the newest connection, with what is on its way."""
        with suppress(OSError, IndexError):  # it may have ended by itself, and there may be none yet
            self._shared[-1].shutdown(dice.choice([socket.SHUT_RDWR, socket.SHUT_RD, socket.SHUT_WR]))


@contextmanager
def following(broker: BrokerProcess, topic: str, folder: Path, threads: int = 1) -> Iterator[Dialler]:
    """Fetchers of all partitions of a topic, whose logs are made in the test process."""
    (known,) = asking.metadata(broker, topic).topics
    (epoch,) = {one.leader_epoch for one in known.partitions}
    follow(folder, partitions=PARTITIONS, topic=topic, id=known.topic_id, leader_epoch=epoch, **CONFIG)
    fetchers = Fetchers(LOGS, NODE, threads)
    fetchers.set_broker_epoch(BROKER_EPOCH)
    fetchers.start()
    with Dialler(fetchers, broker) as dialler:
        for index in range(PARTITIONS):
            fetchers.add(topic, known.topic_id, index, LEADER)
        yield dialler
        assert fetchers.stop() == []


def ends(topic: str) -> list[int]:
    return [LOGS.offsets(topic, index).log_end for index in range(PARTITIONS)]


def own_batches(topic: str, index: int) -> list[bytes]:
    where, found = LOGS.offsets(topic, index), list[bytes]()
    at = where.log_start
    while at < where.log_end:
        raws = split(LOGS.read(topic, index, at, 1 << 20))
        found += [bytes(raw) for raw in raws]
        at = raws[-1].next_offset
    return found


def leaders_batches(broker: BrokerProcess, topic_id: bytes, index: int) -> list[bytes]:
    """As a consumer gets them."""
    found, at = list[bytes](), 0
    with WireConnection(broker.bootstrap) as wire:
        while True:
            one = FetchRequest.FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 20)
            asked = FetchRequest.FetchTopic(topic_id=topic_id, partitions=[one])
            ((answered,),) = [t.partitions for t in wire.ask(FetchRequest(topics=[asked]), 17).responses]
            assert answered.error_code == 0
            raws = whole(bytes(answered.records or b""))
            if not raws:
                return found
            found += [bytes(raw) for raw in raws]
            at = raws[-1].next_offset


def whole(records: bytes) -> list[RawBatch]:
    """The batches of a range that may end within one."""
    end = 0
    while len(records) - end >= 12 and end + 12 + struct.unpack_from(">i", records, end + 8)[0] <= len(records):
        end += 12 + struct.unpack_from(">i", records, end + 8)[0]
    return split(records[:end])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "leader").start()
    yield made
    made.close()


def test_a_follower_gets_all_that_is_written_though_its_connections_are_cut(broker: BrokerProcess, tmp_path: Path) -> None:
    """Small batches and large ones, compressed and not, over segments; the follower begins in the middle of it."""
    dice = random.Random(11)
    topic = topic_name("followed")
    sent, failures = 0, list[object]()
    asking.create(broker, topic, partitions=PARTITIONS, segment_bytes=1 << 20)
    producers = [
        Producer({"bootstrap.servers": broker.bootstrap, "compression.type": kind, "linger.ms": linger})
        for kind, linger in (("none", 0), ("lz4", 5), ("zstd", 20))
    ]

    def write(rounds: int, dialler: Dialler | None) -> None:
        nonlocal sent
        for _ in range(rounds):
            producer = dice.choice(producers)
            for _ in range(dice.choice([1, 10, 200])):
                value = dice.randbytes(dice.choice([0, 10, 1000, 100_000]))
                producer.produce(
                    topic, value, partition=dice.randrange(PARTITIONS),
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )  # fmt: skip
                sent += 1
            producer.poll(0)
            if dialler is not None and dice.random() < 0.3:
                dialler.cut(dice)
                time.sleep(0.01)
        for producer in producers:
            assert producer.flush(60) == 0

    write(20, None)
    with following(broker, topic, tmp_path / "follower", threads=2) as dialler:
        write(80, dialler)
        until(lambda: sum(ends(topic)) == sent, "the follower's logs", lambda: f"{ends(topic)} of {sent}")
        assert dialler.dialled > 5 and dialler.others == []
        counted = dialler.fetchers.counters()
    assert failures == []
    assert (counted["records"], counted["errors"], counted["partitions"], counted["lag"]) == (sent, 0, PARTITIONS, 0)
    (known,) = asking.metadata(broker, topic).topics
    for index in range(PARTITIONS):
        assert own_batches(topic, index) == leaders_batches(broker, known.topic_id, index)


def test_a_follower_waits_for_its_role_when_the_leader_has_another_epoch(broker: BrokerProcess, tmp_path: Path) -> None:
    topic = topic_name("followed")
    asking.create(broker, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})

    def write() -> None:
        for n in range(300):
            producer.produce(topic, b"%d" % n, partition=n % PARTITIONS)
        assert producer.flush(60) == 0

    write()
    with following(broker, topic, tmp_path / "follower") as dialler:
        until(lambda: ends(topic) == [100] * PARTITIONS, "the first records", lambda: str(ends(topic)))
        broker.kill()
        broker.start()
        write()
        refused = ("error", ErrorCode.FENCED_LEADER_EPOCH)
        until(lambda: dialler.others.count(refused) == PARTITIONS, "the leader's refusals", lambda: str(dialler.others))
        assert ends(topic) == [100] * PARTITIONS
        (known,) = asking.metadata(broker, topic).topics
        for index in range(PARTITIONS):
            dialler.fetchers.remove(topic, index)
            set_role(topic, index, known.partitions[index].leader_epoch)
            dialler.fetchers.add(topic, known.topic_id, index, LEADER)
        until(lambda: ends(topic) == [200] * PARTITIONS, "the others", lambda: f"{ends(topic)}, {dialler.others}")
    for index in range(PARTITIONS):
        assert own_batches(topic, index) == leaders_batches(broker, known.topic_id, index)


def cpu_seconds(thread: str) -> float:
    """What a thread of this process has used."""
    (id,) = [one.native_id for one in threading.enumerate() if one.name == thread]
    return int(Path(f"/proc/self/task/{id}/schedstat").read_text().split()[0]) / 1e9


def test_how_fast_an_empty_follower_catches_up(broker: BrokerProcess, tmp_path: Path) -> None:
    """Prints figures; asserts only that all of it came."""
    topic = topic_name("followed")
    size, count = 100_000, 3_000
    asking.create(broker, topic, partitions=PARTITIONS, segment_bytes=1 << 28)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 1 << 17, "linger.ms": 5})
    value = random.Random(3).randbytes(size)
    for n in range(count):
        producer.produce(topic, value, partition=n % PARTITIONS)
        producer.poll(0 if n % 100 else 1)
    assert producer.flush(60) == 0
    begun = time.monotonic()
    with following(broker, topic, tmp_path / "follower"):
        until(lambda: sum(ends(topic)) == count, "the follower's logs", lambda: str(ends(topic)))
        took, used = time.monotonic() - begun, cpu_seconds("fetcher-0")
    gigabytes = size * count / 1e9
    print(f"\ncatch-up: {gigabytes * 1000 / took:.0f} MB/s, {used / gigabytes:.2f} CPU s/GB of the thread")
