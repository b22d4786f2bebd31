"""Which JSON values a declared type takes, exactly. Every other value makes its record a reject.

No value is rounded, wrapped, shifted, completed or replaced. A rule is data: how a value of the type is read, and in words what
is taken. `EventReader.java` applies the rules, the reasons of rejects and `TYPES.md` quote their words, and
`tests/support/valuecorpus.py` has the cases that any reader must pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.pipeline.etl import columntypes

DEPTH_MAX = 1000
"""Objects and arrays inside each other, the event itself included."""

SHOWN_MAX = 60
"""Bytes of a value that a reason shows."""

NUMBER = "a number, or a string that holds one as JSON writes it,"
CLOCK = '"YYYY-MM-DDTHH:MM:SS.F" (`T` or a blank; :SS and .F may be absent, F has nothing but zeros after six digits)'


@dataclass(frozen=True)
class Rule:
    """How values of a type are read, and what it takes, in words. `first` and `second` are a whole number's bits, or a
    decimal's precision and scale."""

    kind: str
    takes: str
    first: int = 0
    second: int = 0


RULES = {
    "boolean": Rule("boolean", "`true` or `false`"),
    "float": Rule("float", "a number that the nearest FLOAT gives back to as many digits as it was sent with"),
    "double": Rule("double", "a number that the nearest DOUBLE gives back to as many digits as it was sent with"),
    "date": Rule("date", 'a day of the years 1 to 9999, "YYYY-MM-DD"'),
    "timestamp": Rule(
        "timestamp",
        f"a time of the years 1 to 9999, {CLOCK} with `Z`, `+HH:MM`, `+HHMM` or `+HH`, or without in the time zone of nights",
    ),
    "timestamp_ntz": Rule("timestamp_ntz", f"a time of the years 1 to 9999, {CLOCK} without a time zone"),
    "string": Rule("string", "a string without half a surrogate pair; other values keep the text that was sent"),
    "binary": Rule("binary", "a string in padded base64"),
    "array": Rule("array", "a JSON array"),
    "map": Rule("map", "a JSON object without a name twice"),
    "struct": Rule("struct", "a JSON object; it ignores names that aren't declared"),
}
"""By the name of a type in Delta's log, whatever its brackets hold."""

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def rule_of(text: str) -> Rule:
    """The rule of a declared type, of the outermost one if it has others in its brackets. Raises ConfigError."""
    canonical = columntypes.canonical(text)
    if canonical in _BITS:
        bits = _BITS[canonical]
        return Rule(
            "whole", f"a whole number from {-(1 << bits - 1)} to {(1 << bits - 1) - 1}, in any of JSON's notations", bits
        )
    decimal = _DECIMAL.fullmatch(canonical)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        takes = f"{NUMBER} with at most {precision - scale} digits before its point and {scale} after it"
        return Rule("decimal", takes, precision, scale)
    return RULES[canonical.partition("<")[0]]


SHOWN = (
    ("BOOLEAN",), ("TINYINT", "BYTE"), ("SMALLINT", "SHORT"), ("INT", "INTEGER"), ("BIGINT", "LONG"),
    ("DECIMAL(9,2)", "DEC(9,2)", "NUMERIC(9,2)"),
    ("FLOAT", "REAL"), ("DOUBLE",), ("STRING",), ("BINARY",), ("DATE",), ("TIMESTAMP", "TIMESTAMP_LTZ"), ("TIMESTAMP_NTZ",),
    ("ARRAY<STRING>",), ("MAP<STRING, STRING>",), ("STRUCT<a: STRING>",),
)  # fmt: skip
"""A type of each rule, with its other names."""


def page() -> str:
    """The rules as a page in Markdown."""
    lines = [
        "# The types of a column, and the JSON values that each takes",
        "",
        "Made by `penstock config --types --markdown` from the rules in `etl/valuerules.py`; a test holds it equal.",
        "",
        "A record's value is one JSON object in UTF-8. A column holds exactly the value that was sent. A record with any other"
        " value goes to the rejects' table, with a reason that names column, value and rule.",
        "",
        "| type | takes |",
        "| --- | --- |",
        *(f"| {', '.join(f'`{name}`' for name in names)} | {rule_of(names[0]).takes} |" for names in SHOWN),
        "",
        "- Each type takes `null`. A column that the object lacks is NULL, too. With NOT NULL both make the record a reject.",
        "- A name matches its column by every letter, capitals included. The object may have names that aren't declared.",
        "- A declared name that the object has twice makes the record a reject. So do `NaN`, `Infinity`, and a value that is"
        f" cut off, or has more than {DEPTH_MAX:,} objects and arrays inside each other.",
        "- A whole number may be written `100`, `100.0` or `1e2`. FLOAT and DOUBLE refuse a number that overflows, that becomes"
        " 0, or that has digits which they lose.",
        "- A TIMESTAMP without a time zone is read in `penstock.etl.time.zone`. A time that this zone lacks or has twice makes"
        " the record a reject: clocks change there.",
        "- A STRING column keeps a number, an object or an array byte by byte as it was sent.",
    ]
    return "\n".join(lines) + "\n"
