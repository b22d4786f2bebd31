"""What a test process started doesn't outlive it, also where no fixture can stop it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import until

TESTS = Path(__file__).resolve().parents[2]
HANGS = """\
import subprocess, threading
from pathlib import Path

def test_hangs():
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    Path("left").write_text(f"{child.pid} {int(child.stdout.readline())}")
    threading.Lock().acquire() and threading.Event().wait()
"""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_a_hanging_test_started_goes_with_its_process(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.leftovers", "-p", "no:cacheprovider", "-n", workers]
    command += ["--timeout", "5", "--timeout-method", "thread", "--max-worker-restart", "0", "test_hangs.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    left = [int(pid) for pid in (tmp_path / "left").read_text().split()]
    assert len(left) == 2
    until(lambda: not any(map(is_there, left)), "the processes of a test that hung to be gone", lambda: done.stdout)
