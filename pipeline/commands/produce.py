"""`penstock produce`."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from penstock.errors import KafkaError
from penstock.pipeline.commands.common import Asked, cluster, pairs
from penstock.pipeline.producer import Delivery, Producer

UNDER_WAY_MAX = 10_000
FIELDS = frozenset({"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"})
"""Of a JSON line, as `penstock consume --json` prints it; topic and offset are its own there."""


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@click.command("produce")
@click.argument("topic")
@click.option(
    "--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read this file. [standard input]"
)
@click.option("--format", "form", type=click.Choice(["lines", "jsonl"]), default="lines", show_default=True)
@click.option("--key-separator", metavar="TEXT", help="In lines: the key stands before it.")
@click.option("--key", help="The key of each record that has none of its own.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of each record.")
@click.option("--partition", type=int, help="The partition. [by key, else spread]")
@click.option("--compression", default="lz4", show_default=True, help="none, gzip, snappy, lz4 or zstd.")
@click.option("--empty-as-null", is_flag=True, help="An empty value is null: a tombstone.")
@cluster
def command(
    asked: Asked,
    topic: str,
    path: Path | None,
    form: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    empty_as_null: bool,
) -> None:
    """Produce a record a line, idempotently; says how many were acknowledged.

    jsonl lines are what `penstock consume --json` prints: {"key", "value", "headers", "timestamp_ms", "partition"}, each
    of them optional; {"base64": "..."} stands for bytes that are no text.

    Example: cat events.txt | penstock produce events --key-separator :
    """
    common = tuple((name, value.encode()) for name, value in pairs(headers, "--header").items())
    source: BinaryIO = sys.stdin.buffer if path is None else path.open("rb")
    columns = (TextColumn("producing"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    given: dict[str, Any] = {"compression.type": compression, **asked.properties}
    sent = 0
    try:
        with (
            Producer(asked.bootstrap, **given) as producer,
            Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ):
            task = progress.add_task("records", total=None)
            under_way: list[Delivery] = []
            for record in _read(source, form, key_separator):
                value = None if empty_as_null and not record.value else record.value
                under_way.append(
                    producer.send(
                        topic,
                        record.key if record.key is not None or key is None else key.encode(),
                        value,
                        record.timestamp_ms,
                        (*common, *record.headers),
                        partition if partition is not None else record.partition,
                    )
                )
                if len(under_way) >= UNDER_WAY_MAX:
                    sent += _settle(under_way)
                    progress.update(task, completed=sent)
            producer.flush()
            sent += _settle(under_way)
    except KafkaError as error:
        raise click.ClickException(f"after {sent} acknowledged records: {error}") from None
    finally:
        if path is not None:
            source.close()
    asked.say(f"{sent} records acknowledged", topic=topic, acknowledged=sent)


def _settle(under_way: list[Delivery]) -> int:
    for delivery in under_way:
        delivery.result()
    count = len(under_way)
    under_way.clear()
    return count


def _read(source: BinaryIO, form: str, key_separator: str | None) -> Iterator[_Record]:
    separator = None if key_separator is None else key_separator.encode()
    for number, line in enumerate(source, 1):
        text = line.rstrip(b"\r\n")
        if form == "jsonl":
            if text:
                yield _parse(text, number)
        elif separator is None:
            yield _Record(None, text)
        else:
            key, found, value = text.partition(separator)
            yield _Record(key, value) if found else _Record(None, text)


def _parse(text: bytes, number: int) -> _Record:
    """A JSON line as a record. Raises ClickException that names the line."""
    try:
        fields: dict[str, Any] = json.loads(text)
        unknown = sorted(fields.keys() - FIELDS)
        if unknown:
            raise ValueError(f"`{unknown[0]}` is no field; there are {', '.join(sorted(FIELDS))}")
        headers = tuple((str(name), _bytes(value)) for name, value in fields.get("headers") or ())
        timestamp_ms, partition = fields.get("timestamp_ms"), fields.get("partition")
        return _Record(
            _bytes(fields.get("key")),
            _bytes(fields.get("value")),
            headers,
            None if timestamp_ms is None else int(timestamp_ms),
            None if partition is None else int(partition),
        )
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise click.ClickException(f"line {number} is no record: {error}") from None


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
