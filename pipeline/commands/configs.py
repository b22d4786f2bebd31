"""`penstock configs`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from penstock.pipeline.admin import BROKER_RESOURCE, GROUP_RESOURCE, LOGGER_RESOURCE, TOPIC_RESOURCE
from penstock.pipeline.commands.common import Asked, cluster, pairs

KINDS = {"topic": TOPIC_RESOURCE, "broker": BROKER_RESOURCE, "logger": LOGGER_RESOURCE, "group": GROUP_RESOURCE}
SOURCES = {
    1: "topic", 2: "broker, altered", 3: "all brokers, altered", 4: "broker's file", 5: "default", 6: "logger", 8: "group"
}  # fmt: skip
_kind = click.argument("kind", type=click.Choice(list(KINDS)))


@click.group("configs")
def command() -> None:
    """Configurations of topics, brokers, groups and broker loggers: show, set, unset.

    Example: penstock configs show topic flights
    """


@command.command("show")
@_kind
@click.argument("name")
@click.option("--all", "every", is_flag=True, help="Defaults too.")
@cluster
def show_configs(asked: Asked, kind: str, name: str, every: bool) -> None:
    """Show what is configured, and where it comes from.

    Example: penstock configs show broker 1 --all
    """
    entries = asked.ask(lambda admin: admin.config_entries(KINDS[kind], name))
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
    asked.show(rows, "configs of its own; --all shows the defaults")


@command.command("set")
@_kind
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE...")
@cluster
def set_configs(asked: Asked, kind: str, name: str, words: Sequence[str]) -> None:
    """Set configs; the others stay.

    Example: penstock configs set topic flights retention.ms=604800000
    """
    given = pairs(words, "KEY=VALUE")
    asked.ask(lambda admin: admin.alter_configs(KINDS[kind], name, given))
    asked.say(f"set {', '.join(given)} of {kind} {name}", set=given)


@command.command("unset")
@_kind
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@cluster
def unset_configs(asked: Asked, kind: str, name: str, keys: Sequence[str]) -> None:
    """Put configs back to what holds without them.

    Example: penstock configs unset topic flights retention.ms
    """
    asked.ask(lambda admin: admin.alter_configs(KINDS[kind], name, dict.fromkeys(keys)))
    asked.say(f"unset {', '.join(keys)} of {kind} {name}", unset=list(keys))
