"""Whoever is about to open a segment's files, when retention or a deletion takes them away, is no sign of a broken disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import faultio

# A thread asks, and hangs in the opening of a file; meanwhile another one deletes what is asked for. Prints the answer,
# the errnos of the folders, and whether the log still takes records.
SCRIPT = """
import os, sys, threading
from pathlib import Path
from support.logs import LOGS, NOW_MS, Log, batch
from penstock.errors import KafkaError
from penstock.pyx.record.rawbatch import marker

control, how, suffix = Path(os.environ["FAULT_CTL"]), sys.argv[2], sys.argv[3]
log = Log(Path(sys.argv[1]), segment_bytes=200, retention_bytes=-1, file_delete_delay_ms=0)
other = Log(Path(sys.argv[1]))
log.append(batch(1, producer=(2, 0, 0), transactional=True))
log.mark(marker(False, 2, 0, 0, NOW_MS))
for _ in range(6):
    log.append(batch(1))
for i in range(3):                      # what is open is closed when nobody has touched it for a round
    log.upkeep(NOW_MS + 2000 + i)
asks = {
    "read": lambda: len(LOGS.read(log.topic, 0, 0, 100)) > 0,
    "time": lambda: LOGS.offset_for_timestamp(log.topic, 0, NOW_MS),
    "aborted": lambda: LOGS.aborted(log.topic, 0, 0, 2),
}
answer = []


def ask():
    try:
        answer.append(asks[sys.argv[4]]())
    except KafkaError as error:
        answer.append(int(error.code))


def delete():
    if how == "topic":
        LOGS.delete(log.topic, 0)
    else:
        LOGS.reconfigure(log.topic, 0, {"retention_bytes": 0})
        log.upkeep(NOW_MS + 4000)


control.write_text(f"open hang /00000000000000000000{suffix}\\n")
asker = threading.Thread(target=ask)
asker.start()
while asker.is_alive() and not Path(f"{control}.hangs").exists():
    pass
deleter = threading.Thread(target=delete)
deleter.start()
deleter.join(1)                         # it may wait for the asker
control.write_text("")
asker.join()
deleter.join()
print(answer[0], [state.failed for state in LOGS.folder_states().values()], other.append(batch(1)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faultio.build(tmp_path_factory.mktemp("faultio"))


@pytest.mark.parametrize(
    ("how", "suffix", "question", "answer"),
    [
        ("retention", ".log", "read", "True"),
        ("retention", ".index", "read", "True"),
        ("retention", ".log", "time", "(0, 1700000000000)"),
        ("retention", ".timeindex", "time", "(0, 1700000000000)"),
        ("retention", ".txnindex", "aborted", "[(2, 0)]"),
        ("topic", ".log", "read", "6"),
        ("topic", ".log", "time", "6"),
    ],
)
def test_a_reader_goes_on_or_is_told_that_the_log_is_gone(
    tmp_path: Path, library: Path, how: str, suffix: str, question: str, answer: str
) -> None:
    done = faultio.run(SCRIPT, library, tmp_path / "control", tmp_path, how, suffix, question)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{answer} [0] 0"
