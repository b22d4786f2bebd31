"""The rejects' table: records that are no rows, kept with where they were, why, and their raw bytes.

A reject counts if its run, under that plan, is one that the main table committed; rows of other runs are replaced or
removed. The table is partitioned by the run number and the plan's id, so that two machines that carry out different plans of
one run don't touch each other's.

The folder belongs to one table: a file in it says to which, by an id that the table's own folder has. Two tables have runs of
the same numbers, so each would take the other's rejects for what a run of its own has left, and remove them.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable
from typing import Any

from penstock.pipeline import job
from penstock.pipeline.etl.errors import EtlError, Refused, words_of
from penstock.pipeline.etl.ledger import WITHOUT_PLAN_ID, Status
from penstock.pipeline.etl.plan import CorruptBatch, Plan
from penstock.pipeline.etl.rowcounts import reject_counts, rejects_partitioned_by
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

COLUMNS = ("night", "run", "plan", "topic", "partition", "offset", "timestamp", "reason", "key", "value")
FOUND = COLUMNS[3:]  # what is known of a reject before it is stamped with its night, run and plan
SCHEMA = (
    "night STRING, run BIGINT, plan STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, reason STRING,"
    " key BINARY, value BINARY"
)
ID = f"{SIDE_FOLDER}/table-id"
OWNER = f"{SIDE_FOLDER}/owner.json"
Run = tuple[int, str]  # its number and the id of its plan


def check_owner(place: Storage, table: Storage, key: str) -> None:
    """See that the rejects' folder is no other table's; `key` is the property that names it. Raises Refused, EtlError."""
    owner = _owner(place)
    if owner is not None and owner["id"] != _id(table):
        raise Refused(
            f"`{place}` has the rejects of the table `{owner['table']}`, and not of `{table}`: nothing was loaded\n"
            f"hint: give this table a folder of its own, such as `{key}={job.default_rejects(str(table))}`, or move the "
            "rejects away if that table is gone"
        )


def claim(place: Storage, table: Storage, key: str) -> None:
    """Make the rejects' folder this table's, unless it is already. Raises Refused when it is another's, EtlError."""
    if _owner(place) is None:
        own = _id(table)
        if not own:
            own = uuid.uuid4().hex
            with contextlib.suppress(FileExistsError):
                table.create(ID, own.encode(), lambda: None)
            own = _id(table)
        said = json.dumps({"table": table.uri, "id": own}).encode()
        with contextlib.suppress(FileExistsError):
            place.create(OWNER, said, lambda: None)
    check_owner(place, table, key)


def _owner(place: Storage) -> dict[str, str] | None:
    try:
        found = json.loads(place.read(OWNER))
        return {"table": str(found["table"]), "id": str(found["id"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EtlError(f"`{place}/{OWNER}`, which says whose rejects those are, can't be read: {words_of(error)}") from None


def _id(table: Storage) -> str:
    """The table's id; empty where it has none yet."""
    try:
        return table.read(ID).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def write(spark: Any, place: Storage, plan: Plan, rejected: Any) -> None:
    """Replace whatever the plan left before by these rejects (a frame with the columns of FOUND)."""
    from pyspark.sql import functions as F

    stamps = {"night": F.lit(plan.night), "run": F.lit(plan.run).cast("BIGINT"), "plan": F.lit(plan.id)}
    _overwrite(spark, rejected.withColumns(stamps).select(*COLUMNS), place, [(plan.run, plan.id)])


def positions(spark: Any, place: Storage, runs: Iterable[Run]) -> Any:
    """Partition and offset of the rejects of some runs."""
    return spark.read.format("delta").load(place.uri).where(_condition(runs)).select("partition", "offset")


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
