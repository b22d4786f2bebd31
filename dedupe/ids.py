"""Where a record's id is (`penstock.dedupe.id`): its key, or a header."""

from __future__ import annotations

from penstock.config import ConfigError
from penstock.pyx.columns import Column, Columns


class IdSource:
    """Takes the id column out of records."""

    def __init__(self, text: str) -> None:
        """`key`, or `header:NAME`. Raises ConfigError."""
        kind, _, self._header = text.partition(":")
        if (kind, bool(self._header)) not in (("key", False), ("header", True)):
            raise ConfigError(f"`penstock.dedupe.id={text}` is neither `key` nor `header:NAME`")
        self._text = text

    def __str__(self) -> str:
        return f"id by {self._text}"

    def column(self, columns: Columns) -> Column:
        """The ids of all records; null where a record has none."""
        if self._header:
            return columns.header_column(self._header)
        return Column(columns.key_data, columns.key_starts, columns.key_null)
