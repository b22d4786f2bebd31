"""The reader of an event in Spark's JVM: `EventReader.java`, with the declared columns as its types.

Spark's `from_json` can't be it: that makes `1.2345678901234568E17` of a number in a STRING column, takes what it rounds, and
doesn't say which value it didn't take.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.pipeline.etl import columntypes, valuerules
from penstock.pipeline.etl.declared import Column, Declared
from penstock.pipeline.etl.javaclasses import JavaClass

READER = JavaClass("penstock.EventReader", Path(__file__).with_name("EventReader.java").read_text(encoding="utf-8"))


def column(spark: Any, declared: Declared, value: str) -> Any:
    """A column that reads the column `value`, bytes, to a struct: `event`, a struct of the declared columns, and `reason`, null
    if the value is an event."""
    from pyspark.sql import functions as F
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    types, conversions = jvm.org.apache.spark.sql.types, jvm.org.apache.spark.sql.classic.ExpressionUtils
    zone = spark.conf.get("spark.sql.session.timeZone")
    reader = jvm.penstock.EventReader(_event(jvm, declared.columns), zone, valuerules.DEPTH_MAX, valuerules.SHOWN_MAX)
    fields = ", ".join(f"{column.quoted}: {column.type}" for column in declared.columns)
    result = types.DataType.fromDDL(f"STRUCT<event: STRUCT<{fields}>, reason: STRING>")
    seq = jvm.PythonUtils.toSeq
    call = catalyst.objects.Invoke(
        catalyst.Literal(reader, types.ObjectType(reader.getClass())),
        "read",
        result,
        seq([conversions.expression(F.col(value)._jc)]),
        seq([]),  # the argument isn't cast
        False,  # a null is read, too
        False,  # it always gives a struct
        True,  # and the same one again
    )
    return ClassicColumn(conversions.column(call))


def _event(jvm: Any, columns: Sequence[Column]) -> Any:
    parts = [_type(jvm, column.name, column.type) for column in columns]
    return _java_type(jvm, "struct", "", "", 0, 0, parts, [column.name for column in columns], [c.required for c in columns])


def _type(jvm: Any, place: str, text: str) -> Any:
    """A declared type at a place of the event, such as `legs[].at`."""
    rule = valuerules.rule_of(text)
    kind, inner = columntypes.parts(text)
    places = [f"{place}.{name}" if kind == "struct" else f"{place}[]" for name, _ in inner]
    if kind == "map":
        places[0] = f"{place} key"
    parts = [_type(jvm, where, each) for where, (_, each) in zip(places, inner, strict=True)]
    names = [name for name, _ in inner] if kind == "struct" else []
    words = f", and {kind.upper() or text} takes {rule.takes}"
    return _java_type(jvm, rule.kind, place, words, rule.first, rule.second, parts, names, [False] * len(names))


def _java_type(jvm: Any, *fields: object) -> Any:
    return getattr(jvm.penstock, "EventReader$Type")(*fields)
