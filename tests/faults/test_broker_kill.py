"""kill -9 of the broker under load: what was acknowledged is there, once and in order; the rest is whole or absent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.harness import BrokerProcess
from support.history import History, Outcome, check, kinds
from support.load import Load

KILLS = 3
PARTITIONS = 3
SEED = 20130101


def run(broker: BrokerProcess, topic: str, bodies: list[Callable[[Load, str], None]]) -> History:
    """Load the broker, kill it a few times while it works, and hand out what was seen."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (created,) = admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values()
    created.result()
    load = Load(broker.bootstrap, topic, PARTITIONS, SEED)
    load.start(*bodies)
    try:
        for _ in range(KILLS):
            load.wait_for(acknowledged=200)
            broker.kill()
            time.sleep(0.2)
            broker.start()
        load.wait_for(acknowledged=200, commits=1, ends=1)
    finally:
        history = load.finish()
    return history


# What a mode does not promise; everything else is forbidden in it.
ALLOWED: dict[str, set[str]] = {
    "idempotent": set(),
    "transactional": set(),
    "plain": {"duplicate"},
    "acks_one": {"duplicate"},
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_nothing_acknowledged_is_lost(broker: BrokerProcess, new_topic: Callable[[str], str], kind: str) -> None:
    body = getattr(Load, kind)
    history = run(broker, new_topic(kind), [body, body, Load.member, Load.watcher])
    assert [anomaly for anomaly in check(history) if anomaly.kind not in ALLOWED[kind]] == []
    assert history.ends, "no end offset was seen"
    if kind == "transactional":
        assert any(send.outcome is Outcome.FAIL for send in history.sends), "nothing was aborted"


def test_a_clean_stop_under_load_loses_nothing(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("stop")
    load = Load(broker.bootstrap, topic, 1, SEED)
    load.start(Load.idempotent)
    load.wait_for(acknowledged=200)
    assert broker.stop() == 0
    broker.start()
    load.wait_for(acknowledged=200)
    assert check(load.finish()) == []


def test_the_judge_finds_what_a_cut_log_lost(broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    """A broker that loses data is told from one that does not: the end of a log is cut off while it is down."""
    topic = new_topic("cut")
    load = Load(broker.bootstrap, topic, 1, SEED)
    load.start(Load.idempotent)
    load.wait_for(acknowledged=500)
    load.stop()
    broker.kill()
    (broker.data / "penstock-log-ends").unlink()  # With it the broker itself misses what is lost.
    segment = max((broker.data / f"{topic}-0").glob("*.log"))
    os.truncate(segment, segment.stat().st_size - 100)
    broker.start()
    assert ".log.cut-" in broker.log_text() and "topic=" + topic in broker.log_text()
    assert kinds(check(load.finish())) == {"unseen"}
