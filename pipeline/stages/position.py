"""A partition's committed position in a stage: the offset that comes next, and what a stage notes of it in the text that Kafka
keeps beside an offset.

The text is a JSON object with a name for each field, under Kafka's 4,096 bytes. A field that an earlier version didn't write
has its default. A name that this version doesn't know stops the partition: to write the text without it would lose what a
newer version counted.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from penstock.pipeline.clients.fetcher import BatchMark
from penstock.pipeline.stages import ranges
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.noted import Noted, parse_mark

PROCESS = f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"
"""This process among all that ever have a name: of two, the one that began later has the larger text."""
REASON_MAX = 1000  # bytes of a reason in a text; Kafka takes 4,096 of everything beside an offset


@dataclass(frozen=True, kw_only=True)
class StagePosition:
    """The next offset to read, and what every stage notes beside it. A stage adds fields of its own.

    A field's annotation says what its text must be (`PARSERS`). `writer` names in messages who writes such positions, `stage`
    the process; `order` are fields in the order in which texts have always had them, and others follow. Those that are `seldom`
    other than 0 are left out of the text while they are 0: an earlier version, which refuses what it doesn't know, can read it.
    """

    writer: ClassVar[str]
    stage: ClassVar[str]
    order: ClassVar[tuple[str, ...]] = ()
    seldom: ClassVar[tuple[str, ...]] = ()

    offset: int = field(kw_only=False)
    leader_epoch: int = -1
    """Of the last batch passed in the log that is read; -1: none yet."""
    last_batch: BatchMark | None = None
    """That batch's mark, which shows that the log is still the one that was read; None: none yet, or of an older format."""
    decisions: int = 0
    """How often operators have decided about the partition."""
    stopped: str = ""
    """Why the partition stands still until an operator has decided."""
    stalled: str = ""
    """Why it stands still, though the stage tries on."""
    process: str = field(default="", compare=False)
    """The `PROCESS` of the stage that committed it last; empty: an earlier version did."""
    committed_ms: int = field(default=-1, compare=False)
    """When it was committed, with records or without; -1: by an earlier version."""

    def by_us(self) -> Self:
        """The position as a stage of this process commits it now."""
        return replace(self, process=PROCESS, committed_ms=time.time_ns() // 1_000_000)

    def metadata(self) -> str:
        """The text to commit now beside the offset."""
        now_ms = time.time_ns() // 1_000_000
        noted = replace(self, stopped=short(self.stopped), stalled=short(self.stalled), committed_ms=now_ms)
        values = {name: getattr(noted, name) for name in [*self.order, *self._noted()]}
        values["last_batch"] = self.last_batch or ()
        for name in self.seldom:
            if not values[name]:
                del values[name]
        return json.dumps(values, ensure_ascii=False, default=bytes.hex)

    @classmethod
    def from_text(cls, offset: int, metadata: str, begin: str, name: str = "the committed position") -> Self:
        """A position as it was committed. `begin` is the command by which an operator gives another one, `name` what messages
        call this one. Raises OperatorNeeded for a text that no stage of this kind wrote, or a newer version."""
        noted, parsers = Noted(metadata).fields, cls._noted()
        try:
            position = cls(offset, **{key: parsers[key](value) for key, value in noted.items() if key in parsers})
        except (ValueError, TypeError):
            raise OperatorNeeded(
                f"{name} is offset {offset} with metadata {metadata!r}, which no {cls.writer} wrote, so that nobody knows "
                f"which log it belongs to: {begin} says where to go on"
            ) from None
        if unknown := [f"`{key}`" for key in noted if key not in parsers]:
            raise OperatorNeeded(
                f"a newer version wrote {name} (it also notes {', '.join(unknown)}), so start that version again, or give up "
                f"what it noted: {begin} says where to go on"
            )
        return position

    @classmethod
    def _noted(cls) -> dict[str, Callable[[Any], Any]]:
        """The fields that stand in the text, each with what parses it."""
        return {each.name: PARSERS[str(each.type)] for each in fields(cls) if each.name != "offset"}


def _typed(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return parse


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "int": _typed(int),
    "str": _typed(str),
    "bytes": bytes.fromhex,
    "RangesText": ranges.checked,
    "BatchMark | None": parse_mark,
}
"""By a field's annotation. Each raises ValueError or TypeError for what isn't such a field's text."""


def short(reason: str) -> str:
    """A reason, cut where it takes more than `REASON_MAX` bytes of a text."""
    while len(json.dumps(reason, ensure_ascii=False).encode()) > REASON_MAX:
        reason = reason[: len(reason) * 9 // 10]
    return reason
