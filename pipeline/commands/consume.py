"""`penstock consume`."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pipeline.clients.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.consumer import Consumer, ConsumerRecord, CorruptBatchError
from penstock.pipeline.commands.common import admin_only, chosen_partitions, cluster
from penstock.pipeline.options import MOMENTS, Invocation, counting, moment, saying_late
from penstock.pipeline.stages.hints import address

if TYPE_CHECKING:
    from penstock.pipeline.commands.arrow import Table

POLL_S = 0.5
COMMIT_S = 5.0


@click.command("consume")
@click.argument("words", nargs=-1, required=True, metavar="TOPIC[:PARTITION,...]...")
@click.option("--from", "begin", default="latest", show_default=True, help=f"{MOMENTS}; or an offset as @1234.")
@click.option("--follow/--end", default=None, help="Go on for ever, or end where the logs end now. [end unless from latest]")
@click.option("-n", "--max", "most", type=int, help="End after so many records.")
@click.option("--group", help="Commit to this group (also when Ctrl-C ends it), and begin where it was.")
@click.option("--isolation", type=click.Choice(["read_committed", "read_uncommitted"]), default="read_committed")
@click.option("--columns", "path", type=click.Path(path_type=Path), help="Write columns to FILE.parquet or FILE.arrow.")
@click.option("--keys", is_flag=True, help="Print keys too.")
@cluster
def command(
    invocation: Invocation,
    words: Sequence[str],
    begin: str,
    follow: bool | None,
    most: int | None,
    group: str | None,
    isolation: str,
    path: Path | None,
    keys: bool,
) -> None:
    """Consume records: print values a line each, JSON lines with --json, or write columns.

    Columns are topic, partition, offset, timestamp (ms, UTC), key and value; they need pyarrow.

    Example: penstock consume flights --from earliest --columns flights.parquet
    """
    goes_on = follow if follow is not None else begin == "latest" and path is None
    given = {"allow.auto.create.topics": "false"} | invocation.given() | {"isolation.level": isolation}
    if group is not None:
        given |= {"group.id": group, "enable.auto.commit": "false"}
    admin = replace(invocation, properties=admin_only(invocation.properties))
    starts, ends = admin.ask(lambda admin: _range(admin, words, begin, isolation, group))
    if goes_on:
        ends = {}
    try:
        with Consumer(invocation.bootstrap, **given) as consumer:
            consumer.assign(starts)
            for tp, offset in starts.items():
                if offset is not None:
                    consumer.seek(tp, offset)
            reading = _Reading(consumer, invocation, commits=group is not None)
            # Ctrl-C is the way to end what goes on for ever.
            with _step(path, invocation.as_json, keys) as step, contextlib.suppress(KeyboardInterrupt):
                reading.run(step, starts, ends, most, to_file=path is not None)
            with saying_late(f"committing the positions of group `{group}`; Ctrl-C again ends without that"):
                reading.commit()  # A file is whole now.
    except KafkaError as error:
        raise invocation.failure(error) from None
    except CorruptBatchError as error:
        where = f"`penstock consume {quoted(address(error.tp))} --from {quoted(f'@{error.next_offset}')}`"
        raise click.ClickException(
            f"{error}; {where} goes on behind it, and `penstock log verify` on the broker's machine says what is damaged"
        ) from None
    count = reading.count
    if path is not None:
        invocation.say(f"{count} records in {path}", file=str(path), records=count)


async def _range(
    admin: Admin, words: Sequence[str], begin: str, isolation: str, group: str | None
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int]]:
    """Where each partition begins (None: where the group was) and where it ends now."""
    tps = await chosen_partitions(admin, words)
    firsts = await admin.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(tps, LATEST), isolation)  # type: ignore[arg-type]  # one of click's choices
    committed = await admin.committed(group, tps) if group is not None else {}
    offset = int(begin[1:]) if begin.startswith("@") and begin[1:].isdigit() else None
    found = await admin.list_offsets(dict.fromkeys(tps, moment(begin))) if offset is None else {}
    starts: dict[TopicPartition, int | None] = {}
    for tp in tps:
        at = committed.get(tp)
        if at is not None:
            _check_range(tp, at[0], firsts[tp].offset, ends[tp].offset, f"where group `{group}` is (`penstock groups reset`)")
            starts[tp] = None
        elif offset is not None:
            _check_range(tp, offset, firsts[tp].offset, ends[tp].offset, "which was asked for")
            starts[tp] = offset
        else:
            starts[tp] = found[tp].offset if found[tp].offset >= 0 else ends[tp].offset
    return starts, {tp: ends[tp].offset for tp in tps}


def _check_range(tp: TopicPartition, offset: int, first: int, end: int, what: str) -> None:
    """See that the log has an offset, or ends there. Raises KafkaError."""
    if not first <= offset <= end:
        text = f"{address(tp)} holds offsets {first} to {end}, not {offset}, {what}"
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)


Positions = dict[TopicPartition, int]  # the offset after the last record of each partition
# Polls once and takes at most so many records (None: all), below the given ends.
Step = Callable[[Consumer, Mapping[TopicPartition, int], int | None], tuple[int, Positions]]


@contextlib.contextmanager
def _holding_back_interrupts() -> Iterator[None]:
    """Let Ctrl-C end a step of work only once that is whole: what is printed has to be counted, too. A second Ctrl-C ends it
    at once, for a reader of the output may take nothing any more."""
    asked: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or another's
        yield
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


class _Reading:
    """What was taken so far, and the group's positions that are to be committed."""

    def __init__(self, consumer: Consumer, invocation: Invocation, *, commits: bool) -> None:
        self._consumer, self._invocation, self._commits = consumer, invocation, commits
        self._positions: Positions = {}  # not committed yet
        self._committed_s = time.monotonic()
        self.count = 0

    def run(
        self,
        step: Step,
        starts: Mapping[TopicPartition, int | None],
        ends: Positions,
        most: int | None,
        *,
        to_file: bool,
    ) -> None:
        """Read until the ends, or `most` records. What is printed is committed now and then, a file when it is whole. Raises
        ClickException if the ends aren't reached, and nothing comes within `--timeout`."""
        wait_s = self._invocation.timeouts.timeout_s
        moved_s, before = time.monotonic(), self._consumer.positions()
        with counting("consuming", hidden=not to_file) as show_more:
            while most is None or self.count < most:
                if ends and all(self._consumer.position(tp) >= ends[tp] for tp in starts):
                    break
                with _holding_back_interrupts():
                    taken, after = step(self._consumer, ends, None if most is None else most - self.count)
                    self.count += taken
                    self._positions |= after
                show_more(taken)
                if (now_at := self._consumer.positions()) != before or not ends:
                    moved_s, before = time.monotonic(), now_at
                elif time.monotonic() - moved_s >= wait_s:
                    raise self._no_record(ends, wait_s)
                if not to_file and time.monotonic() - self._committed_s >= COMMIT_S:
                    self.commit()

    def _no_record(self, ends: Positions, wait_s: float) -> click.ClickException:
        tp, end = next((tp, end) for tp, end in sorted(ends.items()) if self._consumer.position(tp) < end)
        at = self._consumer.position(tp)
        text = f"given up after {wait_s:g} s: nothing comes of {address(tp)} from offset {at} on, and its log goes on to {end}"
        return self._invocation.failure(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE), text)

    def commit(self) -> None:
        """Commit where the group is now. Raises KafkaError."""
        if self._commits and self._positions:
            self._consumer.commit(self._positions)
            self._positions.clear()
        self._committed_s = time.monotonic()


class _Lines:
    """Values, or whole records as JSON, a line each on standard output."""

    def __init__(self, as_json: bool, keys: bool) -> None:
        self._as_json, self._keys = as_json, keys

    def step(self, consumer: Consumer, ends: Mapping[TopicPartition, int], most: int | None) -> tuple[int, Positions]:
        """Poll once and print."""
        found = [
            record
            for record in consumer.poll(POLL_S)
            if record.offset < ends.get((record.topic, record.partition), record.offset + 1)
        ][:most]
        out = sys.stdout.buffer
        for record in found:
            if self._as_json:
                out.write(json.dumps(_as_json(record)).encode() + b"\n")
            else:
                key = [record.key or b"", b"\t"] if self._keys else []
                out.write(b"".join([*key, record.value or b"", b"\n"]))
        out.flush()
        return len(found), {(record.topic, record.partition): record.offset + 1 for record in found}


class _Columns:
    """Columns into a file."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def step(self, consumer: Consumer, ends: Mapping[TopicPartition, int], most: int | None) -> tuple[int, Positions]:
        """Poll once and write."""
        count = 0
        positions: Positions = {}
        for found in consumer.poll_columns(POLL_S):
            offsets = found.columns.offsets
            end = ends.get((found.topic, found.partition))
            rows = (len(offsets) if end is None else int(np.searchsorted(offsets, end))) - found.first
            rows = rows if most is None else min(rows, most - count)
            if rows > 0:
                self._table.append(found, rows)
                positions[found.topic, found.partition] = int(offsets[found.first + rows - 1]) + 1
                count += rows
        return count, positions


def _as_json(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [[name, _json_bytes(value)] for name, value in record.headers],
    }


def _json_bytes(data: bytes | None) -> object:
    """Text as it is; bytes that are no text as {"base64": ...}, so that nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


@contextlib.contextmanager
def _step(path: Path | None, as_json: bool, keys: bool) -> Iterator[Step]:
    if path is None:
        yield _Lines(as_json, keys).step
        return
    from penstock.pipeline.commands.arrow import Table  # pyarrow is in an extra

    with Table(path) as table:
        yield _Columns(table).step
