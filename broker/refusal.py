"""An answer that carries one error code wherever its API has a place for it."""

from __future__ import annotations

import re
import typing
from typing import Any

from penstock.pyx.wire import messages
from penstock.pyx.wire.header import RESPONSES
from penstock.pyx.wire.message import Message, Struct

_CODES = ("error_code", "partition_error_code")
_WORDS = "error_message"
# What requests and responses call the same thing by other names.
_ALIASES = {"partition": "partition_index", "partition_index": "partition", "index": "partition_index"}


def refusal(request: Message, code: int, why: str | None = None) -> Message:
    """The answer that gives `code` for each thing that the request names, or for the whole request if it names none.

    The answer's lists of structures are filled from the request's, in order, field by field of the same name: so each
    topic and partition asked for gets its error. `why` goes along where the answer has a place for words.
    """
    response = RESPONSES[request.API_KEY]()
    _mirror(request, response, code, why)
    return response


def _mirror(asked: Struct, answer: Struct, code: int, why: str | None) -> None:
    for name in answer.__slots__:
        if name not in (*_CODES, _WORDS) and (value := _same(asked, name, answer)) is not None:
            setattr(answer, name, value)
    wanted = [(name, made) for name in answer.__slots__ if (made := _element(answer, name)) and has_error(made)]
    lists = [items for name in asked.__slots__ if (items := _items(asked, name)) is not None]
    # Where each list of the request has its own in the answer (old versions' beside new ones'), place decides.
    given = lists if len(lists) == len(wanted) else [items for items in lists if items]
    named = [pair for pair in zip(wanted, given, strict=False) if pair[1]]
    if not named:
        _set_code(answer, code, why)
    for (name, made), items in named:
        filled = []
        for item in items:
            one = made()
            if isinstance(item, Struct):
                _mirror(item, one, code, why)
            else:
                _name_it(one, item)
                _set_code(one, code, why)
            filled.append(one)
        setattr(answer, name, filled)


def _same(asked: Struct, name: str, answer: Struct) -> Any:
    """The request's plain value of the same name (or alias) and type, if there is one."""
    for candidate in (name, _ALIASES.get(name)):
        if candidate in asked.__slots__:
            value = getattr(asked, candidate)
            if type(value) is type(getattr(answer, name)) and isinstance(value, (int, str, bytes)):
                return value
    return None


def _name_it(one: Struct, item: object) -> None:
    """A structure for a bare partition number or name of the request."""
    for name in one.__slots__:
        if name not in (*_CODES, _WORDS) and type(getattr(one, name)) is type(item):
            setattr(one, name, item)
            item = None


def _items(asked: Struct, name: str) -> list[Any] | None:
    value = getattr(asked, name)
    return value if isinstance(value, list) else None


def _set_code(answer: Struct, code: int, why: str | None) -> None:
    for name in _CODES:
        if name in answer.__slots__:
            setattr(answer, name, code)
    if why is not None and _WORDS in answer.__slots__:
        setattr(answer, _WORDS, why)


_ELEMENTS: dict[str, dict[str, type[Struct]]] = {}


def _elements(kind: type[Struct]) -> dict[str, type[Struct]]:
    """The structures that a message's lists hold, by field."""
    known = _ELEMENTS.get(kind.__qualname__)
    if known is None:
        known = _ELEMENTS[kind.__qualname__] = _find_elements(kind)
    return known


def _find_elements(kind: type[Struct]) -> dict[str, type[Struct]]:
    hints = typing.get_type_hints(kind, vars(messages))
    found = {}
    for name, hint in hints.items():
        text = re.sub(r"<class '|'>", "", str(hint))
        for part in (hint, *typing.get_args(hint)):
            for inner in (part, *typing.get_args(part)):
                if isinstance(inner, type) and issubclass(inner, Struct) and "list" in text:
                    found[name] = inner
    return found


def _element(answer: Struct, name: str) -> type[Struct] | None:
    return _elements(type(answer)).get(name)


def shows_error(answer: Struct) -> bool:
    """Whether an answer carries an error code somewhere. One that has no place for it in its version doesn't."""
    if any(getattr(answer, name, 0) for name in _CODES):
        return True
    return any(
        shows_error(item) for name in answer.__slots__ for item in _items(answer, name) or () if isinstance(item, Struct)
    )


def has_error(kind: type[Struct]) -> bool:
    """Whether an answer, or a part of one, has a place for an error code."""
    return any(name in kind.__slots__ for name in _CODES) or any(map(has_error, _elements(kind).values()))
