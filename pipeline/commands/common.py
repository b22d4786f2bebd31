"""What every daily command shares: where the cluster is, how an answer is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.config import ConfigError, read_properties
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.options import AS_JSON, WHOLE_COMMAND, Invocation, Timeouts, timeout_option, with_options
from penstock.suggestions import did_you_mean

T = TypeVar("T")


def cluster(command: Callable[..., T]) -> Callable[..., T]:
    """Add the shared options to a command; they come to it as `invocation: Invocation`."""

    def with_cluster(
        bootstrap: str, config_path: Path | None, overrides: tuple[str, ...], as_json: bool, timeouts: Timeouts, **rest: Any
    ) -> T:
        return command(invocation=Invocation(bootstrap, client_properties(config_path, overrides), as_json, timeouts), **rest)

    return with_options(with_cluster, command, (
        AS_JSON,
        timeout_option(words=WHOLE_COMMAND),
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
    """`topic` (all its partitions) or `topic:0,2` words as partitions. Raises ClickException or KafkaError for what is not
    there."""
    wanted = [(found[1], found[2]) if (found := PARTITIONS.fullmatch(word)) else (word, None) for word in words]
    counts = await topic_counts(admin, sorted({topic for topic, _ in wanted}))
    chosen: list[TopicPartition] = []
    for topic, numbers in wanted:
        for partition in counts[topic] if numbers is None else map(int, numbers.split(",")):
            if partition not in counts[topic]:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic `{topic}` has no partition {partition}")
            chosen.append((topic, partition))
    return chosen


def time_text(timestamp_ms: int) -> str | None:
    """A timestamp for people, UTC; None for none."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


async def topic_counts(admin: Admin, names: Sequence[str]) -> dict[str, list[int]]:
    """The partitions of topics. Raises ClickException for one that is not there, KafkaError for one that can't be asked for."""
    seen = await admin.metadata(list(names), refresh=True)
    for name in names:
        if name not in seen.topics and seen.errors.get(name) in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise await no_topic(admin, name)
    return {name: sorted(seen.topic(name).partitions) for name in names}


async def no_topic(admin: Admin, name: str, what: str = "", or_else: str = "") -> click.ClickException:
    """That a topic isn't there, with the one that is most like it. what: what follows from that; or_else: a further hint."""
    topics = (await admin.metadata(None, refresh=True)).topics
    return click.ClickException(
        f"topic `{name}` isn't there{what}{did_you_mean(name, topics)}\nhint: `penstock topics list` shows the topics{or_else}"
    )


async def no_group(admin: Admin, name: str) -> click.ClickException:
    """That a group isn't there, with the one that is most like it."""
    meant = did_you_mean(name, await admin.list_groups())
    return click.ClickException(f"group `{name}` isn't there{meant}\nhint: `penstock groups list` shows the groups")
