"""The audit counts what real processes left in real logs, and names the first hop at which a planted fault shows."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import confluent_kafka
import pyarrow
import pyarrow.parquet
import pytest

from penstock.pipeline import job
from penstock.pipeline.audit.command import command as audit_command
from penstock.pipeline.audit.counts import count_topic
from penstock.pipeline.clients.admin import EARLIEST, TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.partitioner import partition_for
from penstock.pipeline.clients.transaction import TransactionalSender
from penstock.pipeline.etl.cut import Cut
from penstock.pipeline.etl.ledger import NightCommit, Range
from penstock.pipeline.etl.night import parse_night
from penstock.pipeline.stages.batches import send
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch
from support.harness import BrokerProcess
from support.patience import until
from support.stages import StageProcess, write_properties

DAY_MS = 1_356_998_400_000  # 2013-01-01
LIMIT_S = 150.0


class Pipeline:
    """A source, an aggregate, a mirror and a dedupe stage with 100 committed ids, 10 of them sent twice."""

    def __init__(
        self, folder: Path, source: BrokerProcess, target: BrokerProcess, topic: str, into: str = "", **properties: str
    ) -> None:
        """`into`: what the topic is called on the target."""
        self.source, self.target, self.topic, self.folder = source, target, topic, folder
        self.into = into or topic
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
                **properties,
            },
        )
        for broker, names in ((source, [topic]), (target, [self.into, f"{self.into}.deduped"])):
            asyncio.run(self.create(broker.bootstrap, names))
        self.stages = [StageProcess(name, self.config) for name in ("mirror", "dedupe")]

    async def end(self, broker: BrokerProcess, topic: str, partition: int) -> int:
        """The end of a partition's log."""
        async with Admin(broker.bootstrap) as admin:
            return await admin.end_offset((topic, partition))

    async def at(self, partition: int) -> int:
        """The mirror's position in a partition."""
        async with Admin(self.target.bootstrap) as admin:
            tp = self.into, partition
            found = (await admin.committed(f"penstock-mirror.{self.topic}.A", [tp]))[tp]
            assert found is not None
            return found[0]

    def operate(self, *words: str) -> None:
        """Decide something with `penstock mirror WORDS...`."""
        self._operate("mirror", *words)

    def operate_dedupe(self, *words: str) -> None:
        """Decide something with `penstock dedupe WORDS...`."""
        self._operate("dedupe", *words)

    def _operate(self, *words: str) -> None:
        command = [sys.executable, "-m", "penstock", *words, "--because", "a test", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr

    def lacks(self) -> list[str]:
        """What a night that ends now would wait for."""

        async def look() -> list[str]:
            cut = Cut(job.load(self.config, part="audit"), "wall", ZoneInfo("UTC"))
            try:
                return await cut.missing(cut.goals(parse_night("2013-01-01")))
            finally:
                await cut.close()

        return asyncio.run(look())

    async def create(self, bootstrap: str, names: list[str]) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics(dict.fromkeys(names, 2), configs={"retention.ms": "-1"})

    def delete_group(self, group: str) -> None:
        """Lose a stage's positions."""

        async def delete() -> None:
            async with Admin(self.target.bootstrap) as admin:
                await admin.delete_groups([group])

        asyncio.run(delete())

    async def recreate(self, broker: BrokerProcess, topic: str) -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.delete_topics([topic])
        await self.create(broker.bootstrap, [topic])

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

    def accept(self) -> str:
        """What `penstock audit accept` says."""
        command = [sys.executable, "-m", "penstock", "audit", "accept", "--because", "a test", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def unread(self, *arguments: str) -> int:
        """The exit code of `penstock audit` whose reader has gone."""
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "penstock", "audit", "--config", str(self.config), *arguments]
        try:
            return subprocess.run(command, stdout=write, check=False, timeout=LIMIT_S).returncode
        finally:
            os.close(write)

    def audit(self, *arguments: str) -> dict[str, Any]:
        """What `penstock audit --json` says; its exit code must agree."""
        done = self.run("--json", *arguments)
        assert done.returncode in (0, 1, 3, 4), done.stderr
        answer = json.loads(done.stdout)
        assert (done.returncode == 1) == (answer["parts_at"] is not None)
        assert (done.returncode == 0) == answer["complete"]
        assert (done.returncode == 3) == (answer["parts_at"] is None and answer["untold"] != [])
        return {**answer, "hops": {hop["name"]: hop for hop in answer["hops"]}}

    def settle(self, **expected: int) -> dict[str, Any]:
        """Audit until nothing waits before the table; a count must never part meanwhile.

        An audit is a process: one comes at once, the next ones when the records are there.
        """
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            answer = self.audit()
            assert answer["parts_at"] is None, answer
            self._await_written(expected["deduped"])
            waiting = [hop["waiting"] for name, hop in answer["hops"].items() if name.split()[0] in ("A", "B", "read")]
            if not any(waiting) and answer["hops"][f"aggregate {self.into}.deduped"]["records"] == expected["deduped"]:
                return answer
        raise AssertionError(f"the stages did not settle: {answer}")

    def _await_written(self, count: int) -> None:
        """Wait until dedupe has written so many records."""
        written = partial(count_topic, self.target.bootstrap, f"{self.into}.deduped")
        until(lambda: asyncio.run(written()).total >= count, f"{count} records", lambda: self.stages[1].text())

    def load(self, rows: dict[int, int], noted: dict[int, int], table: Path | None = None, topic: str = "") -> None:
        """A table as the ETL leaves it: a night with these ranges, and as many rows a partition as `rows` says."""
        table, topic = table or self.table, topic or f"{self.topic}.deduped"
        ends = asyncio.run(self._ends(topic))
        log = table / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        columns = {
            "id": [f"{partition}" for partition, count in rows.items() for _ in range(count)],
            "topic": [topic for _, count in rows.items() for _ in range(count)],
            "partition": pyarrow.array([p for p, count in rows.items() for _ in range(count)], pyarrow.int32()),
            "offset": pyarrow.array([offset for count in rows.values() for offset in range(count)], pyarrow.int64()),
        }
        file = table / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "string"), ("topic", "string"), ("partition", "integer"), ("offset", "long"))
        ]
        ranges = {(topic, partition): Range(0, ends[partition], noted[partition], noted[partition], 0) for partition in noted}
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

    async def _ends(self, topic: str) -> dict[int, int]:
        async with Admin(self.target.bootstrap) as admin:
            tps = [(topic, partition) for partition in range(2)]
            found = await admin.list_offsets(dict.fromkeys(tps, -1), isolation="read_committed")
            return {partition: found[topic, partition].offset for topic, partition in tps}


@pytest.fixture
def pipeline(make_broker: Callable[..., BrokerProcess], new_topic: Callable[[str], str], tmp_path: Path) -> Iterator[Pipeline]:
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
    trouble = f"rows of night 2013-01-01, partition 1: {right[1] - 1} for {right[1]}"
    assert answer["hops"]["table table"]["trouble"] == trouble
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
    command = [sys.executable, "-m", "penstock", "dedupe", "status", "--json", "--config", str(pipeline.config)]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout)
    assert sum(row["dropped"] for row in shown) == 70
    partitions = {int(partition): count for partition, count in hop["partitions"].items()}
    homes = [partition_for(b"%d" % number, 2) for number in (*range(100), *strangers)]
    assert partitions == {partition: homes.count(partition) for partition in (0, 1)}

    async def end() -> int:
        async with Admin(pipeline.target.bootstrap) as admin:
            moved = job.moved_topic(pipeline.topic, pipeline.topic)
            return sum([await admin.end_offset((moved, partition)) for partition in (0, 1)])

    assert asyncio.run(end()) > 10, "none of them was in the wrong partition"


def test_records_without_an_id_are_counted(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)
    producer = confluent_kafka.Producer({"bootstrap.servers": pipeline.source.bootstrap})
    for _ in range(7):
        producer.produce(pipeline.topic, value=b"{}", timestamp=DAY_MS)
    producer.flush()
    answer = pipeline.settle(deduped=107)
    hop = answer["hops"][f"aggregate {pipeline.topic}.deduped"]
    assert (hop["without_id"], hop["trouble"]) == (7, "")
    assert f"Without an id, so that repeats of them aren't seen: 7 of aggregate {pipeline.topic}" in " ".join(
        pipeline.run().stdout.split()
    )


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
    assert "the beginning of 2 partitions" in answer["hops"][f"A {pipeline.topic}"]["note"]
    done = pipeline.run()
    assert done.returncode == 3
    said = " ".join(done.stdout.split())
    assert "Cannot tell whether" in said and "Complete" not in said


def compact(pipeline: Pipeline, broker: BrokerProcess, topic: str) -> int:
    """Let a topic be compacted and wait until that took records; how many are left."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1", "min.compaction.lag.ms": "0"}
    asyncio.run(_alter(broker.bootstrap, topic, configs))
    before = asyncio.run(count_topic(broker.bootstrap, topic)).total
    pipeline.send(broker, topic, [1], **{"transactional.id": "roll"})  # in another segment
    counted: list[int] = []

    def settled() -> bool:
        """Each partition, and each segment that was rolled late, has a pass of its own."""
        counted.append(asyncio.run(count_topic(broker.bootstrap, topic)).total)
        time.sleep(0.5)
        return counted[-1] < before and counted[-4:].count(counted[-1]) == 4

    until(settled, "compaction to remove records")
    return counted[-1]


async def _alter(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_configs(TOPIC_RESOURCE, topic, configs)


def test_compacted_topics_are_compared_by_the_notes_of_the_stages(pipeline: Pipeline) -> None:
    """What compaction took after it was read is no loss; what it may have taken before can't be told."""
    pipeline.settle(deduped=100)
    for stage in pipeline.stages:
        stage.stop()
    for topic in (pipeline.topic, f"{pipeline.topic}.deduped"):
        asyncio.run(_alter(pipeline.target.bootstrap, topic, {"cleanup.policy": "compact"}))
    hops = pipeline.audit()["hops"]
    right = {int(p): count for p, count in hops[f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    answer = pipeline.audit()
    assert answer["complete"] and answer["untold"] == []
    by_notes = {name for name, hop in answer["hops"].items() if hop["by_notes"]}
    assert by_notes == set(answer["hops"]) - {f"A {pipeline.topic}"}
    assert "notes" in pipeline.run().stdout

    # One record fewer in the table than dedupe says it wrote: it may have been compacted away before the night.
    fewer = {**right, 0: right[0] - 1}
    pipeline.load(fewer, fewer)
    answer = pipeline.audit()
    assert answer["untold"] == ["table table"] and "1 records fewer were loaded" in answer["hops"]["table table"]["note"]
    more = {**right, 0: right[0] + 1}
    pipeline.load(more, more)
    answer = pipeline.audit()
    assert answer["hops"]["table table"]["trouble"] == "partition 0: 1 more loaded"


def test_what_compaction_removed_is_no_loss(pipeline: Pipeline) -> None:
    """Ten ids are in the input twice: once they were read, compaction takes their first records."""
    pipeline.settle(deduped=100)
    pipeline.stages[1].stop()
    pipeline.send(pipeline.source, pipeline.topic, list(range(50)))
    pipeline.send(pipeline.source, pipeline.topic, [500])
    pipeline.stages[1].start()
    pipeline.settle(deduped=101)
    for stage in pipeline.stages:
        stage.stop()
    left = compact(pipeline, pipeline.source, pipeline.topic)
    answer = pipeline.audit()
    source = answer["hops"][f"A {pipeline.topic}"]
    assert source["records"] == left and source["by_notes"] and answer["parts_at"] is None and answer["untold"] == []
    assert answer["hops"][f"aggregate {pipeline.topic}"]["records"] == 161


def test_what_operators_left_out_is_named_and_not_missing(pipeline: Pipeline) -> None:
    """Also where the gap's edges lie in batches, and where a batch in it can't be read."""
    pipeline.settle(deduped=100)
    mirror, dedupe = pipeline.stages
    mirror.stop()
    pipeline.send(pipeline.source, pipeline.topic, list(range(1000, 1400)))
    end = asyncio.run(pipeline.end(pipeline.source, pipeline.topic, 0))
    before = asyncio.run(pipeline.at(0))
    first, last = before + 3, end - 3
    pipeline.operate("begin", "A", f"{pipeline.topic}:0", "--at", str(first))
    pipeline.operate("skip", "A", f"{pipeline.topic}:0", "--to", str(last))
    held = end - before
    answer = pipeline.audit()
    assert answer["parts_at"] is None, answer
    assert f"source A: {pipeline.topic}-0 is mirrored up to {last} of {end}" in pipeline.lacks()
    mirror.start()
    answer = pipeline.settle(deduped=500 - (held - 3))
    assert answer["gaps"] == [{"hop": f"A {pipeline.topic}", "partition": 0, "first": before, "last": last - 1}]
    source, aggregate = answer["hops"][f"A {pipeline.topic}"], answer["hops"][f"aggregate {pipeline.topic}"]
    assert (source["records"], source["left_out"], aggregate["records"]) == (510, held - 3, 510 - (held - 3))
    right = {int(p): n for p, n in answer["hops"][f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    answer = pipeline.audit()
    assert answer["complete"] and pipeline.lacks() == []
    said = " ".join(pipeline.run().stdout.split())
    assert "Complete: every record" in said and f"A {pipeline.topic}:0 offsets {before} to {last - 1}" in said
    # One more that is missing isn't explained by what was left out.
    mirror.stop()
    dedupe.stop()
    pipeline.send(pipeline.target, pipeline.topic, [1])
    assert pipeline.audit()["parts_at"] == f"aggregate {pipeline.topic}"


@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
def test_what_operators_let_be_copied_again_is_counted_and_no_difference(pipeline: Pipeline, runs: bool) -> None:
    """Without what they had left out in it, which isn't there twice."""
    pipeline.settle(deduped=100)
    mirror, dedupe = pipeline.stages
    pipeline.send(pipeline.source, pipeline.topic, list(range(1000, 1400)))
    before = asyncio.run(pipeline.at(0))
    pipeline.operate("begin", "A", f"{pipeline.topic}:0", "--at", "5")
    until(lambda: asyncio.run(pipeline.at(0)) >= before, "the mirror to be where it was")
    again = pipeline.audit()["hops"][f"A {pipeline.topic}"]["again"]
    assert again > 0
    if not runs:
        mirror.stop()
    pipeline.operate("begin", "A", f"{pipeline.topic}:0", "--at", "latest")
    pipeline.operate("begin", "A", f"{pipeline.topic}:0", "--at", "earliest")
    if not runs:
        mirror.start()
    answer = pipeline.settle(deduped=500)
    source, aggregate = answer["hops"][f"A {pipeline.topic}"], answer["hops"][f"aggregate {pipeline.topic}"]
    assert (source["records"], aggregate["records"]) == (510, 510 + source["again"]) and source["again"] > again
    assert answer["parts_at"] is None and answer["untold"] == [] and answer["gaps"] == []
    right = {int(p): n for p, n in answer["hops"][f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    said = " ".join(pipeline.run().stdout.split())
    assert "Complete: every record" in said
    assert "Beyond what one reading of the log gives" in said
    assert f"had it copied or read again, or began in another log: {source['again']:,} of A {pipeline.topic}." in said
    # One more that is there twice isn't explained by what was copied again.
    for stage in (mirror, dedupe):
        stage.stop()
    pipeline.send(pipeline.target, pipeline.topic, [1])
    assert pipeline.audit()["parts_at"] == f"aggregate {pipeline.topic}"


@pytest.mark.parametrize("at", ["where it was", "earlier", "later"])
def test_a_position_that_was_lost_is_counted_from_the_logs(pipeline: Pipeline, at: str) -> None:
    """An operator lets the mirror begin again: exactly where it was nothing is left out, else what differs is named."""
    pipeline.settle(deduped=100)
    mirror, _ = pipeline.stages
    mirror.stop()
    positions = [asyncio.run(pipeline.at(partition)) for partition in range(2)]
    pipeline.send(pipeline.source, pipeline.topic, list(range(1000, 1400)))
    pipeline.delete_group(f"penstock-mirror.{pipeline.topic}.A")
    change = {"where it was": 0, "earlier": -3, "later": 3}[at]
    for partition, offset in enumerate(positions):
        pipeline.operate("begin", "A", f"{pipeline.topic}:{partition}", "--at", str(offset + change))
    mirror.start()
    deduped = 500 if change <= 0 else 494
    answer = pipeline.settle(deduped=deduped)
    source, aggregate = answer["hops"][f"A {pipeline.topic}"], answer["hops"][f"aggregate {pipeline.topic}"]
    assert answer["parts_at"] is None and answer["untold"] == [], answer
    assert source["records"] == 510
    if at == "where it was":
        assert (source["again"], source["left_out"], aggregate["records"]) == (0, 0, 510) and answer["gaps"] == []
    elif at == "earlier":
        assert source["again"] > 0 and (source["left_out"], answer["gaps"]) == (0, [])
        assert aggregate["records"] == 510 + source["again"]
    else:
        assert aggregate["records"] == 504 and [gap["last"] for gap in answer["gaps"]] == [offset + 2 for offset in positions]
    # One more that is there twice isn't explained by it.
    for stage in pipeline.stages:
        stage.stop()
    pipeline.send(pipeline.target, pipeline.topic, [1])
    assert pipeline.audit()["parts_at"] == f"aggregate {pipeline.topic}"


def test_a_source_that_was_made_again_is_audited_once_an_operator_let_it_begin(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)
    pipeline.stages[0].stop()
    asyncio.run(pipeline.recreate(pipeline.source, pipeline.topic))
    pipeline.send(pipeline.source, pipeline.topic, list(range(3000, 3200)))
    pipeline.stages[0].start()
    pipeline.stages[0].wait_for("is STOPPED")
    until(lambda: len(pipeline.audit()["hops"][f"A {pipeline.topic}"]["standing"]) == 2, "both partitions say why")
    said = " ".join(pipeline.run().stdout.split())
    assert all(f"A {pipeline.topic}, partition {number}, is STOPPED: the source topic was " in said for number in (0, 1))
    pipeline.operate("begin", "A", pipeline.topic, "--at", "earliest")
    answer = pipeline.settle(deduped=300)
    source, aggregate = answer["hops"][f"A {pipeline.topic}"], answer["hops"][f"aggregate {pipeline.topic}"]
    assert answer["parts_at"] is None and answer["untold"] == [f"A {pipeline.topic}"]
    assert (source["records"], source["again"], aggregate["records"]) == (200, 110, 310)


def test_a_source_that_was_cut_back_is_audited_once_an_operator_let_it_begin(pipeline: Pipeline) -> None:
    """What it has lost is on the aggregate alone; what it got instead is copied, too."""
    pipeline.settle(deduped=100)
    kept = asyncio.run(pipeline.at(0)), asyncio.run(pipeline.at(1))
    assert pipeline.source.stop() == 0
    shutil.copytree(pipeline.source.data, pipeline.folder / "older")
    pipeline.source.start()
    pipeline.send(pipeline.source, pipeline.topic, list(range(1000, 1200)))
    pipeline.settle(deduped=300)
    pipeline.source.kill()
    shutil.rmtree(pipeline.source.data)
    shutil.copytree(pipeline.folder / "older", pipeline.source.data)
    pipeline.source.start()
    pipeline.send(pipeline.source, pipeline.topic, list(range(2000, 2050)))
    for partition, offset in enumerate(kept):
        pipeline.stages[0].wait_for(f"{pipeline.topic}-{partition} is STOPPED")
        pipeline.operate("begin", "A", f"{pipeline.topic}:{partition}", "--at", str(offset - 1))
    answer = pipeline.settle(deduped=350)
    source, aggregate = answer["hops"][f"A {pipeline.topic}"], answer["hops"][f"aggregate {pipeline.topic}"]
    assert answer["parts_at"] is None and answer["untold"] == [f"A {pipeline.topic}"]
    # 200 that are gone at the source, and what lay at the last offset: a record, or the marker of the aborted ten.
    assert source["records"] == 160 and 200 <= source["again"] <= 202
    assert aggregate["records"] == source["records"] + source["again"]


def test_records_that_went_with_a_log_before_they_were_copied_are_not_complete(pipeline: Pipeline) -> None:
    """Nobody can count them; a person may accept that, for the logs that were left until then."""
    pipeline.settle(deduped=100)
    for number, count in enumerate((1, 2)):
        pipeline.stages[0].stop()
        pipeline.send(pipeline.source, pipeline.topic, list(range(1000, 1100)))
        asyncio.run(pipeline.recreate(pipeline.source, pipeline.topic))
        pipeline.send(pipeline.source, pipeline.topic, list(range(3000 + number * 100, 3100 + number * 100)))
        pipeline.stages[0].start()
        for partition in range(2):
            pipeline.stages[0].wait_for(f"{pipeline.topic}-{partition} is STOPPED")
        pipeline.operate("begin", "A", pipeline.topic, "--at", "earliest")
        answer = pipeline.settle(deduped=100 + 100 * count)
        written = answer["hops"][f"aggregate {pipeline.topic}.deduped"]["partitions"]
        shutil.rmtree(pipeline.table, ignore_errors=True)
        rows = {int(partition): number for partition, number in written.items()}
        pipeline.load(rows, rows)
        answer = pipeline.audit()
        assert not answer["complete"] and answer["untold"] == [f"A {pipeline.topic}"]
        said = " ".join(pipeline.run().stdout.split())
        assert "another log of partition 0, 1, and nobody can tell whether all that the log before it had was copied" in said
        assert "hint: where nobody can mend a difference, `penstock audit accept " in said
        assert f"A {pipeline.topic}, logs left in partition 0: +{count} logs" in pipeline.accept()
        assert pipeline.audit()["complete"]
        said = " ".join(pipeline.run().stdout.split())
        assert f"Accepted at A {pipeline.topic}: logs left in partition 1, +{count} logs, on " in said


def test_copies_that_the_aggregate_lost_are_not_complete(pipeline: Pipeline) -> None:
    """Though an operator let the mirror go on without them, and the counts agree; a person may accept that."""
    hops = pipeline.settle(deduped=100)["hops"]
    right = {int(p): count for p, count in hops[f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    assert pipeline.audit()["complete"]
    pipeline.stages[0].stop()
    name, tp = f"penstock-mirror.{pipeline.topic}.A", (pipeline.topic, 1)

    async def lose(ranges: str) -> None:
        async with Admin(pipeline.target.bootstrap) as admin:
            found = (await admin.committed(name, [tp]))[tp]
            assert found is not None
            await admin.commit(name, {tp: (found[0], json.dumps(json.loads(found[1]) | {"lost_ranges": ranges}))})

    asyncio.run(lose("3..4,7..9"))
    answer = pipeline.audit()
    assert answer["parts_at"] == f"A {pipeline.topic}" and not answer["complete"]
    words = "partition 1: the aggregate lost the copies of offsets 3 to 4, 7 to 9"
    assert answer["hops"][answer["parts_at"]]["trouble"] == words
    assert f"A {pipeline.topic}, offsets of lost copies in partition 1: +5 offsets" in pipeline.accept()
    assert pipeline.audit()["complete"]
    asyncio.run(lose(""))
    assert pipeline.audit()["parts_at"] == f"A {pipeline.topic}", "what was accepted isn't so any more"


def test_a_log_that_was_put_back_from_a_copy_is_not_complete(pipeline: Pipeline) -> None:
    """It has outgrown the positions: counts alone say that all of it was copied, and read."""
    pipeline.settle(deduped=100)
    for stage in pipeline.stages:
        stage.stop()
    for group, hop in (("penstock-dedupe", "read by"), ("penstock-mirror", "A")):
        suffix = ".A" if group == "penstock-mirror" else ""
        name, tp = f"{group}.{pipeline.topic}{suffix}", (pipeline.topic, 1)

        async def change(name: str = name, tp: tuple[str, int] = tp) -> None:
            async with Admin(pipeline.target.bootstrap) as admin:
                found = (await admin.committed(name, [tp]))[tp]
                assert found is not None
                noted = json.loads(found[1])
                noted["last_batch"][1] ^= 1
                await admin.commit(name, {tp: (found[0], json.dumps(noted))})

        asyncio.run(change())
        answer = pipeline.audit()
        assert answer["parts_at"] == f"{hop} {pipeline.topic}" and not answer["complete"]
        assert "partition 1 is not the log that was read" in answer["hops"][answer["parts_at"]]["trouble"]


def test_a_batch_that_was_set_aside_is_no_finding(pipeline: Pipeline) -> None:
    pipeline.settle(deduped=100)
    mirror, _ = pipeline.stages
    mirror.stop()
    before = asyncio.run(pipeline.at(1))
    pipeline.send(pipeline.source, pipeline.topic, list(range(2000, 2100)))
    log = max(log for log in pipeline.folder.glob(f"a/**/{pipeline.topic}-1/*.log") if int(log.stem) <= before)
    flip(log, batch_at(log, before) + 80)
    mirror.start()
    mirror.wait_for(f"{pipeline.topic}-1 is STOPPED")
    answer = pipeline.audit()
    assert answer["parts_at"] == f"A {pipeline.topic}" and len(answer["findings"]) == 1
    end = asyncio.run(pipeline.end(pipeline.source, pipeline.topic, 1))
    pipeline.operate("skip", "A", f"{pipeline.topic}:1", "--to", str(end))
    until(lambda: pipeline.audit()["parts_at"] is None, "the audit to take what is set aside as explained")
    answer = pipeline.audit()
    assert answer["findings"] == [] and answer["gaps"][0]["partition"] == 1


def test_topics_under_other_names_are_audited(
    make_broker: Callable[..., BrokerProcess], new_topic: Callable[[str], str], tmp_path: Path
) -> None:
    topic = new_topic("flights")
    source, target = make_broker("a"), make_broker("aggregate")
    names = {"penstock.mirror.rename": "from.${source}.${topic}", "penstock.dedupe.input.topic": f"from.A.{topic}"}
    made = Pipeline(tmp_path, source, target, topic, f"from.A.{topic}", **names, **{"topics.include": f"{topic}-.*"})
    asyncio.run(made.create(source.bootstrap, [f"{topic}-more"]))  # mirrored, since an expression finds it
    try:
        made.send(source, topic, list(range(100)))
        for stage in made.stages:
            stage.start()
        made.send(source, topic, list(range(10)), **{"transactional.id": "audit"})
        answer = made.settle(deduped=100)
        assert answer["hops"][f"aggregate from.A.{topic}"]["records"] == answer["hops"][f"A {topic}"]["records"] == 110
        assert made.lacks() == []
        assert made.stages[0].running and answer["not_audited"] in ([], [f"from.A.{topic}-more"])
        deadline = time.monotonic() + LIMIT_S
        while made.audit()["not_audited"] != [f"from.A.{topic}-more"]:
            assert time.monotonic() < deadline, made.stages[0].text()
        for stage in made.stages:
            stage.stop()
        made.send(target, f"from.A.{topic}", [1000])
        assert made.audit()["parts_at"] == f"aggregate from.A.{topic}"
    finally:
        for stage in made.stages:
            stage.kill()


def test_a_pipeline_that_never_rests_is_audited(
    make_broker: Callable[..., BrokerProcess], new_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """Two sources write into each partition, turn after turn, and dedupe after them, while the audit looks."""
    topic = new_topic("flights")
    sources = [make_broker("a"), make_broker("b")]
    made = Pipeline(tmp_path, sources[0], make_broker("aggregate"), topic, **{
        "source.B.bootstrap.servers": sources[1].bootstrap, "penstock.mirror.linger.ms": "0"})  # fmt: skip
    asyncio.run(made.create(sources[1].bootstrap, [topic]))
    over = threading.Event()
    sent = [0, 0]

    def write(number: int) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": sources[number].bootstrap, "partitioner": "murmur2_random", "linger.ms": 1}
        )
        while not over.is_set():
            producer.produce(topic, key=f"{number}/{sent[number]}", value=b"{}")
            sent[number] += 1
            producer.poll(0.002)
        producer.flush()

    writers = [threading.Thread(target=write, args=(number,)) for number in (0, 1)]
    try:
        for stage in made.stages:
            stage.start()
        for writer in writers:
            writer.start()
        for _ in range(4):
            answer = made.audit()
            assert answer["parts_at"] is None and answer["untold"] == [], answer
        over.set()
        for writer in writers:
            writer.join()
        assert made.settle(deduped=sum(sent))["hops"][f"aggregate {topic}"]["records"] == sum(sent)
    finally:
        over.set()
        for stage in made.stages:
            stage.kill()


def flip(log: Path, at: int) -> None:
    """Damage a byte of a log."""
    with log.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x5A]))


def batch_at(log: Path, offset: int) -> int:
    """Where in a log the first batch at or behind an offset is."""
    data, at = log.read_bytes(), 0
    while int.from_bytes(data[at : at + 8], "big") < offset:
        assert at < len(data), f"{log} has no batch at {offset}"
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return at


def test_a_batch_that_can_not_be_read_is_a_finding_with_its_place(pipeline: Pipeline) -> None:
    """One whose payload is corrupt in partition 0; one in partition 1 whose header is no header any more."""
    before = pipeline.settle(deduped=100)["hops"]
    for stage in pipeline.stages:
        stage.stop()
    topic = f"{pipeline.topic}.deduped"
    for partition, at in ((0, 80), (1, 16)):
        (log,) = pipeline.folder.glob(f"aggregate/**/{topic}-{partition}/{0:020}.log")
        flip(log, at)
    answer = pipeline.audit()
    found = {one["partition"]: one for one in answer["findings"]}
    assert {(one["hop"], one["offset"]) for one in answer["findings"]} == {(f"aggregate {topic}", 0)}
    assert answer["parts_at"] == f"aggregate {topic}"
    assert "checksum" in found[0]["reason"] and "is not counted" in found[1]["reason"]
    trouble = answer["hops"][f"aggregate {topic}"]["trouble"]
    assert "partition 0: the batch at offset 0 can't be read" in trouble
    # What follows the batch is counted all the same, and the batch by what its header claims.
    assert answer["hops"][f"aggregate {topic}"]["partitions"]["0"] == before[f"aggregate {topic}"]["partitions"]["0"]


def test_each_table_is_audited_those_after_the_mirror_too(pipeline: Pipeline) -> None:
    raw = pipeline.folder / "raw"
    with pipeline.config.open("a") as file:
        file.write(f"etl.raw.topic={pipeline.topic}\netl.raw.table={raw}\netl.raw.after=mirror\n")
    deadline = time.monotonic() + LIMIT_S
    while True:
        done = pipeline.run("--json")
        answers = {answer["table"]: answer for answer in map(json.loads, done.stdout.splitlines())}
        assert answers.keys() == {"", "raw"} and done.returncode == 4, done.stderr
        hops = {name: {hop["name"]: hop for hop in answer["hops"]} for name, answer in answers.items()}
        if hops[""][f"aggregate {pipeline.topic}.deduped"]["records"] == 100:
            break
        assert time.monotonic() < deadline, answers
    assert list(hops["raw"]) == [f"A {pipeline.topic}", f"aggregate {pipeline.topic}", "table raw"]
    assert hops["raw"]["table raw"]["waiting"] == 110
    assert pipeline.unread("--json") == pipeline.unread() == 4  # as for somebody who reads all of it
    right = {
        name: {int(partition): count for partition, count in hops[name][f"aggregate {topic}"]["partitions"].items()}
        for name, topic in (("", f"{pipeline.topic}.deduped"), ("raw", pipeline.topic))
    }
    pipeline.load(right[""], right[""])
    pipeline.load(right["raw"], right["raw"], raw, pipeline.topic)
    done = pipeline.run()
    assert done.returncode == 0 and done.stdout.count("Complete: every record") == 2, done.stdout
    assert "the table `raw`" in " ".join(done.stdout.split())
    # One row fewer of the table after the mirror: the whole of the file's audit says so, and one table's alone doesn't.
    pipeline.load({**right["raw"], 1: right["raw"][1] - 1}, right["raw"], raw, pipeline.topic)
    assert pipeline.run().returncode == 1
    one = pipeline.run("--table", "", "--json")
    assert one.returncode == 0 and json.loads(one.stdout)["not_audited"] == ["the table `raw`"]
    # Of one whose log is damaged nothing can be said; the other one is audited all the same.
    (raw / "_delta_log" / f"{0:020}.json").write_text('{"txn":')
    both = pipeline.run("--json")
    assert (both.returncode, json.loads(both.stdout)["complete"]) == (1, True)
    assert "1 of 2 tables were not audited: the table `raw`" in both.stderr and "Traceback" not in both.stderr


def test_trouble_is_one_sentence(pipeline: Pipeline) -> None:
    pipeline.target.kill()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "audit", "--config", str(pipeline.config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_what_dedupe_reads_again_or_passes_over_is_named(pipeline: Pipeline) -> None:
    """`penstock dedupe position` on a stage that runs, one partition of which is idle and has moved records; then forward."""
    pipeline.settle(deduped=100)
    # By another partitioner: some of these ids move.
    pipeline.send(pipeline.source, pipeline.topic, list(range(200, 260)), partitioner="consistent", **{"transactional.id": "m"})
    pipeline.settle(deduped=160)
    for partition in range(2):
        pipeline.operate_dedupe("position", f"{pipeline.topic}:{partition}", "--at", "10")

    def is_read() -> bool:
        return bool(pipeline.audit()["hops"][f"read by {pipeline.topic}"]["waiting"] == 0)

    until(lambda: pipeline.audit()["hops"][f"aggregate {pipeline.topic}.deduped"]["again"] > 0 and is_read(), "the position")
    answer = pipeline.settle(deduped=160)
    assert answer["hops"][f"aggregate {pipeline.topic}.deduped"]["trouble"] == ""
    assert "copied or read again" in " ".join(pipeline.run().stdout.split())
    pipeline.stages[1].stop()
    before = answer["hops"][f"aggregate {pipeline.topic}.deduped"]["again"]
    pipeline.send(pipeline.source, pipeline.topic, list(range(300, 340)))
    until(lambda: pipeline.audit()["hops"][f"read by {pipeline.topic}"]["waiting"] == 40, "the mirror")
    end = asyncio.run(pipeline.end(pipeline.target, pipeline.topic, 0))
    passed = pipeline.audit()
    pipeline.operate_dedupe("position", f"{pipeline.topic}:0", "--at", str(end))
    pipeline.stages[1].start()
    until(is_read, "dedupe")
    after = pipeline.audit()
    reading, hop = after["hops"][f"read by {pipeline.topic}"], after["hops"][f"aggregate {pipeline.topic}.deduped"]
    lost = 160 + 40 - hop["records"]
    assert 0 < lost < 40 and hop["trouble"] == "" and hop["again"] == before, (before, hop, passed)
    assert (
        after["parts_at"] == f"read by {pipeline.topic}"
        and f"{lost} records were passed over and never read" in reading["trouble"]
    )
    assert list(reading["never_read"]) == ["0"]


def test_a_loss_is_not_hidden_by_records_that_were_read_again(pipeline: Pipeline) -> None:
    """Back, and later forward past as many records that were never read; then back to them, and nothing is missing."""
    pipeline.settle(deduped=100)
    dedupe, reading = pipeline.stages[1], f"read by {pipeline.topic}"
    ends = [asyncio.run(pipeline.end(pipeline.target, pipeline.topic, partition)) for partition in range(2)]
    dedupe.stop()
    pipeline.operate_dedupe("position", f"{pipeline.topic}:0", "--at", "0")
    dedupe.start()
    until(lambda: pipeline.audit()["hops"][f"aggregate {pipeline.topic}.deduped"]["again"] > 0, "the position")
    pipeline.settle(deduped=100)
    dedupe.stop()
    pipeline.send(pipeline.source, pipeline.topic, list(range(500, 700)))
    until(lambda: pipeline.audit()["hops"][reading]["waiting"] == 200, "the mirror")
    pipeline.operate_dedupe("position", f"{pipeline.topic}:0", "--at", str(2 * ends[0]))
    dedupe.start()

    def is_read() -> bool:
        return bool(pipeline.audit()["hops"][reading]["waiting"] == 0)

    until(is_read, "dedupe")
    answer = pipeline.audit()
    assert answer["parts_at"] == reading and "were passed over and never read" in answer["hops"][reading]["trouble"]
    assert answer["hops"][reading]["never_read"] == {"0": [[ends[0], 2 * ends[0] - 1]]}
    assert "Complete" not in pipeline.run().stdout
    pipeline.operate_dedupe("position", f"{pipeline.topic}:0", "--at", str(ends[0]))
    until(lambda: pipeline.audit()["parts_at"] is None and is_read(), "dedupe")
    pipeline.settle(deduped=300)


def test_a_source_that_can_not_be_asked_is_no_loss(pipeline: Pipeline) -> None:
    """A wrong port, a topic that was deleted, a broker that is gone: the rest is counted, and nobody can tell."""
    hops = pipeline.settle(deduped=100)["hops"]
    right = {int(p): count for p, count in hops[f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    for stage in pipeline.stages:
        stage.stop()
    source, aggregate = f"A {pipeline.topic}", f"aggregate {pipeline.topic}"

    async def delete() -> None:
        async with Admin(pipeline.source.bootstrap) as admin:
            await admin.delete_topics([pipeline.topic])

    def check(words: str, *arguments: str) -> None:
        with ThreadPoolExecutor() as beside:  # each waits for the source's first contact
            plain = beside.submit(pipeline.run, *arguments)
            done = pipeline.run("--json", *arguments)
        assert done.returncode == 3, done.stderr
        answer = json.loads(done.stdout)
        found = {hop["name"]: hop for hop in answer["hops"]}
        assert answer["parts_at"] is None and answer["untold"] == [source, aggregate]
        assert (found[source]["records"], found[source]["waiting"]) == (None, None) and words in found[source]["note"]
        assert found[aggregate]["records"] == 110 and found["table table"]["records"] == found["table table"]["expected"] == 100
        said = " ".join(plain.result().stdout.split())
        assert "?" in said and "Cannot tell whether" in said and "Complete" not in said

    check("Connection refused", "--set", "source.A.bootstrap.servers=127.0.0.1:1")
    asyncio.run(delete())
    check(f"`{pipeline.topic}`")
    pipeline.source.kill()
    check("cannot connect")


def test_an_audit_waits_for_longer_than_a_transaction_of_the_stages_may_last() -> None:
    """Unless `--wait` says otherwise."""
    timeout_ms = inspect.signature(TransactionalSender).parameters["timeout_ms"].default
    for command in (audit_command, audit_command.commands["accept"]):
        (wait,) = [option for option in command.params if option.name == "wait_s"]
        assert isinstance(wait.default, float) and wait.default * 1000 > timeout_ms


@pytest.mark.parametrize("place", ["source", "aggregate", "behind"])
def test_an_open_transaction_that_holds_records_back_is_named(pipeline: Pipeline, place: str) -> None:
    """Of a producer that died, at a source; in the aggregate, with records of the mirror in front of which it stands, and
    with none."""
    hops = pipeline.settle(deduped=100)["hops"]
    right = {int(p): count for p, count in hops[f"aggregate {pipeline.topic}.deduped"]["partitions"].items()}
    pipeline.load(right, right)
    assert pipeline.audit()["complete"]
    broker = pipeline.source if place == "source" else pipeline.target
    hop = f"A {pipeline.topic}" if place == "source" else f"aggregate {pipeline.topic}"
    builder = BatchBuilder(0)
    for number in range(50):
        builder.append(b"%d" % number, b"{}", DAY_MS)

    async def scene() -> None:
        async with Admin(broker.bootstrap) as admin:
            sender = TransactionalSender(admin, "one that died", 600_000)
            await sender.init()
            await sender.begin()
            at = await admin.end_offset((pipeline.topic, 1))
            await send(sender, (pipeline.topic, 1), [RawBatch(builder.build())])
            if place == "aggregate":
                before = await pipeline.at(1)
                pipeline.send(pipeline.source, pipeline.topic, list(range(500, 540)))
                await asyncio.to_thread(until, lambda: asyncio.run(pipeline.at(1)) > before, "the mirror to copy them")
            answer, done = await asyncio.gather(
                asyncio.to_thread(pipeline.audit, "--wait", "2"), asyncio.to_thread(pipeline.run, "--wait", "2")
            )
            whose = f"producer id {sender.producer_id} in `{pipeline.topic}` partition 1 at offset {at}"
            words = f"waits for an open transaction of {whose}"
            assert answer["parts_at"] is None and answer["untold"][0] == hop, answer
            assert words in answer["hops"][hop]["open"][0]
            assert (words in answer["hops"][hop]["note"]) == (place == "aggregate")
            said = " ".join(done.stdout.split())
            assert done.returncode == 3 and "Complete" not in said and f"producer id {sender.producer_id}" in said
            await sender.abort()

    asyncio.run(scene())
    assert pipeline.settle(deduped=140 if place == "aggregate" else 100)["untold"] == []
