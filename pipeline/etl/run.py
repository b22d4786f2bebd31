"""A run of a night's plan: what Spark and Delta do of it. All of it blocks, so the load calls it in threads."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from penstock import failpoints
from penstock.pipeline.etl import events, rejectfile, rejects, rowcounts
from penstock.pipeline.etl.changes import deleted_rows
from penstock.pipeline.etl.declared import Declared
from penstock.pipeline.etl.delta import NOTHING, Transaction
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.ledger import NightCommit, Range, TopicPartition
from penstock.pipeline.etl.plan import Plan
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import LOG

ROWS_WRITTEN = failpoints.declare("etl.rows_written", "the rows' files are written, nothing is committed")
REJECTS_WRITTEN = failpoints.declare("etl.rejects_written", "the rejects are committed to their own table")
BEFORE_COMMIT = failpoints.declare("etl.before_commit", "everything but the commit is done")
AFTER_COMMIT = failpoints.declare("etl.after_commit", "the night is committed, nobody was told")


NONE_DELETED: Mapping[TopicPartition, int] = MappingProxyType({})


class Run:
    """A try to carry out a persisted plan. `night` is what it commits, `rejects` how many rejects it keeps: known once it has
    written.

    It has an id of its own in place of the plan's: another process may try the same plan at the same time, and find other
    rejects. Each keeps its own; those that the commit names are the night's, and the others are removed after it."""

    def __init__(self, spark: Any, table: Storage, rejects_table: Storage, plan: Plan, declared: Declared) -> None:
        self._spark = spark
        self._table = table
        self._rejects_table = rejects_table
        plan = self._plan = replace(plan, id=uuid.uuid4().hex)
        self._run = plan.run, plan.id
        self._declared = declared
        self._transaction = Transaction(spark, table, plan, declared)
        self._written = NOTHING
        self.night = _commit_of(plan, events.NO_COUNTS)

    @property
    def rejects(self) -> int:
        """The rows that the rejects' table gets: a record, or a batch that can't be read, is one."""
        return self._written.rejects + len(self._plan.corrupt)

    def write(self, servers: str) -> None:
        """Read the ranges once: rows and rejects to the transaction's files, counts to what will be committed."""
        plan, deleted = self._plan, Counter[TopicPartition]()
        if plan.offsets > 0 or plan.reload:
            records = events.read(self._spark, servers, plan, self._declared)
            if plan.without_deleted:
                records, deleted = self._without_deleted(records)
            parsed = events.parse(records, self._declared, self._transaction.constraints(self._declared))
            counted, counts = events.observe(parsed, plan)
            written = self._transaction.write(counted.selectExpr(*events.written_columns(self._declared)))
            found = events.collect(counts, plan) if plan.readable else events.NO_COUNTS
            read, rows = (sum(each[index] for each in found.partitions.values()) for index in range(2))
            if (written.rows, written.rejects) != (rows, read - rows):
                raise EtlError(
                    f"night {plan.night}: {rows} rows and {read - rows} rejects were read, but {written.rows} and"
                    f" {written.rejects} written"
                )
            self._written, self.night = written, _commit_of(plan, found, deleted)
        self.night = replace(self.night, kept=self.rejects)
        failpoints.failpoint(ROWS_WRITTEN)

    def _without_deleted(self, records: Any) -> tuple[Any, Counter[TopicPartition]]:
        """The records without those whose rows an owner has deleted, and how many those are by partition: a record that was
        loaded stands in the table, or among the rejects."""
        status = self._transaction.status
        before = status.night(self._plan.night)
        assert before is not None, "a night that is not there is not loaded again"
        deleted = deleted_rows(self._table, status, before)
        known = self._transaction.positions()
        if before.rejects and self._rejects_table.names(LOG):
            known = known.unionAll(rejects.positions(self._spark, self._rejects_table, before.runs))
        return records.join(known, ["partition", "offset"], "left_semi"), deleted

    def keep_rejects(self, corrupt: list[bytes | None]) -> None:
        """Take the rejects, each with its reason, from where they were written beside the rows to their own table. `corrupt`
        has the bytes of the plan's corrupt batches."""
        plan, written = self._plan, self._written
        found = rejectfile.of_files(self._table, written.reject_files)
        if corrupt:
            found = itertools.chain(found, [rejectfile.of_batches(zip(plan.corrupt, corrupt, strict=True))])
        rejects.write(self._spark, self._rejects_table, plan, found, self._transaction.check_not_overtaken)
        failpoints.failpoint(REJECTS_WRITTEN)
        kept = rowcounts.reject_counts(self._rejects_table).get(self._run, 0)
        if kept != self.rejects:
            self._transaction.check_not_overtaken()  # the other one has removed them
            raise EtlError(f"night {plan.night}: {self.rejects} rejects were found, but {kept} kept")
        for name in written.reject_files:
            self._table.remove(name)

    def join(self, commit: NightCommit) -> int:
        """Make the one commit by which nights that the table has become one; the table's new version."""
        self.night = commit
        return self.commit()

    def commit(self) -> int:
        """Make the one commit that decides; the table's new version."""
        failpoints.failpoint(BEFORE_COMMIT)
        version = self._transaction.commit(self.night)
        failpoints.failpoint(AFTER_COMMIT)
        return version


def _commit_of(plan: Plan, counts: events.Counts, deleted: Mapping[TopicPartition, int] = NONE_DELETED) -> NightCommit:
    partitions = {}
    for tp, (start, end) in plan.ranges.items():
        records, rows = counts.partitions.get(tp, (0, 0))
        records += sum(batch.records for batch in plan.corrupt if (batch.topic, batch.partition) == tp)
        partitions[tp] = Range(start, end, records + deleted.get(tp, 0), rows, records - rows)
    return NightCommit(
        plan.night,
        plan.run,
        partitions,
        plan.missing,
        plan.topic_id,
        plan.nights,
        plan.id,
        plan.epochs,
        plan.decided,
        later=counts.later,
    )
