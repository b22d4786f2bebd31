"""A stage as a process: it reaches the cluster that it writes to, sets out, and goes on until it is stopped."""

from __future__ import annotations

import abc
import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from penstock import log, tasks
from penstock.commandgroup import Group
from penstock.config import Config
from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.metrics import Page, Source, one
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.options import OWN_FILE, SET, chosen_file, with_options
from penstock.pipeline.service import run_until_stopped, serving
from penstock.pipeline.stages.failures import TRANSIENT, patiently
from penstock.pipeline.stages.figures import DROPPED, HELD, READY, Key, LaneFigures, Placed
from penstock.pipeline.stages.lane import Pace
from penstock.pipeline.stages.lanes import Lanes
from penstock.pipeline.stages.memory import Held
from penstock.pipeline.stages.state import STANDING, silent_after_ms

# A step that fails is begun again by its lane, which then asks the target where it stands; so no single call has to be
# patient, and the steps of a transaction are over before the target's limit for it (a minute) is.
PATIENCE = {"default.api.timeout.ms": 5_000, "delivery.timeout.ms": 30_000}
FETCH_BYTES = 8 << 20  # of one answer: what a link of 1 Gb/s and 70 ms holds
FETCH_WAIT_MS = 200  # how long a fetch of idle partitions may keep one that was emptied just now waiting


class Stage(abc.ABC):
    """`start()` tries every lane once, `run()` goes on until cancelled, `close()` ends what is under way. It is a Source of
    figures, and says of itself how it is (Health).

    `kind` is the stage's word in commands, keys and client ids; `target` is the cluster of `bootstrap.servers`.
    """

    def __init__(self, kind: str, config: Config, logger: log.Fields) -> None:
        self.kind = kind
        self.config = config
        self.name: str = config[f"penstock.{kind}.name"]
        self.target = self._admin(config["bootstrap.servers"])
        self._refused: dict[str, str] = {}
        self._process: list[Lanes] = []  # the lanes of every input
        self._held = Held()  # by all of these
        self._work: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None
        self._missing = "it was not reached yet"  # why the target doesn't answer; empty: it did when it was asked last
        self._tried = False  # every lane was
        self._dropped: dict[str, int] = {}  # series that a page lacks, by family
        self._log = logger

    def _admin(self, servers: str) -> Admin:
        return Admin(servers, **{"client.id": f"penstock-{self.kind}-{self.name}", **PATIENCE})

    def _lanes_from(
        self, cluster: Admin, logger: log.Fields, *, max_bytes: int = FETCH_BYTES, linger_ms: int = 0, pace: Pace | None = None
    ) -> Lanes:
        """Lanes for partitions of a cluster, with what the pipeline's file says of every stage."""
        turn_bytes = self.config[f"penstock.{self.kind}.batch.bytes"]
        fetcher = Fetcher(
            cluster,
            isolation="read_committed",
            check_crcs=self.config["penstock.check.crcs"],
            partition_max_bytes=turn_bytes,
            max_bytes=max_bytes,
            max_wait_ms=FETCH_WAIT_MS,
        )
        return Lanes(
            fetcher,
            logger,
            refresh_ms=self.config["penstock.mirror.position.refresh.ms"],
            watch_ms=self.config["penstock.watch.ms"],
            turn_bytes=turn_bytes,
            session_ms=self.config["session.timeout.ms"],
            stalled_ms=self.config["penstock.stalled.after.ms"],
            silent_ms=silent_after_ms(self.config, linger_ms),
            linger_ms=linger_ms,
            pace=pace,
            process=self._process,
            held=self._held,
        )

    async def start(self) -> None:
        """Reach the target and set out; back when every lane has been tried once. Raises what `run` raises."""
        await patiently(self.target.start, "reach the cluster of `bootstrap.servers`", self._log)
        self._missing = ""
        self._watching = asyncio.ensure_future(self._watch_target())
        self._work = asyncio.ensure_future(self._set_out())
        await _until_tried(self._work, self._all_tried())
        self._tried = True

    async def _watch_target(self) -> None:
        """Ask the target now and then, so that readiness is known without asking."""
        while True:
            await asyncio.sleep(self.config["penstock.watch.ms"] / 1000)
            try:
                await self.target.metadata([], refresh=True)
                self._missing = ""
            except TRANSIENT as error:
                self._missing = str(error)

    @abc.abstractmethod
    async def _set_out(self) -> None:
        """All of the stage's work."""

    @abc.abstractmethod
    async def _all_tried(self) -> None:
        """Wait until all that the work begins with was tried once."""

    async def run(self) -> None:
        """Go on until cancelled. Raises Replaced, KafkaError, and what a stage says of its own."""
        assert self._work is not None, "start first"
        try:
            await self._work
        finally:
            self._missing = "the stage ends"

    async def close(self) -> None:
        """End what is under way, and close everything."""
        await tasks.end(self._watching, self._work)
        await self._close_own()
        await self.target.close()

    @abc.abstractmethod
    async def _close_own(self) -> None:
        """Close what the stage has beside the target's connections."""

    @abc.abstractmethod
    def stopped(self) -> dict[str, str]:
        """What stopped while the others go on, by its name, each with its reason."""

    @abc.abstractmethod
    def placed(self) -> Iterator[Placed]:
        """All lanes."""

    @abc.abstractmethod
    def waiting_topics(self) -> dict[Key, str]:
        """The states of topics that have no lane."""

    def figures(self) -> list[Source]:
        """What has figures of the stage; its own come last, which say what the others left out."""
        choice = self.config["penstock.metrics.partitions"]
        return [LaneFigures((self.kind, self.name), choice, self.placed, self.waiting_topics, self._dropped), self]

    async def metrics(self, page: Page) -> None:
        """See Source."""
        one(page, HELD, self._held.bytes, (self.kind, self.name))
        one(page, READY, int(self.ready()[0]), (self.kind, self.name))
        page.family(DROPPED)
        for family, count in self._dropped.items():
            if count:
                page.sample((self.kind, self.name, family), count)

    def live(self) -> tuple[bool, dict[str, Any]]:
        """The loop answers this, so it turns; and no lane's turn has hung for longer than its own steps may take."""
        hung = [name for lanes in self._process for name in lanes.view.hung()]
        return not hung, {"hung": hung}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Every lane was tried once, and the target answers. A lane that stands still is no reason to send others elsewhere."""
        states = Counter(lanes.view.state(lane)["state"] for _, lanes, lane in self.placed()) + Counter(
            self.waiting_topics().values()
        )
        standing = {state: states[state] for state in STANDING if states[state]}
        return self._tried and not self._missing, {
            "tried": self._tried,
            "target": self._missing or "reached",
            "standing": standing,
        }

    def _refuse(self, name: str, error: Exception) -> None:
        """Note why a topic is refused, and say it once."""
        if self._refused.get(name) != str(error):
            self._log.error("%s is STOPPED, the others go on: %s", name, error)
        self._refused[name] = str(error)


async def _until_tried(work: asyncio.Future[None], tried: Coroutine[Any, Any, None]) -> None:
    """Wait until all that a stage's work begins with was tried once. Raises what the work has ended with before."""
    trying = asyncio.ensure_future(tried)
    await asyncio.wait([work, trying], return_when=asyncio.FIRST_COMPLETED)
    trying.cancel()
    if work.done():
        await work


def stage_command(
    kind: str, make: Callable[[Config], Stage], failures: tuple[type[Exception], ...] = (KafkaError,)
) -> Callable[[Callable[[], None]], click.Group]:
    """The command of a stage, with the help of what it decorates. Without a sub-command it makes the stage of a pipeline's file
    and runs it until SIGTERM or SIGINT. Its errors are one of the `failures`, and what stopped meanwhile."""

    @click.pass_context
    def work(context: click.Context, path: Path | None, overrides: Sequence[str]) -> None:
        if (file := chosen_file(context, path, bool(overrides), "--config and --set")) is None:
            return
        config = job.load(file, overrides, kind)
        log.setup(form=config["penstock.log.format"], process=f"{kind}-{config[f'penstock.{kind}.name']}")
        arm_from_environment()
        try:
            stage = make(config)
            run_until_stopped(
                f"{stage.kind} {stage.name}", stage.start, stage.run, stage.close, serving(config, kind, stage.figures(), stage)
            )
        except failures as error:
            raise click.ClickException(str(error)) from None
        if stopped := stage.stopped():
            raise click.ClickException("; ".join(f"{name} stopped: {why}" for name, why in stopped.items()))

    return lambda named: click.group(kind, cls=Group, invoke_without_command=True)(with_options(work, named, (SET, OWN_FILE)))
