"""The id store, its files by time, restarts, an output that expires and a clock that jumps by months, in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.clock import Clock


def test_no_id_within_the_size_bound_is_ever_unknown(tmp_path: Path) -> None:
    """In a process of its own: RocksDB asks the system for the time."""
    clock = Clock(tmp_path)
    tests = str(Path(__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-m", "support.store_ages", clock.environment["CLOCK_CTL"]],
        env={**os.environ, **clock.environment, "PYTHONPATH": tests},
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-5000:]
