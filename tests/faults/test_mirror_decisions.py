"""What an operator decides is set aside and passed in one transaction, or not at all; also while the mirror runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock.pipeline.stages.decision  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from support.failpoint_cells import cells
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.mirror_world import LIMIT_S, World, alone
from support.stages import StageProcess

DECLARED = list(failpoints.declared("stage."))  # test_dedupe_decisions.py has the commands of dedupe


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], session_timeout_ms=300) as made:
        yield made


@pytest.mark.parametrize(("failpoint", "role"), cells(DECLARED, {(name, "ours") for name in DECLARED}))
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_command_that_did_not_commit_leaves_nothing(
    tmp_path: Path,
    clusters: dict[str, BrokerProcess],
    kafka_as: Callable[[str], dict[str, ApacheKafka]],
    failpoint: str,
    role: str,
    fault: str,
) -> None:
    """Killed between the bytes and the commit, or paused there until a mirror has taken the partition."""
    nodes: dict[str, Any] = {"source": clusters["EWR"], "target": clusters["target"], **kafka_as(role)}
    with World(tmp_path / "w", {"EWR": nodes["source"]}, nodes["target"], session_timeout_ms=300) as w:
        w.fill(3)
        w.run_once()
        w.fill(3)
        skip = ["skip", "EWR", f"{w.topic}:0", "--to", "50", "--because", "a test"]
        command = StageProcess("mirror", w.config, "command", skip)
        try:
            if fault == "kill":
                command.start(f"{failpoint}=kill")
                assert command.wait() == -signal.SIGKILL, command.text()
            else:
                command.pause_at(failpoint)
            w.mirror.start()
            w.await_copied()
            if fault == "pause":
                command.signal(signal.SIGCONT)
                assert command.wait() == 1
                (said,) = command.text().splitlines()
                assert f"another process took over EWR {w.topic}:0 before this was committed" in said
            w.fill(1)
            w.finish()
            assert w.status()["EWR", 0]["gaps"] == 0
        finally:
            command.kill()


def test_commands_one_after_the_other_end_no_lane(w: World) -> None:
    """Each takes the identity as a second mirror would; they are told from one."""
    w.fill(1)
    w.mirror.start()
    w.await_copied()
    for _ in range(3):
        w.operate("retry", "EWR", "--because", "to see whether it holds")
        w.fill(1)
        w.await_copied()
    assert w.mirror.stop() == 0
    w.check()


def test_a_lane_that_goes_on_after_a_gap_has_it_in_its_position(w: World) -> None:
    w.fill(2)
    w.run_once()
    w.fill(2)
    w.operate("skip", "EWR", f"{w.topic}:1", "--to", "10", "--because", "it is behind", code=1)
    assert "goes on at 30; gaps so far: 10 offsets, 10 records" in w.operate(
        "skip", "EWR", f"{w.topic}:1", "--to", "30", "--because", "nobody wants it"
    )
    del w.ids["EWR", 1][20:30], w.payloads["EWR", 1][2]
    w.mirror.start()
    w.await_copied()
    rows = w.status()
    assert (rows["EWR", 0]["gaps"], rows["EWR", 1]["gaps"], rows["EWR", 1]["gap_records"]) == (0, 10, 10)
    assert rows["EWR", 1]["last_commit"] is not None and rows["EWR", 1]["records"] == 30
    assert w.mirror.stop() == 0
    w.check()


def test_a_source_that_is_away_for_long_is_stalled_and_any_host_sees_it(tmp_path: Path) -> None:
    with alone(tmp_path, "EWR", penstock_stalled_after_ms=1500) as (w, clusters):
        w.fill(1)
        w.mirror.start()
        w.await_copied()
        clusters["EWR"].kill()
        deadline = time.monotonic() + LIMIT_S
        while {row["state"] for row in w.status(code=None).values()} != {"stalled"}:
            assert time.monotonic() < deadline, w.mirror.text()
        clusters["EWR"].start()
        w.fill(1)
        w.await_copied()
        while {row["state"] for row in w.status(code=None).values()} != {"copying"}:
            assert time.monotonic() < deadline, w.mirror.text()
        assert w.mirror.stop() == 0
        w.check()
