"""The rejects' table: records that are no rows, kept with where they were, why, and their raw bytes.

A reject counts if its run, under that plan, is one that the main table committed; rows of other runs are replaced or
removed. The table is partitioned by the run number and the plan's id, so that two machines that carry out different plans of
one run don't touch each other's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.pipeline.etl.ledger import WITHOUT_PLAN_ID, Status
from penstock.pipeline.etl.plan import CorruptBatch, Plan
from penstock.pipeline.etl.rowcounts import reject_counts, rejects_partitioned_by
from penstock.pipeline.etl.storage import Storage

COLUMNS = ("night", "run", "plan", "topic", "partition", "offset", "timestamp", "reason", "key", "value")
FOUND = COLUMNS[3:]  # what is known of a reject before it is stamped with its night, run and plan
SCHEMA = (
    "night STRING, run BIGINT, plan STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, reason STRING,"
    " key BINARY, value BINARY"
)
Run = tuple[int, str]  # its number and the id of its plan


def write(spark: Any, place: Storage, plan: Plan, rejected: Any) -> None:
    """Replace whatever the plan left before by these rejects (a frame with the columns of FOUND)."""
    from pyspark.sql import functions as F

    stamps = {"night": F.lit(plan.night), "run": F.lit(plan.run).cast("BIGINT"), "plan": F.lit(plan.id)}
    _overwrite(spark, rejected.withColumns(stamps).select(*COLUMNS), place, [(plan.run, plan.id)])


def of_batches(spark: Any, batches: Iterable[tuple[CorruptBatch, bytes | None]]) -> Any:
    """A reject for each batch that can't be read, at its first offset, with the batch's bytes as the value."""
    rows = [
        (batch.topic, batch.partition, batch.start, f"a batch of {batch.records} records that can't be read", data)
        for batch, data in batches
    ]
    columns = "topic STRING, partition INT, offset BIGINT, reason STRING, value BINARY"
    return spark.createDataFrame(rows, columns).selectExpr(
        "topic", "partition", "offset", "cast(NULL AS TIMESTAMP) AS timestamp", "reason", "cast(NULL AS BINARY) AS key",
        "value",
    )  # fmt: skip


def stray(place: Storage, status: Status) -> set[Run]:
    """The runs that have rejects though the main table did not commit them, or replaced what they loaded. A run that is
    not over yet may be another machine's."""
    committed = {run for night in status.nights for run in night.runs}
    return {run for run in reject_counts(place).keys() - committed if run[0] <= status.run}


def remove(spark: Any, place: Storage, runs: Iterable[Run]) -> None:
    """Remove the rejects of these runs, in one commit."""
    _overwrite(spark, spark.createDataFrame([], SCHEMA), place, runs)


def _condition(runs: Iterable[Run]) -> str:
    return " OR ".join(f"(run = {run} AND plan = '{plan}')" for run, plan in sorted(runs))


def _overwrite(spark: Any, rows: Any, place: Storage, runs: Iterable[Run]) -> None:
    partitioned_by = rejects_partitioned_by(place)
    if partitioned_by and "plan" not in partitioned_by:
        _add_plans(spark, place)
    writer = rows.write.format("delta").mode("overwrite").partitionBy("run", "plan")
    if partitioned_by:
        writer = writer.option("replaceWhere", _condition(runs))
    writer.save(place.uri)


def _add_plans(spark: Any, place: Storage) -> None:
    """Rewrite a table of rejects that was made before plans had ids, in one commit."""
    from pyspark.sql import functions as F

    before = spark.read.format("delta").load(place.uri).withColumn("plan", F.lit(WITHOUT_PLAN_ID)).select(*COLUMNS)
    writer = before.write.format("delta").mode("overwrite").partitionBy("run", "plan")
    writer.option("overwriteSchema", "true").save(place.uri)
