"""A stop that has no file descriptor for the sync of all logs at once syncs each of them, or fails."""

from __future__ import annotations

from pathlib import Path

from support import faultio

# No descriptor is free when the folder's file system is to be synced; then there are some, and a sync of the log's file
# fails.
SCRIPT = """
import errno, os, sys
from pathlib import Path
from support.logs import LOGS, Log, batch

control = Path(os.environ["FAULT_CTL"])
log = Log(Path(sys.argv[1]))
log.append(batch())
control.write_text(f"open {errno.EMFILE} {log.root}$\\n")
LOGS.sync_all(lambda path: None)
control.write_text(f"sync {errno.EIO} .log\\n")
try:
    LOGS.stop(log.topic, 0)
    print("stopped")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def test_what_was_not_synced_at_once_is_synced_by_its_own_stop(tmp_path: Path) -> None:
    done = faultio.run(SCRIPT, faultio.build(tmp_path), tmp_path / "control", tmp_path / "logs")
    assert (done.returncode, done.stdout.strip()) == (0, "EIO"), done.stderr
