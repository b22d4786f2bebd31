"""Where a record's id is (`penstock.dedupe.id`): its key, a header, or a field of its value.

A record has no id where that is missing, null or empty, or JSON's true, false, NaN, infinity, an object or an array:
values that many unrelated records share, so that all but one of them would be dropped as repeats. A JSON number is an id
by its text, so that no two numbers become one by rounding; integers as Python reads them, `-0` is `0`. Ids are bytes:
the string "1" and the number 1 are one id. An id of several fields has each with its length before it (`3:a,b,1:c,`), so that
("a,b", "c") is never ("a", "b,c"); without one of them a record has no id.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np

from penstock.config import ConfigError
from penstock.pipeline.idfields import Path, json_paths, parse_id, paths_text
from penstock.pyx.record.columns import Column, Columns


class IdSource:
    """Takes the id column out of records."""

    def __init__(self, text: str) -> None:
        """`key`, `header:NAME`, or `json:` with paths of fields. Raises ConfigError."""
        try:
            self._kind, _, self._name = parse_id(text).partition(":")
        except ValueError as error:
            raise ConfigError(f"`penstock.dedupe.id={text}` {error}") from None
        self._paths = json_paths(self._name) if self._kind == "json" else []
        self._text = f"json:{paths_text(self._paths)}" if self._paths else text

    @property
    def text(self) -> str:
        """Where the id is, as the pipeline's file says it."""
        return self._text

    @property
    def is_key(self) -> bool:
        """Whether the id is the record's key, by which producers choose the partition."""
        return self._kind == "key"

    def __str__(self) -> str:
        return f"id by {self._text}"

    def column(self, columns: Columns) -> Column:
        """The ids of all records; null where a record has none."""
        if self._kind == "header":
            found = columns.header_column(self._name)
        elif self._kind == "json":
            found = json_column(columns, self._paths)
        else:
            found = Column(columns.key_data, columns.key_starts, columns.key_null)
        return Column(found.data, found.starts, found.null | (np.diff(found.starts) == 0))


def json_column(columns: Columns, paths: Sequence[Path]) -> Column:
    """Fields of each value that is a JSON object: a string's text, or a number as JSON has it; null where there is none.

    It makes an object of each value, several microseconds apiece: ids in keys or headers cost far less.
    """
    data, starts = columns.value_data.tobytes(), columns.value_starts.tolist()
    ids = [json_id(data[start:end], paths) for start, end in itertools.pairwise(starts)]
    lengths = [0 if word is None else len(word) for word in ids]
    joined = b"".join(word for word in ids if word is not None)
    return Column(
        np.frombuffer(joined, np.uint8),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
        np.array([word is None for word in ids], np.bool_),
    )


def json_id(value: bytes, paths: Sequence[Path]) -> bytes | None:
    """The id of one value; see `json_column`."""
    try:
        # A number with a fraction stays its text; the words that are no numbers of JSON's are nothing.
        document = json.loads(value, parse_float=str, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    found = [_field(document, path) for path in paths]
    if len(found) == 1:
        return found[0]
    return b"".join(b"%d:%b," % (len(word), word) for word in found if word) if all(found) else None


def _field(document: object, path: Path) -> bytes | None:
    """What a path leads to in a parsed value."""
    found = document
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return b"%d" % found
    return found.encode("utf-8", "surrogatepass") if isinstance(found, str) else None
