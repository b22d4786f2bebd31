"""The work of `penstock etl`: nights of some tables, with one Spark."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import click

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.etl.children import CHILDREN
from penstock.pipeline.etl.display import Display
from penstock.pipeline.etl.engine import Engine
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.figures import INTERRUPTED, NightFigures
from penstock.pipeline.etl.follow import Follower
from penstock.pipeline.etl.interrupt import Interrupted, attend, leave
from penstock.pipeline.etl.jvm import JVM
from penstock.pipeline.etl.load import LONGEST_PAUSE_S, Load, NotYet
from penstock.pipeline.etl.night import Night
from penstock.pipeline.service import serving


class Nights:
    """Nights of some tables, of which each has its own config under its name."""

    def __init__(
        self, config: Config, tables: Mapping[str, Config], display: Display, figures: NightFigures, **options: Any
    ) -> None:
        """`options` are those of each table's Load."""
        self._config = config
        self._display = display
        self._figures = figures
        self._engine = Engine(config, config["penstock.etl.time.zone"], display.step)
        self._loads = {
            name: Load(own, on_step=partial(display.step, table=name), engine=self._engine, name=name, **options)
            for name, own in tables.items()
        }
        figures.watch(lambda name: name in self._loads and self._loads[name].waits)

    async def load(self, nights: list[Night], **how: Any) -> None:
        """Load nights, each of all tables; those that are complete first. `how` are the options of `Load.night`.

        Raises EtlError: the only failure, or all in one.
        """
        failed: dict[str, EtlError] = {}
        next(iter(self._loads.values())).check_begun(nights[-1])
        for night in nights:
            left = deque(name for name in self._loads if name not in failed)
            waited = 0  # how many in turn have had nothing to load
            while left:
                name = left.popleft()
                self._figures.begin(name)
                try:
                    outcome = await self._loads[name].night(night, at_once=len(left) > 0, **how)
                    self._display.done(outcome, name)
                    self._figures.done(name, outcome, self._loads[name].newest)
                    waited = 0
                except NotYet:
                    left.append(name)
                    waited += 1
                    if waited >= len(left):
                        await asyncio.sleep(LONGEST_PAUSE_S)
                        waited = 0
                except EtlError as error:
                    await self._failed(name, error, failed)
        self._raise_all(failed, "loaded")

    async def take_back(self) -> None:
        """Take back the nights that aren't over, of all tables. Raises EtlError: the only failure, or all in one."""
        failed: dict[str, EtlError] = {}
        for name, load in self._loads.items():
            try:
                outcome = await load.take_back()
            except EtlError as error:
                await self._failed(name, error, failed)
            else:
                self._display.taken_back(outcome, name)
                self._figures.looked(name, load.newest)
        self._raise_all(failed, "looked through")

    async def _failed(self, name: str, error: EtlError, failed: dict[str, EtlError]) -> None:
        """Note the failure of a table, where there are others to go on with. Raises it where there are none."""
        self._figures.failed(name, error, self._loads[name].newest)
        if len(self._loads) == 1:
            raise error
        failed[name] = error
        self._display.failed(name, error)
        if await asyncio.to_thread(JVM.gone):
            await asyncio.to_thread(self._engine.stop)

    def _raise_all(self, failed: Mapping[str, EtlError], done: str) -> None:
        if failed:
            words = f"{len(failed)} of {len(self._loads)} tables were not {done}: {job.words_for_tables(failed)}"
            raise Incomplete(words) if all(isinstance(error, Incomplete) for error in failed.values()) else EtlError(words)

    def follow(self, first: Night, until: Night | None, retry_s: float) -> Coroutine[Any, Any, None]:
        """Load every night after its end."""

        async def work() -> None:
            async with serving(self._config, "etl", [self._figures], self._figures):
                await Follower(self._loads, self._engine, first, until, retry_s, self._display, self._figures).run()

        return work()

    def attend(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, and close. A signal ends the process, with one line that says what it left."""

        async def do() -> None:
            try:
                await work
            finally:
                await self._close()

        try:
            with self._display:
                attend(do())
        except Interrupted as interrupted:
            self._figures.end(INTERRUPTED + interrupted.number)
            CHILDREN.end()
            JVM.end()
            left = (f"table {name}: {load.left()}" if name else load.left() for name, load in self._loads.items())
            click.echo(f"penstock: interrupted: {'; '.join(dict.fromkeys(left))}", err=True)
            leave(interrupted)

    async def _close(self) -> None:
        try:
            for load in self._loads.values():
                await load.close()
        finally:
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._engine.stop()
        JVM.end()
        CHILDREN.end()
