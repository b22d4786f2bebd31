"""A broker whose side files - those beside a partition's batches, and those of a log folder - were damaged while it was down,
as its clients see it: fetches, searches by time, producers, retention, and what it says.

The metadata store is in test_metadata_damage.py, the files that say offsets of logs are in test_checkpoint_damage.py.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker import Broker
from penstock.broker.logs.folder import FolderError
from penstock.broker.server import ServerError
from penstock.pyx.wire.messages import DescribeProducersRequest
from support.asking import create, end_offset, metadata, produce
from support.harness import BrokerProcess, WireConnection
from support.one_partition import consume
from support.patience import until

RECORDS = 200
HOUR_MS = 3_600_000
T = TypeVar("T")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path / "data",
        {
            "log.retention.check.interval.ms": 100,
            "log.initial.task.delay.ms": 0,
            "log.flush.offset.checkpoint.interval.ms": 200,
        },
    ).start()
    yield process
    process.close()


def filled(broker: BrokerProcess, topic: str) -> int:
    """Committed and aborted transactions by turns, in several segments, fresh records; answers the first timestamp."""
    settings = {"internal.segment.bytes": "1200", "index.interval.bytes": "150", "retention.ms": str(HOUR_MS)}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result()
    first_ms = int(time.time() * 1000) - RECORDS
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions()
    for number in range(RECORDS // 10):
        producer.begin_transaction()
        for i in range(10):
            at = number * 10 + i
            producer.produce(topic, b"%d" % at, timestamp=first_ms + at, partition=0)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    return first_ms


def recovery_point(broker: BrokerProcess, topic: str) -> int:
    path = broker.data / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.startswith(f"{topic} ")), default=0)


def by_time(broker: BrokerProcess, topic: str, first_ms: int) -> list[int]:
    """The offset of the first record at each time."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    found = []
    for at in range(0, RECORDS, 7):
        (answer,) = reader.offsets_for_times([TopicPartition(topic, 0, first_ms + at)], timeout=30)
        assert answer.error is None
        found.append(answer.offset)
    reader.close()
    return found


DAMAGES: dict[str, Callable[[bytearray], bytes | None]] = {
    "gone": lambda data: None,
    "zeros": lambda data: bytes(len(data)),
    "cleared": lambda data: bytes(byte & 0x0F for byte in data),
    "one bit": lambda data: bytes(data[:-5]) + bytes([data[-5] ^ 1]) + bytes(data[-4:]),
}


@pytest.mark.parametrize(
    ("how", "clean", "checks"),
    [("gone", True, True), ("zeros", False, True), ("one bit", True, True), ("cleared", True, False)],
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_clients_see_what_the_batches_say(
    broker: BrokerProcess, new_topic: Callable[[str], str], suffix: str, how: str, clean: bool, checks: bool
) -> None:
    topic = new_topic("hurt")
    first_ms = filled(broker, topic)
    folder = broker.data / f"{topic}-0"
    timed = by_time(broker, topic, first_ms)
    committed = [number for number in range(RECORDS) if number // 10 % 2 == 0]
    until(lambda: recovery_point(broker, topic) > RECORDS // 2, "most segments are flushed", broker.log_text)
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    if not checks:
        for path in folder.glob("*.checks"):
            path.unlink()
    damaged = sorted(folder.glob(f"*{suffix}"))
    assert len(damaged) > 1
    for path in damaged:
        data = DAMAGES[how](bytearray(path.read_bytes()))
        if data is None:
            path.unlink()
        elif path.stat().st_size > 4:
            path.write_bytes(data)
    broker.start()
    assert consume(broker, topic, "read_committed") == (committed, None)
    assert consume(broker, topic, "read_uncommitted") == (list(range(RECORDS)), None)
    assert by_time(broker, topic, first_ms) == timed
    assert min(int(path.stem) for path in folder.glob("*.log")) == 0, "retention has deleted fresh records"
    if checks:  # Else an entry that nobody looks up may stay wrong.
        assert "rebuilt from its batches" in broker.log_text()


SIDE_FILES = (
    "*.index", "*.timeindex", "*.txnindex", "*.snapshot", "*.sequences", "*.checks", "leader-epoch-checkpoint",
    "partition.metadata",
)  # fmt: skip
EVERY_WAY: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda data: None,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: random.Random(len(data)).randbytes(len(data)),
    "one bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "half": lambda data: data[: len(data) // 2],
}
CASES = [(files, how) for files in SIDE_FILES for how in EVERY_WAY]
"""What is done to partition 0, 1, 2 and so on; one more is left as it is."""
TIMES = 9


def damage(path: Path, how: str) -> None:
    data = EVERY_WAY[how](path.read_bytes())
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def fill_all(broker: BrokerProcess, topic: str) -> int:
    """Committed and aborted transactions by turns, in each partition; answers the first timestamp."""
    settings = {"internal.segment.bytes": "1200", "index.interval.bytes": "150", "retention.ms": str(HOUR_MS)}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, len(CASES) + 1, 1, config=settings)])[topic].result()
    first_ms = int(time.time() * 1000) - RECORDS
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 50})
    producer.init_transactions()
    for number in range(RECORDS // 10):
        producer.begin_transaction()
        for partition in range(len(CASES) + 1):
            for at in range(number * 10, number * 10 + 10):
                producer.produce(topic, b"%d" % at, timestamp=first_ms + at, partition=partition)
            producer.poll(0)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    return first_ms


def consume_all(broker: BrokerProcess, topic: str, isolation: str) -> dict[int, list[int]]:
    """The numbers that a consumer gets of each partition up to its end."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "readers",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    reader = Consumer(settings)
    found: dict[int, list[int]] = {partition: [] for partition in range(len(CASES) + 1)}
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
    left = set(found)
    while left:
        message = reader.poll(30)
        assert message is not None, f"nothing came for 30 s of {left}:\n" + broker.log_text()
        if (error := message.error()) is None:
            found[message.partition()].append(int(message.value()))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, (message.partition(), error)
            left.discard(message.partition())
    reader.close()
    return found


def at_times(broker: BrokerProcess, topic: str, first_ms: int) -> dict[int, list[int]]:
    """For each partition the offsets of the first records at some times."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    found: dict[int, list[int]] = {partition: [] for partition in range(len(CASES) + 1)}
    for at in range(0, RECORDS, RECORDS // TIMES):
        asked = [TopicPartition(topic, partition, first_ms + at) for partition in found]
        for answer in reader.offsets_for_times(asked, timeout=60):
            assert answer.error is None, answer
            found[answer.partition].append(answer.offset)
    reader.close()
    return found


def producers(broker: BrokerProcess, topic: str) -> dict[int, list[tuple[int, int, int, int]]]:
    """For each partition its producers: id, epoch, last sequence, and where an open transaction begins."""
    own = DescribeProducersRequest
    asked = own.TopicRequest(name=topic, partition_indexes=list(range(len(CASES) + 1)))
    with WireConnection(broker.bootstrap) as wire:
        (answer,) = wire.ask(own(topics=[asked]), 0).topics
    assert [one.error_code for one in answer.partitions] == [0] * (len(CASES) + 1)
    return {
        one.partition_index: [
            (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
            for each in one.active_producers
        ]
        for one in answer.partitions
    }


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_every_file_beside_the_batches_in_every_way(
    broker: BrokerProcess, new_topic: Callable[[str], str], clean: bool
) -> None:
    """One partition for each kind of file and of damage: clients see of each what they saw before."""
    topic = new_topic("every")
    first_ms = fill_all(broker, topic)
    committed = [number for number in range(RECORDS) if number // 10 % 2 == 0]
    timed, known = at_times(broker, topic, first_ms), producers(broker, topic)
    until(lambda: len(recovery_points(broker, topic)) == len(CASES) + 1, "most segments are flushed", broker.log_text)
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    for partition, (files, how) in enumerate(CASES):
        damaged = sorted((broker.data / f"{topic}-{partition}").glob(files))
        assert damaged, files
        for path in damaged:
            if path.stat().st_size > 4:
                damage(path, how)
    broker.start()
    wanted = dict.fromkeys(range(len(CASES) + 1), committed)
    assert differing(consume_all(broker, topic, "read_committed"), wanted) == {}, broker.log_text()
    every = list(range(RECORDS))
    wanted = dict.fromkeys(range(len(CASES) + 1), every)
    assert differing(consume_all(broker, topic, "read_uncommitted"), wanted) == {}
    assert differing(at_times(broker, topic, first_ms), timed) == {}
    assert differing(producers(broker, topic), known) == {}
    for partition in range(len(CASES) + 1):
        assert (broker.data / f"{topic}-{partition}" / f"{0:020}.log").exists(), "retention has deleted fresh records"
    assert "offline" not in broker.log_text()


def recovery_points(broker: BrokerProcess, topic: str) -> set[int]:
    """The partitions of which most is flushed."""
    path = broker.data / "recovery-point-offset-checkpoint"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {int(line[1]) for line in lines if line[0] == topic and int(line[2]) > RECORDS // 2}


def differing(found: Mapping[int, T], wanted: Mapping[int, T]) -> dict[tuple[str, str], tuple[T, T]]:
    """What isn't as it should be, by what was done to the partition."""
    cases = dict(enumerate([*CASES, ("untouched", "")]))
    return {cases[key]: (one, wanted[key]) for key, one in found.items() if one != wanted[key]}


ALWAYS_LEFT = (".lock", "meta.properties", "metadata.db.changes", "metadata.db.backup", "metadata.db.backup.1")
FOLDER_FILES = {"clean stop": (*ALWAYS_LEFT, ".kafka_cleanshutdown"), "kill": (*ALWAYS_LEFT, ".ballast")}
BALLAST = {"penstock.ballast.bytes": 1 << 16}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of what a broker leaves behind in its log folder, by how it ended; `data` is the folder."""
    root = tmp_path_factory.mktemp("left")
    process = BrokerProcess(root / "data", BALLAST).start()
    try:
        for topic in ("first", "second"):  # After each start a backup of the store is written.
            assert create(process, topic).topics[0].error_code == 0
            assert produce(process, topic, RECORDS // 10) == 0
            until(lambda: (process.data / "metadata.db.backup").exists(), "a backup", process.log_text)
            assert process.stop() == 0
            shutil.copytree(process.data, root / "clean stop", dirs_exist_ok=True)
            process.start()
        process.kill()
        shutil.copytree(process.data, root / "kill")
    finally:
        process.close()
    return {how: root / how for how in ("data", "clean stop", "kill")}


@pytest.mark.parametrize(("ended", "name"), [(ended, name) for ended, names in FOLDER_FILES.items() for name in names])
@pytest.mark.parametrize("how", EVERY_WAY)
def test_every_file_of_a_log_folder_in_every_way(left: dict[str, Path], name: str, how: str, ended: str) -> None:
    """All topics are served, or one sentence names the file; with the file that was there before they are served."""
    data = left["data"]  # At its own path: the store knows it.
    shutil.rmtree(data)
    shutil.copytree(left[ended], data)
    good = (data / name).read_bytes()
    damage(data / name, how)
    broker = Broker(data, properties=BALLAST)
    try:
        try:
            broker.start()
        except (FolderError, ServerError) as refusal:
            assert str(data / name) in str(refusal)
            (data / name).write_bytes(good)
            broker.start()
        answer = metadata(broker, "first", "second")
        assert [partition.error_code for topic in answer.topics for partition in topic.partitions] == [0, 0]
        assert [end_offset(broker, topic) for topic in ("first", "second")] == [RECORDS // 10] * 2
        broker.stop()
        broker.start()
        assert end_offset(broker, "first") == RECORDS // 10
    finally:
        broker.stop()
