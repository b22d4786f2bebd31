"""The audit counts what real processes left in real logs, and names the first hop at which a planted fault shows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow
import pyarrow.parquet
import pytest

from penstock.pipeline.admin import EARLIEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.etl.table import NightCommit, Range
from penstock.pipeline.partitioner import partition_for
from support.harness import BrokerProcess
from support.stages import StageProcess, write_properties

DAY_MS = 1_356_998_400_000  # 2013-01-01
LIMIT_S = 60.0


class Pipeline:
    """A source, an aggregate, a mirror and a dedupe stage with 100 committed ids, 10 of them sent twice."""

    def __init__(self, folder: Path, source: BrokerProcess, target: BrokerProcess, topic: str) -> None:
        self.source, self.target, self.topic, self.folder = source, target, topic, folder
        self.table = folder / "table"
        self.config = write_properties(
            folder / "pipeline.properties",
            {
                "source.A.bootstrap.servers": source.bootstrap,
                "bootstrap.servers": target.bootstrap,
                "topics": topic,
                "penstock.mirror.name": topic,
                "penstock.dedupe.name": topic,
                "penstock.dedupe.data": folder / "ids",
                "penstock.watch.ms": 200,
                "penstock.etl.table": self.table,
            },
        )
        for broker, names in ((source, [topic]), (target, [topic, f"{topic}.deduped"])):
            asyncio.run(self._create(broker.bootstrap, names))
        self.stages = [StageProcess(name, self.config) for name in ("mirror", "dedupe")]

    async def _create(self, bootstrap: str, names: list[str]) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics(dict.fromkeys(names, 2), configs={"retention.ms": "-1"})

    def send(self, broker: BrokerProcess, topic: str, ids: list[int], **properties: Any) -> None:
        """Committed records with these ids; with a transactional.id first as many aborted ones."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "linger.ms": 5, **properties}
        )
        rounds: list[Any] = [None]
        if properties:
            producer.init_transactions()
            rounds = [producer.abort_transaction, producer.commit_transaction]
        for end in rounds:
            if end is not None:
                producer.begin_transaction()
            for number in ids:
                producer.produce(topic, key=str(number), value=b"{}", timestamp=DAY_MS + number * 60_000)
            producer.flush()
            if end is not None:
                end()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `penstock audit`."""
        command = [sys.executable, "-m", "penstock", "audit", "--config", str(self.config), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    def audit(self) -> dict[str, Any]:
        """What `penstock audit --json` says; its exit code must agree."""
        done = self.run("--json")
        assert done.returncode in (0, 1, 3, 4), done.stderr
        answer = json.loads(done.stdout)
        assert (done.returncode == 1) == (answer["parts_at"] is not None)
        assert (done.returncode == 0) == answer["complete"]
        assert (done.returncode == 3) == (answer["parts_at"] is None and answer["untold"] != [])
        return {**answer, "hops": {hop["name"]: hop for hop in answer["hops"]}}

    def settle(self, **expected: int) -> dict[str, Any]:
        """Audit until nothing waits before the table; a count must never part meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            answer = self.audit()
            assert answer["parts_at"] is None, answer
            waiting = [hop["waiting"] for name, hop in answer["hops"].items() if name.split()[0] in ("A", "read")]
            if not any(waiting) and answer["hops"][f"aggregate {self.topic}.deduped"]["records"] == expected["deduped"]:
                return answer
        raise AssertionError(f"the stages did not settle: {answer}")

    def load(self, rows: dict[int, int], noted: dict[int, int]) -> None:
        """A table as the ETL leaves it: a night with these ranges, and as many rows a partition as `rows` says."""
        ends = asyncio.run(self._ends())
        log = self.table / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        columns = {
            "id": [f"{partition}" for partition, count in rows.items() for _ in range(count)],
            "topic": [f"{self.topic}.deduped" for _, count in rows.items() for _ in range(count)],
            "partition": pyarrow.array([p for p, count in rows.items() for _ in range(count)], pyarrow.int32()),
        }
        file = self.table / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "string"), ("topic", "string"), ("partition", "integer"))
        ]
        ranges = {
            (f"{self.topic}.deduped", partition): Range(0, ends[partition], noted[partition], noted[partition], 0)
            for partition in noted
        }
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "audit",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": [],
                    "configuration": {},
                    "createdTime": 0,
                }
            },
            {
                "add": {
                    "path": file.name,
                    "partitionValues": {},
                    "size": file.stat().st_size,
                    "modificationTime": 0,
                    "dataChange": True,
                }
            },
            {
                "domainMetadata": {
                    "domain": "penstock.etl.night.2013-01-01",
                    "configuration": NightCommit("2013-01-01", 1, ranges).to_json(),
                    "removed": False,
                }
            },
            {"txn": {"appId": "penstock.etl", "version": 1}},
        ]
        (log / f"{0:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))

    async def _ends(self) -> dict[int, int]:
        async with Admin(self.target.bootstrap) as admin:
            tps = [(f"{self.topic}.deduped", partition) for partition in range(2)]
            found = await admin.list_offsets(dict.fromkeys(tps, -1), isolation="read_committed")
            return {partition: found[topic, partition].offset for topic, partition in tps}


@pytest.fixture
def pipeline(
    make_broker: Callable[..., BrokerProcess], new_topic: Callable[[str], str], tmp_path: Path
) -> Iterator[Pipeline]:
    made = Pipeline(tmp_path, make_broker("a"), make_broker("aggregate"), new_topic("flights"))
    made.send(made.source, made.topic, list(range(100)))
    for stage in made.stages:
        stage.start()
    made.send(made.source, made.topic, list(range(10)), **{"transactional.id": "audit"})
    yield made
    for stage in made.stages:
        stage.kill()


def test_counts_agree_while_stages_move_and_name_the_hop_of_each_planted_fault(pipeline: Pipeline) -> None:
    answer = pipeline.settle(deduped=100)
    topic, deduped = f"aggregate {pipeline.topic}", f"aggregate {pipeline.topic}.deduped"
    hops = answer["hops"]
    # 100 records, 10 of them again in a transaction; the aborted ten and all markers are no records.
    assert hops[f"A {pipeline.topic}"]["records"] == hops[topic]["records"] == 110
    assert (hops[deduped]["records"], hops[deduped]["dropped"]) == (100, 10)
    assert hops["table table"]["waiting"] == 100 and not answer["complete"]

    right = {int(partition): count for partition, count in hops[deduped]["partitions"].items()}
    pipeline.load(right, right)
    answer = pipeline.audit()
    assert answer["complete"] and answer["hops"]["table table"]["records"] == 100

    pipeline.load({**right, 1: right[1] - 1}, right)
    answer = pipeline.audit()
    assert answer["parts_at"] == "table table"
    assert answer["hops"]["table table"]["trouble"] == f"rows of partition 1: {right[1] - 1} for {right[1]}"
    wrong = {**right, 0: right[0] + 1}
    pipeline.load(wrong, wrong)
    assert pipeline.audit()["hops"]["table table"]["trouble"].startswith("loaded of partition 0")
    pipeline.load(right, right)

    for stage in pipeline.stages:
        stage.stop()
    pipeline.send(pipeline.target, f"{pipeline.topic}.deduped", [7])  # an id for the second time
    answer = pipeline.audit()
    assert answer["parts_at"] == deduped and "dropped in partition" in answer["hops"][deduped]["trouble"]

    pipeline.send(pipeline.target, pipeline.topic, [1000])  # nobody's record
    answer = pipeline.audit()
    assert answer["parts_at"] == topic and answer["hops"][topic]["trouble"].startswith("partition ")


def test_records_that_moved_into_their_partition_are_accounted_for(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)
    strangers = list(range(200, 260))
    pipeline.send(pipeline.source, pipeline.topic, strangers, partitioner="consistent", **{"transactional.id": "stranger"})
    pipeline.send(pipeline.source, pipeline.topic, strangers)
    answer = pipeline.settle(deduped=160)
    hop = answer["hops"][f"aggregate {pipeline.topic}.deduped"]
    assert hop["records"] == hop["expected"] == 160 and hop["dropped"] == 70
    partitions = {int(partition): count for partition, count in hop["partitions"].items()}
    homes = [partition_for(b"%d" % number, 2) for number in (*range(100), *strangers)]
    assert partitions == {partition: homes.count(partition) for partition in (0, 1)}

    async def end() -> int:
        async with Admin(pipeline.target.bootstrap) as admin:
            return sum([await admin.end_offset((f"{pipeline.topic}.moved", partition)) for partition in (0, 1)])

    assert asyncio.run(end()) > 10, "none of them was in the wrong partition"


def test_what_waits_and_what_expired_is_no_difference(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)
    for stage in pipeline.stages:
        stage.stop()
    pipeline.send(pipeline.source, pipeline.topic, list(range(200, 230)))
    answer = pipeline.audit()
    assert answer["parts_at"] is None and answer["hops"][f"A {pipeline.topic}"]["waiting"] == 30

    async def expire() -> None:
        async with Admin(pipeline.source.bootstrap) as admin:
            await admin.delete_records({(pipeline.topic, partition): 5 for partition in range(2)})
            starts = await admin.list_offsets({(pipeline.topic, partition): EARLIEST for partition in range(2)})
            assert {found.offset for found in starts.values()} == {5}

    asyncio.run(expire())
    answer = pipeline.audit()
    assert answer["parts_at"] is None
    assert "not compared" in answer["hops"][f"aggregate {pipeline.topic}"]["note"]
    assert answer["untold"] == [f"A {pipeline.topic}", f"aggregate {pipeline.topic}"]


def test_an_audit_that_can_not_tell_does_not_say_complete(pipeline: Pipeline) -> None:
    hops = pipeline.settle(deduped=100)["hops"]
    right = {int(p): count for p, count in hops[f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    assert pipeline.audit()["complete"]

    async def expire() -> None:
        async with Admin(pipeline.source.bootstrap) as admin:
            await admin.delete_records({(pipeline.topic, partition): 5 for partition in range(2)})

    asyncio.run(expire())
    answer = pipeline.audit()
    assert not answer["complete"] and answer["untold"] == [f"A {pipeline.topic}", f"aggregate {pipeline.topic}"]
    done = pipeline.run()
    assert done.returncode == 3
    said = " ".join(done.stdout.split())
    assert "Cannot tell whether" in said and "Complete" not in said


def test_a_compacted_topic_is_not_compared_by_what_compaction_left(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)

    async def compact() -> None:
        async with Admin(pipeline.target.bootstrap) as admin:
            await admin.alter_configs(TOPIC_RESOURCE, f"{pipeline.topic}.deduped", {"cleanup.policy": "compact,delete"})

    asyncio.run(compact())
    answer = pipeline.audit()
    deduped = f"aggregate {pipeline.topic}.deduped"
    assert answer["untold"] == [deduped] and "compacted" in answer["hops"][deduped]["note"]


def test_a_batch_that_can_not_be_read_is_a_finding_with_its_place(pipeline: Pipeline) -> None:
    """One whose payload is corrupt in partition 0; one in partition 1 whose header is no header any more."""
    before = pipeline.settle(deduped=100)["hops"]
    for stage in pipeline.stages:
        stage.stop()
    topic = f"{pipeline.topic}.deduped"
    for partition, at in ((0, 80), (1, 16)):
        (log,) = pipeline.folder.glob(f"aggregate/**/{topic}-{partition}/{0:020}.log")
        with log.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x5A]))
    answer = pipeline.audit()
    found = {one["partition"]: one for one in answer["findings"]}
    assert {(one["hop"], one["offset"]) for one in answer["findings"]} == {(f"aggregate {topic}", 0)}
    assert answer["parts_at"] == f"aggregate {topic}"
    assert "checksum" in found[0]["reason"] and "is not counted" in found[1]["reason"]
    trouble = answer["hops"][f"aggregate {topic}"]["trouble"]
    assert "partition 0: the batch at offset 0 can't be read" in trouble
    # What follows the batch is counted all the same, and the batch by what its header claims.
    assert answer["hops"][f"aggregate {topic}"]["partitions"]["0"] == before[f"aggregate {topic}"]["partitions"]["0"]


def test_trouble_is_one_sentence(pipeline: Pipeline) -> None:
    pipeline.target.kill()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "audit", "--config", str(pipeline.config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1
