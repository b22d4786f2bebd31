"""The declared schema: what is read from it and what is refused."""

from __future__ import annotations

import pytest

from penstock.config import ConfigError
from penstock.pipeline.etl.declared import parse


def test_columns_keep_their_types_and_what_is_required() -> None:
    declared = parse(
        "id STRING NOT NULL, price DECIMAL(9, 2), at STRUCT<lat: DOUBLE, lon: DOUBLE> not null, `odd-name` INT", "date(id)"
    )
    assert [(column.name, column.type, column.required) for column in declared.columns] == [
        ("id", "STRING", True),
        ("price", "DECIMAL(9, 2)", False),
        ("at", "STRUCT<lat: DOUBLE, lon: DOUBLE>", True),
        ("odd-name", "INT", False),
    ]
    assert declared.table_ddl == (
        "`id` STRING NOT NULL, `price` DECIMAL(9, 2), `at` STRUCT<lat: DOUBLE, lon: DOUBLE> NOT NULL, `odd-name` INT,"
        " event_day DATE, `topic` STRING, `partition` INT, `offset` BIGINT, `timestamp` TIMESTAMP"
    )
    assert [column.name for column in declared.required] == ["id", "at"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty column"),
        ("id STRING,", "empty column"),
        ("id", "not of the form"),
        ("price DECIMAL(9,2", "brackets"),
        ("id STRING, ID INT", "twice"),
        ("id STRING, offset BIGINT", "`offset`"),
        ("event_day DATE", "`event_day`"),
        ("id INTT", "`penstock.etl.schema`: `INTT` is no type; did you mean `INT`"),
        ("id VARCHAR(3)", "did you mean `STRING`"),
        ("id ARRAY<INT, INT>", "2 types"),
        ("id MAP<STRING, STRUCT<a: INTT>>", "`INTT`"),
        ("price DECIMAL(39, 2)", "1 to 38 digits"),
        ("id MAP<INT, STRING>", "keys of type INT, and names in JSON are strings: declare MAP<STRING, ...>"),
        ("id ARRAY<STRUCT<a: INT, A: INT>>", "`a` twice"),
        ("stops ARRAY<STRUCT<at: STRING NOT NULL>>", "`at` can't be NOT NULL"),
        ("`odd name` INT", "`odd name` has ' ' in it, which Delta takes in no name"),
        ("at STRUCT<`lat;`: DOUBLE>", "`lat;` has ';'"),
    ],
)
def test_a_schema_that_can_not_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(text, "day")


def test_columns_of_the_record_are_named_beside_those_of_the_event() -> None:
    asked = ["key AS record_key", "headers", "header:datacenter as source", "header:trace.id"]
    declared = parse("key STRING, day DATE", "day", asked)
    assert declared.table_ddl.endswith(
        "`timestamp` TIMESTAMP, `record_key` BINARY, `headers` ARRAY<STRUCT<key: STRING, value: BINARY>>,"
        " `source` STRING, `trace.id` STRING"
    )
    assert declared.asks_headers
    assert not parse("day DATE", "day", ["key"]).asks_headers


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["key"], "a column `key`, which the table has already .* such as `key AS record_key`"),
        (["header:Offset"], "a column `Offset`, which .* such as `header:Offset AS record_Offset`"),
        (["headers AS day"], "a column `day`"),
        (["header:a AS h", "header:b AS H"], "a column `H`"),
        (["source"], "no part of a record: .* a header that its producer sets: `header:NAME AS source`"),
        (["header"], "no part of a record: .* did you mean `headers`"),
        (["key record_key"], "no part of a record"),
        (["header:a=b"], "`a=b` in `etl.raw.record.columns` .give it another one with ` AS COLUMN`. has '=' in it"),
    ],
)
def test_columns_of_the_record_that_can_not_be_are_refused(asked: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse("key STRING, day DATE", "day", asked, "etl.raw.")


@pytest.mark.parametrize(
    "text",
    [
        "day",
        "`odd-day`",
        "DATE(at)",
        "date_add(to_date(`odd-day`, 'yyyyMMdd'), -1)",
        "CAST(at - INTERVAL 6 HOURS AS DATE)",
        "case when day is null then date(timestamp) else day end",
        "date(place.seen)",
        "date(from_utc_timestamp(at, 'Asia/Tokyo'))",
        "coalesce(to_date(`odd-day`), place.Seen, element_at(places.seen, 1), date(named.any.seen))",
        "cast(substring(cast(unix_timestamp(at) AS STRING), 1, 10) AS DECIMAL(10, 0))",
        "date(timestampadd(HOUR, 1, at))",
        "current_date",
    ],
)
def test_an_event_day_over_the_columns_is_taken(text: str) -> None:
    schema = "day DATE, `odd-day` STRING, at TIMESTAMP, place STRUCT<seen: TIMESTAMP>, current_date DATE"
    schema += ", places ARRAY<STRUCT<seen: TIMESTAMP>>, named MAP<STRING, STRUCT<seen: TIMESTAMP>>"
    assert parse(schema, text).event_day == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no expression"),
        ("dya", "`dya`, which is no column"),
        ("date(da)", "did you mean `day`"),
        ("year", "`year`, which is no column"),
        ("date(day", "a `\\(` too many"),
        ("date(day))", "a `\\)` too many"),
        ("to_date(day, 'yyyy)", "a `'` too many"),
        ("number", "from which no day can be taken"),
        ("no_such_function(day)", "calls `no_such_function`, which is no function of Spark SQL"),
        ("to_dat(day)", "calls `to_dat`, which is no function of Spark SQL; did you mean `to_date`"),
        ("max(day)", "calls `max`, which isn't a function of one row"),
        ("explode(array(day))", "calls `explode`, which isn't a function of one row"),
        ("coalesce(day, current_date())", "calls `current_date`, which gives another value when a night is loaded again"),
        ("coalesce(day, current_date)", "calls `current_date`, which gives another value"),
        ("date(place.sen)", "names `place.sen`, and `place` has no field `sen`; did you mean `seen`"),
        ("date(place.seen.hour)", "`place.seen` has no field `hour`"),
        ("date(places.sen)", "`places` has no field `sen`"),
        ("date(day.year)", "`day` has no field `year`"),
    ],
)
def test_an_event_day_that_can_not_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse("day DATE, number INT, place STRUCT<seen: TIMESTAMP>, places ARRAY<STRUCT<seen: TIMESTAMP>>", text)
