"""A night's records as columns: read by Spark, parsed by the declared schema, validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.pipeline.etl import eventreader
from penstock.pipeline.etl.declared import EVENT_DAY, POSITION_COLUMNS, Declared
from penstock.pipeline.etl.recordcolumns import HEADERS_TYPE, RECORD_HEADERS, RECORD_KEY, RECORD_VALUE

if TYPE_CHECKING:
    from penstock.pipeline.etl.ledger import TopicPartition
    from penstock.pipeline.etl.plan import Plan

REASON = "_reason"  # why a record is no row, null in rows
GOOD = f"{REASON} IS NULL"
READ = "_read"  # the event, or why there is none
REJECT = "_penstock_reject"  # key and value of a record that is no row, and why; null in rows
REJECT_TYPE = "STRUCT<key: BINARY, value: BINARY, reason: STRING>"
RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
# Records a task: above the one a night is split, below the other all partitions share a task, so a file a day.
TASK_RECORDS_MAX = 500_000
TASK_RECORDS_FEW = 20_000
NO_TIME = "timestamp_millis(-1)"  # what Spark's Kafka source makes of a record without a timestamp
YEARS = "BETWEEN 1 AND 9999"
RECORD_YEARS = "BETWEEN 1900 AND 9999"  # Spark's Kafka source shifts earlier times, by the Julian calendar and old time zones


@dataclass(frozen=True)
class Constraints:
    """What a table demands of its rows: `conditions` by name, Spark SQL that has to be true. They may ask for columns that are
    no longer declared (`absent`, by name, with their types), which are null."""

    conditions: Mapping[str, str]
    absent: Mapping[str, Any]


NO_CONSTRAINTS = Constraints({}, {})


def read(spark: Any, bootstrap: str, plan: Plan, declared: Declared) -> Any:
    """The records of a plan's ranges, reading committed, as Spark's Kafka source gives them."""
    return _read(spark, bootstrap, plan, declared.asks_headers) if plan.readable else none(spark, declared)


def none(spark: Any, declared: Declared) -> Any:
    """No records, with the columns that `read` gives."""
    return spark.createDataFrame([], RECORDS + (f", headers {HEADERS_TYPE}" if declared.asks_headers else ""))


def _read(spark: Any, bootstrap: str, plan: Plan, with_headers: bool) -> Any:
    pieces = {tp: plan.pieces(tp) for tp in plan.ranges}
    layers = max(map(len, pieces.values()))
    # The source takes one range a partition: around corrupt batches it takes several sources.
    tasks = _tasks(plan.offsets, spark.sparkContext.defaultParallelism)
    read = [
        _source(spark, bootstrap, {tp: of[i] for tp, of in pieces.items() if i < len(of)}, tasks, with_headers)
        for i in range(layers)
    ]
    records = reduce(lambda left, right: left.unionAll(right), read)
    # Pieces that are as large as each other stay as they are: merged, some tasks would take twice as long as others.
    return records.coalesce(tasks) if sum(map(len, pieces.values())) > tasks else records


def _tasks(offsets: int, parallel: int) -> int:
    """How many tasks read so many offsets: as many at a time as run at once."""
    if offsets <= TASK_RECORDS_FEW:
        return 1
    return -(-offsets // (TASK_RECORDS_MAX * parallel)) * parallel


def _source(spark: Any, bootstrap: str, ranges: dict[TopicPartition, tuple[int, int]], tasks: int, with_headers: bool) -> Any:
    """Spark's Kafka source for a range a partition, split into about as many pieces as there are to be tasks."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (start, end) in ranges.items():
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true" if with_headers else "false",
        "kafka.isolation.level": "read_committed",
        # The source asks for the log's ends at each poll, so polls are few and large. The question waits
        # behind the consumer's next fetch, which at the log's end lasts as long as the broker may hold it.
        "kafka.max.poll.records": "20000",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
        "kafka.fetch.max.wait.ms": "10",
    }
    if tasks > len(ranges):
        options["minPartitions"] = str(tasks)
    return spark.read.format("kafka").options(**options).load()


def parse(records: Any, declared: Declared, constraints: Constraints = NO_CONSTRAINTS) -> Any:
    """The declared columns, the event day, the record's position, and why it is no row (`REASON`)."""
    from pyspark.sql import functions as F

    # Each step is a projection of its own, and Spark keeps apart what is costly and asked for more than once.
    named = records.withColumnsRenamed({"key": RECORD_KEY, "value": RECORD_VALUE, "headers": RECORD_HEADERS})
    read = named.withColumns({
        READ: eventreader.column(records.sparkSession, declared, RECORD_VALUE),
        "timestamp": F.expr(f"nullif(timestamp, {NO_TIME})"),
    })  # fmt: skip
    columns = [F.expr(f"{READ}.event.{column.quoted}").alias(column.name) for column in declared.columns]
    columns += [F.expr(column.value).alias(column.name) for column in declared.record_columns]
    columns.append(F.expr(_reason_of_record(declared)).alias(REASON))
    # An event day may name the record's key and value, unless they are columns of another meaning.
    own = {name.lower() for name in declared.types}
    columns += [F.col(part).alias(name) for part, name in ((RECORD_KEY, "key"), (RECORD_VALUE, "value")) if name not in own]
    whole = [F.col(name) for name in (RECORD_KEY, RECORD_VALUE, *POSITION_COLUMNS)]
    dated = read.select(*whole, *columns).withColumn(EVENT_DAY, F.expr(f"cast(({declared.event_day}) AS DATE)"))
    absent = {name: F.lit(None).cast(kind) for name, kind in constraints.absent.items()}
    return dated.withColumns(absent).withColumn(REASON, F.expr(_reason_of_row(constraints.conditions)))


def _reason_of_record(declared: Declared) -> str:
    """Why a record is no row by its parts alone."""
    headers = [f"if({column.misfit}, {literal(column.words)}, NULL)" for column in declared.record_columns if column.words]
    time = """CASE WHEN year(timestamp) > 9999 THEN concat('the record has the time ', unix_millis(timestamp),
        ' ms, after the year 9999') WHEN year(timestamp) < 1900 THEN 'the record has a time before the year 1900' END"""
    return f"coalesce({', '.join([f'{READ}.reason', *headers, time])})"


def _reason_of_row(constraints: Mapping[str, str]) -> str:
    """Why a record is no row by its columns, too."""
    refused = [
        f"WHEN NOT coalesce(({condition}), FALSE) THEN "
        + literal(f"the table's constraint `{name}` ({condition}) is not true of the row")
        for name, condition in sorted(constraints.items())
    ]
    return f"""CASE WHEN {REASON} IS NOT NULL THEN {REASON}
        WHEN {EVENT_DAY} IS NULL THEN 'no event day'
        WHEN NOT year({EVENT_DAY}) {YEARS} THEN 'the event day lies outside of the years 1 to 9999'
        {" ".join(refused)} END"""


def written_columns(declared: Declared) -> list[str]:
    """The table's columns in order, and REJECT: expressions over what `parse` gives. What is no row has no event day, and no
    time that a reader can't read."""
    record = [column.quoted for column in declared.record_columns]
    day = f"if({GOOD}, {EVENT_DAY}, NULL) AS {EVENT_DAY}"
    reject = f"if({GOOD}, NULL, struct({RECORD_KEY} AS key, {RECORD_VALUE} AS value, {REASON} AS reason)) AS {REJECT}"
    time = f"if(year(timestamp) {RECORD_YEARS}, timestamp, NULL) AS timestamp"
    positions = [time if name == "timestamp" else name for name in POSITION_COLUMNS]
    return [*(column.quoted for column in declared.columns), day, *positions, *record, reject]


def literal(text: str) -> str:
    """A text as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def observe(parsed: Any, plan: Plan) -> tuple[Any, Any]:
    """The same records, counted as they pass: what `collect` takes once they have been written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation()
    measures = []
    for index, (_, partition) in enumerate(plan.ranges):  # of one topic
        here = F.col("partition") == partition
        measures.append(F.count_if(here).alias(f"records{index}"))
        measures.append(F.count_if(here & F.expr(GOOD)).alias(f"rows{index}"))
    later = F.expr(f"{GOOD} AND date(timestamp) > DATE'{plan.night}'")  # in the session's time zone, that of nights
    measures.append(F.count_if(later).alias("later"))
    return parsed.observe(counted, *measures), counted


@dataclass(frozen=True)
class Counts:
    """What a night's records were: per partition the records read and the good rows among them, and of all rows those whose
    record is of a later day than the night."""

    partitions: Mapping[TopicPartition, tuple[int, int]]
    later: int


NO_COUNTS = Counts({}, 0)


def collect(counted: Any, plan: Plan) -> Counts:
    """The counts of records that have been written."""
    found = counted.get
    partitions = {
        tp: (int(found[f"records{index}"] or 0), int(found[f"rows{index}"] or 0)) for index, tp in enumerate(plan.ranges)
    }
    return Counts(partitions, int(found["later"] or 0))
