"""The declared schema of an event: columns with Spark SQL types, some of them required."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config import ConfigError

# Columns that the load itself adds to each row: where the record was, and the day that it counts for.
EVENT_DAY = "event_day"
POSITION_COLUMNS = ("topic", "partition", "offset", "timestamp")
RESERVED = frozenset({EVENT_DAY, *POSITION_COLUMNS})


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


@dataclass(frozen=True)
class Declared:
    """The columns of an event and the expression, in Spark SQL over them, of its event day."""

    columns: tuple[Column, ...]
    event_day: str

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL, all of them nullable: what is required is judged after parsing."""
        return ", ".join(f"{column.quoted} {column.type}" for column in self.columns)

    @property
    def required(self) -> list[Column]:
        """The columns that a row must have."""
        return [column for column in self.columns if column.required]


def parse(text: str, event_day: str) -> Declared:
    """Read `name TYPE[ NOT NULL], ...`. Types are judged by Spark later. Raises ConfigError."""
    columns = [_column(piece) for piece in _split(text)]
    names = [column.name.lower() for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"the schema declares `{twice[0]}` twice (Spark does not tell upper from lower case)")
    taken = sorted(RESERVED & set(names))
    if taken:
        raise ConfigError(f"the schema declares `{taken[0]}`, which is a column that the load adds; rename it")
    return Declared(tuple(columns), event_day)


def _column(piece: str) -> Column:
    match = re.fullmatch(r"(?:`([^`]+)`|(\w+))\s*:?\s+(.+?)(\s+NOT\s+NULL)?", piece, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise ConfigError(f"`{piece}` in the schema is not of the form `name TYPE[ NOT NULL]`")
    return Column(match[1] or match[2], match[3].strip(), match[4] is not None)


def _split(text: str) -> list[str]:
    """The pieces between commas that stand outside of brackets, as in `a DECIMAL(9,2), b STRUCT<c: INT, d:
    INT>`."""
    pieces, depth, piece = [], 0, ""
    for letter in text:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and depth == 0:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += letter
    pieces.append(piece.strip())
    if depth != 0 or not all(pieces):
        raise ConfigError(f"the schema `{text}` has an empty column or brackets that don't match")
    return pieces
