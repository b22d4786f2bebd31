"""A log that lost its beginning or its end isn't opened, whatever ended its last life; an operator lets it go on above every
offset that it gave. What nobody has lost is never missed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from penstock import failpoints
from penstock.broker.tools.logcommand import command
from penstock.broker.tools.logfiles import read_file
from penstock.broker.tools.logrepair import LOST, RepairError, accept, repair
from penstock.pyx.compaction import cleaner
from penstock.pyx.compaction.cleaner import Cleaner
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.checkpoint import KAFKAS, OURS, RECOVERY_POINTS, Checkpoints, format_checkpoint
from penstock.pyx.log.endslots import NAME as SLOTS
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.rawbatch import RawBatch, marker, split
from support.compacted import keyed
from support.logs import FLUSH_DUE_MS, NOW_MS, TOPIC_ID, batch, write_earlier_checks

CONFIG = {"segment_bytes": 300, "retention_ms": -1}
KEY = ("t", 0)
BATCHES = 11


class Life(NamedTuple):
    """What a process left, and how it ended."""

    root: Path
    end: int
    ended: str

    @property
    def folder(self) -> Path:
        return self.root / "t-0"

    @property
    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def open(self) -> LogManager:
        """As the next process does."""
        logs = LogManager()
        clean, cut = self.ended == "stop", self.ended == "power cut"
        logs.lead("t", TOPIC_ID, 0, 0, str(self.root), CONFIG, clean, power_cut=cut)
        logs.write_overdue_checkpoints(str(self.root))
        return logs


def lived(root: Path, ended: str, config: dict[str, int] | None = None, log_start: int = 0) -> Life:
    """A log of several segments that was stopped, killed after its checkpoints were written, or had its power cut after a
    flush."""
    root.mkdir(parents=True)
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG | (config or {}))
    for _ in range(BATCHES):
        logs.append_client("t", 0, batch(2))
    if log_start:
        assert logs.delete_records([("t", TOPIC_ID, 0, log_start)]) == [log_start]
    if ended == "power cut":
        logs.flush("t", 0)
    if ended == "stop":
        logs.stop("t", 0)
    logs.write_checkpoints()
    copy = shutil.copytree(root, root.with_name(f"{root.name}-left"))
    return Life(copy, 2 * BATCHES, ended)


def offsets(logs: LogManager) -> tuple[int, int]:
    found = logs.offsets("t", 0)
    return found.log_start, found.log_end


def compact(logs: LogManager) -> None:
    """One pass, as the broker does it."""
    logs.flush("t", 0)
    logs.flush_rolled(int(time.time() * 1000) + FLUSH_DUE_MS)
    first_dirty = logs.first_dirty("t", TOPIC_ID, 0)
    done = Cleaner(Pace(), 1 << 20).compact(logs, "t", 0, first_dirty, NOW_MS, 0, 1000)
    logs.compacted("t", TOPIC_ID, 0, done.first_dirty)


def put(logs: LogManager, count: int) -> None:
    """Batches of a record that goes with the next batch, and one that stays."""
    for _ in range(count):
        end = offsets(logs)[1]
        logs.append_client("t", 0, keyed([(b"same", b"%d" % end), (b"%d" % end, b"v" * 40)]))


COMPACTED = {"segment_bytes": 600, "cleanup_delete": 0, "cleanup_compact": 1}


def lived_compacted(root: Path, ended: str) -> Life:
    """A log of which a part is compacted and was merged, and a part was sealed since."""
    root.mkdir(parents=True)
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG | COMPACTED)
    put(logs, 20)
    logs.write_checkpoints()
    compact(logs)
    put(logs, 20)
    logs.flush("t", 0)
    logs.flush_rolled(int(time.time() * 1000) + FLUSH_DUE_MS)
    end = offsets(logs)[1]
    if ended == "stop":
        logs.stop("t", 0)
    logs.write_checkpoints()
    return CompactedLife(shutil.copytree(root, root.with_name(f"{root.name}-left")), end, ended)


class CompactedLife(Life):
    """Its topic is compacted still."""

    def open(self) -> LogManager:
        logs = LogManager()
        clean, cut = self.ended == "stop", self.ended == "power cut"
        logs.lead("t", TOPIC_ID, 0, 0, str(self.root), CONFIG | COMPACTED, clean, power_cut=cut)
        logs.write_overdue_checkpoints(str(self.root))
        return logs


def records(logs: LogManager, offset: int) -> list[RawBatch]:
    """Batches with records from an offset on."""
    found: list[RawBatch] = []
    while data := logs.read("t", 0, offset, 1 << 20):
        for raw in split(data):
            offset = raw.next_offset
            found += [raw] if raw.record_count else []
    return found


def remove(path: Path) -> None:
    for one in path.parent.glob(f"{path.stem}.*"):
        one.unlink()


def first_gone(life: Life) -> None:
    remove(life.segments[0])


def first_two_gone(life: Life) -> None:
    for path in life.segments[:2]:
        path.unlink()  # What lies beside them stays.


def last_empty(life: Life) -> None:
    os.truncate(life.segments[-1], 0)


def last_gone(life: Life) -> None:
    remove(life.segments[-1])


def last_two_gone(life: Life) -> None:
    for path in life.segments[-2:]:
        path.unlink()


def cut_at_a_batch(life: Life) -> None:
    data = life.segments[-1].read_bytes()
    os.truncate(life.segments[-1], len(data) - split(data)[-1].size_in_bytes)


def cut_in_a_batch(life: Life) -> None:
    os.truncate(life.segments[-1], life.segments[-1].stat().st_size - 9)


def all_gone(life: Life) -> None:
    for path in life.segments:
        path.unlink()


BEGINS = [first_gone, first_two_gone]
ENDS = [last_empty, last_gone, last_two_gone, cut_at_a_batch, cut_in_a_batch]
ENDED = ["stop", "kill", "power cut"]


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("damage", [*BEGINS, *ENDS, all_gone])
@pytest.mark.parametrize("decide", [accept, repair])
def test_a_lost_beginning_or_end_waits_for_an_operator(
    tmp_path: Path, damage: Callable[[Life], None], ended: str, decide: Callable[[Path], object]
) -> None:
    life = lived(tmp_path / "log", ended)
    whole = {raw.base_offset: bytes(raw) for path in life.segments for raw in split(path.read_bytes())}
    damage(life)
    files = {path: path.read_bytes() for path in life.folder.iterdir()}
    left = {raw.base_offset for path in life.segments for raw in _whole(path)}
    lost = [offset for base in whole if base not in left for offset in (base, base + 1)]
    for _ in range(2):
        with pytest.raises(CorruptLogError) as caught:
            life.open()
        assert {path: path.read_bytes() for path in life.folder.iterdir()} == files, "it was refused, and nothing was changed"
    assert str(lost[0]) in str(caught.value)
    assert re.search(r"penstock log (accept|repair) ", str(caught.value))
    verified = CliRunner().invoke(command, ["verify", str(life.root)])
    assert verified.exit_code == 1, verified.output
    decide(life.folder)
    noted = (life.folder / LOST).read_text()
    assert f"offsets {lost[0]} to {lost[-1]}: " in noted
    for _ in range(2):
        logs = life.open()
        assert offsets(logs)[1] == life.end, "no offset is given twice"
        assert {raw.base_offset: bytes(raw) for raw in records(logs, offsets(logs)[0])} == {
            base: data for base, data in whole.items() if base in left
        }
    assert logs.append_client("t", 0, batch(1)).base_offset == life.end
    assert [raw.base_offset for raw in records(logs, life.end)] == [life.end], "a group that had read to the end gets it"
    assert accept(life.folder) == [] and repair(life.folder) == []
    logs.write_checkpoints()
    assert offsets(life._replace(ended="kill").open())[1] == life.end + 1
    assert CliRunner().invoke(command, ["verify", str(life.root)]).exit_code == 0


def _whole(path: Path) -> list[RawBatch]:
    data, found, at = path.read_bytes(), [], 0
    while len(data) - at >= 12 and (size := 12 + int.from_bytes(data[at + 8 : at + 12], "big")) <= len(data) - at and size > 61:
        found.append(RawBatch(data[at : at + size]))
        at += size
    return found


@pytest.mark.parametrize("lose", [first_gone, first_two_gone, all_gone])
@pytest.mark.parametrize("ended", ["kill", "power cut"])
def test_what_retention_has_left_excuses_nothing_behind_it(tmp_path: Path, ended: str, lose: Callable[[Life], None]) -> None:
    life = lived(tmp_path / "logs", ended, log_start=8)
    logs = life.open()
    assert logs.upkeep("t", 0, NOW_MS).segments_deleted
    logs.flush("t", 0)
    logs.write_checkpoints()
    killed = life._replace(root=shutil.copytree(life.root, tmp_path / "killed"))
    assert list(killed.folder.glob("*.deleted"))
    lose(killed)
    with pytest.raises(CorruptLogError):
        killed.open()


@pytest.mark.parametrize("ended", ENDED)
def test_what_nobody_lost_is_not_missed(tmp_path: Path, ended: str) -> None:
    life = lived(tmp_path / "log", ended)
    assert offsets(life.open()) == (0, life.end)
    assert accept(life.folder) == [] and not (life.folder / LOST).exists()


def test_what_a_power_cut_may_take_is_not_missed(tmp_path: Path) -> None:
    """Now or at the start after the next kill, which is on the same boot."""
    life = lived(tmp_path / "log", "kill")._replace(ended="power cut")
    cut_at_a_batch(life)
    assert offsets(life.open()) == (0, life.end - 2)
    assert offsets(life._replace(ended="kill").open()) == (0, life.end - 2)


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("how", ["records", "bytes"])
def test_retention_is_no_loss_wherever_it_is_killed(tmp_path: Path, ended: str, how: str) -> None:
    """The new beginning is on the disk before any file goes, and what was let go doesn't come back."""
    life = lived(tmp_path / "log", ended, log_start=12 if how == "records" else 0)
    logs = LogManager()
    config = CONFIG | ({"retention_bytes": 400} if how == "bytes" else {})
    logs.lead("t", TOPIC_ID, 0, 0, str(life.root), config, life.ended == "stop")
    taken = logs.upkeep("t", 0, NOW_MS, remove=False)
    assert taken.segments_deleted and taken.reasons == {
        "deleted records" if how == "records" else "retention.bytes": taken.segments_deleted
    }
    start = offsets(logs)[0]
    assert len(life.segments) > taken.segments_deleted and int(life.segments[0].stem) == 0, "no file has gone"
    killed_before = shutil.copytree(life.root, tmp_path / "before")
    logs.write_checkpoints()
    killed_between = shutil.copytree(life.root, tmp_path / "between")
    logs.remove_expired(str(life.root), NOW_MS)
    assert int(life.segments[0].stem) > 0
    kill = life._replace(ended="kill")
    assert offsets(kill._replace(root=killed_before).open())[1] == life.end
    assert offsets(kill._replace(root=killed_between).open()) == (start, life.end)
    assert offsets(kill.open()) == (start, life.end)


def test_a_full_disk_still_lets_retention_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = lived(tmp_path / "log", "kill")
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(life.root), CONFIG | {"retention_bytes": 400})

    def full(self: Checkpoints) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "write", full)
        assert logs.upkeep("t", 0, NOW_MS).segments_deleted
    start = offsets(logs)[0]
    assert int(life.segments[0].stem) == start > 0
    for _ in range(2):
        assert offsets(life.open()) == (start, life.end)


def test_a_folder_that_kafka_served_meanwhile_has_lost_nothing(tmp_path: Path) -> None:
    """Its retention doesn't write our file, but its checkpoints aren't ours any more."""
    life = lived(tmp_path / "log", "stop")
    first_two_gone(life)
    cut_at_a_batch(life)
    with pytest.raises(CorruptLogError):
        life.open()
    (life.root / RECOVERY_POINTS).write_bytes(format_checkpoint({KEY: life.end - 2}))
    assert offsets(life.open()) == (int(life.segments[0].stem), life.end - 2)


@pytest.mark.parametrize("lost", [(OURS,), (OURS, *KAFKAS)])
def test_without_checkpoints_nothing_is_known(tmp_path: Path, lost: tuple[str, ...]) -> None:
    life = lived(tmp_path / "log", "stop")
    first_gone(life)
    for name in lost:
        (life.root / name).unlink(missing_ok=True)
    assert offsets(life.open())[1] == life.end


def test_a_file_of_version_1_is_read_and_knows_no_ends(tmp_path: Path) -> None:
    from penstock.pyx.record.crc import crc32c

    life = lived(tmp_path / "log", "stop", log_start=3)
    lines = (life.root / OURS).read_text().splitlines()[:-1]
    lines[0] = "penstock-checkpoints 1"
    old = "".join(" ".join(line.split(" ")[:7]) + "\n" for line in lines).encode()
    (life.root / OURS).write_bytes(old + b"crc32c %08x\n" % crc32c(old))
    first_gone(life)
    known = Checkpoints(str(life.root)).of(KEY, TOPIC_ID)
    assert (known.log_start, known.begin, known.log_end) == (3, -1, 0)
    assert offsets(life.open()) == (int(life.segments[0].stem), life.end)


def test_a_partition_that_was_carried_away_and_back_by_hand_misses_nothing(tmp_path: Path) -> None:
    """The folder where it lay before doesn't hold what it knew against it."""
    life = lived(tmp_path / "log", "stop")
    other = tmp_path / "other"
    other.mkdir()
    shutil.move(life.folder, other / "t-0")
    logs = LogManager()
    logs.announce("x", TOPIC_ID, 0)
    logs.recovery_point("t", TOPIC_ID, 0, str(life.root))  # the broker knows the other folder too
    logs.lead("t", TOPIC_ID, 0, 0, str(other), CONFIG | {"retention_bytes": 400}, clean=True)
    assert logs.upkeep("t", 0, NOW_MS).segments_deleted
    logs.stop("t", 0)
    logs.write_checkpoints()
    shutil.move(other / "t-0", life.folder)
    assert offsets(life.open())[1] == life.end


def test_accept_shows_what_is_lost_before_it_asks(tmp_path: Path) -> None:
    life = lived(tmp_path / "log", "stop")
    last_gone(life)
    first_gone(life)
    run = CliRunner()
    first, end = int(life.segments[0].stem), life.end
    refused = run.invoke(command, ["accept", str(life.folder)], input="n\n")
    assert refused.exit_code == 1 and f"offsets 0 to {first - 1} are lost" in refused.output
    assert f"to {end - 1} are lost" in refused.output
    with pytest.raises(CorruptLogError):
        life.open()
    done = run.invoke(command, ["accept", "--yes", "--reason", "disk 3 is broken", str(life.folder)])
    assert done.exit_code == 0 and done.output.endswith("accepted\n")
    assert [line.split(": ")[1] for line in (life.folder / LOST).read_text().splitlines()] == ["disk 3 is broken"] * 2
    assert offsets(life.open()) == (first, end)
    assert "nothing is missing" in run.invoke(command, ["accept", str(life.folder)]).output


def test_damage_elsewhere_is_not_accepted(tmp_path: Path) -> None:
    life = lived(tmp_path / "log", "stop")
    data = bytearray(life.segments[0].read_bytes())
    data[70] ^= 1
    life.segments[0].write_bytes(data)
    with pytest.raises(RepairError, match="penstock log repair"):
        accept(life.folder)


@pytest.mark.parametrize("lost", [(), (SLOTS,)])
def test_repair_keeps_what_came_after_the_last_checkpoint(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """The checkpoint's end is that of a moment before: it doesn't say where the last batch belongs."""
    root = tmp_path / "log"
    root.mkdir()
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG)
    for _ in range(2):
        logs.append_client("t", 0, batch(2))
    logs.write_checkpoints()
    logs.append_client("t", 0, batch(2))
    # A start of the machine since the kill makes the slots worthless.
    life = Life(shutil.copytree(root, tmp_path / "left", ignore=shutil.ignore_patterns(*lost)), 6, "kill")
    before = life.segments[0]
    first, _, last = _whole(before)
    before.write_bytes(bytes(first) + bytes(last))
    with pytest.raises(CorruptLogError):
        life.open()
    (mended,) = repair(life.folder)
    assert (mended.first_offset, mended.next_offset, mended.set_aside) == (2, 4, None)
    logs = life.open()
    assert offsets(logs) == (0, 6) and bytes(records(logs, 4)[0]) == bytes(last)


@pytest.mark.parametrize("ended", ENDED)
def test_verify_misses_a_segment_in_the_middle(tmp_path: Path, ended: str) -> None:
    life = lived(tmp_path / "log", ended)
    gone, after = life.segments[1:3]
    remove(gone)
    with pytest.raises(CorruptLogError):
        life.open()
    verified = CliRunner().invoke(command, ["verify", str(life.root)])
    text = f"offsets {int(gone.stem)} to {int(after.stem) - 1} are missing behind this segment"
    assert verified.exit_code == 1 and f"{life.segments[0]} at " in verified.output and text in verified.output


@pytest.mark.parametrize("ended", ["stop", "kill"])
def test_repair_keeps_the_batch_behind_a_hole_at_the_end(tmp_path: Path, ended: str) -> None:
    """It was acknowledged, and its offset isn't given again."""
    life = lived(tmp_path / "log", ended)
    if ended == "kill":
        (life.root / OURS).unlink()
    before = life.segments[-1]
    raws = split(before.read_bytes())
    kept = raws[-1]
    at = sum(raw.size_in_bytes for raw in raws[:-2])
    before.write_bytes(b"".join(bytes(raw) for raw in (*raws[:-2], kept)))
    lost = raws[-2]
    with pytest.raises(CorruptLogError) as caught:
        life.open()
    assert f"at byte {at}, and offsets {lost.base_offset} to {lost.next_offset - 1} are missing" in str(caught.value)
    (mended,) = repair(life.folder)
    assert (mended.first_offset, mended.next_offset) == (lost.base_offset, lost.next_offset)
    logs = life.open()
    assert offsets(logs)[1] == life.end
    assert bytes(records(logs, lost.next_offset)[0]) == bytes(kept)


@pytest.mark.parametrize("ended", ["stop", "kill"])
@pytest.mark.parametrize("segment", [0, -1])
def test_a_hole_is_said_to_be_as_long_as_it_is(tmp_path: Path, segment: int, ended: str) -> None:
    life = lived(tmp_path / "log", ended, config={"segment_bytes": 900})
    path = life.segments[segment]
    raws = split(path.read_bytes())
    gone = raws[-2]
    path.write_bytes(b"".join(bytes(raw) for raw in raws if raw is not gone))
    with pytest.raises(CorruptLogError, match=f"offsets {gone.base_offset} to {gone.next_offset - 1} are missing"):
        life.open()


def middle_gone(path: Path) -> None:
    remove(path)


def middle_log_gone(path: Path) -> None:
    path.unlink()


def middle_empty(path: Path) -> None:
    os.truncate(path, 0)


def middle_cut_at_a_batch(path: Path) -> None:
    raws = split(path.read_bytes())
    os.truncate(path, sum(raw.size_in_bytes for raw in raws[:-1]))


MIDDLES = [middle_gone, middle_log_gone, middle_empty, middle_cut_at_a_batch]


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("damage", MIDDLES)
@pytest.mark.parametrize("place", ["compacted", "sealed since", "before the last"])
@pytest.mark.parametrize("decide", [accept, repair])
def test_a_compacted_log_misses_its_middle(
    tmp_path: Path, damage: Callable[[Path], None], ended: str, place: str, decide: Callable[[Path], object]
) -> None:
    """Its offsets have holes anyway: the `.checks` of its segments know how long each is, and which one was next."""
    life = lived_compacted(tmp_path / "log", ended)
    segments = life.segments
    assert len(segments) > 6
    path = segments[{"compacted": 1, "sealed since": len(segments) // 2, "before the last": -2}[place]]
    whole = {raw.base_offset: bytes(raw) for one in segments for raw in split(one.read_bytes()) if raw.record_count}
    damage(path)
    files = {one: one.read_bytes() for one in life.folder.iterdir()}
    left = {raw.base_offset for one in life.segments for raw in _whole(one)}
    lost = [base for base in whole if base not in left]
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=r"penstock log accept ") as caught:
            life.open()
        assert {one: one.read_bytes() for one in life.folder.iterdir()} == files, "it was refused, and nothing was changed"
    said = re.search(r"offsets (\d+) to (\d+) are missing", str(caught.value))
    assert said and int(said[1]) <= lost[0] and lost[-1] <= int(said[2])
    verified = CliRunner().invoke(command, ["verify", str(life.root)])
    assert verified.exit_code == 1 and f"offsets {said[1]} to {said[2]} are missing" in verified.output, verified.output
    decide(life.folder)
    assert f"offsets {said[1]} to {said[2]}: " in (life.folder / LOST).read_text()
    for _ in range(2):
        logs = life.open()
        assert {raw.base_offset: bytes(raw) for raw in records(logs, 0)} == {
            base: data for base, data in whole.items() if base in left
        }
        assert offsets(logs) == (0, life.end)
    put(logs, 1)
    compact(logs)
    assert accept(life.folder) == [] and repair(life.folder) == []
    logs.write_checkpoints()
    assert offsets(life._replace(ended="kill").open()) == (0, life.end + 2)
    assert CliRunner().invoke(command, ["verify", str(life.root)]).exit_code == 0


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("damage", MIDDLES)
def test_a_log_that_was_never_compacted_misses_its_middle(tmp_path: Path, damage: Callable[[Path], None], ended: str) -> None:
    life = lived(tmp_path / "log", ended)
    gone = life.segments[2]
    lost = split(gone.read_bytes())[-1].base_offset
    damage(gone)
    with pytest.raises(CorruptLogError) as caught:
        life.open()
    assert f"{lost + 1} are missing" in str(caught.value)
    assert CliRunner().invoke(command, ["verify", str(life.root)]).exit_code == 1
    accept(life.folder)
    logs = life.open()
    assert offsets(logs)[1] == life.end and all(raw.base_offset != lost for raw in records(logs, 0))


@pytest.mark.parametrize("ended", ENDED)
def test_a_compacted_log_that_lost_nothing_misses_nothing(tmp_path: Path, ended: str) -> None:
    life = lived_compacted(tmp_path / "log", ended)
    logs = life.open()
    assert offsets(logs) == (0, life.end)
    compact(logs)
    assert accept(life.folder) == [] and repair(life.folder) == []
    logs.write_checkpoints()
    assert offsets(life._replace(ended="kill").open()) == (0, life.end)
    assert CliRunner().invoke(command, ["verify", str(life.root)]).exit_code == 0


def test_what_a_power_cut_may_take_of_a_compacted_log_is_not_missed(tmp_path: Path) -> None:
    """The checks of a segment may be on the disk before its batches are."""
    life = lived_compacted(tmp_path / "log", "kill")._replace(ended="power cut")
    known = Checkpoints(str(life.root))
    point = int(life.segments[3].stem)
    known.put(KEY, TOPIC_ID, point, 0, 0, point, point)
    known.write()
    middle_cut_at_a_batch(life.segments[4])
    end = life.end
    for ended in ("power cut", "kill", "kill"):
        logs = life._replace(ended=ended).open()
        assert offsets(logs)[1] == end
        put(logs, 9)
        compact(logs)
        logs.write_checkpoints()
        end += 18


@pytest.mark.parametrize("damage", MIDDLES)
def test_kafka_and_lost_checkpoints_excuse_the_middle_for_good(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Kafka may have compacted the log. What the checks said of it before is no accusation later, either."""
    for number, lose in enumerate((OURS, RECOVERY_POINTS)):
        life = lived_compacted(tmp_path / f"log{number}", "stop")
        damage(life.segments[2])
        if lose == OURS:
            (life.root / OURS).unlink()
        else:
            (life.root / RECOVERY_POINTS).write_bytes(format_checkpoint({KEY: life.end}))
        for ended in ("stop", "kill", "stop"):
            logs = life._replace(ended=ended).open()
            assert offsets(logs)[1] == life.end
            logs.write_checkpoints()


def test_checks_of_an_earlier_version_accuse_nobody(tmp_path: Path) -> None:
    life = lived_compacted(tmp_path / "log", "stop")
    for path in life.folder.glob("*.checks"):
        write_earlier_checks(path, 2)
        assert "following" not in next(iter(read_file(path)))
    middle_gone(life.segments[2])
    assert offsets(life.open()) == (0, life.end)
    assert accept(life.folder) == []


def test_a_sealed_segment_that_is_written_again_accuses_nobody(tmp_path: Path) -> None:
    """The segments after it were lost, an operator knows: it grows, is sealed, and is compacted."""
    life = lived_compacted(tmp_path / "log", "stop")
    for path in life.segments[-2:]:
        remove(path)
    with pytest.raises(CorruptLogError):
        life.open()
    assert accept(life.folder)
    for ended in ("kill", "stop", "kill"):
        logs = life._replace(ended=ended).open()
        put(logs, 7)
        if ended == "stop":
            logs.stop("t", 0)
        else:
            compact(logs)
        logs.write_checkpoints()
    assert offsets(life._replace(ended="kill").open())[1] == life.end + 3 * 14


def swapped_life(root: Path, step: int) -> None:
    """Two passes, the second of which merges many segments and is killed at a step of its swap."""
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG | COMPACTED)
    for passage in (1, 2):
        for _ in range(12):
            logs.append_client("t", 0, keyed([(b"same", b"v" * 100)]))
        logs.flush("t", 0)
        logs.flush_rolled(int(time.time() * 1000) + FLUSH_DUE_MS)
        logs.write_checkpoints()
        if passage == 2:
            failpoints.arm(f"{cleaner.SWAPPING}=kill@{step}")
        compact(logs)
        logs.write_checkpoints()


def test_tools_miss_nothing_while_a_swap_waits_for_its_end(tmp_path: Path) -> None:
    """Segments whose records have gone into another one are removed before its name is: the next start ends that."""
    seen = 0
    for step in range(1, 100):
        root = tmp_path / str(step)
        root.mkdir()
        if os.fork() == 0:
            try:
                swapped_life(root, step)
                os._exit(0)
            finally:
                os._exit(1)
        if (code := os.waitstatus_to_exitcode(os.wait()[1])) == 0:
            break
        assert code == -signal.SIGKILL
        verified = CliRunner().invoke(command, ["verify", str(root)])
        assert verified.exit_code == 0, (step, verified.output)
        folder = root / "t-0"
        assert accept(folder) == [] and repair(folder) == [], step
        seen += any(folder.glob("*.swap"))
        logs = LogManager()
        logs.lead("t", TOPIC_ID, 0, 0, str(root), CONFIG | COMPACTED, False)
        assert offsets(logs) == (0, 24)
    else:
        raise AssertionError("the swap has more steps")
    assert seen > 10


def test_a_marker_that_compaction_has_emptied_is_shown(tmp_path: Path) -> None:
    """Its header stays where it is the last that its producer has written."""
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(tmp_path), CONFIG | COMPACTED)
    logs.append_client("t", 0, keyed([(b"same", b"1")], producer=(77, 0, 0), transactional=True, timestamp_ms=NOW_MS))
    logs.append("t", 0, marker(True, 77, 1, 0, NOW_MS))
    for passage in range(7):
        put(logs, 20)
        logs.flush("t", 0)
        logs.flush_rolled(int(time.time() * 1000) + FLUSH_DUE_MS)
        first_dirty = logs.first_dirty("t", TOPIC_ID, 0)
        done = Cleaner(Pace(), 1 << 20).compact(logs, "t", 0, first_dirty, NOW_MS + passage * 10**8, 0, 1000)
        logs.compacted("t", TOPIC_ID, 0, done.first_dirty)
    logs.write_checkpoints()
    first = min((tmp_path / "t-0").glob("*.log"))
    assert [raw.record_count for raw in split(first.read_bytes()) if raw.is_control] == [0]
    assert CliRunner().invoke(command, ["verify", str(tmp_path)]).exit_code == 0
    shown = CliRunner().invoke(command, ["dump", str(first)])
    assert shown.exit_code == 0 and "emptied" in shown.output, shown.output
