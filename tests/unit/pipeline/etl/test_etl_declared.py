"""The declared schema: what is read from it and what is refused."""

from __future__ import annotations

import pytest

from penstock.config import ConfigError
from penstock.pipeline.etl.declared import parse


def test_columns_keep_their_types_and_what_is_required() -> None:
    declared = parse(
        "id STRING NOT NULL, price DECIMAL(9, 2), at STRUCT<lat: DOUBLE, lon: DOUBLE> not null, `odd name` INT", "day"
    )
    assert [(column.name, column.type, column.required) for column in declared.columns] == [
        ("id", "STRING", True),
        ("price", "DECIMAL(9, 2)", False),
        ("at", "STRUCT<lat: DOUBLE, lon: DOUBLE>", True),
        ("odd name", "INT", False),
    ]
    assert declared.ddl == "`id` STRING, `price` DECIMAL(9, 2), `at` STRUCT<lat: DOUBLE, lon: DOUBLE>, `odd name` INT"
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
    ],
)
def test_a_schema_that_can_not_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(text, "day")
