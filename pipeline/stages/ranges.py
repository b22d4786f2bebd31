"""Ranges of offsets as a position notes them: `10..19,40..49`, each with its first and its last offset."""

from __future__ import annotations

import re
from collections.abc import Iterable

RANGES = re.compile(r"(\d+\.\.\d+(,\d+\.\.\d+)*)?")
Range = tuple[int, int]
RangesText = str


def checked(text: str) -> RangesText:
    """A text that was noted. Raises ValueError or TypeError for what are no ranges."""
    if RANGES.fullmatch(text) is None:
        raise ValueError
    return text


def parse(text: str) -> list[Range]:
    """The ranges of a text that matches `RANGES`."""
    return [(int(first), int(last)) for first, last in (one.split("..") for one in text.split(",") if one)]


def text_of(ranges: Iterable[Range]) -> str:
    """The text of ranges."""
    return ",".join(f"{first}..{last}" for first, last in ranges)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, as few ranges as they need."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def outside(of: Range, ranges: Iterable[Range]) -> list[Range]:
    """What of one range lies in none of some others."""
    (first, last), found = of, []
    for begins, ends in merged(ranges):
        if begins > last:
            break
        if first < begins:
            found.append((first, begins - 1))
        first = max(first, ends + 1)
    return [*found, (first, last)] if first <= last else found


def size(ranges: Iterable[Range]) -> int:
    """How many offsets they are."""
    return sum(last - first + 1 for first, last in ranges)
