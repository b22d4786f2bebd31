"""Of two mirrors with one name the newer one goes on; the older one, however late it wakes up, takes its lanes back once
and then leaves them. Nothing is copied twice meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock.mirror.worker  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.transaction import Fenced, TransactionalSender
from penstock.pipeline.stages.identity import take_identity
from penstock.pyx.wire.messages import DescribeTransactionsRequest
from support.failpoint_cells import cells
from support.harness import BrokerProcess, WireConnection, topic_name
from support.kafka_jars import ApacheKafka
from support.mirror_world import Cluster, World, run
from support.patience import until
from support.stages import StageProcess

DECLARED = list(failpoints.declared("mirror."))
IN_EACH_RUN = {("mirror.begun", "ours"), ("mirror.committed", "ours"), ("mirror.produced", "target")}


def test_an_older_twin_has_no_effect(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    quick: dict[str, Any] = {"penstock_mirror_batch_bytes": 3000, "session_timeout_ms": 300}
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], **quick) as w:
        w.fill(10)
        older = StageProcess("mirror", w.config, "older")
        try:
            older.start()
            older.wait_for("copies from")
            older.signal(signal.SIGSTOP)
            w.replace(older)
            assert w.mirror.stop() == 0
            w.check()
        finally:
            older.kill()


@pytest.mark.parametrize(("failpoint", "role"), cells(DECLARED, IN_EACH_RUN))
def test_paused_at_a_failpoint_a_twin_has_no_effect(
    tmp_path: Path,
    clusters: dict[str, BrokerProcess],
    kafka_as: Callable[[str], dict[str, ApacheKafka]],
    failpoint: str,
    role: str,
) -> None:
    """At its first start, and in a copy that is well on its way.

    A partition that it has not taken yet it takes later than the twin, and is the newer one there: hence one alone.
    """
    is_taking = failpoint == "mirror.fenced"
    nodes: dict[str, Any] = {"source": clusters["EWR"], "target": clusters["target"], **kafka_as(role)}
    quick: dict[str, Any] = {
        "penstock_mirror_batch_bytes": 3000,
        "penstock_mirror_position_refresh_ms": 1000,
        "session_timeout_ms": 300,
    }
    with World(tmp_path, {"EWR": nodes["source"]}, nodes["target"], partitions=1 if is_taking else 2, **quick) as w:
        older = StageProcess("mirror", w.config, "older")
        try:
            for passage in (1, 1) if is_taking else (1, 2):
                w.fill(5)
                w.fill_transactions("ac")
                older.pause_at(f"{failpoint}@{passage}")
                w.replace(older)
                assert w.mirror.stop() == 0
                w.check()
        finally:
            older.kill()


def test_an_identity_is_taken_again_only_from_nobody(clusters: dict[str, BrokerProcess]) -> None:
    async def scene() -> None:
        name = topic_name("identity")
        async with Admin(clusters["target"].bootstrap) as ours, Admin(clusters["target"].bootstrap) as theirs:
            await theirs.create_topics({name: 1})
            first = await take_identity(ours, name, None)
            again = await take_identity(ours, name, first)
            assert again.producer_epoch > first.producer_epoch
            twin = await take_identity(theirs, name, None)
            with pytest.raises(Fenced):
                await take_identity(ours, name, again)
            await twin.begin()
            await twin.send_offsets(name, {(name, 0): (1, "")})
            await twin.commit()
            with pytest.raises(Fenced):
                await take_identity(ours, name, again)
            assert (await take_identity(theirs, name, twin)).producer_epoch > twin.producer_epoch

    run(scene())


def has_ended(cluster: Cluster, name: str) -> bool:
    """Whether a coordinator has ended the transaction of a name."""
    with WireConnection(cluster.bootstrap) as wire:
        (state,) = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
    return str(state.transaction_state) == "CompleteAbort"


@pytest.mark.parametrize("whose", ["ours", pytest.param("Apache Kafka", marks=pytest.mark.kafka)])
def test_a_transaction_that_took_too_long_is_not_a_twin(request: pytest.FixtureRequest, whose: str) -> None:
    cluster: Cluster = (
        request.getfixturevalue("clusters")["target"] if whose == "ours" else request.getfixturevalue("apache_kafka")
    )

    async def scene() -> None:
        name, topic = topic_name("slow"), topic_name("slow")
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics({topic: 1})
            slow = TransactionalSender(admin, name, timeout_ms=3000)
            await slow.init()
            await slow.begin()
            await slow.send_offsets(name, {(topic, 0): (1, "")})
            await asyncio.to_thread(until, lambda: has_ended(cluster, name), "its coordinator to give it up")
            with pytest.raises(Fenced):
                await slow.commit()
            again = await take_identity(admin, name, slow)
            await again.begin()
            await again.send_offsets(name, {(topic, 0): (2, "")})
            await again.commit()
            assert (await admin.committed(name, [(topic, 0)]))[topic, 0] == (2, "")
            await take_identity(admin, name, None)
            with pytest.raises(Fenced):
                await take_identity(admin, name, again)

    run(scene())


def test_an_idle_fence_ends_no_lane(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    """Somebody takes one identity and goes away: that lane is taken back, the others and the process don't notice."""
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"], session_timeout_ms=300) as w:
        w.fill(1)
        w.mirror.start()
        w.await_copied()

        async def take(admin: Admin) -> None:
            sender = TransactionalSender(admin, f"penstock-mirror.{w.topic}.EWR.{w.topic}-0")
            await sender.init()
            await sender.close()

        w.admin(clusters["target"], take)
        w.fill(2)
        w.await_copied()
        w.mirror.wait_for(f"{w.topic}-0: another process took over")
        assert f"{w.topic}-1: another" not in w.mirror.text()
        assert w.mirror.stop() == 0
        w.check()


def test_the_epoch_behind_the_last_one_is_nobody_else(clusters: dict[str, BrokerProcess]) -> None:
    """With transactions v2 an end whose answer got lost at the last epoch leaves another producer id with epoch 0."""

    async def scene() -> None:
        name = topic_name("epochs")
        async with Admin(clusters["target"].bootstrap) as admin:
            await admin.create_topics({name: 1})
            assert admin.feature("transaction.version") >= 2
            first = TransactionalSender(admin, name)
            await first.init()
            for _ in range(40_000):
                await first.init(first.producer_id, first.producer_epoch)
                if first.producer_epoch == 32_766:
                    break
            assert first.producer_epoch == 32_766
            lost = first.producer_id, first.producer_epoch
            await first.begin()
            await first.send_offsets(name, {(name, 0): (1, "")})
            await first.commit()
            assert (first.producer_id != lost[0], first.producer_epoch) == (True, 0)
            first.producer_id, first.producer_epoch = lost  # as if the answer had got lost
            again = await take_identity(admin, name, first)
            assert again.producer_id != lost[0]

    run(scene())
