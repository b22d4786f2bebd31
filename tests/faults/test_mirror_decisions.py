"""What an operator decides is set aside and passed in one transaction, or not at all; also while the mirror runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness import BrokerProcess
from support.mirror_world import LIMIT_S, World, brokers


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with brokers(tmp_path_factory.mktemp("decisions"), "EWR", "target") as made:
        yield made


@pytest.fixture
def w(tmp_path: Path, clusters: dict[str, BrokerProcess]) -> Iterator[World]:
    with World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], session_timeout_ms=300) as made:
        yield made


def test_a_kill_between_the_bytes_and_the_commit_leaves_nothing(w: World) -> None:
    w.fill(3)
    w.mirror.start()
    w.await_copied()
    assert w.mirror.stop() == 0
    w.fill(3)
    before = w.positions("EWR")
    words = ["skip", "EWR", f"{w.topic}:0", "--to", "50", "--because", "a test", "--config", str(w.config)]
    killed = subprocess.run(
        [sys.executable, "-m", "penstock", "mirror", *words],
        env={**os.environ, "PENSTOCK_FAILPOINTS": "mirror.decision_sent=kill"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    w.mirror.start()
    w.await_copied()
    assert w.mirror.stop() == 0
    w.check()
    assert before[0] is not None and w.status()["EWR", 0]["gaps"] == 0


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
    w.mirror.start()
    w.await_copied()
    assert w.mirror.stop() == 0
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
    with (
        brokers(tmp_path, "EWR", "target") as clusters,
        World(tmp_path / "w", {"EWR": clusters["EWR"]}, clusters["target"], penstock_stalled_after_ms=1500) as w,
    ):
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
