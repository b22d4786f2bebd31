"""What every daily command shares: where the cluster is, how an answer is shown, how a moment is written."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.table import Table

from penstock.config import ConfigError, read_properties
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.output import Output
from penstock.pipeline import properties
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.client import TopicPartition
from penstock.pipeline.patience import TIMEOUT_S, USUAL, Patience

T = TypeVar("T")
Row = Mapping[str, Any]

DURATION = re.compile(r"-(\d+)(ms|s|m|h|d)")
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SAY_AFTER_S = 3.0
WIDTH = 10_000
MOMENTS = "earliest, latest, an ISO time (2026-05-01T00:00:00Z), milliseconds since 1970, or an age (-90s, -2h, -7d)"


@dataclass(frozen=True)
class Asked:
    """What the options that all commands share say."""

    bootstrap: str
    properties: Mapping[str, str]
    as_json: bool
    patience: Patience = USUAL

    def given(self, **limits: float) -> dict[str, Any]:
        """Client properties: the limits that `--timeout` sets, further ones (ms, `_` for `.`), and what the user gave."""
        further = {name.replace("_", "."): round(limit) for name, limit in limits.items()}
        return self.patience.limits() | further | dict(self.properties)

    def ask(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Do something with a connected admin client. What the cluster refuses is one sentence for the user."""

        async def run() -> T:
            text = f"still waiting for {self.bootstrap}; Ctrl-C gives up"
            saying = asyncio.get_running_loop().call_later(SAY_AFTER_S, partial(click.echo, text, err=True))
            admin = Admin(self.bootstrap, **self.given())
            try:
                await admin.start(self.patience.contact_ms)
                return await work(admin)
            finally:
                saying.cancel()
                await admin.close()

        try:
            return asyncio.run(run())
        except KafkaError as error:
            raise click.ClickException(str(error)) from None

    def show(self, rows: Sequence[Row], title: str = "") -> None:
        """Rows as a table for people or, with --json, as a JSON list. Columns are the rows' keys."""
        if self.as_json:
            click.echo(json.dumps(list(rows), default=str))
            return
        if not rows:
            click.echo(f"no {title}" if title else "nothing")
            return
        table = Table(box=None, pad_edge=False, title_justify="left")
        for name in rows[0]:
            number = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
            table.add_column(name.replace("_", " "), justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(_text(value) for value in row.values()))
        console = Output()
        if not console.is_terminal:  # Piped into another program nothing is folded: a line a row.
            console.width = WIDTH
        console.print(table)

    def say(self, text: str, **facts: object) -> None:
        """What was done: a sentence for people, the facts for programs."""
        click.echo(json.dumps(facts, default=str) if self.as_json else text)


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


PIPELINE_FILE = click.option(
    "--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file."
)
SET = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")


def timeout_option(default_s: float = TIMEOUT_S) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add `--timeout` to a command; it comes to it as `patience: Patience`."""
    return click.option(
        "--timeout", "patience", type=click.FloatRange(min=0.001), default=default_s, show_default=True, metavar="SECONDS",
        callback=lambda _context, _option, seconds: Patience(seconds),
        help="Limit of each question to a cluster; a first contact has at most 5.",
    )  # fmt: skip


def with_options(outer: Callable[..., T], command: Callable[..., T], options: Sequence[Any]) -> Callable[..., T]:
    """What calls a command, as click sees it: with the command's own name, help and options, and further ones."""
    outer.__doc__ = command.__doc__
    outer.__name__ = command.__name__
    outer.__click_params__ = list(getattr(command, "__click_params__", ()))  # type: ignore[attr-defined]  # click's own mark
    for option in options:
        outer = option(outer)
    return outer


def cluster(command: Callable[..., T]) -> Callable[..., T]:
    """Add the shared options to a command; they come to it as `asked: Asked`."""

    def with_cluster(
        bootstrap: str,
        config_path: Path | None,
        overrides: tuple[str, ...],
        as_json: bool,
        patience: Patience,
        **rest: Any,
    ) -> T:
        return command(asked=Asked(bootstrap, client_properties(config_path, overrides), as_json, patience), **rest)

    return with_options(with_cluster, command, (
        click.option("--json", "as_json", is_flag=True, help="The answer as JSON."),
        timeout_option(),
        click.option("--property", "overrides", metavar="KEY=VALUE", multiple=True, help="A client property."),
        click.option("--config", "config_path", metavar="FILE", type=click.Path(path_type=Path), help="Client properties."),
        click.option(
            "-b", "--bootstrap", metavar="HOST:PORT,...", default="127.0.0.1:9092", show_default=True,
            envvar="PENSTOCK_BOOTSTRAP", help="The cluster; also from $PENSTOCK_BOOTSTRAP.",
        ),
    ))  # fmt: skip


def client_properties(path: Path | None, overrides: Sequence[str]) -> dict[str, str]:
    """Client properties of a file and of options, unchecked. Raises ConfigError."""
    found = read_properties(path) if path is not None else {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"`--property {quoted(override)}` is not of the form key=value")
        found[name] = value
    found.pop("bootstrap.servers", None)
    return found


def admin_only(given: Mapping[str, str]) -> dict[str, str]:
    """Those of a producer's or consumer's properties that an admin client knows too."""
    return {name: value for name, value in given.items() if name in properties.CLIENT.properties}


def confirm_deletion(what: str) -> None:
    """Ask before something is deleted. Raises ClickException when the answer isn't yes, or nobody gives one."""
    try:
        if click.confirm(f"delete {what}?", err=True):
            return
        raise click.ClickException("nothing was deleted")
    except click.Abort as abort:
        click.echo(err=True)
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise click.ClickException("nothing was deleted: nobody answers here; `--yes` deletes without asking") from None


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` words as a mapping. Raises BadParameter."""
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"`{word}` is not of the form key=value", param_hint=option)
        found[name] = value
    return found


PARTITIONS = re.compile(r"(.+):(\d+(?:,\d+)*)")


async def chosen_partitions(admin: Admin, words: Sequence[str]) -> list[TopicPartition]:
    """`topic` (all its partitions) or `topic:0,2` words as partitions. Raises KafkaError for what is not there."""
    wanted = [(found[1], found[2]) if (found := PARTITIONS.fullmatch(word)) else (word, None) for word in words]
    counts = await topic_counts(admin, sorted({topic for topic, _ in wanted}))
    chosen: list[TopicPartition] = []
    for topic, numbers in wanted:
        for partition in counts[topic] if numbers is None else map(int, numbers.split(",")):
            if partition not in counts[topic]:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic `{topic}` has no partition {partition}")
            chosen.append((topic, partition))
    return chosen


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


def time_text(timestamp_ms: int) -> str | None:
    """A timestamp for people, UTC; None for none."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


async def topic_counts(admin: Admin, names: Sequence[str]) -> dict[str, list[int]]:
    """The partitions of topics. Raises KafkaError for one that is not there."""
    seen = await admin.metadata(list(names), refresh=True)
    for name in names:
        if name not in seen.topics:
            raise KafkaError(seen.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), f"topic `{name}`")
    return {name: sorted(seen.topics[name].partitions) for name in names}
