"""`penstock configs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from penstock.commandgroup import Group
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
    Admin,
    ConfigEntry,
)
from penstock.pipeline.commands.common import cluster, pairs, topic_counts
from penstock.pipeline.options import Invocation

KINDS = {"topic": TOPIC_RESOURCE, "broker": BROKER_RESOURCE, "logger": LOGGER_RESOURCE, "group": GROUP_RESOURCE}
SOURCES = {
    1: "topic", 2: "broker, altered", 3: "all brokers, altered", 4: "broker's start", 5: "default", 6: "logger", 8: "group"
}  # fmt: skip
_kind = click.argument("kind", type=click.Choice(list(KINDS)))


@click.group("configs", cls=Group)
def command() -> None:
    """Configurations of topics, brokers, groups and broker loggers: show, set, unset.

    Example: penstock configs show topic flights
    """


@command.command("show")
@_kind
@click.argument("name")
@click.option("--all", "every", is_flag=True, help="Defaults too.")
@cluster
def show_configs(invocation: Invocation, kind: str, name: str, every: bool) -> None:
    """Show what is configured, and where it comes from. The broker "" stands for all brokers.

    Example: penstock configs show broker 1 --all
    """

    async def work(admin: Admin) -> list[ConfigEntry]:
        await _check_there(admin, kind, name)
        return await admin.config_entries(KINDS[kind], name)

    entries = invocation.ask(work)
    rows = [
        {
            "config": entry.name,
            "value": entry.value,
            "source": SOURCES.get(entry.source, str(entry.source)),
            "read_only": entry.read_only,
        }
        for entry in entries
        if every or entry.is_own
    ]
    invocation.show(rows, "configs of its own; --all shows the defaults")


@command.command("set")
@_kind
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE...")
@cluster
def set_configs(invocation: Invocation, kind: str, name: str, words: Sequence[str]) -> None:
    """Set configs; the others stay.

    Example: penstock configs set topic flights retention.ms=604800000
    """
    given = pairs(words, "KEY=VALUE")
    _alter(invocation, kind, name, given)
    invocation.say(f"set {', '.join(given)} of {kind} {name}", set=given)


@command.command("unset")
@_kind
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@cluster
def unset_configs(invocation: Invocation, kind: str, name: str, keys: Sequence[str]) -> None:
    """Put configs back to what holds without them.

    Example: penstock configs unset topic flights retention.ms
    """
    _alter(invocation, kind, name, dict.fromkeys(keys))
    invocation.say(f"unset {', '.join(keys)} of {kind} {name}", unset=list(keys))


def _alter(invocation: Invocation, kind: str, name: str, changes: Mapping[str, str | None]) -> None:
    async def work(admin: Admin) -> None:
        await _check_there(admin, kind, name)
        await admin.alter_configs(KINDS[kind], name, changes)

    invocation.ask(work)


async def _check_there(admin: Admin, kind: str, name: str) -> None:
    """Raise KafkaError for a topic or broker that is not there: else it would be asked for until the time is up."""
    if kind == "topic":
        await topic_counts(admin, [name])
    elif kind in ("broker", "logger") and name:
        seen = await admin.metadata(None, refresh=True)
        if not name.isdigit() or int(name) not in seen.brokers:
            there = ", ".join(map(str, sorted(seen.brokers)))
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker `{name}`, only {there}")
