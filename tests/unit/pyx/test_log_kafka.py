"""Apache Kafka and our log take turns on one folder."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pyx.record.rawbatch import marker, records, split
from support.kafka_jars import ApacheKafka
from support.logs import LOGS, NOW_MS, batch

TOPIC = "turns"


def produce(kafka: ApacheKafka) -> None:
    """Plain records, a committed and an aborted transaction."""
    plain = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for i in range(300):
        plain.produce(TOPIC, key=b"k%d" % i, value=b"v" * 50)
        if i % 10 == 9:
            plain.flush()
    for number, commit in enumerate((True, False)):
        sender = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"turns-{number}"})
        sender.init_transactions()
        sender.begin_transaction()
        for i in range(5):
            sender.produce(TOPIC, key=b"%r" % commit, value=b"%d" % i)
        if commit:
            sender.commit_transaction()
        else:
            sender.flush()
            sender.abort_transaction()


def consume(kafka: ApacheKafka) -> list[tuple[int, bytes | None]]:
    """Offsets and values, read committed, from the log start to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "turns",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes | None]] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, "Kafka gave nothing for 30 s"
        if message.error():
            break
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def committed(folder: Path, topic_id: bytes, *, clean: bool) -> list[tuple[int, bytes | None]]:
    """What our log makes of Kafka's folder; it is left open."""
    LOGS.lead(TOPIC, topic_id, 0, 0, str(folder), {"segment_bytes": 4000}, clean)
    offsets = LOGS.offsets(TOPIC, 0)
    aborted = LOGS.aborted(TOPIC, 0, 0, offsets.log_end)
    assert len(aborted) == 1
    found, offset = [], 0
    while data := LOGS.read(TOPIC, 0, offset, 1 << 20, 1):
        for raw in split(data):
            raw.check()
            if not raw.is_control and (raw.producer_id, raw.base_offset) not in aborted:
                found += [(record.offset, record.value) for record in records(raw)]
            offset = raw.next_offset
    assert offset == offsets.last_stable == offsets.log_end
    return found


@pytest.mark.kafka
def test_kafka_and_our_log_take_turns_on_one_folder(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", log_segment_bytes="1048576")
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
        produce(kafka)
        theirs = consume(kafka)
        assert len(theirs) == 305
        kafka.stop()
        data = kafka.folder / "data"
        text = (data / f"{TOPIC}-0" / "partition.metadata").read_text().partition("topic_id: ")[2].strip()
        topic_id = base64.urlsafe_b64decode(text + "==")
        shutil.copytree(data, tmp_path / "copy")
        assert committed(tmp_path / "copy", topic_id, clean=False) == theirs
        unclean = (LOGS.offsets(TOPIC, 0)[:4], LOGS.producers(TOPIC, 0))
        LOGS.delete(TOPIC, 0)
        # In place now: their indexes and snapshots are believed, then ours are by them.
        assert committed(data, topic_id, clean=True) == theirs
        assert (LOGS.offsets(TOPIC, 0)[:4], LOGS.producers(TOPIC, 0)) == unclean
        for i in range(100):
            LOGS.append_client(TOPIC, 0, batch(3, producer=(5000, 0, 3 * i), codec=i % 5))
        LOGS.append_client(TOPIC, 0, batch(2, producer=(5001, 0, 0), transactional=True))
        LOGS.append(TOPIC, 0, marker(False, 5001, 0, 0, NOW_MS))
        end = LOGS.offsets(TOPIC, 0).log_end
        LOGS.stop(TOPIC, 0)
        kafka.start()
        ours = consume(kafka)
        assert ours[:305] == theirs
        assert [value for _, value in ours[305:]] == [b"v" * 10] * 300
        assert ours[-1][0] == end - 4
        produce(kafka)
        assert len(consume(kafka)) == 305 + 300 + 305
        # Kafka logs from warnings on: it found nothing to say about this log.
        assert f"{TOPIC}-0" not in (kafka.folder / "server.log").read_text()
    finally:
        kafka.stop()
