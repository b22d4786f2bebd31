"""The mark of a clean stop knows what the checkpoints were: files that are changed or put back later hide no loss, and nothing
that is whole is accused by them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from penstock.broker.logs.folder import CLEAN_SHUTDOWN, DataFolder
from penstock.broker.tools.logcommand import command
from penstock.broker.tools.logrepair import accept, repair
from penstock.pyx.log.checkpoint import KAFKAS, OURS, RECOVERY_POINTS, Checkpoints, parse_offsets
from penstock.pyx.log.endslots import NAME as SLOTS
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from support.logs import NOW_MS, TOPIC_ID, batch

KEY = ("brokerEpoch", 0)
"""A name that Apache Kafka's mark has in it, too."""
CONFIG = {"segment_bytes": 300, "retention_ms": -1}
FILES = (OURS, *KAFKAS)
KAFKAS_MARKS = [b"", b'{"version":0,"brokerEpoch":5}']
"""Before and since KIP-966."""


@contextmanager
def running(root: Path, *, clean: bool = True) -> Iterator[LogManager]:
    """The log of a folder, as a broker has it from start to stop."""
    folder, logs = DataFolder.open(root, 1), LogManager()
    try:
        logs.lead(KEY[0], TOPIC_ID, 0, 0, str(root), CONFIG, folder.was_clean, power_cut=folder.power_cut)
        yield logs
        logs.stop(*KEY)
        logs.write_checkpoints()
    except BaseException:
        folder.close(clean=False)
        raise
    folder.close(clean=clean)


class Stopped(NamedTuple):
    """A folder after a clean stop: records below offset 7 were deleted since the stop before it, others came."""

    root: Path
    before: Mapping[str, bytes]  # its checkpoint files as that stop had left them

    @property
    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    @property
    def folder(self) -> Path:
        return self.root / f"{KEY[0]}-0"

    def put_back(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)
            if name in self.before:
                (self.root / name).write_bytes(self.before[name])


START, END = 7, 20


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    root = tmp_path / "data"
    with running(root) as logs:
        for _ in range(END // 4):
            logs.append_client(*KEY, batch(2))
    before = {name: (root / name).read_bytes() for name in FILES if (root / name).exists()}
    with running(root) as logs:
        for _ in range(END // 4):
            logs.append_client(*KEY, batch(2))
        assert logs.delete_records([(KEY[0], TOPIC_ID, 0, START)]) == [START]
        assert logs.upkeep(*KEY, NOW_MS).segments_deleted > 0
    return Stopped(root, before)


def a_bit(stopped: Stopped) -> None:
    data = bytearray((stopped.root / OURS).read_bytes())
    data[len(data) // 2] ^= 1
    (stopped.root / OURS).write_bytes(data)


def all_and_a_bit(stopped: Stopped) -> None:
    stopped.put_back(*KAFKAS)
    a_bit(stopped)


CHANGES: dict[str, Callable[[Stopped], None]] = {
    "an older one": lambda stopped: stopped.put_back(OURS),
    "all of an older time": lambda stopped: stopped.put_back(*FILES),
    "Kafka's of an older time": lambda stopped: stopped.put_back(*KAFKAS),
    "a bit": a_bit,
    "a bit, all others older": all_and_a_bit,
}


def offsets(logs: LogManager) -> tuple[int, int]:
    return logs.offsets(*KEY)[0], logs.offsets(*KEY)[3]


def said(stopped: Stopped) -> list[object]:
    """All that the four files say."""
    kafkas = [(stopped.root / name).read_bytes() for name in KAFKAS if (stopped.root / name).exists()]
    return [parse_offsets((stopped.root / OURS).read_bytes())[0], *kafkas]


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_lost_end_is_missed_whatever_the_checkpoints_say_by_now(
    stopped: Stopped, change: str, slots: bool, caplog: pytest.LogCaptureFixture
) -> None:
    CHANGES[change](stopped)
    last = stopped.segments[-1]
    end = int(last.stem)
    os.truncate(last, 0)
    if not slots:
        (stopped.root / SLOTS).unlink()
    assert CliRunner().invoke(command, ["verify", str(stopped.root)]).exit_code == 1
    caplog.clear()
    words = f"ended at offset {END} or later, and what is there ends at offset {end} "
    with pytest.raises(CorruptLogError, match=words), running(stopped.root):
        pass
    assert any(f"{stopped.root}/" in record.getMessage() for record in caplog.records), "a sentence names the file"
    assert [(row.first_offset, row.next_offset) for row in accept(stopped.folder)] == [(end, END)]
    for _ in range(2):
        with running(stopped.root) as logs:
            assert offsets(logs) == (START, END)


@pytest.mark.parametrize("change", CHANGES)
def test_of_a_log_that_is_whole_all_is_as_it_was(stopped: Stopped, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither are its deleted records shown again, nor its first segment missed, which retention has removed."""
    wanted = said(stopped)
    CHANGES[change](stopped)
    assert CliRunner().invoke(command, ["verify", str(stopped.root)]).exit_code == 0
    DataFolder.open(stopped.root, 1).close(clean=True)  # A start that ended before it had opened the logs.
    assert said(stopped) == wanted
    assert caplog.records
    caplog.clear()
    for _ in range(2):
        with running(stopped.root) as logs:
            assert offsets(logs) == (START, END)
    assert caplog.records == []


@pytest.mark.parametrize("decide", [accept, repair])
def test_what_an_operator_has_accepted_stays_accepted(stopped: Stopped, decide: Callable[[Path], object]) -> None:
    """Whether older files lie there or not."""
    stopped.put_back(*FILES)
    first, second = stopped.segments[:2]
    first.unlink()
    assert decide(stopped.folder)
    for _ in range(2):
        with running(stopped.root) as logs:
            assert offsets(logs) == (int(second.stem), END)


@pytest.mark.parametrize("mark", KAFKAS_MARKS)
@pytest.mark.parametrize("refused", [False, True])
def test_what_kafka_has_removed_is_no_loss(stopped: Stopped, mark: bytes, refused: bool) -> None:
    """Its retention may leave each of its files as it was."""
    first, second = stopped.segments[:2]
    first.unlink()
    (stopped.root / CLEAN_SHUTDOWN).write_bytes(mark)
    if refused:
        DataFolder.open(stopped.root, 1).close(clean=True)
    assert CliRunner().invoke(command, ["verify", str(stopped.root)]).exit_code == 0
    assert accept(stopped.folder) == []
    for _ in range(2):
        with running(stopped.root) as logs:
            assert offsets(logs) == (int(second.stem), END)


@pytest.mark.parametrize("mark", [b'{"version": 0}', b"[]", b"\0" * 14, b'{"version": 0, "checkpoints": "x"}', b"\xff", b"[[]"])
def test_a_mark_that_does_not_say_it_accuses_nobody(stopped: Stopped, mark: bytes) -> None:
    """An older Penstock's, or a damaged one."""
    (stopped.root / CLEAN_SHUTDOWN).write_bytes(mark)
    with running(stopped.root) as logs:
        assert offsets(logs) == (START, END)


def test_checkpoints_that_are_removed_stay_removed(stopped: Stopped) -> None:
    """It is the way out of more than one sentence."""
    stopped.segments[0].unlink()
    (stopped.root / OURS).unlink()
    with running(stopped.root) as logs:
        assert offsets(logs)[1] == END


def test_an_older_mark_is_of_no_life_but_its_own(stopped: Stopped) -> None:
    """What ended without a mark left none: what lies there is newer."""
    with running(stopped.root, clean=False) as logs:
        logs.append_client(*KEY, batch(2))
    assert not (stopped.root / CLEAN_SHUTDOWN).exists()
    with running(stopped.root) as logs:
        assert offsets(logs) == (START, END + 2)


def test_kafkas_files_are_written_again_as_they_were(stopped: Stopped) -> None:
    wanted = (stopped.root / RECOVERY_POINTS).read_bytes()
    (stopped.root / RECOVERY_POINTS).unlink()
    DataFolder.open(stopped.root, 1).close(clean=True)
    assert (stopped.root / RECOVERY_POINTS).read_bytes() == wanted
    assert Checkpoints(str(stopped.root)).of(KEY, TOPIC_ID).log_end == END
