"""One commit of the table: rows, ranges, counts and run number together, through Delta's own transaction.

DataFrame writers can't add actions of our own to a commit, so Delta's write command is run inside a
transaction that we hold (by py4j): it gives the actions of the data files, and ours go beside them.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from penstock.pipeline.etl import fitting
from penstock.pipeline.etl.declared import EVENT_DAY, Declared
from penstock.pipeline.etl.errors import EtlError, Refused
from penstock.pipeline.etl.plan import Plan
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import DOMAIN_PREFIX, RUN_APP_ID, NightCommit, status

# Checkpoints cost seconds of a small night; the log is read by Delta and by us at a few hundred commits as
# well.
TABLE_PROPERTIES = {
    "delta.feature.domainMetadata": "supported",
    "delta.checkpointInterval": "100",
    "delta.enableDeletionVectors": "false",
}


class Transaction:
    """An open transaction on the table: `write_rows` once, then `commit`; dropped, it leaves only unused
    files."""

    def __init__(self, spark: Any, table: Storage, plan: Plan, declared: Declared) -> None:
        """Begin; a table that is not there is made, empty. Raises Refused when the table's run number is not the one
        that the plan was made on."""
        self._session = spark._jsparkSession
        self._jvm = spark._jvm
        self._delta = spark._jvm.org.apache.spark.sql.delta
        self._plan = plan
        self._none = self._jvm.scala.Option.empty()
        self._mode = self._jvm.org.apache.spark.sql.SaveMode
        self._log = self._delta.DeltaLog.forTable(self._session, table.uri)
        self._transaction = self._log.startTransaction(self._none, self._none)
        if self._transaction.readVersion() < 0:
            self._create(declared)
            self._transaction = self._log.startTransaction(self._none, self._none)
        self._actions = self._jvm.PythonUtils.toSeq([])
        # Delta would find the run number by a job; the log's text says it quicker. Since we say that we read it, a
        # commit of another load that comes before ours makes ours fail.
        self._transaction.readTxn().addOne(RUN_APP_ID)
        run = status(table).run
        if run != plan.run - 1:
            raise Refused(
                f"the table is at run {run}, so run {plan.run} was overtaken by another process; run it again"
            )
        self._grow(declared)

    def _schema(self, declared: Declared) -> str:
        """The table's declared columns as Delta's log has them."""
        return str(self._jvm.org.apache.spark.sql.types.StructType.fromDDL(declared.table_ddl).json())

    def _grow(self, declared: Declared) -> None:
        """Let this transaction's commit add the declared columns that the table lacks."""
        document = json.loads(self._transaction.metadata().json())
        schema = fitting.grown(document["metaData"]["schemaString"], self._schema(declared))
        if schema:
            document["metaData"]["schemaString"] = schema
            self._transaction.updateMetadata(self._delta.actions.Action.fromJson(json.dumps(document)), False)

    def _create(self, declared: Declared) -> None:
        """Commit an empty table of the declared columns. (A writer of rows would make all of them nullable.)"""
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._schema(declared),
            "partitionColumns": [EVENT_DAY],
            "configuration": TABLE_PROPERTIES,
            "createdTime": time.time_ns() // 1_000_000,
        }
        action = self._delta.actions.Action.fromJson(json.dumps({"metaData": metadata}))
        self._transaction.updateMetadataForNewTable(action)
        self._commit(self._jvm.PythonUtils.toSeq([]))

    def write_rows(self, rows: Any) -> int:
        """Write the data files of the rows (not visible before `commit`); how many rows they hold."""
        options = {"replaceWhere": self._replaced()} if self._plan.reload else {}
        mode = self._mode.Overwrite if self._plan.reload else self._mode.Append
        command = self._delta.commands.WriteIntoDelta(
            self._log,
            mode,
            self._delta.DeltaOptions(self._jvm.PythonUtils.toScalaMap(options), self._session.sessionState().conf()),
            self._jvm.PythonUtils.toSeq([EVENT_DAY]),
            self._jvm.PythonUtils.toScalaMap({}),
            rows._jdf,
            self._none,
            self._none,
            False,
        )
        self._actions = command.write(self._transaction, self._session, self._none, False)
        return self._count_added()

    def _replaced(self) -> str:
        """The condition of a reload: exactly the rows of the plan's ranges."""
        spans = [
            f"(topic = '{topic}' AND partition = {partition} AND offset >= {start} AND offset < {end})"
            for (topic, partition), (start, end) in sorted(self._plan.ranges.items())
            if start < end
        ]
        return " OR ".join(spans) or "FALSE"

    def _count_added(self) -> int:
        """Rows in the files to be added, by their statistics. Raises EtlError when a file has none."""
        rows = 0
        actions = self._actions.iterator()
        while actions.hasNext():
            action = actions.next()
            if action.getClass().getSimpleName() == "AddFile":
                count = action.numLogicalRecords()
                if count.isEmpty():
                    raise EtlError(f"Delta wrote `{action.path()}` without a row count")
                rows += int(count.get())
        return rows

    def commit(self, night: NightCommit) -> int:
        """Commit the written files with the night's ledger entry and the run number; the table's new
        version."""
        # Without a time of its own the run number is never retired by
        # `delta.setTransactionRetentionDuration`.
        run = self._delta.actions.SetTransaction(RUN_APP_ID, night.run, self._none)
        ledger = self._delta.actions.DomainMetadata(DOMAIN_PREFIX + night.night, night.to_json(), False)
        return self._commit(self._actions.appended(ledger).appended(run))

    def _commit(self, actions: Any) -> int:
        none = self._none
        write = getattr(self._delta, "DeltaOperations$Write")
        operation = write(self._mode.Append, none, none, none, none, none, none, none, none)
        try:
            return int(self._transaction.commit(actions, operation))
        except Exception as error:
            if "Concurrent" in type(error).__name__ or "Concurrent" in str(error):
                raise Refused(
                    f"another process committed to the table first; run it again ({str(error).splitlines()[0]})"
                ) from None
            raise
