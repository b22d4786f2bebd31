"""One commit of the table: rows, ranges, counts and run number together, through Delta's own transaction.

DataFrame writers can't add actions of our own to a commit, so Delta's write command is run inside a transaction that we hold
(by py4j): it gives the actions of the data files, and ours go beside them.

The records are written by a transaction of its own, which is never committed. Its table has a column more, for the bytes of a
record that is no row and why it is none. It takes nulls everywhere, and has no CHECK constraints: a record that the table's
constraints refuse is a reject. Such records have no event day, so they lie in files of their own, and no night has to read its
records twice to keep them. In the files of rows that column is the last, and null; readers of the table don't see it. The files
of rejects are removed once they are kept (rejects.py). Those of a load that was killed are what it leaves of its rows, too:
files that no commit names, which VACUUM removes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from penstock.pipeline.etl import fitting
from penstock.pipeline.etl.changenotes import CHANGES_DOMAIN
from penstock.pipeline.etl.changes import notes_for
from penstock.pipeline.etl.declared import EVENT_DAY, RESERVED, Declared
from penstock.pipeline.etl.errors import EtlError, Refused
from penstock.pipeline.etl.events import NO_CONSTRAINTS, REJECT, REJECT_TYPE, Constraints
from penstock.pipeline.etl.ledger import DOMAIN_PREFIX, RUN_APP_ID, TOPIC_PROPERTY, NightCommit, Status
from penstock.pipeline.etl.plan import Plan
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import status

# Checkpoints cost seconds of a small night; the log is read by Delta and by us at a few hundred commits as
# well.
TABLE_PROPERTIES = {
    "delta.feature.domainMetadata": "supported",
    "delta.checkpointInterval": "100",
    "delta.enableDeletionVectors": "false",
}
MAPPING = "delta.columnMapping.mode"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
CONSTRAINT = "delta.constraints."  # begins the property of a CHECK constraint


@dataclass(frozen=True)
class Written:
    """Files that were written and aren't committed: how many rows and rejects they hold, and the paths of those of rejects
    below the table's folder."""

    rows: int
    rejects: int
    reject_files: list[str]


NOTHING = Written(0, 0, [])


class DeltaLog:
    """A table's log, as Delta has it in the JVM."""

    def __init__(self, spark: Any, table: Storage) -> None:
        self._spark = spark
        self._session = spark._jsparkSession
        self._jvm = spark._jvm
        self._delta = spark._jvm.org.apache.spark.sql.delta
        self._table = table
        self._none = self._jvm.scala.Option.empty()
        self._mode = self._jvm.org.apache.spark.sql.SaveMode
        self._log = self._delta.DeltaLog.forTable(self._session, table.uri)

    def begin(self) -> Any:
        """Open a transaction of Delta's."""
        return self._log.startTransaction(self._none, self._none)

    def actions(self, documents: Iterable[dict[str, Any]] = ()) -> Any:
        """Actions of a commit, as Delta's log has them, in the JVM."""
        return self._jvm.PythonUtils.toSeq([self._action(document) for document in documents])

    def _action(self, document: dict[str, Any]) -> Any:
        return self._delta.actions.Action.fromJson(json.dumps(document))

    def declare(self, transaction: Any, ddl: str, partitioned_by: Sequence[str], properties: Mapping[str, str]) -> None:
        """Let a transaction's commit make the table, with these columns. (A writer of rows would make all of them nullable.)"""
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._schema(ddl),
            "partitionColumns": list(partitioned_by),
            "configuration": properties,
            "createdTime": time.time_ns() // 1_000_000,
        }
        transaction.updateMetadataForNewTable(self._action({"metaData": metadata}))

    def _schema(self, ddl: str) -> str:
        return str(self._jvm.org.apache.spark.sql.types.StructType.fromDDL(ddl).json())

    def lacks(self, transaction: Any, ddl: str) -> list[str]:
        """The columns of these that the table of a transaction doesn't have as they are."""
        there = json.loads(_metadata_of(transaction)["metaData"]["schemaString"])["fields"]
        types = {field["name"]: field["type"] for field in there}
        wanted = json.loads(self._schema(ddl))["fields"]
        return [field["name"] for field in wanted if types.get(field["name"]) != field["type"]]

    def removals(self, transaction: Any, condition: str) -> Any:
        """The actions that take the files of some partitions, which a condition names, out of the table."""
        parsed = self._session.sessionState().sqlParser().parseExpression(condition)
        files = transaction.filterFiles(self._jvm.PythonUtils.toSeq([parsed]), False).iterator()
        now_ms, removed = time.time_ns() // 1_000_000, []
        while files.hasNext():
            removed.append(files.next().removeWithTimestamp(now_ms, True))
        return self._jvm.PythonUtils.toSeq(removed)

    def commit_actions(self, transaction: Any, actions: Any) -> int:
        """Commit; the table's new version. Raises Refused when another process was quicker."""
        none = self._none
        write = getattr(self._delta, "DeltaOperations$Write")
        operation = write(self._mode.Append, none, none, none, none, none, none, none, none)
        try:
            return int(transaction.commit(actions, operation))
        except Exception as error:
            if "concurrent" in str(error).lower():
                raise Refused(
                    f"another process committed to `{self._table}` first; run it again ({str(error).splitlines()[0]})"
                ) from None
            raise


class Transaction(DeltaLog):
    """An open transaction on the table: `write` once, then `commit`; dropped, it leaves only unused files."""

    def __init__(self, spark: Any, table: Storage, plan: Plan, declared: Declared) -> None:
        """Begin; the commit makes a table that is not there. Raises Refused when the table's run number is not the one
        that the plan was made on."""
        super().__init__(spark, table)
        self._plan = plan
        self._transaction = self.begin()
        self._is_new = self._transaction.readVersion() < 0
        self._actions = self.actions()
        # Delta would find the run number by a job; the log's text says it quicker. Since we say that we read it, a
        # commit of another load that comes before ours makes ours fail.
        self._transaction.readTxn().addOne(RUN_APP_ID)
        self._status = self.check_not_overtaken()
        self._declare(declared)

    def check_not_overtaken(self) -> Status:
        """The table as it is now. Raises Refused when its run number is not the one that the plan was made on."""
        found = status(self._table)
        if found.run != self._plan.run - 1:
            raise Refused(
                f"the table is at run {found.run}, so run {self._plan.run} was overtaken by another process; run it again"
            )
        return found

    def _declare(self, declared: Declared) -> None:
        """Let this transaction's commit make the table, or add what it lacks: declared columns, its topic's name."""
        if self._is_new:
            properties = TABLE_PROPERTIES | {TOPIC_PROPERTY: self._plan.topic}
            self.declare(self._transaction, declared.table_ddl, [EVENT_DAY], properties)
            return
        document = _metadata_of(self._transaction)
        metadata = document["metaData"]
        grown = fitting.grown(metadata["schemaString"], self._schema(declared.table_ddl))
        metadata["schemaString"] = grown or metadata["schemaString"]
        named = TOPIC_PROPERTY in metadata["configuration"]  # tables of earlier versions name none
        metadata["configuration"].setdefault(TOPIC_PROPERTY, self._plan.topic)
        if grown or not named:
            self._transaction.updateMetadata(self._action(document), False)

    def constraints(self, declared: Declared) -> Constraints:
        """The CHECK constraints that somebody gave the table; it has none before its first commit."""
        from pyspark.sql.types import StructType

        if self._is_new:
            return NO_CONSTRAINTS
        metadata = _metadata_of(self._transaction)["metaData"]
        conditions = {
            key.removeprefix(CONSTRAINT): value
            for key, value in metadata["configuration"].items()
            if key.startswith(CONSTRAINT)
        }
        there = {name.lower() for name in declared.types} | RESERVED
        fields = StructType.fromJson(json.loads(metadata["schemaString"])).fields
        return Constraints(conditions, {each.name: each.dataType for each in fields if each.name.lower() not in there})

    def write(self, records: Any) -> Written:
        """Write the data files of the records, good rows and others (a frame with the columns of `events.written_columns`);
        none is visible before `commit`, and those of the others never. A reload's rows are taken out of the files that they
        share with other nights' here, too."""
        writer = self.begin()
        if not self._is_new:
            document = _metadata_of(self._transaction)
            metadata = document["metaData"]
            schema = json.loads(metadata["schemaString"])
            added = json.loads(self._schema(f"{REJECT} {REJECT_TYPE}"))["fields"]
            if metadata["configuration"].get(MAPPING, "none") != "none":
                _name_as_they_are(added)
            schema["fields"] = [field | {"nullable": True} for field in schema["fields"]] + added
            metadata["schemaString"] = json.dumps(schema)
            metadata["configuration"] = {
                key: value for key, value in metadata["configuration"].items() if not key.startswith(CONSTRAINT)
            }
            writer.updateMetadata(self._action(document), False)
        rows, rejects, reject_files, kept = 0, 0, [], []
        actions = self._write(writer, records, self._mode.Append, {}).iterator()
        while actions.hasNext():
            action = actions.next()
            added = json.loads(action.json()).get("add")
            if added is None:
                continue
            count = action.numLogicalRecords()
            if count.isEmpty():
                raise EtlError(f"Delta wrote `{added['path']}` without a row count")
            if added["partitionValues"].get(EVENT_DAY) is None:
                rejects += int(count.get())
                reject_files.append(unquote(added["path"]))
            else:
                rows += int(count.get())
                kept.append(action)
        self._actions = self._jvm.PythonUtils.toSeq(kept)
        if self._plan.reload:
            none = records.where("FALSE").drop(REJECT)
            removed = self._write(self._transaction, none, self._mode.Overwrite, {"replaceWhere": self._replaced()})
            self._actions = removed.appendedAll(self._actions)
        return Written(rows, rejects, reject_files)

    def _write(self, transaction: Any, records: Any, mode: Any, options: dict[str, str]) -> Any:
        command = self._delta.commands.WriteIntoDelta(
            self._log,
            mode,
            self._delta.DeltaOptions(self._jvm.PythonUtils.toScalaMap(options), self._session.sessionState().conf()),
            self._jvm.PythonUtils.toSeq([EVENT_DAY]),
            self._jvm.PythonUtils.toScalaMap({}),
            records._jdf,
            self._none,
            self._none,
            False,
        )
        return command.write(transaction, self._session, self._none, False)

    @property
    def status(self) -> Status:
        """The table as it was when the transaction began."""
        return self._status

    def positions(self) -> Any:
        """Partition and offset of the rows that the table has in the plan's ranges."""
        return self._spark.read.format("delta").load(self._table.uri).where(self._replaced()).select("partition", "offset")

    def _replaced(self) -> str:
        """The condition of a reload: exactly the rows of the plan's ranges."""
        spans = [
            f"(topic = '{topic}' AND partition = {partition} AND offset >= {start} AND offset < {end})"
            for (topic, partition), (start, end) in sorted(self._plan.ranges.items())
            if start < end
        ]
        return " OR ".join(spans) or "FALSE"

    def commit(self, night: NightCommit) -> int:
        """Commit the written files with the night's ledger entry, the notes about changes of the table and the run number; the
        table's new version. Raises Refused when another process was quicker."""
        self.check_not_overtaken()  # Delta can't tell once it has removed the other's commit from its log
        run = self._delta.actions.SetTransaction(RUN_APP_ID, night.run, self._none)
        ledger = self._domain(DOMAIN_PREFIX + night.night, night.to_json())
        noted = notes_for(self._table, self._status, night, self._transaction.readVersion(), self._plan.takes_back)
        notes = self._domain(CHANGES_DOMAIN, noted.to_json())
        actions = self._actions.appended(ledger).appended(notes).appended(run)
        for gone in self._plan.takes_back:
            actions = actions.appended(self._domain(DOMAIN_PREFIX + gone, "", removed=True))
        return self.commit_actions(self._transaction, actions)

    def _domain(self, name: str, text: str, *, removed: bool = False) -> Any:
        return self._delta.actions.DomainMetadata(name, text, removed)


def _metadata_of(transaction: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(transaction.metadata().json())
    return document


def _name_as_they_are(fields: list[dict[str, Any]]) -> None:
    """Let a table with column mapping call new fields in its files what they are called; else each has a random name there."""
    for field in fields:
        field["metadata"][PHYSICAL_NAME] = field["name"]
        if isinstance(field["type"], dict):
            _name_as_they_are(field["type"]["fields"])
