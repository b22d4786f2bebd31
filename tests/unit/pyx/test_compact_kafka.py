"""Apache Kafka's cleaner and ours make the same of one log, and Kafka's tools read what ours has written."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.checkpoint import read_checkpoint
from penstock.pyx.record.rawbatch import RawBatch, marker, records, split
from support.compacted import Kept, keyed
from support.kafka_jars import ApacheKafka
from support.logs import LOGS
from support.messagesets import GZIP, Message, pack_set, wrap

TOPIC = "compared"
CONFIG = {
    "segment_bytes": 1 << 20, "segment_ms": 1 << 60, "cleanup_delete": 0, "cleanup_compact": 1, "index_interval_bytes": 200,
    "message_magic": 1,
}  # fmt: skip
WAIT_S = 60.0
HORIZON = 0x40


def write(now_ms: int) -> int:
    """Keys of all kinds: repeated, deleted, of transactions, of producers that are idle; the log end."""
    sequences: dict[int, int] = {}

    def put(producer: int, *pairs: tuple[bytes, bytes | None], transactional: bool = False, codec: int = 0) -> None:
        first = sequences.get(producer, 0)
        sequences[producer] = first + len(pairs)
        data = keyed(pairs, producer=(producer, 0, first), transactional=transactional, codec=codec, timestamp_ms=now_ms)
        LOGS.append_client(TOPIC, 0, data)

    put(9, (b"k1", b"idle since"), (b"k2", b"idle since"))
    for turn in range(5):
        for i in range(20):
            value = None if (i + turn) % 6 == 0 else b"%d" % turn
            put(1, (b"k%d" % i, value), (b"x%d" % (i % 3), b"1"), codec=i % 5)
        put(7, (b"k1", b"maybe"), (b"t%d" % turn, b"maybe"), transactional=True)
        put(8, (b"y", b"%d" % turn), transactional=True)
        LOGS.append(TOPIC, 0, marker(turn % 2 == 0, 7, 0, 0, now_ms))
        LOGS.append(TOPIC, 0, marker(turn != 3, 8, 0, 0, now_ms))
        LOGS.append_client(TOPIC, 0, pack_set(1, [Message(0, b"old", b"1", now_ms), Message(1, b"old%d" % turn, b"1", now_ms)]))
        LOGS.append_client(
            TOPIC,
            0,
            wrap(1, [Message(i, b"w%d" % (i + turn), b"1", now_ms + i) for i in range(3)], GZIP, 2, timestamp_ms=now_ms),
        )
        if turn % 2:
            LOGS.reconfigure(TOPIC, 0, {"segment_ms": 1})
            LOGS.upkeep(TOPIC, 0, now_ms + 10_000 * (turn + 1))
            LOGS.reconfigure(TOPIC, 0, CONFIG)
    put(8, (b"y", b"active"))
    LOGS.append_client(TOPIC, 0, keyed([(b"k3", b"active")], timestamp_ms=now_ms))
    return LOGS.offsets(TOPIC, 0).log_end


def batches() -> list[RawBatch]:
    found: list[RawBatch] = []
    offset = 0
    while data := LOGS.read(TOPIC, 0, offset, 1 << 20):
        found += split(data)
        offset = found[-1].next_offset
    return found


def described(raws: list[RawBatch]) -> list[tuple[object, ...]]:
    """Batches without their bytes' accidents: level of compression, the moment of a horizon.

    Of those without a producer only the records: Kafka 4 writes what it compacts of magic 0 and 1 as magic 2 (KIP-724).
    """
    found: list[tuple[object, ...]] = []
    for raw in raws:
        raw.check()
        content = [Kept(r.offset, r.key, r.value, r.timestamp_ms) for r in records(raw)]
        if raw.magic < 2 or raw.producer_id < 0:
            found += content
            continue
        fields = (raw.base_offset, raw.last_offset, raw.record_count, raw.attributes, raw.max_timestamp)
        found.append((*fields, raw.producer_id, raw.producer_epoch, raw.base_sequence, content))
    return found


@pytest.mark.kafka
def test_both_cleaners_make_the_same_of_a_log(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", log_cleaner_backoff_ms="200")
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "index.interval.bytes": "200"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result()
        del admin  # It would go on asking.
        kafka.stop()
        folder = kafka.data / f"{TOPIC}-0"
        text = (folder / "partition.metadata").read_text().partition("topic_id: ")[2].strip()
        topic_id = base64.urlsafe_b64decode(text + "==")
        LOGS.lead(TOPIC, topic_id, 0, 0, str(kafka.data), CONFIG, True)
        now_ms = time.time_ns() // 1_000_000
        end = write(now_ms)
        LOGS.stop(TOPIC, 0)
        bounds = sorted(int(path.stem) for path in folder.glob("*.log"))
        assert len(bounds) == 3
        shutil.copytree(kafka.data, tmp_path / "ours")

        LOGS.lead(TOPIC, topic_id, 0, 0, str(tmp_path / "ours"), CONFIG, True)
        done = Cleaner(Pace(), 1 << 20).compact(LOGS, TOPIC, 0, -1, now_ms, 0, 86_400_000)
        assert done.first_dirty == bounds[-1]
        ours = described(batches())
        our_aborted = LOGS.aborted(TOPIC, 0, 0, end)
        LOGS.stop(TOPIC, 0)

        kafka.start()
        deadline = time.monotonic() + WAIT_S
        while read_checkpoint(kafka.data / "cleaner-offset-checkpoint").get((TOPIC, 0)) != bounds[-1]:
            assert time.monotonic() < deadline, kafka.log_text()
            time.sleep(0.1)
        kafka.stop()
        LOGS.lead(TOPIC, topic_id, 0, 0, str(kafka.data), CONFIG | {"cleanup_compact": 1}, True)
        theirs = described(batches())
        assert LOGS.aborted(TOPIC, 0, 0, end) == our_aborted
        LOGS.delete(TOPIC, 0)
        assert ours == theirs
        headers = [batch for batch in ours if not isinstance(batch, Kept)]
        assert any(int(str(attributes)) & HORIZON for _, _, _, attributes, *_ in headers)
        assert any(count == 0 for _, _, count, *_ in headers), "an emptied batch is among them"
        names = [path for path in (tmp_path / "ours" / f"{TOPIC}-0").iterdir() if re.search("index$|log$", path.name)]
        files = ",".join(str(path) for path in sorted(names))
        dump = subprocess.run(
            kafka.java("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"baseOffset: {end - 1} " in dump and ".txnindex" in files
        for complaint in ("Mismatches", "Found timestamp", "isvalid: false", "invalid bytes", "Could not"):
            assert complaint not in dump
    finally:
        kafka.stop()
