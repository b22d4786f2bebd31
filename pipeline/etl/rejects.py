"""The rejects' table: records that are no rows, kept with where they were, why, and their raw bytes.

A reject counts if its run, under that try of the run's plan, is one that the main table committed; rows of others are removed
after a commit. The table is partitioned by the run number and by the try's id, its `plan`, so that two machines that carry out
one run, by one plan or by two, don't touch each other's.

The folder belongs to one table: a file in it says to which, by an id that the table's own folder has. Two tables have runs of
the same numbers, so each would take the other's rejects for what a run of its own has left, and remove them.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow

from penstock.pipeline import job
from penstock.pipeline.etl import rejectfile
from penstock.pipeline.etl.delta import DeltaLog
from penstock.pipeline.etl.errors import EtlError, Refused, refused_as
from penstock.pipeline.etl.ledger import WITHOUT_PLAN_ID, Status
from penstock.pipeline.etl.plan import Plan
from penstock.pipeline.etl.rejectfile import RejectFile
from penstock.pipeline.etl.rowcounts import reject_counts, rejects_partitioned_by
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

COLUMNS = ("night", "run", "plan", "topic", "partition", "offset", "timestamp", "reason", "key", "value")
PARTITIONED_BY = ("run", "plan")
TRIES = 10  # of a commit, while others commit to the same table
SCHEMA = (
    "night STRING, run BIGINT, plan STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, reason STRING,"
    " key BINARY, value BINARY"
)
ID = f"{SIDE_FOLDER}/table-id"
OWNER = f"{SIDE_FOLDER}/owner.json"
Run = tuple[int, str]  # its number and the id of the try of its plan


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
    what = f"`{place}/{OWNER}`, which says whose rejects those are, can't be read"
    with contextlib.suppress(FileNotFoundError), refused_as(what, ValueError, KeyError, TypeError):
        found = json.loads(place.read(OWNER))
        return {"table": str(found["table"]), "id": str(found["id"])}
    return None


def _id(table: Storage) -> str:
    """The table's id; empty where it has none yet."""
    try:
        return table.read(ID).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def write(
    spark: Any, place: Storage, plan: Plan, found: Iterable[pyarrow.Table], check: Callable[[], object] = lambda: None
) -> None:
    """Replace the rejects that the try of a plan, whose id the plan has, left before by these. They have the columns of
    `rejectfile.FOUND`. Raises EtlError; and what `check` raises, which is called before a commit is tried."""
    _replace(spark, place, [(plan.run, plan.id)], (plan, rejectfile.write(place, plan, found)), check)


def positions(spark: Any, place: Storage, runs: Iterable[Run]) -> Any:
    """Partition and offset of the rejects of some runs."""
    return spark.read.format("delta").load(place.uri).where(_condition(runs)).select("partition", "offset")


def stray(place: Storage, status: Status) -> set[Run]:
    """The runs that have rejects though the main table did not commit them, or replaced what they loaded. A run that is
    not over yet may be another machine's."""
    committed = {run for night in status.nights for run in night.runs}
    return {run for run in reject_counts(place).keys() - committed if run[0] <= status.run}


def remove(spark: Any, place: Storage, runs: Iterable[Run]) -> None:
    """Remove the rejects of these runs, in one commit. Raises EtlError."""
    _replace(spark, place, runs)


def _condition(runs: Iterable[Run]) -> str:
    return " OR ".join(f"(run = {run} AND plan = '{plan}')" for run, plan in sorted(runs))


def _replace(
    spark: Any,
    place: Storage,
    runs: Iterable[Run],
    added: tuple[Plan, RejectFile] | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Take the rejects of these runs out of the table, and a plan's file in, by one commit. Other processes that commit at the
    same moment may have other plans, or this one: it is tried again with what they left."""
    if rejects_partitioned_by(place) == ["run"]:
        _add_plans(spark, place)
    for tries_left in reversed(range(TRIES)):
        try:
            return _commit(DeltaLog(spark, place), place, runs, added, check)
        except Refused:
            if not tries_left:
                raise


def _commit(
    log: DeltaLog, place: Storage, runs: Iterable[Run], added: tuple[Plan, RejectFile] | None, check: Callable[[], object]
) -> None:
    transaction = log.begin()
    check()
    transaction.readWholeTable()  # Another's commit makes ours fail from here on, and the log is read after it.
    if transaction.readVersion() < 0:
        log.declare(transaction, SCHEMA, PARTITIONED_BY, {"delta.checkpointInterval": "100"})
    elif lacking := log.lacks(transaction, SCHEMA):
        raise EtlError(f"`{place}` is no table of rejects: it has no column `{lacking[0]}`, or one of another type")
    there = reject_counts(place).keys() & set(runs)
    # Only Delta's own list of files has all that a removal says; to make it, Spark runs a job.
    removals = log.removals(transaction, _condition(there)) if there else log.actions()
    log.commit_actions(transaction, removals.appendedAll(log.actions([_add(*added)] if added else [])))


def _add(plan: Plan, file: RejectFile) -> dict[str, Any]:
    return {
        "add": {
            "path": file.path,
            "partitionValues": {"run": str(plan.run), "plan": plan.id},
            "size": file.size,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def _add_plans(spark: Any, place: Storage) -> None:
    """Rewrite a table of rejects that was made before plans had ids, in one commit."""
    from pyspark.sql import functions as F

    before = spark.read.format("delta").load(place.uri).withColumn("plan", F.lit(WITHOUT_PLAN_ID)).select(*COLUMNS)
    writer = before.write.format("delta").mode("overwrite").partitionBy(*PARTITIONED_BY)
    writer.option("overwriteSchema", "true").save(place.uri)
