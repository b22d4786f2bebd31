"""The JSON of a node, checked as it is read: nothing that a node holds is believed before its shape and range are right; and
the JSON that brokers write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from penstock.broker.store.base import BadValueError

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


class Fields:
    """The fields of one JSON object. `path` is the node's, for sentences. All methods raise BadValueError."""

    def __init__(self, path: str, content: Any) -> None:
        if not isinstance(content, dict):
            raise BadValueError(path, "it should be a JSON object")
        self.path = path
        self._content: dict[str, Any] = content

    @classmethod
    def read(cls, path: str, data: bytes | None) -> Fields:
        """Those of a node's bytes; None: the node isn't there, which stands here for a node that has to be."""
        if data is None:
            raise BadValueError(path, "the node isn't there, though another one says that it is")
        try:
            return cls(path, json.loads(data))
        except (ValueError, RecursionError) as error:
            raise BadValueError(path, f"it should be JSON: {error}") from None

    def wrong(self, why: str) -> BadValueError:
        """The error that says what is wrong with this node."""
        return BadValueError(self.path, why)

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number between two bounds, both included; a text of digits is one too. default: where there is none."""
        value = self._content.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value) if len(value) < 20 else None
        if not _is_number(value, least, most):
            raise self.wrong(f"`{name}` should be a whole number from {least} to {most}")
        return value

    def text(self, name: str) -> str:
        """A text."""
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.wrong(f"`{name}` should be a text")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """A table of texts, as configs are."""
        table = self.table(name)
        if not all(isinstance(value, str) for value in table.values()):
            raise self.wrong(f"`{name}` should hold texts only")
        return dict(table)

    def table(self, name: str) -> Mapping[str, Any]:
        """An object inside of this one."""
        value = self._content.get(name)
        if not isinstance(value, dict):
            raise self.wrong(f"`{name}` should be a JSON object")
        return value

    def several(self, name: str) -> list[Any]:
        """A list."""
        value = self._content.get(name)
        if not isinstance(value, list):
            raise self.wrong(f"`{name}` should be a list")
        return value

    def text_of_one(self, name: str) -> str:
        """The text in a list of one; "" if there is no such list, in a node of an earlier version."""
        found = self._content.get(name, [""])
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str):
            raise self.wrong(f"`{name}` should be a list of one text")
        return found[0]

    def brokers(self, name: str, value: Any = None) -> list[int]:
        """A list of broker ids, at least one; `value`: of a table inside, instead of the field."""
        found = self.several(name) if value is None else value
        if not isinstance(found, list) or not found or not all(_is_number(one, 0, INT_MAX) for one in found):
            raise self.wrong(f"`{name}` should be a list of broker ids")
        return found


def to_json(**fields: object) -> bytes:
    """The content of a node of one JSON object."""
    return json.dumps(fields, separators=(",", ":")).encode()


def whole_number(path: str, data: bytes, least: int, most: int) -> int:
    """A node that is a plain number. Raises BadValueError."""
    text = data.decode("ascii", "replace")
    if not text.isdigit() or not least <= int(text) <= most:
        raise BadValueError(path, f"it should be a whole number from {least} to {most}")
    return int(text)


def _is_number(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
