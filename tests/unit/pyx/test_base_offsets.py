"""A bit of a base offset, which no checksum covers, has flipped: no record goes because of it, and no end moves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.tools.logfiles import read_file
from penstock.broker.tools.logrepair import repair
from penstock.pyx.log.checkpoint import OURS
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.rawbatch import split
from support.compacted import CompactedLog
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS, Killed, Log, batch

BITS = [0, 1, 3, 20, 40, 62, 63]
COMPACT: dict[str, Any] = {"cleanup_delete": 0, "cleanup_compact": 1}


def flip(path: Path, number: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    raws = split(bytes(data))
    at = sum(raw.size_in_bytes for raw in raws[:number]) if number >= 0 else len(data) - raws[-1].size_in_bytes
    data[at + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if ".log" in path.name}


def refused(copy: Killed, log: Log, *, clean: bool) -> None:
    """The log isn't opened, and none of its batches was touched."""
    before, known = files(copy.folder), (copy.root / OURS).read_bytes()
    with pytest.raises(CorruptLogError):
        copy.open(clean=clean)
    # Under its own name again, where nothing is known of it by this process.
    copy.root = shutil.copytree(copy.root, copy.root.with_name(f"{copy.root.name}-again"))
    (copy.root / OURS).write_bytes(known)
    copy.folder = next(copy.root.glob("log*-0")).rename(copy.root / f"{log.topic}-0")
    assert files(copy.folder) == before


KILLED = [(1, 0), (1, 2), (1, -1), (-1, 0), (-1, 1), (-1, -1)]
"""A segment, and a batch of it."""
STOPPED = [(segment, number) for segment, number in KILLED if number == -1]
"""Only the tails of segments are walked then."""


@pytest.mark.parametrize("compact", [True, False], ids=["compact", "delete"])
@pytest.mark.parametrize(("place", "clean"), [*((place, True) for place in STOPPED), *((place, False) for place in KILLED)])
def test_in_a_log_that_was_never_compacted(tmp_path: Path, place: tuple[int, int], compact: bool, clean: bool) -> None:
    segment, number = place
    log = Log(tmp_path / "a", segment_bytes=400, **COMPACT if compact else {})
    for _ in range(20):
        log.append(batch(2))
    if clean:
        log.stop()
    LOGS.write_checkpoints()
    # Below zero it is no header any more: at the end of a killed log that is a torn write.
    for bit in BITS[:-1] if (segment, number, clean) == (-1, -1, False) else BITS:
        root = tmp_path / str(bit)
        copy = Killed(shutil.copytree(log.root, root), log)
        flip(sorted(copy.folder.glob("*.log"))[segment], number, bit)
        refused(copy, log, clean=clean)
        (mended,) = repair(copy.folder)
        assert mended.set_aside is not None and len(split(mended.set_aside.read_bytes())) == 1
        opened = copy.open(clean=clean)
        assert sum(raw.record_count for raw in opened.read_all()) == 38
        opened.drop()
        shutil.rmtree(root)


def compacted(root: Path) -> CompactedLog:
    """Two segments that are compacted, one that isn't yet, and the active one."""
    log = CompactedLog(root)
    for _ in range(2):
        for value in range(8):
            log.put((b"k%d" % (value % 3), b"%d" % value))
            log.put((b"u%d" % log.offsets().log_end, b""))
        log.roll()
    log.compact()
    for part in range(2):
        for value in range(4):
            log.put((b"n%d" % value, b"%d" % part))
        if part == 0:
            log.roll()
    assert log.offsets().log_end > sum(len(split(path.read_bytes())) for path in log.files(".log"))
    return log


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_in_a_compacted_log(tmp_path: Path, clean: bool) -> None:
    """Wherever the offset isn't between those of its neighbours any more."""
    log = compacted(tmp_path / "a")
    if clean:
        log.stop()
    LOGS.write_checkpoints()
    paths = log.files(".log")
    for segment, path in enumerate(paths):
        raws = split(path.read_bytes())
        for number in [len(raws) - 1] if clean else range(len(raws)):
            for bit in BITS:
                base = raws[number].base_offset ^ 1 << bit
                before = raws[number - 1].next_offset if number else int(path.stem)
                after = raws[number + 1].base_offset if number + 1 < len(raws) else before
                if before <= base < after and segment + 1 < len(paths):
                    continue
                if not clean and path is paths[-1] and number + 1 == len(raws) and (bit == 63 or before <= base):
                    # It is no header any more, as after a torn write; or offsets may be missing before it.
                    continue
                root = tmp_path / f"{segment}-{number}-{bit}"
                copy = Killed(shutil.copytree(log.root, root), log)
                flip(copy.folder / path.name, number, bit)
                refused(copy, log, clean=clean)
                shutil.rmtree(root)


def test_compacted_logs_are_opened_as_they_were(tmp_path: Path) -> None:
    log = compacted(tmp_path / "a")
    LOGS.write_checkpoints()
    before = log.state()
    log.kill(tmp_path / "b")
    assert log.state() == before
    for _ in range(2):
        log.restart()
        assert log.state() == before
    # Nobody says that it was compacted: it is opened all the same, here and at the next start.
    log.stop()
    for name in ("penstock-checkpoints", "cleaner-offset-checkpoint"):
        (log.root / name).unlink(missing_ok=True)
    copy = Killed(shutil.copytree(log.root, tmp_path / "c"), log)
    opened = copy.open()
    assert opened.state().batches == before.batches
    LOGS.write_checkpoints()
    opened.append(batch(1))
    opened.kill(tmp_path / "d")
    assert opened.state().batches[:-1] == before.batches


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_a_compacted_log_from_another_folder_is_opened_as_it_was(tmp_path: Path, clean: bool) -> None:
    """As somebody rescues it from a disk: the folder where it lies now knows other logs, and nothing of this one."""
    log = compacted(tmp_path / "a")
    before = log.kept()
    log.stop()
    LOGS.write_checkpoints()
    Log(tmp_path / "b")
    LOGS.write_checkpoints()
    shutil.move(log.folder, tmp_path / "b")
    log.root = tmp_path / "b"
    log.lead(clean=clean)
    LOGS.write_overdue_checkpoints(str(log.root))  # as a start does
    assert log.kept() == before
    log.config = {"cleanup_delete": 1, "cleanup_compact": 0, "retention_ms": -1}
    log.kill(tmp_path / "c")
    assert log.kept() == before


def test_a_new_log_of_a_compacted_topic_is_known_from_the_start(tmp_path: Path) -> None:
    for _ in range(2):
        log = Log(tmp_path / "a", **COMPACT)
        LOGS.write_overdue_checkpoints(str(log.root))  # as a creation does
    for _ in range(3):
        log.append(batch(2))
    copy = log.snapshot(tmp_path / "b")
    flip(sorted(copy.folder.glob("*.log"))[0], 1, 3)
    with pytest.raises(CorruptLogError):
        copy.open()


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_a_segment_whose_last_records_were_compacted_away_is_whole(tmp_path: Path, clean: bool) -> None:
    """What is written beside it after a recovery says where reads go on, which is where the next segment begins."""
    log = CompactedLog(tmp_path / "a", segment_bytes=300)
    log.put((b"a", b"1" * 100))
    log.put((b"b", b"1"))
    log.roll()
    log.put((b"b", b"2" * 100))
    log.roll()
    log.compact()
    assert len(log.files(".log")) == 3
    (log.root / OURS).unlink()  # so that all is walked
    log.kill(tmp_path / "b")
    log.upkeep(NOW_MS + 2 * FLUSH_DUE_MS)
    before = log.state()
    (log.restart if clean else lambda: log.kill(tmp_path / "c"))()
    assert log.state() == before


def test_verify_finds_it(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=400, **COMPACT)
    for _ in range(20):
        log.append(batch(2))
    log.stop()
    for number in (1, -1):
        path = log.files(".log")[1]
        sound = path.read_bytes()
        assert not [row for row in read_file(path) if "damage" in row]
        flip(path, number, 20)
        assert [row for row in read_file(path) if "damage" in row]
        path.write_bytes(sound)


def test_a_whole_last_batch_is_not_what_a_torn_write_leaves(tmp_path: Path) -> None:
    log = Log(tmp_path / "a")
    for _ in range(4):
        log.append(batch(2))
    LOGS.write_checkpoints()
    copy = log.snapshot(tmp_path / "b")
    flip(copy.folder / log.files(".log")[0].name, -1, 1)
    refused(copy, log, clean=False)


def swapping(root: Path) -> tuple[CompactedLog, Path]:
    """A log that was compacted into one segment, and its folder as a kill before the old ones' removal leaves it."""
    log = CompactedLog(root / "a")
    for _ in range(3):
        for value in range(6):
            log.put((b"k%d" % value, b"%d" % log.offsets().log_end))
        log.roll()
    LOGS.write_checkpoints()
    shutil.copytree(log.root, root / "b")
    log.compact()
    folder = root / "b" / log.folder.name
    for suffix in (".log", ".checks", ".index", ".timeindex"):
        shutil.copy(log.files(suffix)[0], folder / f"{log.files(suffix)[0].name}.swap")
    shutil.copy(log.root / OURS, root / "b" / OURS)
    assert len(log.files(".log")) < len(list(folder.glob("*.log")))
    return log, root / "b"


@pytest.mark.parametrize("checks", [True, False], ids=["checks", "no checks"])
def test_a_swapped_segment_is_proved_before_others_go(tmp_path: Path, checks: bool) -> None:
    log, left = swapping(tmp_path)
    kept = log.kept()
    sound = split(log.files(".log")[0].read_bytes())
    for number, bit in [(-1, -1), (-1, 20), (-1, 4), (0, 20), (-1, 63), (-1, 8 * 7 - 8 * 23)]:
        root = tmp_path / f"{number}-{bit}"
        copy = Killed(shutil.copytree(left, root), log)
        (swap,) = copy.folder.glob("*.log.swap")
        if not checks:
            swap.with_name(swap.name.replace(".log.", ".checks.")).unlink()
        if bit != -1:
            flip(swap, number, bit)
            refused(copy, log, clean=False)
            if not checks:
                continue  # What it should have been can't be told.
            repair(copy.folder)
        opened = CompactedLog.__new__(CompactedLog)
        opened.__dict__ |= copy.open().__dict__
        assert opened.kept() == (kept if bit == -1 else [one for one in kept if one.offset != sound[number].base_offset])
        opened.drop()
        shutil.rmtree(root)
