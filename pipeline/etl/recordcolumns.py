"""Columns on request for what stands in a record beside its value: its key, its headers, or one of them.

`penstock.etl.record.columns=key, headers, header:datacenter AS source`. Which datacenter a record came from is known by a
header that its producer sets: a mirror copies batches as they are, and dedupe's batches hold records of all sources.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.config import ConfigError
from penstock.pipeline.etl.columntypes import check_name
from penstock.suggestions import did_you_mean

RECORD_KEY, RECORD_VALUE, RECORD_HEADERS = "_record_key", "_record_value", "_record_headers"
"""What a record's own parts are called beside the declared columns, of which each may be a `key` or a `value`."""

HEADERS_TYPE = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_ONE = re.compile(r"(?P<part>key|headers|header:(?P<header>[^\s`]+))(?:\s+AS\s+(?P<name>[^\s`]+))?", re.IGNORECASE)


@dataclass(frozen=True)
class RecordColumn:
    """A column of the table that a record's key, its headers, or the last header of a name give."""

    name: str
    type: str
    value: str  # in Spark SQL over the record's parts
    misfit: str = "FALSE"  # whether the column can't hold what the record has
    words: str = ""  # what the record's reject says then

    @property
    def quoted(self) -> str:
        """The name as Spark SQL takes it, whatever letters it is made of."""
        return f"`{self.name}`"


def parse(texts: Sequence[str], taken: Collection[str], key: str) -> tuple[RecordColumn, ...]:
    """Read `key`, `headers` and `header:NAME`, each perhaps with ` AS COLUMN`, the value of a property; `taken` are the names,
    in lower case, that other columns have. Raises ConfigError.
    """
    found: list[RecordColumn] = []
    for text in texts:
        column = _parse_one(text, key)
        if column.name.lower() in {*taken, *(one.name.lower() for one in found)}:
            part = re.split(r"\s", text)[0]
            raise ConfigError(
                f"`{key}` asks for a column `{column.name}`, which the table has already by its schema, by the load or by an"
                f" earlier word: give it another name, such as `{part} AS record_{column.name}`"
            )
        found.append(column)
    return tuple(found)


def _parse_one(text: str, key: str) -> RecordColumn:
    match = _ONE.fullmatch(text.strip())
    if match is None:
        hint = did_you_mean(text.strip().lower(), ["key", "headers"])
        if text.strip().lower() in ("source", "datacenter"):
            hint = "; where a record came from is known by a header that its producer sets: `header:NAME AS source`"
        raise ConfigError(
            f"`{text}` in `{key}` is no part of a record: there are `key`, `headers` and `header:NAME`, each perhaps with"
            f" ` AS COLUMN`{hint}"
        )
    part, header = match["part"].lower(), match["header"]
    name = match["name"] or header or part
    check_name(name, f"`{key}` (give it another one with ` AS COLUMN`)")
    if part == "key":
        return RecordColumn(name, "BINARY", RECORD_KEY)
    if part == "headers":
        return RecordColumn(name, HEADERS_TYPE, RECORD_HEADERS)
    wanted = header.replace("\\", "\\\\").replace("'", "\\'")
    last = f"cast(try_element_at(filter({RECORD_HEADERS}, header -> header.key = '{wanted}'), -1).value AS STRING)"
    return RecordColumn(name, "STRING", last, f"NOT is_valid_utf8({last})", f"`{name}` is not UTF-8 in header `{header}`")
