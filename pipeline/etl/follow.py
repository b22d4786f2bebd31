"""Every night after its end, in order, of all tables: `penstock etl --follow`.

The JVM lives while nights are loaded, and is ended before this process waits: for a night's end, or after a failure for
another try. What a table takes next is read from the table, so it doesn't matter who loaded the nights before.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.pipeline.etl.display import Display
from penstock.pipeline.etl.engine import Engine
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.figures import NightFigures
from penstock.pipeline.etl.load import Load
from penstock.pipeline.etl.night import Night


@dataclass(frozen=True)
class Follower:
    """Loads the nights of some tables, by name. `first` is the night that an empty table begins with."""

    loads: Mapping[str, Load]
    engine: Engine
    first: Night
    until: Night | None
    retry_s: float
    display: Display
    figures: NightFigures

    async def run(self) -> None:
        """Go on for ever, or until the last night that is asked for is in all tables."""
        later: dict[str, float] = {}  # tables whose last try failed, and when the next one is due
        said: dict[str, str] = {}
        while True:
            now = time.monotonic()
            nights = await self._next_nights(later, said)
            if not nights and not later:
                return
            waits = {
                name: max(later.get(name, 0.0) - now, self.loads[name].over_in_s(night)) for name, (night, _) in nights.items()
            }
            for name, (night, _) in nights.items():
                reason = "retry" if later.get(name, 0.0) > now else "day" if waits[name] > 0 else ""
                self.figures.next(name, night, reason, self.loads[name].newest)
            due = [name for name, wait_s in waits.items() if wait_s <= 0]
            if not due:
                await asyncio.to_thread(self.engine.stop)
                await self._wait(nights, [*waits.values(), *(at - now for name, at in later.items() if name not in nights)])
                continue
            # The oldest night first, so that tables go forward side by side.
            name = min(due, key=lambda one: nights[one][0])
            night, reload = nights[name]
            later.pop(name, None)
            self.figures.begin(name)
            try:
                outcome = await self.loads[name].night(night, reload=reload)
            except EtlError as error:
                self._failed(name, error, later, said)
            else:
                said.pop(name, None)
                self.display.done(outcome, name)
                self.figures.done(name, outcome, self.loads[name].newest)

    async def _next_nights(self, later: dict[str, float], said: dict[str, str]) -> dict[str, tuple[Night, bool]]:
        """By table its next night, and whether that is a reload that was begun; tables that are done are left out."""
        nights = {}
        for name, load in self.loads.items():
            try:
                night, reload = await load.next_night(self.first)
            except EtlError as error:
                if later.get(name, 0.0) <= time.monotonic():
                    self._failed(name, error, later, said)
                continue
            if self.until is None or night <= self.until:
                nights[name] = night, reload
        return nights

    def _failed(self, name: str, error: EtlError, later: dict[str, float], said: dict[str, str]) -> None:
        """Try the table again later; the same failure is said once."""
        later[name] = time.monotonic() + self.retry_s
        self.figures.failed(name, error, self.loads[name].newest)
        if said.get(name) != str(error):
            said[name] = str(error)
            self.display.failed(name, error)

    async def _wait(self, nights: Mapping[str, tuple[Night, bool]], waits_s: list[float]) -> None:
        wait_s = max(0.0, min(waits_s))
        at = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=wait_s)
        names = ", ".join(sorted({str(night) for night, _ in nights.values()}))
        self.display.step(f"waits until {at:%Y-%m-%d %H:%M:%S %Z}{f' for night {names}' if names else ''}")
        await asyncio.sleep(wait_s)
