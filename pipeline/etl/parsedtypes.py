"""The types that JSON is parsed into, and what of it a declared type can't hold.

Spark's JSON parser rounds a number to the digits of a DECIMAL, and takes a number for seconds since 1970 where a TIMESTAMP
should be (many writers mean milliseconds). So decimals are parsed with all digits that Spark has, and times as texts, at any
depth of a column; then each is cast, and what the cast has changed, or can't read, doesn't fit.
"""

from __future__ import annotations

import re

from penstock.pipeline.etl import columntypes

TIMES = ("timestamp", "timestamp_ntz")
YEARS = "BETWEEN 1 AND 9999"
# A number where a time should be.
NUMBER = r"^-?[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?$"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def parsed_type(text: str) -> str:
    """The type that a declared one is parsed as, in Spark's DDL; the text itself if that is as good."""
    kind, parts = columntypes.parts(text)
    if not kind:
        canonical = columntypes.canonical(text)
        decimal = _DECIMAL.fullmatch(canonical)
        if decimal is not None:
            whole_digits = int(decimal[1]) - int(decimal[2])
            return f"DECIMAL({columntypes.PRECISION_MAX},{columntypes.PRECISION_MAX - whole_digits})"
        return "STRING" if canonical in TIMES else text
    wider = [(name, parsed_type(inner)) for name, inner in parts]
    if wider == parts:
        return text
    if kind == "struct":
        return f"STRUCT<{', '.join(f'`{name}`: {inner}' for name, inner in wider)}>"
    return f"{kind}<{', '.join(inner for _, inner in wider)}>"


def misfits(name: str, text: str, parsed: str, value: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """What a declared type can't hold: conditions in Spark SQL over what was `parsed` (an expression, as is the `value` that it
    is cast to, if that is there already), each with the words for it. `name` is the column's, or the
    way to what is in it (`legs[].at`), `depth` how many lambdas stand around the expression."""
    kind, parts = columntypes.parts(text)
    if not kind:
        return _leaf(name, text, parsed, value or f"cast({parsed} AS {text})")
    if kind == "struct":
        return [
            found for field, inner in parts for found in misfits(f"{name}.{field}", inner, f"{parsed}.`{field}`", depth=depth)
        ]
    element, elements = f"_e{depth}", parsed if kind == "array" else f"map_values({parsed})"
    return [
        (f"exists({elements}, {element} -> coalesce({condition}, FALSE))", words)
        for condition, words in misfits(f"{name}[]", parts[-1][1], element, depth=depth + 1)
    ]


def _leaf(name: str, text: str, parsed: str, value: str) -> list[tuple[str, str]]:
    canonical = columntypes.canonical(text)
    if canonical.startswith("decimal"):
        return [(f"NOT ({parsed} <=> {value})", f"`{name}` does not fit {text}")]
    years = f"NOT (year({value}) {YEARS})", f"`{name}` lies outside of the years 1 to 9999"
    if canonical in TIMES:
        # No number has a colon, and to look for one costs a small part of what the pattern does.
        number = f"NOT contains({parsed}, ':') AND {parsed} RLIKE '{NUMBER}'"
        wrong = f"{parsed} IS NOT NULL AND ({value} IS NULL OR ({number}))"
        return [(wrong, f"`{name}` is not {text}"), years]
    return [years] if canonical == "date" else []
