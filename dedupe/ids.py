"""Where a record's id is (`penstock.dedupe.id`): its key, a header, or a field of its value."""

from __future__ import annotations

import itertools
import json

import numpy as np

from penstock.config import ConfigError
from penstock.pyx.record.columns import Column, Columns


class IdSource:
    """Takes the id column out of records."""

    def __init__(self, text: str) -> None:
        """`key`, `header:NAME` or `json:FIELD`. Raises ConfigError."""
        self._kind, _, self._name = text.partition(":")
        if (self._kind, bool(self._name)) not in (("key", False), ("header", True), ("json", True)):
            raise ConfigError(f"`penstock.dedupe.id={text}` is neither `key` nor `header:NAME` nor `json:FIELD`")
        self._text = text

    def __str__(self) -> str:
        return f"id by {self._text}"

    def column(self, columns: Columns) -> Column:
        """The ids of all records; null where a record has none."""
        if self._kind == "header":
            return columns.header_column(self._name)
        if self._kind == "json":
            return json_column(columns, self._name)
        return Column(columns.key_data, columns.key_starts, columns.key_null)


def json_column(columns: Columns, name: str) -> Column:
    """A field of each value that is a JSON object: a string's text, or a number, true or false as JSON has it.

    Null where the value is no such object, or has no such field, or null, an object or an array in it. It makes an
    object of each value, several microseconds apiece: ids in keys or headers cost far less.
    """
    data, starts = columns.value_data.tobytes(), columns.value_starts.tolist()
    ids = [json_field(data[start:end], name) for start, end in itertools.pairwise(starts)]
    lengths = [0 if word is None else len(word) for word in ids]
    joined = b"".join(word for word in ids if word is not None)
    return Column(
        np.frombuffer(joined, np.uint8),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        np.array([word is None for word in ids], np.bool_),
    )


def json_field(value: bytes, name: str) -> bytes | None:
    """One value's field, see `json_column`."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    found = document.get(name) if isinstance(document, dict) else None
    if isinstance(found, str):
        return found.encode("utf-8", "surrogatepass")
    return json.dumps(found).encode() if isinstance(found, bool | int | float) else None
