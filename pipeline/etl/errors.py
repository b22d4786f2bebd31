"""What ends a night's load with words."""

from __future__ import annotations


class EtlError(RuntimeError):
    """The load stopped; the text says why and what to do. Nothing was committed by it."""


class Refused(EtlError):
    """What was asked contradicts what the table or a plan already holds."""


class Incomplete(EtlError):
    """The night's records have not all arrived. `missing` says what is missing, one sentence each."""

    def __init__(self, night: str, missing: list[str]) -> None:
        super().__init__(f"night {night} is incomplete: " + "; ".join(missing))
        self.missing = missing
