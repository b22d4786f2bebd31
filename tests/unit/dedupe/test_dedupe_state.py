"""What a worker keeps: its position, its folder, batches set aside."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dedupe.folder import FolderError, StoreFolder
from penstock.dedupe.position import DedupePosition
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch

TP = ("flights", 3)
REBUILD = "a sentence"


def test_a_position_survives_its_metadata() -> None:
    position = DedupePosition(7, "00ff", "aa11", 10, 8, 1, 1, 3, 5, 9, "3..5", "0..1,7..8")
    assert DedupePosition.parse("group", TP, 7, position.metadata()) == position
    most = 1 << 62
    largest = DedupePosition(most, "f" * 32, "f" * 32, most, most, most, most, most, most, most)
    for number in range(1 << 60, (1 << 60) + 200, 2):
        largest = replace(largest, unknown=f"{number}..{number}").accept()
    largest = replace(largest, unknown=largest.accepted.partition(",")[0])
    largest = replace(largest, misplaced=most, moved=most, decisions=most, leader_epoch=1 << 30, moved_id="f" * 32)
    for number in range(1 << 60, (1 << 60) + 200, 2):
        largest = replace(largest, offset=number, reached=number).moved_to(number + 1)
    largest = replace(largest, reached=most, recent_read=10_000, recent_without_id=10_000, untold=1 << 30)
    largest = replace(largest, stopped="\u20ac" * 5000, stalled='"\n' * 5000)
    assert len(largest.metadata().encode()) < 4096  # Kafka's limit


def test_a_position_of_an_older_version() -> None:
    assert DedupePosition.parse("group", TP, 7, '{"topic_id": "00", "output_id": "aa", "written": 3}').written == 3


def batch_at(offset: int, count: int) -> RawBatch:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(None, b"", 1)
    return RawBatch(struct.pack(">q", offset) + builder.build()[8:])


@pytest.mark.parametrize("seed", range(40))
def test_a_position_knows_what_was_never_read_and_what_was_read_again(seed: int) -> None:
    """Against a list that says how often each offset was read."""
    chance = random.Random(seed)
    log = [batch_at(offset, 5) for offset in range(0, 300, 5)]
    times = [0] * 300
    position = DedupePosition(0, "", "")
    for _ in range(chance.randrange(1, 8)):
        for _ in range(chance.randrange(4)):
            rest = [batch for batch in log if batch.last_offset >= position.offset]
            turn = rest[: chance.randrange(1, 12)]
            if turn:
                end = turn[-1].last_offset + 1
                for offset in range(position.offset, end):
                    times[offset] += 1
                position = replace(position, offset=end).with_read(position, turn)
        position = position.moved_to(chance.randrange(301))
        position = DedupePosition.parse("group", TP, position.offset, position.metadata())
    never = [offset for offset in range(position.frontier) if not times[offset]]
    gaps = [offset for first, last in ranges.parse(position.gap_ranges) for offset in range(first, last + 1)]
    assert (gaps, position.gaps, position.untold) == (never, len(never), 0)
    assert position.again == sum(count - 1 for count in times if count)
    assert not any(times[position.frontier :])


@pytest.mark.parametrize(
    ("fields", "untold"),
    [
        ('"decisions": 2, "again": 0', 2),  # back, and forward past records that were never read
        ('"decisions": 1, "again": -50', 1),
        ('"decisions": 1, "again": 0', 0),
        ('"again": 0', 0),
    ],
)
def test_what_an_earlier_version_noted_of_decisions_cannot_be_told(fields: str, untold: int) -> None:
    text = '{"topic_id": "00", "output_id": "aa", "written": 3, ' + fields + "}"
    position = DedupePosition.parse("group", TP, 7, text)
    assert position.untold == untold
    assert DedupePosition.parse("group", TP, 9, replace(position.moved_to(9), decisions=3).metadata()).untold == untold


@pytest.mark.parametrize(
    ("complete_to", "start", "unknown"),
    [
        (0, 0, ""),
        (0, 1, "0..0"),
        (0, 50, "0..49"),
        (20, 50, "20..49"),
        (50, 50, ""),
        (20, 100, "20..89"),  # what follows the last batch is its transaction's marker
        (90, 91, ""),
        (90, 1000, ""),
    ],
)
def test_ids_that_nobody_knows(complete_to: int, start: int, unknown: str) -> None:
    position = DedupePosition(7, "", "", written=80, output_end=90)
    assert position.unknown_ids(complete_to, start) == unknown
    assert DedupePosition(7, "", "").unknown_ids(complete_to, start) == ""  # nothing was written yet


def test_what_the_output_lost_was_never_read() -> None:
    """It is a gap until it is read again; the counters are then as if nothing had been lost, but for what came twice."""
    before = DedupePosition(100, "", "", read=100, written=80, dropped=20, output_end=90)
    after = before.without_lost(50, 30).read_again_from(40, 60)
    assert (after.offset, after.frontier, after.gap_ranges, after.gaps) == (40, 100, "40..99", 60)
    assert (after.read, after.written, after.dropped, after.again) == (70, 50, 20, 30)
    assert (after.output_end, after.losses, after.untold) == (50, 1, 0)
    again = after.without_lost(20, 10).read_again_from(10, 90)
    assert (again.gap_ranges, again.gaps, again.losses) == ("10..99", 90, 2)


def test_an_older_position_does_not_say_where_its_output_ends() -> None:
    position = DedupePosition(7, "", "", written=80)
    assert [position.unknown_ids(90, start) for start in (90, 91, 92)] == ["", "", "90..91"]
    assert position.unknown_ids(0, 50) == "0..49"


def test_accepted_offsets_are_known_to_be_unknown() -> None:
    position = replace(DedupePosition(7, "", "", written=80, output_end=90), unknown="0..49").accept()
    assert (position.unknown, position.accepted) == ("", "0..49")
    assert [position.unknown_ids(at, start) for at, start in ((0, 50), (10, 50), (0, 51))] == ["", "", "0..50"]
    position = replace(position, unknown="60..69").accept()
    assert position.accepted == "0..49,60..69"
    assert replace(position, unknown="40..59").accept().accepted == "0..69"


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "{",
        "[]",
        "7",
        '{"topic_id": "00"}',
        '{"topic_id": "", "output_id": "", "x": 1}',
        '{"topic_id": "", "output_id": "", "read": null}',
        '{"topic_id": "", "output_id": "", "read": true}',
        '{"topic_id": "", "output_id": "", "accepted": 7}',
        '{"topic_id": "", "output_id": "", "accepted": "0..1,"}',
    ],
)
def test_a_position_that_nobody_of_us_wrote(metadata: str) -> None:
    with pytest.raises(OperatorNeeded, match=r"flights-3 .* `group` .*: `penstock groups delete group --topic flights:3`"):
        DedupePosition.parse("group", TP, 7, metadata)


def test_a_folder_is_held_once(tmp_path: Path) -> None:
    first, second = StoreFolder(tmp_path / "events-0"), StoreFolder(tmp_path / "events-0")
    first.lock("stop it")
    with pytest.raises(FolderError, match="in use by another process: stop it"):
        second.lock("stop it")
    first.unlock()
    second.lock("stop it")
    second.unlock()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be used"):
        StoreFolder(tmp_path / "file" / "events-0").lock("stop it")


def test_a_folder_belongs_to_one_output(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "events-0")
    folder.lock("stop it")
    folder.claim("this output\n", REBUILD)
    folder.claim("this output\n", REBUILD)
    with pytest.raises(OperatorNeeded, match=f"has the ids of this output, not those of another: .*{REBUILD}"):
        folder.claim("another\n", REBUILD)
    folder.unlock()


def test_a_database_of_nobody_is_refused(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "events-0")
    folder.lock("stop it")
    folder.database.mkdir()
    with pytest.raises(OperatorNeeded, match=f"says of what: {REBUILD}"):
        folder.claim("this output\n", REBUILD)
    folder.unlock()
