"""What holds a log's lock needs nobody who may wait for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# While a LogSegment is made, Python may run any other thread: here it asks the same log, as upkeep would.
SCRIPT = """
import sys
from pathlib import Path
from support.logs import LOGS, Log, batch
from penstock.pyx.log import logmanager

log = Log(Path(sys.argv[1]))
log.append(batch(3))
made = logmanager.LogSegment

def interrupted(*fields):
    assert LOGS.offsets(log.topic, 0).log_end == 3
    return made(*fields)

logmanager.LogSegment = interrupted
(segment,) = LOGS.segments(log.topic, 0)
print(segment.base_offset, segment.size_bytes > 0, segment.path)
"""


def test_segments_are_told_without_the_lock(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    base, some, path = answer.stdout.split()
    assert (base, some) == ("0", "True")
    assert path.endswith("/00000000000000000000.log")
