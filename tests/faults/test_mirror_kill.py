"""Killed at every failpoint, or its target or a source killed or down, the mirror loses nothing and copies nothing twice.

Not only with our brokers, but with Apache Kafka as a source, as the target and as both (`failpoint_cells`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock.mirror.worker  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from support.failpoint_cells import cells
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.mirror_world import World, alone

# Operators' commands are killed in test_mirror_decisions.py and test_dedupe_decisions.py.
DECLARED = list(failpoints.declared("mirror."))
IN_EACH_RUN = {*((name, "ours") for name in DECLARED), ("mirror.produced", "source"), ("mirror.offsets_sent", "target")}
SOURCES = ("EWR", "JFK")


def test_there_are_failpoints() -> None:
    assert len(DECLARED) >= 6


@pytest.mark.parametrize(("failpoint", "role"), cells(DECLARED, IN_EACH_RUN))
def test_killed_at_a_failpoint(
    tmp_path: Path,
    clusters: dict[str, BrokerProcess],
    kafka_as: Callable[[str], dict[str, ApacheKafka]],
    failpoint: str,
    role: str,
) -> None:
    nodes: dict[str, Any] = {"source": clusters["EWR"], "target": clusters["target"], **kafka_as(role)}
    quick: dict[str, Any] = {"penstock_mirror_batch_bytes": 3000, "penstock_mirror_position_refresh_ms": 1000}
    with World(tmp_path, {"EWR": nodes["source"], "JFK": clusters["JFK"]}, nodes["target"], **quick) as w:
        for passage in (1, 2, 0, 1, 0):  # 0: to the end, so that the next kill is one of a copy that is well on its way
            w.fill(4)
            w.fill_transactions("ac")
            if passage:
                w.mirror.start(f"{failpoint}=kill@{passage}")
                assert w.mirror.wait() == -signal.SIGKILL, w.mirror.text()
            else:
                w.mirror.start()
                w.finish()


def test_target_killed_in_the_middle(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR", penstock_mirror_batch_bytes=3000) as (w, clusters):
        w.fill(30)
        w.mirror.start()
        for _ in range(3):
            w.fill(30)
            clusters["target"].kill()
            w.fill(3)
            clusters["target"].start()
        w.finish()


def test_source_killed_in_the_middle(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR", penstock_mirror_batch_bytes=3000) as (w, clusters):
        w.fill(30)
        w.mirror.start()
        for _ in range(2):
            w.fill_transactions("cac")
            clusters["EWR"].kill()
            clusters["EWR"].start()
        w.finish()


def test_a_source_that_is_down_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR", "JFK") as (w, clusters):
        w.fill()
        clusters["JFK"].stop()
        w.mirror.start()
        w.await_copied(["EWR"])
        clusters["JFK"].start()
        w.await_copied()
        clusters["EWR"].kill()
        w.fill(sources=["JFK"])
        w.await_copied(["JFK"])
        clusters["EWR"].start()
        w.fill(sources=["EWR"])
        w.finish()


def test_a_topic_that_nobody_has_keeps_no_other_waiting(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> None:
    with World(tmp_path, {"EWR": clusters["EWR"]}, clusters["target"]) as w:
        w.configure(topics=f"{w.topic}-later,{w.topic}")
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        w.mirror.wait_for(f"waits to find topic {w.topic}-later")
        later = {f"{w.topic}-later": 1}
        w.admin(clusters["EWR"], lambda admin: admin.create_topics(later))
        w.mirror.wait_for(f"created topic {w.topic}-later with 1 partitions")
        w.fill(1)
        w.finish()
