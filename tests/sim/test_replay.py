"""A seed that fails can be played again, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_a_seed_plays_the_same_run_in_every_process() -> None:
    """The order of a set of names differs from one process to the next: it decides nothing."""
    found = []
    for hash_seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
        played = subprocess.run(
            [sys.executable, "-m", "sim.replay"], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(json.loads(played.stdout.splitlines()[-1]))
    assert len(found[0]) > 5
    assert [one for one in found[0] if len({run[one] for run in found}) > 1] == []
