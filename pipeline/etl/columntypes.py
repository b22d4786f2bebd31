"""The types that a schema may declare: Spark SQL's names, read without Spark.

The canonical name of a type is the one that Delta's log has for it (`integer`, `decimal(9,2)`, `array<string>`), so that a
declared column can be compared with the table's.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.config import ConfigError
from penstock.suggestions import did_you_mean

SIMPLE = {
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "BYTE": "byte",
    "SMALLINT": "short",
    "SHORT": "short",
    "INT": "integer",
    "INTEGER": "integer",
    "BIGINT": "long",
    "LONG": "long",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
    "STRING": "string",
    "BINARY": "binary",
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
PRECISION_MAX = 38
NO_NAME_HAS = " ,;{}()\n\t="  # without column mapping, for which a table's readers must be newer
_NAMED = re.compile(r"(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))\s*:?\s+(?P<type>.+?)(?P<required>\s+NOT\s+NULL)?", re.I | re.S)


def canonical(text: str) -> str:
    """A type's name as Delta's log has it. Raises ConfigError for what is no type."""
    text = text.strip()
    kind, inner = parts(text)
    if kind:
        names = [f"{name}:" if kind == "struct" else "" for name, _ in inner]
        return f"{kind}<{','.join(name + canonical(each) for name, (_, each) in zip(names, inner, strict=True))}>"
    sized = re.fullmatch(r"(\w+)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", text)
    name = (sized[1] if sized is not None else text).upper()
    if name in DECIMALS:
        precision, scale = (10, 0) if sized is None else (int(sized[2]), int(sized[3] or 0))
        if not 1 <= precision <= PRECISION_MAX or scale > precision:
            raise ConfigError(f"`{text}`: a decimal has 1 to {PRECISION_MAX} digits, its scale within them")
        return f"decimal({precision},{scale})"
    if sized is None and name in SIMPLE:
        return SIMPLE[name]
    hint = did_you_mean("STRING" if name in ("CHAR", "VARCHAR", "TEXT") else name, [*SIMPLE, *DECIMALS])
    raise ConfigError(f"`{text}` is no type{hint}")


def parts(text: str) -> tuple[str, list[tuple[str, str]]]:
    """`array`, `map` or `struct`, and what stands in its brackets: names (of a struct's fields alone) and types; an empty text
    and nothing for a type without brackets. Raises ConfigError."""
    nested = re.fullmatch(r"(ARRAY|MAP|STRUCT)\s*<(.*)>", text.strip(), re.IGNORECASE | re.DOTALL)
    if nested is None:
        return "", []
    kind, pieces = nested[1].lower(), split(nested[2])
    if len(pieces) != {"array": 1, "map": 2}.get(kind, len(pieces)):
        raise ConfigError(f"`{text}` has {len(pieces)} types in its brackets")
    if kind == "map" and canonical(pieces[0]) != "string":
        raise ConfigError(f"`{text}` has keys of type {pieces[0]}, and names in JSON are strings: declare MAP<STRING, ...>")
    if kind != "struct":
        return kind, [("", piece) for piece in pieces]
    fields = [named(piece) for piece in pieces]
    required = next((name for name, _, required in fields if required), None)
    if required is not None:
        raise ConfigError(f"`{text}`: `{required}` can't be NOT NULL, since only a whole column can be required")
    names = [name.lower() for name, _, _ in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"`{text}` declares `{twice}` twice (Spark takes upper and lower case for the same)")
    return kind, [(name, inner) for name, inner, _ in fields]


def named(piece: str) -> tuple[str, str, bool]:
    """`name TYPE[ NOT NULL]` as the name, the type's text and whether it is required. Raises ConfigError."""
    match = _NAMED.fullmatch(piece)
    if match is None:
        raise ConfigError(f"`{piece}` is not of the form `name TYPE[ NOT NULL]`")
    name = match["quoted"] or match["plain"]
    check_name(name)
    return name, match["type"].strip(), match["required"] is not None


def check_name(name: str, where: str = "") -> None:
    """See that a column may have a name. Raises ConfigError."""
    refused = next((letter for letter in name if letter in NO_NAME_HAS), None)
    if refused is not None:
        raise ConfigError(f"`{name}`{where and f' in {where}'} has {refused!r} in it, which Delta takes in no name of a column")


def split(text: str) -> list[str]:
    """The pieces between commas that stand outside of brackets, as in `a DECIMAL(9,2), b STRUCT<c: INT, d: INT>`.

    Raises ConfigError.
    """
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
        raise ConfigError(f"`{text}` has an empty column or brackets that don't match")
    return pieces


def of_delta(kind: str | dict[str, Any]) -> str:
    """The canonical name of a type as Delta's schema has it in JSON."""
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if kind["type"] == "array":
        return f"array<{of_delta(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{of_delta(kind['keyType'])},{of_delta(kind['valueType'])}>"
    fields = [f"{field['name']}:{of_delta(field['type'])}" for field in kind["fields"]]
    return f"struct<{','.join(fields)}>"
