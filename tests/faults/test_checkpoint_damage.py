"""Every file that says offsets of logs x {gone, empty, zeros, garbage, a bit, half} x {clean stop, kill -9}.

What a client sees is as before, and one sentence in the log names the file.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.broker import Broker
from support.harness import BrokerProcess
from support.one_partition import WAIT_S, create, delete_before, write
from support.patience import until

OURS = "penstock-checkpoints"
STARTS = "log-start-offset-checkpoint"
FILES = [OURS, STARTS, "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"]
TOPICS = ("t", "plain")
SEED = 20131122
PROPERTIES: dict[str, object] = {
    "log.retention.ms": -1,
    "log.cleaner.backoff.ms": 50,
    "log.roll.jitter.ms": 0,
    "log.retention.check.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
}
State = dict[str, tuple[tuple[int, int], list[str]]]


def a_bit(data: bytes) -> bytes:
    """A bit of the last number's first digit is set: a log start of 17 becomes one of 37.

    Never cleared: a smaller offset can be what the file held before it was written last, and such a file is right.
    """
    at = max(data.rstrip(b"\n").rfind(b" "), data.rstrip(b"\n").rfind(b"\n")) + 1
    larger = next(data[at] | bit for bit in (1, 2, 4, 8) if not data[at] & bit)
    return data[:at] + bytes([larger]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda data: None,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: random.Random(SEED).randbytes(len(data)),
    "a bit": a_bit,
    "half": lambda data: data[: len(data) // 2],
}


def state(bootstrap: str) -> State:
    """Where the logs begin and end, and all that a consumer sees of them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    ends = {topic: consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) for topic in TOPICS}
    consumer.assign([TopicPartition(topic, 0, first) for topic, (first, _) in ends.items()])
    values: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    while sum(map(len, values.values())) < sum(end - first for first, end in ends.values()):
        (message,) = consumer.consume(1, WAIT_S)
        values[message.topic()].append(message.value().decode())
    consumer.close()
    return {topic: (ends[topic], sorted(values[topic])) for topic in TOPICS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a broker leaves behind, killed and stopped cleanly: records deleted below 17, some compacted, several segments."""
    root = tmp_path_factory.mktemp("folders")
    broker = BrokerProcess(root / "broker", PROPERTIES).start()
    try:
        create(broker.bootstrap, "t", **{"internal.segment.bytes": "1000"})
        write(broker.bootstrap, "t", [f"value {i}" for i in range(50)], each=True)
        delete_before(broker.bootstrap, "t", 17)
        create(broker.bootstrap, "plain")
        write(broker.bootstrap, "plain", [f"value {i}" for i in range(50)])
        compact = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
        create(broker.bootstrap, "compacted", **compact)
        turns = iter(range(1_000_000))

        def compacted() -> bool:
            write(broker.bootstrap, "compacted", [f"value {next(turns)}"], key="k")
            # Our file knows of no time when one of the others wasn't there: two passes of the cleaner.
            return (broker.data / FILES[-1]).exists() and b" -\n" not in (broker.data / OURS).read_bytes()

        until(compacted, "passes of the cleaner", broker.log_text)
        broker.kill()
        shutil.copytree(broker.data, root / "killed")
        broker.start()
        assert broker.stop() == 0
        shutil.copytree(broker.data, root / "clean")
    finally:
        broker.close()
    return {"killed": root / "killed", "clean": root / "clean"}


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the broker of this test says as a warning or worse."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def damage(path: Path, how: str) -> None:
    data = DAMAGES[how](path.read_bytes())
    assert data != path.read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)


@pytest.mark.parametrize("left", ["killed", "clean"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", DAMAGES)
def test_clients_see_what_they_saw_and_a_sentence_names_the_file(
    folders: dict[str, Path], tmp_path: Path, said: list[str], left: str, name: str, how: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(folders[left], data)
    damage(data / name, how)
    with Broker(data, properties=PROPERTIES) as broker:
        found = state(broker.bootstrap)
    assert found == {
        "t": ((17, 50), sorted(f"value {i}" for i in range(17, 50))),
        "plain": ((0, 50), sorted(f"value {i}" for i in range(50))),
    }
    assert [line for line in said if name in line], "nothing was said"
    said.clear()
    with Broker(data, properties=PROPERTIES):
        assert said == [], "it was mended"


@pytest.mark.parametrize("left", ["killed", "clean"])
def test_what_a_broker_leaves_needs_no_words(folders: dict[str, Path], tmp_path: Path, said: list[str], left: str) -> None:
    shutil.copytree(folders[left], tmp_path / "data")
    with Broker(tmp_path / "data", properties=PROPERTIES) as broker:
        assert state(broker.bootstrap)["t"][0] == (17, 50)
    assert said == []


@pytest.mark.parametrize("starts", DAMAGES)
@pytest.mark.parametrize("ours", DAMAGES)
def test_with_two_files_damaged_records_are_shown_rather_than_hidden(
    folders: dict[str, Path], tmp_path: Path, said: list[str], ours: str, starts: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(folders["killed"], data)
    damage(data / OURS, ours)
    damage(data / STARTS, starts)
    with Broker(data, properties=PROPERTIES) as broker:
        (first, end), _ = state(broker.bootstrap)["t"]
    # One digit that is another can't be told from a log start that Apache Kafka wrote.
    assert (first <= 17 or starts == "a bit") and end == 50
    assert [line for line in said if OURS in line and STARTS in line]
