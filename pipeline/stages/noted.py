"""What stages note beside their committed offsets, as those read it who only look.

A stage refuses a text that it doesn't know whole (`position.py`). A status, an audit or a night looks at positions of any
version and of any program, and takes what it can read: a field that isn't there, or isn't what it should be, is not noted.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.pipeline.clients.fetcher import BatchMark
from penstock.pipeline.stages import ranges

SHOWN = {"stopped": "STOPPED", "stalled": "STALLED"}


class Noted:
    """The text beside one offset; `fields` are all that it has, empty for what no stage wrote."""

    def __init__(self, metadata: str) -> None:
        try:
            found = json.loads(metadata)
        except ValueError:
            found = None
        self.fields: dict[str, Any] = found if isinstance(found, dict) else {}

    @property
    def numbers(self) -> dict[str, int]:
        """The fields that are whole numbers."""
        return {name: value for name, value in self.fields.items() if type(value) is int}

    def text(self, name: str) -> str:
        """A text; empty where it isn't noted."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    @property
    def decisions(self) -> int | None:
        """How often operators have decided about the partition; None where no stage wrote it."""
        return self.numbers.get("decisions")

    @property
    def last_batch(self) -> BatchMark | None:
        """The mark of the last batch that was read."""
        try:
            return parse_mark(self.fields.get("last_batch"))
        except TypeError:
            return None

    @property
    def gaps(self) -> list[ranges.Range]:
        """The offsets that operators let the stage pass over."""
        return self._ranges("gap_ranges")

    @property
    def lost(self) -> list[ranges.Range]:
        """Those of them that the target had, and lost."""
        return self._ranges("lost_ranges")

    def _ranges(self, name: str) -> list[ranges.Range]:
        text = self.text(name)
        return ranges.parse(text) if ranges.RANGES.fullmatch(text) else []

    @property
    def untold(self) -> int:
        """How many decisions a dedupe position has that don't say what was passed over and never read. An earlier version noted
        one sum of what was read again, less what was passed over; if that is 0 after one decision, nothing was passed over."""
        numbers = {"untold": 0, "decisions": 0, "again": 0} | self.numbers
        if "reached" in self.fields:
            return numbers["untold"]
        return numbers["decisions"] if numbers["again"] or numbers["decisions"] > 1 else 0

    @property
    def stands(self) -> str:
        """Why the partition stands still; empty where it goes on."""
        return next((f"{shown}: {why}" for name, shown in SHOWN.items() if (why := self.text(name))), "")


def parse_mark(value: Any) -> BatchMark | None:
    """The mark of a batch as a text has it. Raises TypeError."""
    if type(value) is not list or len(value) not in (0, 3) or any(type(each) is not int for each in value):
        raise TypeError
    return BatchMark(*value) if value else None
