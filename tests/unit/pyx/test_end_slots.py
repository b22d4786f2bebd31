"""`penstock-log-ends`: the end of each log as a kill -9 leaves it. Here a process that is killed is a `LogManager` that nobody
uses any more: what it stored in the mapped file is there for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.tools.logrepair import accept
from penstock.durable import boot_id
from penstock.pyx.log.checkpoint import Checkpoints
from penstock.pyx.log.endslots import CHUNK_BYTES, END_MAX, NAME, SLOT_BYTES, key_of, read_ends
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from support.logs import TOPIC_ID, batch

OTHER_ID = bytes(range(16, 32))
MANY = CHUNK_BYTES // SLOT_BYTES + 20
"""Logs that don't fit a chunk."""


def opened(
    root: Path, partition: int = 0, topic: str = "t", topic_id: bytes = TOPIC_ID, logs: LogManager | None = None
) -> LogManager:
    logs = logs or LogManager()
    logs.lead(topic, topic_id, partition, 0, str(root), {"retention_ms": -1})
    return logs


def begun_at(root: Path, offset: int) -> LogManager:
    """A log whose first offset that is."""
    (root / "t-0").mkdir()
    (root / "t-0" / f"{offset:020d}.log").touch()
    return opened(root)


def ends(root: Path) -> dict[bytes, int]:
    return {key: end for key, (_, end) in read_ends(str(root)).items()}


def test_a_slot_follows_each_append(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    assert ends(tmp_path) == {key_of("t", 0): 0}
    for count in (1, 5, 2):
        logs.append_client("t", 0, batch(count))
        assert ends(tmp_path) == {key_of("t", 0): logs.offsets("t", 0).log_end}
    assert read_ends(str(tmp_path)) == {key_of("t", 0): (TOPIC_ID, 8)}
    assert oct((tmp_path / NAME).stat().st_mode) == "0o100600"


def test_slots_go_on_while_the_file_grows_and_are_used_again(tmp_path: Path) -> None:
    logs, wanted = LogManager(), {}
    for partition in range(MANY):
        opened(tmp_path, partition, logs=logs)
        logs.append_client("t", partition, batch(1 + partition % 3))
        wanted[key_of("t", partition)] = 1 + partition % 3
    assert ends(tmp_path) == wanted
    size = (tmp_path / NAME).stat().st_size
    assert size == 2 * CHUNK_BYTES
    for partition in range(0, MANY, 2):
        logs.delete("t", partition)
        del wanted[key_of("t", partition)]
    assert ends(tmp_path) == wanted
    for partition in range(0, MANY, 2):
        opened(tmp_path, partition, "u", OTHER_ID, logs)
        wanted[key_of("u", partition)] = 0
    for partition in range(MANY):  # Those of before go on in their own slots.
        topic = "t" if partition % 2 else "u"
        logs.append_client(topic, partition, batch(1))
        wanted[key_of(topic, partition)] += 1
    assert ends(tmp_path) == wanted
    assert (tmp_path / NAME).stat().st_size == size
    logs.write_checkpoints()
    opened(tmp_path, 1)
    assert ends(tmp_path) == wanted, "the next process knows the logs that it hasn't opened yet"


@pytest.mark.parametrize("end", [1, 7, 1 << 31, END_MAX])
def test_a_flipped_bit_is_no_other_end(tmp_path: Path, end: int) -> None:
    begun_at(tmp_path, end - 1).append_client("t", 0, batch(1))
    data, before = (tmp_path / NAME).read_bytes(), read_ends(str(tmp_path))
    assert before == {key_of("t", 0): (TOPIC_ID, end)}
    copy = tmp_path / "copy"
    copy.mkdir()
    used = max(at for at in range(len(data)) if data[at]) + 1
    for at in range(8 * used):
        bent = bytearray(data)
        bent[at // 8] ^= 1 << at % 8
        (copy / NAME).write_bytes(bent)
        assert read_ends(str(copy)).items() <= before.items(), at
    for size in range(0, used, 7):
        (copy / NAME).write_bytes(data[:size])
        assert read_ends(str(copy)).items() <= before.items(), size


def test_an_end_that_no_slot_can_hold_is_not_known(tmp_path: Path) -> None:
    logs = begun_at(tmp_path, END_MAX - 1)
    for end in (END_MAX, END_MAX + 1, END_MAX + 2):
        logs.append_client("t", 0, batch(1))
        assert ends(tmp_path) == ({key_of("t", 0): end} if end <= END_MAX else {})


def test_another_start_of_the_machine_believes_nothing(tmp_path: Path) -> None:
    opened(tmp_path).append_client("t", 0, batch(3))
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(boot_id().encode(), boot_id()[::-1].encode()))
    assert read_ends(str(tmp_path)) == {}


def lost(root: Path, records: int = 8, left: int = 5) -> Path:
    """A log whose process was killed with no word of its records in the checkpoints, and whose last batches are gone."""
    logs = opened(root)
    logs.write_checkpoints()
    for _ in range(records):
        logs.append_client("t", 0, batch(1))
    segment = root / "t-0" / f"{0:020d}.log"
    os.truncate(segment, logs.segments("t", 0)[-1].size_bytes * left // records)
    assert Checkpoints(str(root)).of(("t", 0), TOPIC_ID).log_end == records
    return segment


def test_what_a_start_found_missing_is_missed_after_a_start_of_the_machine(tmp_path: Path) -> None:
    lost(tmp_path)
    logs = LogManager()
    with pytest.raises(CorruptLogError, match="the log ended at offset 8 or later, and what is there ends at offset 5"):
        opened(tmp_path, logs=logs)
    logs.write_overdue_checkpoints(str(tmp_path))
    (tmp_path / NAME).unlink()
    with pytest.raises(CorruptLogError, match="offset 8"):
        LogManager().lead("t", TOPIC_ID, 0, 0, str(tmp_path), {}, power_cut=True)
    (row,) = accept(tmp_path / "t-0")
    assert (row.first_offset, row.next_offset) == (5, 8)
    assert opened(tmp_path).append_client("t", 0, batch(1)).base_offset == 8


@pytest.mark.parametrize("what", ["segment", "all"])
def test_a_log_without_segments_has_lost_its_records(tmp_path: Path, what: str) -> None:
    segment = lost(tmp_path)
    segment.unlink()
    if what == "all":
        for path in segment.parent.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
    for _ in range(2):
        with pytest.raises(CorruptLogError, match="offset 8"):
            opened(tmp_path)
    (row,) = accept(tmp_path / "t-0")
    assert (row.first_offset, row.next_offset) == (0, 8)
    assert opened(tmp_path).append_client("t", 0, batch(1)).base_offset == 8


def test_a_refused_log_keeps_its_slot_while_others_are_served(tmp_path: Path) -> None:
    lost(tmp_path)
    for _ in range(2):
        logs = opened(tmp_path, 1)
        logs.append_client("t", 1, batch(1))
        with pytest.raises(CorruptLogError):
            opened(tmp_path, logs=logs)
        logs.write_checkpoints()


def test_a_later_topic_of_the_name_owes_nothing(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    logs.write_checkpoints()
    logs.append_client("t", 0, batch(5))
    logs.delete("t", 0)
    again = opened(tmp_path, topic_id=OTHER_ID)
    again.append_client("t", 0, batch(1))
    assert read_ends(str(tmp_path)) == {key_of("t", 0): (OTHER_ID, 1)}
    assert opened(tmp_path, topic_id=OTHER_ID).offsets("t", 0).log_end == 1


def test_a_log_that_is_made_again_by_an_operators_word_owes_nothing(tmp_path: Path) -> None:
    """Its folder is gone, and it begins again with its topic's id."""
    segment = lost(tmp_path)
    for path in segment.parent.iterdir():
        path.unlink()
    segment.parent.rmdir()
    for _ in range(2):
        assert opened(tmp_path).offsets("t", 0).log_end == 0


def test_without_the_file_logs_are_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "log"
    root.mkdir()
    (root / f"{NAME}.tmp").mkdir()  # The file can't be written here.
    logs = LogManager()
    for partition in range(3):
        opened(root, partition, logs=logs)
        assert logs.append_client("t", partition, batch(1)).base_offset == 0
    assert not (root / NAME).exists()
    said = [record for record in caplog.records if NAME in record.getMessage()]
    assert len(said) == 1, "it is said once"


def test_a_file_that_somebody_has_replaced_grows_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = opened(tmp_path)
    other = tmp_path / "other"
    other.write_bytes((tmp_path / NAME).read_bytes())
    other.replace(tmp_path / NAME)
    for partition in range(1, MANY):
        opened(tmp_path, partition, logs=logs)
        logs.append_client("t", partition, batch(1))
    assert len([record for record in caplog.records if NAME in record.getMessage()]) == 1
    assert (tmp_path / NAME).stat().st_size == CHUNK_BYTES


CUT = """
import os, sys
from pathlib import Path
from penstock.pyx.log.endslots import NAME, slots_lost
from penstock.pyx.log.logmanager import LogManager
from support.logs import TOPIC_ID, batch

root = Path(sys.argv[1])
logs = LogManager()
for partition in range(3):
    logs.lead("t", TOPIC_ID, partition, 0, str(root), {"retention_ms": -1})
assert not slots_lost()
os.truncate(root / NAME, 0)
for partition in range(3):
    logs.append_client("t", partition, batch(1))
    logs.append_client("t", partition, batch(1))
assert slots_lost() and not slots_lost()
logs.delete("t", 1)
logs.lead("t", TOPIC_ID, 3, 0, str(root), {})
assert [logs.offsets("t", partition).log_end for partition in (0, 2, 3)] == [2, 2, 0]
if len(sys.argv) > 2:
    import ctypes, mmap
    with open(sys.argv[2], "r+b") as file:
        other = mmap.mmap(file.fileno(), 4096)
    os.truncate(sys.argv[2], 0)
    other[0] = 1  # which is none of ours
"""


@pytest.mark.parametrize("foreign", [False, True])
def test_a_file_that_somebody_cuts_ends_no_process(tmp_path: Path, foreign: bool) -> None:
    root = tmp_path / "log"
    root.mkdir()
    (tmp_path / "other").write_bytes(bytes(4096))
    given = [sys.executable, "-c", CUT, str(root), *([str(tmp_path / "other")] if foreign else [])]
    done = subprocess.run(
        given, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (-7 if foreign else 0), done.stderr
