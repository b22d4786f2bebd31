"""`penstock mirror status` and `dedupe status`: what the logs have become since the positions were committed."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.transaction import TransactionalSender
from support.clock import Clock
from support.dedupe_world import World as DedupeWorld
from support.harness import BrokerProcess
from support.logs import put_back
from support.mirror_world import World, brokers


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    """Two partitions, copied, and a mirror that has ended."""
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"]) as made:
        made.fill(2)
        made.run_once()
        yield made


def rows(w: DedupeWorld, code: int) -> list[dict[str, Any]]:
    """The rows of `dedupe status` with this exit code."""
    done = w.ask("status", "--json")
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_retention_overtook_a_mirror_and_left_nothing(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.fill(3)
    w.admin(clusters["EWR"], lambda admin: admin.delete_records({(w.topic, 0): -1}))
    found = w.status(code=1)
    assert (found["EWR", 0]["state"], found["EWR", 1]["state"]) == ("lost", "copying")
    assert "the offsets from 20 to 50 are gone before they were read" in found["EWR", 0]["why"]
    # An operator says so for the topic: the partition that goes on by itself is left as it is, the other one isn't.
    said = w.begin("EWR")
    assert "EWR " + w.topic + ":0 was at 20 and goes on at 50" in said and "goes on by itself from offset 20" in said


def test_retention_overtook_a_dedupe_stage_and_left_nothing(tmp_path: Path, shared_broker: BrokerProcess) -> None:
    with DedupeWorld(tmp_path, shared_broker) as w:
        w.send(0, [w.batch(0, ["a"], 0)])
        w.run_once()
        w.send(0, [w.batch(0, ["b", "c"], 0)])
        w.admin(lambda admin: admin.delete_records({(w.topic, 0): -1}))
        (row,) = rows(w, 1)
        assert row["state"] == "lost" and "the offsets from 1 to 3 are gone before they were read" in row["why"]


def test_a_source_that_does_not_answer(w: World) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        w.configure(source_EWR_bootstrap_servers=address)
        for row in w.status(code=1).values():
            assert row["state"] == "unreachable" and row["lag"] is None
            assert f"source EWR at `{address}` can't be asked: cannot connect" in row["why"]


def test_a_source_whose_topic_was_deleted(w: World, clusters: dict[str, BrokerProcess]) -> None:
    w.admin(clusters["EWR"], lambda admin: admin.delete_topics([w.topic]))
    for row in w.status(code=1).values():
        assert (row["state"], row["why"]) == ("no topic", f"source EWR has no topic `{w.topic}`")


@pytest.mark.parametrize("running", [True, False])
def test_an_open_transaction_holds_a_source_back(w: World, clusters: dict[str, BrokerProcess], running: bool) -> None:
    """A producer that died with its transaction open: the lag says so at once, state and log once it has lasted."""
    w.configure(penstock_stalled_after_ms=1)
    if running:
        w.mirror.start()

    async def leave_open(admin: Admin) -> int:
        sender = TransactionalSender(admin, f"{w.topic}-died")
        await sender.init()
        await sender.begin()
        for partition in range(w.partitions):
            builder, ids = w.batch("EWR", partition, "lz4")
            sequence = sender.next_sequence((w.topic, partition), len(ids))
            data = builder.build(sender.producer_id, sender.producer_epoch, sequence, transactional=True)
            await sender.send_raw((w.topic, partition), [data])
        return sender.producer_id

    producer_id = w.admin(clusters["EWR"], leave_open)
    w.fill(1)
    words = f"waits for an open transaction of producer id {producer_id} in `{w.topic}` partition 0 at offset 20"
    found = w.status()
    assert {(row["state"], row["lag"]) for row in found.values()} == {("copying", 20)}
    assert found["EWR", 0]["why"].startswith(words) and f"transactional id `{w.topic}-died`" in found["EWR", 0]["why"]
    if running:
        w.mirror.wait_for(words)
        assert w.mirror.text().count(words) == 1
    ended = confluent_kafka.Producer({"bootstrap.servers": clusters["EWR"].bootstrap, "transactional.id": f"{w.topic}-died"})
    ended.init_transactions()  # as its producer does when it comes back
    if running:
        w.finish()
        assert {(row["state"], row["lag"]) for row in w.status().values()} == {("copying", 0)}


def test_a_transaction_that_has_been_open_for_long(
    w: World, clusters: dict[str, BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its coordinator's clock: whoever looks needn't have watched."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": clusters["EWR"].bootstrap,
            "transactional.id": f"{w.topic}-slow",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(w.topic, b"x", partition=0)
    producer.flush()
    clock = Clock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    assert {row["state"] for row in w.status().values()} == {"copying"}
    clock.set_ahead(400)
    found = w.status(code=1)
    assert (found["EWR", 0]["state"], found["EWR", 1]["state"]) == ("waiting", "copying")
    told = re.search(rf"transactional id `{w.topic}-slow` has had it open for (\d+) s", found["EWR", 0]["why"])
    assert told is not None and int(told[1]) >= 400
    clock.set_ahead(0)
    producer.abort_transaction()
    assert {row["state"] for row in w.status().values()} == {"copying"}


def test_a_hanging_transaction_waits_at_once(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """A partition's log was put back from a copy in which a transaction is open that its coordinator has ended since; its
    producer goes on elsewhere, which is no transaction of this partition."""
    with brokers(tmp_path, "EWR") as made, World(tmp_path / "w", made, clusters["target"], partitions=1) as w:
        source = made["EWR"]
        w.fill(2)
        w.run_once()
        w.admin(source, lambda admin: admin.create_topics({"elsewhere": 1}))
        settings = {"transactional.id": "broken", "transaction.timeout.ms": 900_000}
        producer = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(w.topic, b"x", partition=0)
        producer.flush()
        assert source.stop() == 0
        shutil.copytree(source.data / f"{w.topic}-0", tmp_path / f"{w.topic}-0")
        source.start()
        producer = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap, **settings})
        producer.init_transactions()
        assert source.stop() == 0
        put_back(tmp_path / f"{w.topic}-0", source.data)
        source.start()
        w.configure(source_EWR_bootstrap_servers=source.bootstrap)
        producer = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("elsewhere", b"x", partition=0)
        producer.flush()
        (row,) = w.status(code=1).values()
        assert (row["state"], row["lag"]) == ("waiting", 1)
        assert "of which no coordinator tells us: if `kafka-transactions.sh find-hanging` names it" in row["why"]
        producer.abort_transaction()
