"""The file of a run's rejects, made of the files that Spark writes next to the rows."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from penstock.pipeline.etl import rejectfile
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.localstorage import LocalStorage
from penstock.pipeline.etl.plan import CorruptBatch, Plan

NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 123_000, datetime.UTC)
PLAN = Plan("2013-01-01", 7, {})


def spark_file(folder: Path, name: str, rejects: list[dict[str, Any]], **options: Any) -> None:
    """A file as Spark writes it: the table's columns, and the reject in a struct."""
    columns = {
        "id": pyarrow.array([None] * len(rejects), pyarrow.string()),
        "topic": ["flights"] * len(rejects),
        "partition": pyarrow.array([3] * len(rejects), pyarrow.int32()),
        "offset": [reject["offset"] for reject in rejects],
        "timestamp": pyarrow.array([reject["timestamp"] for reject in rejects], pyarrow.timestamp("us", "UTC")),
        "_penstock_reject": pyarrow.array(
            [{name: reject[name] for name in ("key", "value", "reason")} for reject in rejects],
            pyarrow.struct({"key": pyarrow.binary(), "value": pyarrow.binary(), "reason": pyarrow.string()}),
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / name, **options)


def reject(offset: int, **parts: Any) -> dict[str, Any]:
    return {"offset": offset, "timestamp": NOON, "key": b"k", "value": b"bad %d" % offset, "reason": f"why {offset}", **parts}


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}, {"compression": "zstd"}])
def test_a_file_has_all_that_spark_wrote_and_the_corrupt_batches(tmp_path: Path, options: Any) -> None:
    """In pieces that don't depend on the files, whose values may be missing or large."""
    rejects = [reject(offset) for offset in range(2 * rejectfile.PIECE_ROWS + 1)]
    rejects += [reject(5000, key=None, value=None, timestamp=None), reject(5001, value=b"\xff" * (1 << 20), key=b"")]
    spark_file(tmp_path / "table", "one", rejects[:1500], **options)
    spark_file(tmp_path / "table", "two", rejects[1500:], **options)
    found = [*rejectfile.of_files(LocalStorage(tmp_path / "table"), ["one", "two"])]
    found.append(
        rejectfile.of_batches([(CorruptBatch("flights", 4, 0, 9, 20, 11), b"raw"), (CorruptBatch("x", 0, 0, 1, 2, 1), None)])
    )
    file = rejectfile.write(LocalStorage(tmp_path / "rejects"), PLAN, found)
    path = tmp_path / "rejects" / file.path
    assert file.path.startswith(f"run=7/plan={PLAN.id}/")
    assert (file.rows, file.size) == (len(rejects) + 2, path.stat().st_size)
    own = {"night": "2013-01-01", "topic": "flights", "partition": 3}
    whole = {"night": "2013-01-01", "timestamp": None, "key": None}
    assert pyarrow.parquet.ParquetFile(path).read().to_pylist() == [
        *(own | each for each in rejects),
        whole | {"topic": "flights", "partition": 4, "offset": 9, "value": b"raw",
                 "reason": "a batch of 11 records that can't be read"},
        whole | {"topic": "x", "partition": 0, "offset": 1, "value": None, "reason": "a batch of 1 records that can't be read"},
    ]  # fmt: skip


@pytest.mark.parametrize("is_same", [False, True])
def test_large_rejects_come_in_pieces_of_bytes(tmp_path: Path, is_same: bool) -> None:
    """Also where one value, which the file has once, is that of each record."""
    size = 700_000
    rejects = [reject(offset, value=b"x" * size if is_same else os.urandom(size)) for offset in range(40)]
    rejects += [reject(40, value=b"y" * (2 * rejectfile.PIECE_BYTES)), *(reject(offset) for offset in range(41, 2000))]
    spark_file(tmp_path, "one", rejects)
    pieces = [*rejectfile.of_files(LocalStorage(tmp_path), ["one"])]
    assert [offset for piece in pieces for offset in piece["offset"].to_pylist()] == list(range(2000))
    assert [value for piece in pieces for value in piece["value"].to_pylist()] == [each["value"] for each in rejects]
    large = sorted(sum(map(len, piece["value"].to_pylist())) for piece in pieces)
    assert large[-1] == 2 * rejectfile.PIECE_BYTES and large[-2] <= rejectfile.PIECE_BYTES
    assert len(pieces) < 20


def test_row_groups_are_as_large_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejectfile, "GROUP_BYTES", 100_000)
    spark_file(tmp_path, "one", [reject(offset) for offset in range(10_000)])
    file = rejectfile.write(LocalStorage(tmp_path), PLAN, rejectfile.of_files(LocalStorage(tmp_path), ["one"]))
    metadata = pyarrow.parquet.ParquetFile(tmp_path / file.path).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert sum(sizes) == 10_000
    assert len(sizes) > 3 and max(sizes) < 5_000


def test_a_file_that_is_cut_off_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    spark_file(tmp_path / "table", "one", [reject(offset) for offset in range(10)])
    whole = (tmp_path / "table" / "one").read_bytes()
    (tmp_path / "table" / "one").write_bytes(whole[:-10])
    with pytest.raises(EtlError, match=r"the rejects in `.*/table/one` can't be read: "):
        rejectfile.write(
            LocalStorage(tmp_path / "rejects"), PLAN, rejectfile.of_files(LocalStorage(tmp_path / "table"), ["one"])
        )
    assert not [path for path in (tmp_path / "rejects").rglob("*") if path.is_file()]


def test_a_disk_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rejects").write_text("no folder")
    with pytest.raises(EtlError, match=r"the rejects can't be written to `.*/rejects/run=7/plan="):
        rejectfile.write(LocalStorage(tmp_path / "rejects"), PLAN, [])
