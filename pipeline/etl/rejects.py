"""The rejects' table: records that are no rows, kept with where they were, why, and their raw bytes.

A reject counts if its run is one that the main table committed; rows of other runs are replaced or removed.
The table is partitioned by the run number.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.pipeline.etl.plan import Rotten
from penstock.pipeline.etl.table import reject_runs

COLUMNS = ("night", "run", "topic", "partition", "offset", "timestamp", "reason", "key", "value")
FOUND = COLUMNS[2:]  # what is known of a reject before it is stamped with its night and run
SCHEMA = (
    "night STRING, run BIGINT, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, reason STRING,"
    " key BINARY, value BINARY"
)


def write(spark: Any, path: str, night: str, run: int, rejected: Any) -> None:
    """Replace whatever the run left before by these rejects (a frame with the columns of `with_reason`)."""
    from pyspark.sql import functions as F

    stamped = rejected.withColumns({"night": F.lit(night), "run": F.lit(run).cast("BIGINT")}).select(*COLUMNS)
    _overwrite(stamped, path, [run])


def of_batches(spark: Any, batches: Iterable[tuple[Rotten, bytes | None]]) -> Any:
    """A reject for each batch that can't be opened, at its first offset, with the batch's bytes as the value."""
    rows = [
        (batch.topic, batch.partition, batch.start, f"a batch of {batch.records} records that can't be opened", data)
        for batch, data in batches
    ]
    columns = "topic STRING, partition INT, offset BIGINT, reason STRING, value BINARY"
    return spark.createDataFrame(rows, columns).selectExpr(
        "topic", "partition", "offset", "cast(NULL AS TIMESTAMP) AS timestamp", "reason", "cast(NULL AS BINARY) AS key",
        "value",
    )  # fmt: skip


def count(spark: Any, path: str, run: int) -> int:
    """How many rejects of a run there are."""
    return int(spark.read.format("delta").load(path).where(f"run = {run}").count())


def stray(path: str, committed_runs: Iterable[int]) -> set[int]:
    """Runs that have rejects though the main table did not commit them, or replaced what they loaded."""
    return reject_runs(path) - set(committed_runs)


def remove(spark: Any, path: str, runs: Iterable[int]) -> None:
    """Remove the rejects of these runs, in one commit."""
    _overwrite(spark.createDataFrame([], SCHEMA), path, runs)


def _overwrite(rows: Any, path: str, runs: Iterable[int]) -> None:
    condition = " OR ".join(f"run = {run}" for run in sorted(runs))
    writer = rows.write.format("delta").mode("overwrite").partitionBy("run")
    if (Path(path) / "_delta_log").is_dir():
        writer = writer.option("replaceWhere", condition)
    writer.save(path)
