"""The declared schema of an event: columns with Spark SQL types, some of them required; and its event day."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import ConfigError
from penstock.pipeline.etl import columntypes, recordcolumns, sqlfunctions
from penstock.pipeline.etl.recordcolumns import RECORD_HEADERS, RecordColumn
from penstock.suggestions import did_you_mean, nearest

# Columns that the load itself adds to each row: where the record was, and the day that it counts for.
EVENT_DAY = "event_day"
POSITION_TYPES = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP"}
POSITION_COLUMNS = tuple(POSITION_TYPES)
RESERVED = frozenset({EVENT_DAY, *POSITION_COLUMNS})

DAYS = ("date", "timestamp", "timestamp_ntz", "string")  # types that a day can be taken from
# Words of an expression that are no columns: types, operators and units of Spark SQL, and functions of its grammar.
_WORDS = """
and as asc at between both by case cast collate day days dayofweek dayofyear desc distinct div
else end escape exists extract false filter for from hour hours ilike in interval is leading like local microsecond
microseconds millisecond milliseconds minute minutes month months not null nulls or order over overlay placing position quarter
regexp rlike second seconds similar substring then time timestampadd timestampdiff to trailing
trim true try_cast week weeks when where with without year years zone
"""
WORDS = frozenset(_WORDS.split())
_TOKEN = re.compile(
    r"(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")|`(?P<quoted>[^`]+)`|(?P<number>\d[\w.]*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<other>\S)|(?P<blank>\s+)"
)


@dataclass(frozen=True)
class Column:
    """A declared column: name, Spark SQL type, and whether a row without it is rejected."""

    name: str
    type: str
    required: bool

    @property
    def quoted(self) -> str:
        """The name as Spark SQL takes it, whatever letters it is made of."""
        return f"`{self.name}`"

    @property
    def canonical(self) -> str:
        """The type as Delta's log names it."""
        return columntypes.canonical(self.type)


@dataclass(frozen=True)
class Declared:
    """The columns of an event, the expression, in Spark SQL over them, of its event day, and the columns that are no part of
    an event but of its record."""

    columns: tuple[Column, ...]
    event_day: str
    record_columns: tuple[RecordColumn, ...] = ()

    @property
    def required(self) -> list[Column]:
        """The columns that a row must have."""
        return [column for column in self.columns if column.required]

    @property
    def table_ddl(self) -> str:
        """The table's columns in Spark's DDL, in order."""
        positions = [f"`{name}` {kind}" for name, kind in POSITION_TYPES.items()]
        record = [f"{column.quoted} {column.type}" for column in self.record_columns]
        own = [f"{column.quoted} {column.type}{' NOT NULL' if column.required else ''}" for column in self.columns]
        return ", ".join([*own, f"{EVENT_DAY} DATE", *positions, *record])

    @property
    def types(self) -> dict[str, str]:
        """The types of the event's and the record's columns by name."""
        return {column.name: column.type for column in self.columns} | {one.name: one.type for one in self.record_columns}

    @property
    def asks_headers(self) -> bool:
        """Whether a column needs the records' headers."""
        return any(RECORD_HEADERS in column.value for column in self.record_columns)


def parse(text: str, event_day: str, record_columns: Sequence[str] = (), prefix: str = "penstock.etl.") -> Declared:
    """Read `name TYPE[ NOT NULL], ...`, an event day over them, and the columns of the record: the values of the properties
    that begin with a prefix. Raises ConfigError."""
    schema = f"`{prefix}schema`"
    try:
        columns = [Column(*columntypes.named(piece)) for piece in columntypes.split(text)]
        for column in columns:
            columntypes.canonical(column.type)
    except ConfigError as error:
        raise ConfigError(f"{schema}: {error}") from None
    names = [column.name.lower() for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{schema} declares `{twice[0]}` twice (Spark takes upper and lower case for the same)")
    taken = sorted(RESERVED & set(names))
    if taken:
        raise ConfigError(f"{schema} declares `{taken[0]}`, which is a column that the load adds; rename it")
    _check_event_day(event_day, {column.name.lower(): column for column in columns}, f"{prefix}event.day")
    return Declared(
        tuple(columns), event_day, recordcolumns.parse(record_columns, RESERVED | set(names), f"{prefix}record.columns")
    )


def _check_event_day(text: str, columns: dict[str, Column], key: str) -> None:
    """See that the expression can be one, as far as that can be told without Spark. Raises ConfigError."""
    what = f"`{key}={text}`"
    tokens = [token for token in _TOKEN.finditer(text) if token["blank"] is None]
    if not tokens:
        raise ConfigError(f"{what} is no expression: give a column, or Spark SQL over columns")
    depth = 0
    for token in tokens:
        depth += (token[0] == "(") - (token[0] == ")")
        if depth < 0 or token[0] in ("'", '"', "`", ";"):
            raise ConfigError(f"{what} has a `{token[0]}` too many")
    if depth:
        raise ConfigError(f"{what} has a `(` too many")
    for index, token in enumerate(tokens):
        name = token["quoted"] or token["name"]
        if name is None or (index and tokens[index - 1][0] == "."):
            continue
        following = [each[0] for each in tokens[index + 1 :]]
        if token["quoted"] is None and following[:1] == ["("]:
            _check_function(name.lower(), what)
            continue
        lowered = name.lower()
        if token["quoted"] is None and lowered in sqlfunctions.CHANGING and lowered not in columns:
            _check_function(lowered, what)
        if "->" in text:
            continue
        known = lowered in columns or lowered in (*POSITION_COLUMNS, "key", "value")
        if not known and (token["quoted"] or (lowered not in WORDS and name.upper() not in columntypes.SIMPLE)):
            near = nearest(lowered, columns)
            hint = f"; did you mean `{columns[near].name}`?" if near else ""
            raise ConfigError(f"{what} names `{name}`, which is no column of the schema{hint}")
        if lowered in columns:
            _check_fields(columns[lowered].type, name, tokens[index + 1 :], what)
    if len(tokens) == 1 and (name := tokens[0]["quoted"] or tokens[0]["name"]) is not None:
        column = columns.get(name.lower())
        if column is None:
            raise ConfigError(f"{what} names `{name}`, which is no column of the schema")
        if column.canonical not in DAYS:
            raise ConfigError(f"{what}: the column is {column.type}, from which no day can be taken")


def _check_function(name: str, what: str) -> None:
    """See that an expression may call a function. Raises ConfigError."""
    if name in sqlfunctions.CHANGING:
        raise ConfigError(
            f"{what} calls `{name}`, which gives another value when a night is loaded again: take the day from a column, or"
            " from the record's `timestamp`"
        )
    if name in sqlfunctions.OF_ROWS:
        raise ConfigError(f"{what} calls `{name}`, which isn't a function of one row")
    types = name.upper() in columntypes.SIMPLE or name.upper() in columntypes.DECIMALS
    if name not in sqlfunctions.OF_A_ROW and name not in WORDS and not types:
        hint = did_you_mean(name, sqlfunctions.OF_A_ROW)
        raise ConfigError(f"{what} calls `{name}`, which is no function of Spark SQL{hint}")


def _check_fields(kind: str, path: str, following: Sequence[re.Match[str]], what: str) -> None:
    """See that the fields that follow a column, each behind a dot, are in it. Raises ConfigError."""
    while len(following) > 1 and following[0][0] == "." and (field := following[1]["quoted"] or following[1]["name"]):
        outer, inner = columntypes.parts(kind)
        if outer == "array":  # the field of each of its structs
            outer, inner = columntypes.parts(inner[0][1])
        if outer == "map":
            return
        types = {name.lower(): each for name, each in inner}
        if outer != "struct" or field.lower() not in types:
            hint = did_you_mean(field.lower(), types)
            raise ConfigError(f"{what} names `{path}.{field}`, and `{path}` has no field `{field}`{hint}")
        kind, path, following = types[field.lower()], f"{path}.{field}", following[2:]
