"""What a table holds, wherever it lies, in a process of its own: `python -m support.table_look CONFIG` prints it as JSON.

A process has one JVM, whose class path is the one of the first table that it asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

from penstock.pipeline import job
from penstock.pipeline.etl import places, ready, rowcounts, table
from penstock.pipeline.etl.storage import Storage


def look(config: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Rows' ids, rejects' reasons, nights with their runs and rows, rows by what the audit counts, markers, names beside."""
    search = {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "support.table_look", str(config)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | search | dict(environment or {}), timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    """Print what `look` gives."""
    config = job.load(Path(sys.argv[1]))
    storage = places.at(config["penstock.etl.table"], config)
    rejects = places.at(places.rejects(config), config)
    commits = table.committed(storage)
    found = {
        "ids": sorted(_column(storage, "id")),
        "reasons": sorted(_column(rejects, "reason")) if rejects.names(table.LOG) else [],
        "nights": [[commit.night, commit.run, commit.rows, commit.rejects] for commit in commits],
        "audited": sum(rowcounts.rows_by_night(storage, commits).values()),
        "ready": [json.loads(storage.read(ready.ready_marker(commit.night)))["rows"] for commit in commits],
        "beside": {folder: storage.names(f"_penstock/{folder}") for folder in ("plans", "_READY")},
        "orphans": len(_files(storage) - set(_committed(storage))),
    }
    print(json.dumps(found))


def _committed(storage: Storage) -> list[str]:
    with rowcounts.delta_table(storage) as log:
        return [fragment.path for fragment in log.to_pyarrow_dataset().get_fragments()]


def _files(storage: Storage) -> set[str]:
    days = [name for name in storage.names("") if name.startswith("event_day=")]
    return {f"{day}/{name}" for day in days for name in storage.names(day) if name.endswith(".parquet")}


def _column(storage: Storage, column: str) -> list[str]:
    values: list[str] = []
    for name in _committed(storage):
        with storage.file(name) as data, pyarrow.parquet.ParquetFile(data) as file:
            values += file.read(columns=[column])[column].to_pylist()
    return values


if __name__ == "__main__":
    main()
