"""A write that doesn't come back holds up its own partition, not the control plane's other threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import faultio

# Each question is asked by a thread while a write to its log hangs; the main thread goes on meanwhile, and ends the hang.
SCRIPT = """
import os, sys, threading
from pathlib import Path
from support.logs import LOGS, Log, batch
from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace

control = Path(os.environ["FAULT_CTL"])
log = Log(Path(sys.argv[1]))
log.append(batch())
ask = {
    "offsets": lambda: LOGS.offsets(log.topic, 0).log_end,
    "write_checkpoints": LOGS.write_checkpoints,
    "size_bytes": lambda: LOGS.size_bytes(log.topic, 0),
    "segments": lambda: LOGS.segments(log.topic, 0),
    "producers": lambda: LOGS.producers(log.topic, 0),
    "sequences": lambda: LOGS.sequences(log.topic, 0, 7),
    "max_timestamp": lambda: LOGS.max_timestamp(log.topic, 0),
    "offset_for_epoch": lambda: LOGS.offset_for_epoch(log.topic, 0, 0),
    "reconfigure": lambda: LOGS.reconfigure(log.topic, 0, {"segment_bytes": 1000}),
    "compact": lambda: Cleaner(Pace(), 1 << 20).compact(LOGS, log.topic, 0, 0, 1, 0, 1000),
    "append": lambda: LOGS.append(log.topic, 0, batch(), 0),
}[sys.argv[2]]
control.write_text("write hang .log\\n")
writer = threading.Thread(target=log.append, args=(batch(),))
writer.start()
while not Path(f"{control}.hangs").exists():
    pass
asker = threading.Thread(target=ask)
asker.start()
for _ in range(100):
    threading.Event().wait(0.001)   # the asker gets its turns; with the lock of the interpreter it would keep it
control.write_text("")
writer.join()
asker.join()
print(LOGS.offsets(log.topic, 0).log_end)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faultio.build(tmp_path_factory.mktemp("faultio"))


@pytest.mark.parametrize(
    ("question", "log_end"),
    [
        ("offsets", 2), ("write_checkpoints", 2), ("size_bytes", 2), ("segments", 2), ("producers", 2), ("sequences", 2),
        ("max_timestamp", 2), ("offset_for_epoch", 2), ("reconfigure", 2), ("compact", 2),
        ("append", 3),
    ],
)  # fmt: skip
def test_nobody_waits_for_a_log_with_the_interpreters_lock(
    tmp_path: Path, library: Path, question: str, log_end: int
) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), question],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "LD_PRELOAD": str(library),
            "FAULT_CTL": str(tmp_path / "control"),
        },
    )
    assert answer.stdout.split() == [str(log_end)]
