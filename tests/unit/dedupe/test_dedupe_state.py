"""What a worker keeps: its position, its folder, batches set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.dedupe.folder import FolderError, StoreFolder
from penstock.dedupe.position import Position
from penstock.dedupe.quarantine import keep_aside
from penstock.pipeline.lanes import OperatorNeeded
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch


def test_a_position_survives_its_metadata() -> None:
    position = Position(7, "00ff", "aa11", 10, 8, 1, 1, 3, 5)
    assert Position.parse(7, position.metadata()) == position
    largest = Position(1 << 62, "f" * 32, "f" * 32, *[1 << 62] * 6)
    assert len(largest.metadata()) < 4096  # Kafka's limit


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
    ],
)
def test_a_position_that_nobody_of_us_wrote(metadata: str) -> None:
    with pytest.raises(OperatorNeeded, match="no dedupe worker wrote"):
        Position.parse(7, metadata)


def test_a_folder_is_held_once(tmp_path: Path) -> None:
    first, second = StoreFolder(tmp_path / "events-0"), StoreFolder(tmp_path / "events-0")
    first.lock()
    with pytest.raises(FolderError, match="in use"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be used"):
        StoreFolder(tmp_path / "file" / "events-0").lock()


def test_a_folder_belongs_to_one_output(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "events-0")
    folder.lock()
    folder.claim("this output\n")
    folder.claim("this output\n")
    with pytest.raises(OperatorNeeded, match="has the ids of this output"):
        folder.claim("another\n")
    folder.unlock()


def test_a_database_of_nobody_is_refused(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "events-0")
    folder.lock()
    folder.database.mkdir()
    with pytest.raises(OperatorNeeded, match="says of what"):
        folder.claim("this output\n")
    folder.unlock()


def test_the_same_batch_is_kept_aside_once(tmp_path: Path) -> None:
    builder = BatchBuilder(4)
    builder.append(b"a", b"b", 1)
    batch = RawBatch(builder.build())
    paths = {keep_aside(tmp_path / "quarantine", "events", 3, batch) for _ in range(2)}
    (path,) = paths
    assert list(path.parent.iterdir()) == [path]
    assert path.name == "events-3-00000000000000000000.batch"
    assert path.read_bytes() == bytes(batch)
