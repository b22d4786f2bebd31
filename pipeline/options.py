"""The options that mirror, dedupe, etl, audit and the daily commands share, and what they say."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.output import visible
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin

T = TypeVar("T")
Row = Mapping[str, Any]

SAY_AFTER_S = 3.0
LAST_SAY_S = 0.5  # one who has asked for the end waits no longer without a word
WIDTH = 10_000
TIMEOUT_S = 30.0
LEADERLESS = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
)
"""What a cluster answers that lacks brokers, or its ZooKeeper."""
CONTACT_S = 5.0  # a cluster of which no broker answers by then has a wrong address, or is down

DURATION = re.compile(r"-(\d+)(ms|s|m|h|d)")
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ISO_TIME, AGES = "an ISO time (2026-05-01T00:00:00Z)", "an age (-90s, -2h, -7d)"
MOMENTS = f"earliest, latest, {ISO_TIME}, milliseconds since 1970, or {AGES}"


@dataclass(frozen=True)
class Timeouts:
    """The limits of a question to a cluster: `timeout_s` for its answer, for a first contact at most `CONTACT_S`."""

    timeout_s: float = TIMEOUT_S

    @property
    def contact_ms(self) -> int:
        """The limit of a first contact."""
        return max(1, round(min(CONTACT_S, self.timeout_s) * 1000))

    def properties(self) -> dict[str, Any]:
        """All, as properties of a client."""
        most_ms = max(1, round(self.timeout_s * 1000))
        return {
            "default.api.timeout.ms": most_ms,
            "request.timeout.ms": most_ms,
            "socket.connection.setup.timeout.ms": self.contact_ms,
        }

    @asynccontextmanager
    async def admin(self, servers: str, client_id: str) -> AsyncIterator[Admin]:
        """An admin client that has reached its cluster. Raises KafkaError where no broker answers."""
        admin = Admin(servers, **{"client.id": client_id, **self.properties()})
        try:
            await admin.start(self.contact_ms)
            yield admin
        finally:
            await admin.close()


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True)
class Invocation:
    """One call of a command: its cluster, the client properties, and how the answer is shown."""

    bootstrap: str
    properties: Mapping[str, str]
    as_json: bool
    timeouts: Timeouts = DEFAULT_TIMEOUTS

    def given(self, **limits: float) -> dict[str, Any]:
        """Client properties: the limits that `--timeout` sets, further ones (ms, `_` for `.`), and what the user gave."""
        further = {name.replace("_", "."): round(limit) for name, limit in limits.items()}
        return self.timeouts.properties() | further | dict(self.properties)

    def ask(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Do something with a connected admin client, within `--timeout`. What the cluster refuses is one sentence for the
        user."""

        async def bounded(admin: Admin) -> T:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await self._start(admin)
            async with self.within(admin, spent_s=loop.time() - begun):
                return await work(admin)

        return self._run(bounded)

    def ask_on(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """As `ask`, for work that goes on until Ctrl-C: it bounds each of its questions by `within`."""

        async def unbounded(admin: Admin) -> T:
            await self._start(admin)
            return await work(admin)

        return self._run(unbounded)

    async def _start(self, admin: Admin) -> None:
        """Reach the cluster. The same words whichever limit is over first: that of the contact, or `--timeout`."""
        async with self.within(admin, f"cannot connect to `{self.bootstrap}`: no answer in time"):
            await admin.start(self.timeouts.contact_ms)

    @asynccontextmanager
    async def within(self, admin: Admin, silence: str = "", *, spent_s: float = 0.0) -> AsyncIterator[None]:
        """The limit of what is asked of a cluster: what is left of `--timeout`. Raises ClickException, with what was awaited.
        silence: what it says if no broker has said why."""
        try:
            async with asyncio.timeout(self.timeouts.timeout_s - spent_s) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            error, after = admin.last_failure, f"given up after {self.timeouts.timeout_s:g} s"
            if error is None:
                raise click.ClickException(f"{after}: {silence or f'no answer from {self.bootstrap}'}") from None
            raise self.failure(error, f"{after}: {error}") from None

    def failure(self, error: KafkaError, text: str = "") -> click.ClickException:
        """What a cluster has refused, for the user; text: in place of the error's own."""
        hint = ""
        if error.code in LEADERLESS:
            hint = (
                f"\nhint: `penstock cluster --bootstrap {quoted(self.bootstrap)}` shows which brokers live, and what they lead"
            )
        return click.ClickException(f"{text or error}{hint}")

    def _run(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        async def run() -> T:
            text = f"still waiting for {self.bootstrap}; Ctrl-C gives up"
            saying = asyncio.get_running_loop().call_later(SAY_AFTER_S, partial(click.echo, text, err=True))
            admin = Admin(self.bootstrap, **self.given())
            try:
                return await work(admin)
            finally:
                saying.cancel()
                await admin.close()

        try:
            return asyncio.run(run())
        except KafkaError as error:
            raise self.failure(error) from None

    def show(self, rows: Sequence[Row], title: str = "") -> None:
        """As `show_rows`."""
        show_rows(rows, title, as_json=self.as_json)

    def say(self, text: str, **facts: object) -> None:
        """What was done: a sentence for people, the facts for programs."""
        click.echo(json.dumps(facts, default=str) if self.as_json else text)


def show_rows(rows: Sequence[Row], title: str = "", *, as_json: bool) -> None:
    """Rows as a table for people, or as a JSON list. Columns are the rows' keys."""
    if as_json:
        click.echo(json.dumps(list(rows), default=str))
        return
    if not rows:
        click.echo(f"no {title}" if title else "nothing")
        return
    from rich.table import Table  # here, as all of rich: a command that prints no table must not pay for it
    from rich.text import Text

    from penstock.console import Output

    table = Table(box=None, pad_edge=False, title_justify="left")
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        number = not any(isinstance(value, bool) or not isinstance(value, int | float) for value in values)
        table.add_column(name.replace("_", " "), justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        # A client chooses its id, and a topic its configs' texts: neither is markup, nor may it move the cursor.
        table.add_row(*(Text(visible(_text(value))) for value in row.values()))
    console = Output()
    if not console.is_terminal:  # Piped into another program nothing is folded: a line a row.
        console.width = WIDTH
    console.print(table)


@contextmanager
def counting(doing: str, *, hidden: bool = False) -> Iterator[Callable[[float], None]]:
    """Show on a terminal how many records the body has come to; it calls what it is given with how many more they are."""
    if hidden or not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(doing), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield partial(progress.advance, progress.add_task("records", total=None))


@contextmanager
def saying_late(text: str) -> Iterator[None]:
    """Say what the body waits for, once it has waited for `LAST_SAY_S`."""
    saying = threading.Timer(LAST_SAY_S, partial(click.echo, text, err=True))
    saying.daemon = True
    saying.start()
    try:
        yield
    finally:
        saying.cancel()


def moment(text: str) -> int:
    """A moment as ListOffsets wants it: EARLIEST, LATEST, or ms since 1970. Raises BadParameter."""
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text)
    if named is not None:
        return named
    age = DURATION.fullmatch(text)
    if age is not None:
        return time.time_ns() // 1_000_000 - int(age[1]) * UNIT_MS[age[2]]
    if text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"`{text}` is none of {MOMENTS}") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join("-" if one is None else str(one) for one in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _not_blank(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if not given.strip():
        raise click.BadParameter("say why", param_hint="--because")
    return given


def chosen_file(context: click.Context, path: Path | None, given: bool, named: str) -> Path | None:
    """The `OWN_FILE` of a command that does something by itself; None: a sub-command is called, which has options of its own.
    Raises UsageError where others of the command (`named`) are `given`, too: nobody would look at them there."""
    if context.invoked_subcommand is None:
        if path is None:
            raise click.UsageError("Missing option '--config'.")
        return path
    if path is not None or given:
        raise click.UsageError(f"give {named} behind `{context.invoked_subcommand}`")
    return None


A_PATH = click.Path(path_type=Path)
PIPELINE_FILE = click.option("--config", "path", required=True, type=A_PATH, help="The pipeline's file.")
OWN_FILE = click.option("--config", "path", type=A_PATH, help="The pipeline's file.")
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")


def because(words: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add `--because`, which can't be left out or be blank; `words` are its help."""
    return click.option("--because", required=True, metavar="TEXT", callback=_not_blank, help=words)


EACH_QUESTION = "Limit of each question to a cluster; a first contact has at most 5."
WHOLE_COMMAND = "Limit of all that is asked of the cluster, or of a wait without a record; a first contact has at most 5."


def timeout_option(default_s: float = TIMEOUT_S, words: str = EACH_QUESTION) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add `--timeout` to a command; it comes to it as `timeouts: Timeouts`. `words` are its help."""
    return click.option(
        "--timeout", "timeouts", type=click.FloatRange(min=0.001), default=default_s, show_default=True, metavar="SECONDS",
        callback=lambda _context, _option, seconds: Timeouts(seconds),
        help=words,
    )  # fmt: skip


def with_options(outer: Callable[..., T], command: Callable[..., object], options: Sequence[Any]) -> Callable[..., T]:
    """What calls a command, as click sees it: with the command's own name, help and options, and further ones."""
    outer.__doc__ = command.__doc__
    outer.__name__ = command.__name__
    outer.__click_params__ = list(getattr(command, "__click_params__", ()))  # type: ignore[attr-defined]  # click's own mark
    for option in options:
        outer = option(outer)
    return outer
