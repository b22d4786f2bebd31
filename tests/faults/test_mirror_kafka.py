"""The same promises with Apache Kafka as the source, as the target and as both."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.admin import Admin
from penstock.pipeline.identity import take_identity
from penstock.pipeline.transaction import Fenced, TransactionalSender
from support.harness import BrokerProcess, topic_name
from support.kafka_jars import ApacheKafka
from support.mirror_world import CODECS, World, run

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A node that looks often for transactions that took too long."""
    quick = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    kafka = ApacheKafka(tmp_path_factory.mktemp("second"), **quick)
    yield kafka
    kafka.stop()


@pytest.mark.parametrize("roles", ["source", "target", "both"])
def test_killed_twice_against_apache_kafka(
    tmp_path: Path, apache_kafka: ApacheKafka, request: pytest.FixtureRequest, roles: str
) -> None:
    if roles == "both":  # one node can't have the topic twice
        _copy_with_kills(tmp_path, apache_kafka, request.getfixturevalue("second_kafka"))
        return
    ours = request.getfixturevalue("broker")
    _copy_with_kills(tmp_path, *((apache_kafka, ours) if roles == "source" else (ours, apache_kafka)))


def _copy_with_kills(folder: Path, source: BrokerProcess | ApacheKafka, target: BrokerProcess | ApacheKafka) -> None:
    with World(folder / "w", {"EWR": source}, target, penstock_mirror_batch_bytes=4000) as w:
        for codec in CODECS:
            w.fill(2, codec)
            w.fill_transactions("ac", codec)
        w.mirror.start("mirror.produced=kill@3")
        assert w.mirror.wait() == -signal.SIGKILL, w.mirror.text()
        w.fill_transactions("ca")
        w.mirror.start("mirror.committed=kill@2")
        assert w.mirror.wait() == -signal.SIGKILL, w.mirror.text()
        w.mirror.start()
        w.await_copied()
        w.fill_transactions("ca")
        w.await_copied()
        assert w.mirror.stop() == 0
        w.check()


def test_identities_on_apache_kafka(second_kafka: ApacheKafka) -> None:
    async def scene() -> None:
        name = topic_name("identity")
        async with Admin(second_kafka.bootstrap) as admin:
            await admin.create_topics({name: 1})
            slow = TransactionalSender(admin, name, timeout_ms=300)
            await slow.init()
            await slow.begin()
            await slow.send_offsets(name, {(name, 0): (1, "")})
            await asyncio.sleep(1.5)
            with pytest.raises(Fenced):
                await slow.commit()
            again = await take_identity(admin, name, slow)
            await take_identity(admin, name, None)
            with pytest.raises(Fenced):
                await take_identity(admin, name, again)

    run(scene())
