"""Random admin work under kill -9, for a short while: nothing acknowledged is missing, hidden, offline or comes back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from support.admin_run import AdminRun, play
from support.admin_work import CHANGING, steps

KILLS = 3
SEEDS = (1, 20130101)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_keeps_its_word_through_kills(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    summary = play(tmp_path, seed, KILLS, work_s=(0.3, 2.0), stop_at_first=True)
    print(summary.table())
    assert summary.anomalies == [], summary.report()
    done = ("CreateTopics", "DeleteTopics", "AlterReplicaLogDirs", "DeleteRecords", "IncrementalAlterConfigs", "EndTxn")
    assert [name for name in done if not summary.counts[f"asked {name}"]] == []
    assert summary.counts["acknowledged records"] > 1000 and summary.counts["records read"] > 1000


def test_the_run_finds_what_a_cut_log_lost(tmp_path: Path) -> None:
    """A broker that loses data is told from one that doesn't: a log is cut while it is down."""
    run = AdminRun(tmp_path, 1, work_s=(1.5, 1.5), without=("mover", "patient-mover", "trimmer", "life-1"))

    def cut() -> None:
        for slots in tmp_path.glob("disk*/penstock-log-ends"):
            slots.unlink()  # With it the broker itself misses what is lost.
        os.truncate(max(tmp_path.glob("disk*/steady-0-*/*.log"), key=lambda path: path.stat().st_size), 100)

    async def play_and_cut() -> None:
        assert await run.start(0)
        await run.work(0)
        assert run.summary.anomalies == []
        cut()
        assert await run.start(1)

    try:
        asyncio.run(play_and_cut())
    finally:
        run.broker.close()
    assert "missing" in {anomaly.kind for anomaly in run.summary.anomalies}


def test_a_seed_decides_the_same_again() -> None:
    drawn = []
    for _ in range(2):
        of_one = steps(7, 3, "mover", CHANGING, 0.05)
        drawn.append([next(of_one) for _ in range(100)])
    other = steps(8, 3, "mover", CHANGING, 0.05)
    assert drawn[0] == drawn[1] != [next(other) for _ in range(100)]
