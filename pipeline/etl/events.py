"""A night's records as columns: read by Spark's Kafka source, parsed by the declared schema, validated."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.pipeline.etl.declared import EVENT_DAY, POSITION_COLUMNS, Column, Declared
from penstock.pipeline.etl.parsedtypes import YEARS
from penstock.pipeline.etl.recordcolumns import HEADERS_TYPE, RECORD_HEADERS, RECORD_KEY, RECORD_VALUE

if TYPE_CHECKING:
    from penstock.pipeline.etl.ledger import TopicPartition
    from penstock.pipeline.etl.plan import Plan

BAD = "_bad"
GOOD = "_good"
EVENT = "_event"  # the one object that the value is, null when it is none
WHOLE = "_whole"  # whether the parser took all of the value, and nothing stands beside the object
REJECT = "_penstock_reject"  # key and value of a record that is no row, null in rows
REJECT_TYPE = "STRUCT<key: BINARY, value: BINARY>"
RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
# Records a task: above the one a night is split, below the other all partitions share a task, so a file a day.
TASK_RECORDS_MAX = 500_000
TASK_RECORDS_FEW = 20_000
TEXT = f"cast({RECORD_VALUE} AS STRING)"
# Spark's parser stops where the object ends, and a value may be followed by nothing but white space. Inside of an array the
# parser sees what follows; that costs a copy of the value and an array around the event. A text whose only `}` is its last
# byte needs none of it: the object that its first byte opens can't end earlier.
PLAIN = (
    f"startswith({TEXT}, '{{') AND endswith({TEXT}, '}}')"
    f" AND NOT contains(cast(substring({RECORD_VALUE}, 1, octet_length({RECORD_VALUE}) - 1) AS STRING), '}}')"
)
WRAPPED = f"concat('{{\"e\":[', {TEXT}, ']}}')"
ENDS_WELL = f"endswith(rtrim(' \t\r\n', {TEXT}), '}}')"
PARSER = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
PARSER |= {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "allowUnquotedFieldNames": "false",
}
OPTIONS = "map(" + ", ".join(f"'{name}', '{value}'" for name, value in PARSER.items()) + ")"


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


def parse(records: Any, declared: Declared) -> Any:
    """The declared columns, the event day, the record's position, and whether it is a good row (`_good`)."""
    from pyspark.sql import functions as F

    event = f"STRUCT<{_struct(declared.columns)}, {BAD}: STRING>"
    # Each step is a projection of its own, and Spark keeps apart what is costly and asked for more than once.
    named = {"key": RECORD_KEY, "value": RECORD_VALUE, "headers": RECORD_HEADERS}
    parsed = records.withColumnsRenamed(named).withColumn("_plain", F.expr(f"coalesce({PLAIN}, FALSE)")).withColumns({
        "_alone": F.expr(f"if(_plain, from_json({TEXT}, {_literal(event)}, {OPTIONS}), NULL)"),
        "_wrapped": F.expr(f"if(_plain, NULL, {_from_json(event)})"),
    })  # fmt: skip
    wrapped_whole = f"_wrapped.{BAD} IS NULL AND size(_wrapped.e) = 1 AND {ENDS_WELL}"
    judged = parsed.withColumns({
        EVENT: F.expr("if(_plain, _alone, element_at(_wrapped.e, 1))"),
        WHOLE: F.expr(f"coalesce(if(_plain, _alone.{BAD} IS NULL, {wrapped_whole}), FALSE)"),
    })  # fmt: skip
    columns = [F.expr(column.value(_raw(column))).alias(column.name) for column in declared.columns]
    columns += [F.expr(column.value).alias(column.name) for column in declared.record_columns]
    # An event day may name the record's key and value, unless they are columns of another meaning.
    own = {name.lower() for name in declared.types}
    columns += [F.col(part).alias(name) for part, name in ((RECORD_KEY, "key"), (RECORD_VALUE, "value")) if name not in own]
    whole = [F.col(name) for name in (RECORD_KEY, RECORD_VALUE, EVENT, WHOLE, *POSITION_COLUMNS)]
    dated = judged.select(*whole, *columns).withColumn(EVENT_DAY, F.expr(f"cast(({declared.event_day}) AS DATE)"))
    return dated.withColumn(GOOD, F.expr(_good(declared)))


def _raw(column: Column) -> str:
    """What was parsed for a column, before it is made what the schema declares."""
    return f"{EVENT}.{column.quoted}"


def written_columns(declared: Declared) -> list[str]:
    """The table's columns in order, and REJECT: expressions over what `parse` gives. What is no row has no event day."""
    record = [column.quoted for column in declared.record_columns]
    day = f"if({GOOD}, {EVENT_DAY}, NULL) AS {EVENT_DAY}"
    reject = f"if({GOOD}, NULL, struct({RECORD_KEY} AS key, {RECORD_VALUE} AS value)) AS {REJECT}"
    return [*(column.quoted for column in declared.columns), day, *POSITION_COLUMNS, *record, reject]


def with_reason(records: Any, declared: Declared) -> Any:
    """The records that are no good rows, as `rejects.FOUND` has them. Why is costly to say, so only ever asked of the few."""
    from pyspark.sql import functions as F

    mismatches = [
        f"if({_from_json(f'STRUCT<{_struct((column,))}>')}.{BAD} IS NOT NULL,"
        f" {_literal(f'`{column.name}` is not {column.type}')}, NULL)"
        for column in declared.columns
    ]
    misfits = [
        f"if(coalesce({condition}, FALSE), {_literal(words)}, NULL)"
        for column in declared.columns
        for condition, words in column.misfits(_raw(column))
    ]
    absent = [f"if({column.quoted} IS NULL, {_literal(f'`{column.name}` is missing')}, NULL)" for column in declared.required]
    one_object = f"{_from_json('MAP<STRING, STRING>')}"
    reason = f"""CASE
        WHEN {RECORD_VALUE} IS NULL THEN 'no value'
        WHEN NOT is_valid_utf8({TEXT}) THEN 'not UTF-8'
        WHEN NOT {ENDS_WELL} OR {one_object}.{BAD} IS NOT NULL OR size({one_object}.e) != 1
             OR element_at({one_object}.e, 1) IS NULL THEN 'not one JSON object'
        WHEN NOT {WHOLE} OR NOT {_fits(declared)}
             THEN coalesce(nullif(concat_ws(', ', {", ".join(mismatches + misfits)}), ''),
                           'does not fit the declared schema')
        WHEN {_present(declared.required)} IS NOT TRUE THEN concat_ws(', ', {", ".join(absent) or "''"})
        WHEN {EVENT_DAY} IS NOT NULL THEN 'the event day lies outside of the years 1 to 9999'
        ELSE 'no event day' END"""
    parts = [F.col(RECORD_KEY).alias("key"), F.col(RECORD_VALUE).alias("value")]
    parsed = parse(records, replace(declared, record_columns=()))
    return parsed.where(f"NOT {GOOD}").select(*POSITION_COLUMNS, F.expr(reason).alias("reason"), *parts)


def _struct(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.quoted}: {column.parsed_type}" for column in columns)


def _from_json(element: str) -> str:
    """An expression that parses the value as a one-element array `e` of the element type, beside `_bad`."""
    return f"from_json({WRAPPED}, {_literal(f'e ARRAY<{element}>, {BAD} STRING')}, {OPTIONS})"


def _literal(text: str) -> str:
    """A text as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _present(columns: list[Column]) -> str:
    return "(" + (" AND ".join(f"{column.quoted} IS NOT NULL" for column in columns) or "TRUE") + ")"


def _fits(declared: Declared) -> str:
    """Whether what was parsed is what the schema declares, without rounding and guessing."""
    conditions = [condition for column in declared.columns for condition, _ in column.misfits(_raw(column))]
    return "(" + (" AND ".join(f"NOT coalesce({condition}, FALSE)" for condition in conditions) or "TRUE") + ")"


def _good(declared: Declared) -> str:
    return f"""coalesce({WHOLE} AND {EVENT} IS NOT NULL AND is_valid_utf8({TEXT})
        AND {_present(declared.required)} AND {_fits(declared)} AND year({EVENT_DAY}) {YEARS}, FALSE)"""


def observe(parsed: Any, plan: Plan) -> tuple[Any, Any]:
    """The same records, counted as they pass: what `collect` takes once they have been written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation()
    measures = []
    for index, (_, partition) in enumerate(plan.ranges):  # of one topic
        here = F.col("partition") == partition
        measures.append(F.count_if(here).alias(f"records{index}"))
        measures.append(F.count_if(here & F.col(GOOD)).alias(f"rows{index}"))
    return parsed.observe(counted, *measures), counted


def collect(counted: Any, plan: Plan) -> dict[tuple[str, int], tuple[int, int]]:
    """Per partition the records read and the good rows among them."""
    found = counted.get
    return {tp: (int(found[f"records{index}"] or 0), int(found[f"rows{index}"] or 0)) for index, tp in enumerate(plan.ranges)}
