"""`penstock produce`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.producer import Delivery, Producer
from penstock.pipeline.commands.common import admin_only, cluster, no_topic, pairs, topic_counts
from penstock.pipeline.options import Invocation, counting, saying_late

UNDER_WAY_MAX = 10_000
LAST_FLUSH_S = 5.0  # what an interrupted or failed run still waits for, at most
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
@click.option("--create", is_flag=True, help="Create the topic, with the cluster's defaults, if it isn't there.")
@cluster
def command(
    invocation: Invocation,
    topic: str,
    path: Path | None,
    form: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    empty_as_null: bool,
    create: bool,
) -> None:
    """Produce a record a line, idempotently; says how many were acknowledged. A topic that isn't there is refused.

    jsonl lines are what `penstock consume --json` prints: {"key", "value", "headers", "timestamp_ms", "partition"}, each
    of them optional; {"base64": "..."} stands for bytes that are no text. A file is looked through before its first line is
    sent; from a pipe lines are sent as they come, and one that is no record ends it.

    Example: cat events.txt | penstock produce events --key-separator :
    """
    common = tuple((name, value.encode()) for name, value in pairs(headers, "--header").items())
    read = partial(_read, form=form, key_separator=key_separator)
    source: BinaryIO = sys.stdin.buffer if path is None else path.open("rb")
    try:
        if source.seekable():
            begin = source.tell()
            for _ in read(source):
                pass
            source.seek(begin)
        admin = replace(invocation, properties=admin_only(invocation.properties))
        created = admin.ask(lambda admin: _see_topic(admin, topic, create))
        if created:
            click.echo(f"created topic `{topic}` with {created} partitions", err=True)
        # Another topic of this name, once this one is deleted, would be nobody's wish.
        given = {"allow.auto.create.topics": "false"} | invocation.given(
            max_block_ms=invocation.timeouts.timeout_s * 1000, delivery_timeout_ms=invocation.timeouts.timeout_s * 1000
        )
        with Producer(invocation.bootstrap, **{"compression.type": compression, **given}) as producer:
            sending = _Sending(producer, min(invocation.timeouts.timeout_s, LAST_FLUSH_S))
            try:
                sending.all(
                    producer.send(
                        topic,
                        record.key if record.key is not None or key is None else key.encode(),
                        None if empty_as_null and not record.value else record.value,
                        record.timestamp_ms,
                        (*common, *record.headers),
                        partition if partition is not None else record.partition,
                    )
                    for record in read(source)
                )
            except KeyboardInterrupt:
                with saying_late("waiting for what is on its way; Ctrl-C again gives it up"):
                    click.echo(f"interrupted: {sending.end()} records acknowledged", err=True)
                raise
            except (KafkaError, click.ClickException) as error:
                failed = error if isinstance(error, click.ClickException) else invocation.failure(error)
                raise click.ClickException(f"after {sending.end()} acknowledged records: {failed.message}") from None
    finally:
        if path is not None:
            source.close()
    invocation.say(
        f"{sending.acknowledged} records acknowledged", topic=topic, acknowledged=sending.acknowledged, created=bool(created)
    )


async def _see_topic(admin: Admin, topic: str, create: bool) -> int:
    """See that a topic is there, or create it: the number of partitions of one that was created, else 0. Raises KafkaError, and
    ClickException for one that isn't there and that nobody wants created."""
    seen = await admin.metadata([topic], refresh=True)
    if topic in seen.topics:
        return 0
    error = seen.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise KafkaError(error, f"topic `{topic}`")
    if not create:
        or_else = f"; `penstock topics create {quoted(topic)}` or `--create` makes it"
        raise await no_topic(admin, topic, ", and nothing was sent", or_else)
    await admin.create_topics([topic], exist_ok=True)
    return len((await topic_counts(admin, [topic]))[topic])


class _Sending:
    """Records on their way, and how many were acknowledged."""

    def __init__(self, producer: Producer, last_flush_s: float) -> None:
        self._producer = producer
        self._last_flush_s = last_flush_s
        self._under_way: deque[Delivery] = deque()
        self.acknowledged = 0

    def all(self, deliveries: Iterable[Delivery]) -> None:
        """Take records as they are sent and wait until all are acknowledged. Raises KafkaError for the first that failed."""
        with counting("producing") as show_more:
            for delivery in deliveries:
                self._under_way.append(delivery)
                if len(self._under_way) >= UNDER_WAY_MAX:
                    self._await_acks()
                    show_more(UNDER_WAY_MAX)
            self._producer.flush()
            self._await_acks()

    def _await_acks(self) -> None:
        while self._under_way:
            self._under_way[0].result()
            self._under_way.popleft()
            self.acknowledged += 1

    def end(self) -> int:
        """Wait a little for what is on its way, and send nothing any more; how many records were acknowledged in all."""
        with contextlib.suppress(TimeoutError):
            self._producer.flush(self._last_flush_s)
        self._producer.close(0)
        left = [delivery for delivery in self._under_way if delivery.done() and delivery.exception() is None]
        return self.acknowledged + len(left)


def _read(source: BinaryIO, form: str, key_separator: str | None) -> Iterator[_Record]:
    """The records of some lines. Raises ClickException that names the line that is none."""
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
            if not found:
                raise click.ClickException(f"line {number} has no `{key_separator}`, which is to follow the key")
            yield _Record(key, value)


def _parse(text: bytes, number: int) -> _Record:
    """A JSON line as a record. Raises ClickException that names the line."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        unknown = sorted(fields.keys() - FIELDS)
        if unknown:
            raise ValueError(f"`{unknown[0]}` is no field; there are {', '.join(sorted(FIELDS))}")
        return _Record(
            _bytes(fields.get("key")),
            _bytes(fields.get("value")),
            _headers(fields.get("headers")),
            _number(fields, "timestamp_ms", least=-1),  # as consume prints records of formats without a time
            _number(fields, "partition", least=0),
        )
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"line {number} is no record: {error}") from None


def _headers(given: object) -> tuple[tuple[str, bytes | None], ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in given
    ):
        raise ValueError("`headers` is not a list of [name, value]")
    return tuple((name, _bytes(value)) for name, value in given)


def _number(fields: dict[str, Any], name: str, least: int) -> int | None:
    number = fields.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
        raise ValueError(f"`{name}` is not a whole number from {least} on")
    return number


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"bad base64: {error}") from None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
