"""A disk that has changed or lost what was acknowledged: the broker says so, changes nothing, and doesn't open the log;
after `penstock log repair` it lacks what is lost, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import ErrorCode
from penstock.pyx.record.rawbatch import split
from penstock.pyx.wire.messages import FetchRequest
from support.harness import BrokerProcess, WireConnection, output
from support.one_partition import consume
from support.patience import until

RECORDS = 60
CLEAN_MARK = ".kafka_cleanshutdown"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", {"log.retention.check.interval.ms": 100, "log.initial.task.delay.ms": 0}).start()
    yield process
    process.close()


def filled(broker: BrokerProcess, topic: str, **config: object) -> list[Path]:
    """A topic with a record a batch in several segments; these."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {"internal.segment.bytes": "1000", **{name.replace("_", "."): str(value) for name, value in config.items()}}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, key=b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    return sorted((broker.data / f"{topic}-0").glob("*.log"))


def flip(path: Path, number: int, at: int) -> tuple[int, int]:
    """Change a bit of a batch of a segment; its first and last offset."""
    data = bytearray(path.read_bytes())
    raws = split(bytes(data))
    data[sum(raw.size_in_bytes for raw in raws[:number]) + at] ^= 1
    path.write_bytes(data)
    return raws[number].base_offset, raws[number].last_offset


REPAIR = (sys.executable, "-m", "penstock", "log", "repair")


def mended(folder: Path) -> list[dict[str, Any]]:
    """Repair a folder; what was damaged."""
    return [json.loads(line) for line in output([*REPAIR, "--json", str(folder)]).splitlines()]


def test_one_bad_bit_takes_no_other_record_along(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic, other = new_topic("corrupt"), new_topic("sound")
    segments = filled(broker, topic, flush_messages=1)
    filled(broker, other)
    folder = segments[0].parent
    broker.kill()
    first, last = flip(segments[-1], 1, 65)
    before = segments[-1].read_bytes()
    broker.start()
    assert consume(broker, other) == (list(range(RECORDS)), None)
    sentence = rf"ERROR .*{segments[-1]} is damaged at byte \d+, and offsets {first} to {last} .*penstock log repair {folder}"
    assert re.search(sentence, broker.log_text()), broker.log_text()
    assert segments[-1].read_bytes() == before
    refused = subprocess.run([*REPAIR, folder], capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "stop it first" in refused.stderr
    assert broker.stop() == 0
    assert not (broker.data / CLEAN_MARK).exists(), "the next start would believe what was never looked at"
    (one,) = mended(folder)
    assert (one["first_offset"], one["next_offset"]) == (first, last + 1)
    assert Path(one["set_aside"]).read_bytes() == before[one["position"] : one["position"] + one["size_bytes"]]
    broker.start()
    assert consume(broker, topic) == ([number for number in range(RECORDS) if not first <= number <= last], None)
    assert broker.stop() == 0
    assert mended(folder) == []


def test_a_hole_that_a_power_cut_leaves_is_cut_and_kept(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """The kernel writes pages in an order of its own: what wasn't flushed may be half there when the machine is back."""
    topic = new_topic("holes")
    segments = filled(broker, topic, internal_segment_bytes=1 << 20)
    broker.kill()
    lock = broker.data / ".lock"
    process, boot_id, flushed = lock.read_text().splitlines()
    lock.write_text(f"{process}\n{boot_id[::-1]}\n{flushed}\n")
    first, _ = flip(segments[-1], 20, 65)
    whole = segments[-1].read_bytes()
    broker.start()
    assert consume(broker, topic) == (list(range(first)), None)
    (kept,) = segments[-1].parent.glob("*.log.cut-*")
    assert whole.endswith(kept.read_bytes())
    assert re.search(rf"WARNING .*{kept}", broker.log_text()), broker.log_text()
    assert lock.read_text().split()[1] == boot_id
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"%d" % first, partition=0)
    assert producer.flush(60) == 0
    assert consume(broker, topic) == (list(range(first + 1)), None)


def test_damage_is_no_power_cut_because_the_lock_file_is_gone(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("lockless")
    segments = filled(broker, topic, internal_segment_bytes=1 << 20)
    broker.kill()
    (broker.data / ".lock").unlink()
    first, last = flip(segments[-1], 20, 65)
    whole = segments[-1].read_bytes()
    for _ in range(2):
        broker.start()
        assert f"{segments[-1]} is damaged at byte" in broker.log_text()
        assert "`.lock` is lost" in broker.log_text()
        broker.kill()
    assert segments[-1].read_bytes() == whole and not list(segments[-1].parent.glob("*.cut-*"))
    mended(segments[0].parent)
    broker.start()
    assert consume(broker, topic) == ([number for number in range(RECORDS) if not first <= number <= last], None)


@pytest.mark.parametrize("how", ["gone", "empty", "short"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_a_segment_that_is_missing_is_no_silent_gap(
    broker: BrokerProcess, new_topic: Callable[[str], str], how: str, clean: bool
) -> None:
    topic = new_topic("holes")
    segments = filled(broker, topic)
    flushed = broker.data / "recovery-point-offset-checkpoint"
    until(lambda: flushed.exists() and f"{topic} 0 " in flushed.read_text(), "segments are flushed", broker.log_text)
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    if how == "short":
        os.truncate(segments[1], segments[1].stat().st_size // 2)
    elif how == "empty":
        os.truncate(segments[1], 0)
    else:
        for path in segments[1].parent.glob(f"{segments[1].stem}.*"):
            path.unlink()
    broker.start()
    last = int(segments[2].stem) - 1
    assert re.search(rf"{topic}-0/\d+.log is damaged at byte \d+, and offsets \d+ to {last} ", broker.log_text())
    assert broker.stop() == 0
    (one,) = mended(segments[0].parent)
    lost = range(one["first_offset"], one["next_offset"])
    assert lost and lost.stop == int(segments[2].stem)
    broker.start()
    assert consume(broker, topic) == ([number for number in range(RECORDS) if number not in lost], None)


def test_a_consumer_is_told_of_a_batch_that_cant_be_read(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """A segment that was right when the log was opened: the damage shows when it is read, and at the next start."""
    topic = new_topic("believed")
    segments = filled(broker, topic)
    assert broker.stop() == 0
    broker.start()
    first, _ = flip(segments[1], 2, 8)
    found, error = consume(broker, topic)
    assert found == list(range(len(found))) and len(found) <= first
    assert error is not None and error.code() == ErrorCode.CORRUPT_MESSAGE, error
    consume(broker, topic)
    said = f"{segments[1]} holds no batch at byte"
    until(lambda: said in broker.log_text(), "the broker says it", broker.log_text)
    assert broker.log_text().count(said) == 1
    assert broker.stop() == 0
    broker.start()
    assert f"{segments[1]} is damaged at byte" in broker.log_text()


def test_a_log_that_was_never_opened_leaves_no_clean_mark(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("closed")
    segments = filled(broker, topic)
    broker.kill()
    metadata = segments[0].parent / "partition.metadata"
    good = metadata.read_text()
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    flip(segments[-2], 1, 65)
    broker.start()
    assert "can't be opened and is offline" in broker.log_text()
    assert broker.stop() == 0
    assert not (broker.data / CLEAN_MARK).exists()
    metadata.write_text(good)
    broker.start()
    assert f"{segments[-2]} is damaged at byte" in broker.log_text()


def test_a_partition_whose_folder_is_removed_goes_offline_alone(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic, other = new_topic("removed"), new_topic("sound")
    segments = filled(broker, topic, internal_segment_bytes=1 << 20)
    filled(broker, other)
    assert broker.stop() == 0
    broker.start()
    shutil.rmtree(segments[0].parent)
    with WireConnection(broker.bootstrap) as wire:
        asked = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fetch = FetchRequest(topics=[FetchRequest.FetchTopic(topic=topic, partitions=[asked])], max_bytes=1 << 20)

        def error() -> int:
            return int(wire.ask(fetch, 11).responses[0].partitions[0].error_code)

        until(lambda: error() == ErrorCode.KAFKA_STORAGE_ERROR, "it to go offline", broker.log_text)
        for _ in range(5):
            assert error() == ErrorCode.KAFKA_STORAGE_ERROR
    gone = f"files of {segments[0].parent} are gone"
    until(lambda: gone in broker.log_text(), "the broker to say so", broker.log_text)  # which follows the answers
    said = [line for line in broker.log_text().splitlines() if " ERROR " in line]
    assert len(said) == 1 and gone in said[0], said
    assert consume(broker, other) == (list(range(RECORDS)), None)
