"""Whatever a log, a position or the table's own log holds, the audit answers with findings or a sentence."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import KafkaError
from penstock.pipeline.audit.counts import TopicCounts, count_topic
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.etl import table
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pyx.record.builder import BatchBuilder
from support.harness import BrokerProcess, topic_name
from support.stages import write_properties

TOPICS = 60
BATCHES = 6
RECORDS = 5


async def fill(bootstrap: str, topics: list[str]) -> None:
    """Batches of all codecs in each topic."""
    async with Admin(bootstrap) as admin:
        await admin.create_topics(dict.fromkeys(topics, 1))
        sender = Sender(admin, idempotent=False)
        for topic in topics:
            for codec in range(BATCHES):
                builder = BatchBuilder(codec % 5)
                for number in range(RECORDS):
                    builder.append(b"%d" % number, b"a value" * 5, time.time_ns() // 1_000_000)
                await sender.submit((topic, 0), [builder.build()])


def damage(log: Path, dice: random.Random) -> None:
    """A few bytes of a log's batches become others, mostly in a header."""
    data = bytearray(log.read_bytes().rstrip(b"\0"))
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    for _ in range(dice.choice((1, 1, 2, 8))):
        start = dice.choice(starts)
        at = min(len(data) - 1, start + dice.choice((dice.randrange(61), dice.randrange(120))))
        data[at] = dice.choice((0, 0xFF, 0x7F, dice.randrange(256)))
    with log.open("r+b") as file:
        file.write(data)


def test_damaged_batches_are_findings(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker, dice = make_broker(), random.Random(20131)
    topics = [topic_name("damaged") for _ in range(TOPICS)]
    asyncio.run(fill(broker.bootstrap, topics))
    outcomes: list[TopicCounts | KafkaError] = []
    for topic in topics:
        (log,) = tmp_path.glob(f"broker/**/{topic}-0/{0:020}.log")
        damage(log, dice)
        try:
            counts = asyncio.run(count_topic(broker.bootstrap, topic, gaps={0: [(7, 12)]}))
        except KafkaError as error:
            outcomes.append(error)
            continue
        outcomes.append(counts)
        assert 0 <= counts.total <= BATCHES * RECORDS and 0 <= counts.left_out.total() <= BATCHES * RECORDS
    found = [one for one in outcomes if isinstance(one, TopicCounts)]
    assert len(found) > TOPICS * 3 / 4 and sum(bool(one.unreadable) for one in found) > TOPICS / 3


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "7", "{}", '{"offset": "7"}', '{"gaps": -3, "gap_ranges": "9..1", "target_end": 1e9}',
     '{"records": null, "gap_ranges": 7, "producer_id": "x", "target_end": 999999999999}'],
)  # fmt: skip
def test_positions_that_nobody_of_ours_wrote(shared_broker: BrokerProcess, tmp_path: Path, text: str) -> None:
    topic = topic_name("flights")
    config = write_properties(tmp_path / "pipeline.properties", {
        "source.A.bootstrap.servers": shared_broker.bootstrap, "bootstrap.servers": shared_broker.bootstrap, "topics": topic,
        "penstock.mirror.name": topic, "penstock.dedupe.name": topic, "penstock.etl.table": tmp_path / "table"})  # fmt: skip

    async def prepare() -> None:
        await fill(shared_broker.bootstrap, [topic, f"{topic}.deduped"])
        async with Admin(shared_broker.bootstrap) as admin:
            for group in (f"penstock-mirror.{topic}.A", f"penstock-dedupe.{topic}"):
                await admin.commit(group, {(topic, 0): (7, text)})

    asyncio.run(prepare())
    command = [sys.executable, "-m", "penstock", "audit", "--config", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (1, 3, 4) and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("penstock: ") or not json.loads(done.stdout)["complete"]


@pytest.mark.parametrize(
    "line",
    ['{"domainMetadata"', '{"domainMetadata":7}', '{"domainMetadata":{"domain":3}}', '{"txn":{"appId":"penstock.etl"}}',
     '{"metaData":[]}', '{"txn":null,"domainMetadata":{"domain":"penstock.etl.night.x","removed":false,"configuration":"{}"}}'],
)  # fmt: skip
def test_a_table_whose_log_is_damaged_is_a_sentence(tmp_path: Path, line: str) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text(line + "\n")
    with pytest.raises(EtlError, match="can't be read"):
        table.committed(LocalStorage(tmp_path))
