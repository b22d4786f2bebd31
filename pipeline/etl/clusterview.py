"""What a night asks of one cluster: its topics, offsets, positions, and the batches of some ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Literal, NamedTuple

from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.clients.fetcher import BatchMark, Fetcher
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.clients.sender import Sender
from penstock.pipeline.etl.errors import EtlError, Refused
from penstock.pipeline.etl.ledger import LogEnd, TopicPartition
from penstock.pipeline.etl.plan import CorruptBatch
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages import smalltopic
from penstock.pipeline.stages.noted import Noted
from penstock.pipeline.stages.quarantine import note
from penstock.pipeline.stages.sourcelog import batch_before, differs
from penstock.pipeline.stages.stagetopics import find_moved_topic, make_topic
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records

Offsets = dict[TopicPartition, int]

NOT_ALLOWED = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.POLICY_VIOLATION}
)
# A cluster that is down is a reason to wait, so each question to it gives up soon: the wait is ours. A question outlasts the
# failover of a leader, though, which begins after 6 seconds (ours) or 9 (Kafka's) unless those are configured otherwise.
SHORT_TIMEOUTS = Timeouts(20)
# Spark's times are sure to hold the years 1 to 9999; Kafka's go far beyond, and brokers take what a producer says.
TIMES_MS = range(-62_135_596_800_000, 253_402_300_800_000)
# Enough to see a batch's header or a few, far less than a fetch that is after the records.
PEEK_BYTES = 64 << 10


class Unreachable(EtlError):
    """A cluster or topic that can't be asked now; the text says which and why."""


class CommittedPosition(NamedTuple):
    """A stage's committed position, the ids (hexadecimal) of the topic that it is in and of that which is written, and why
    the stage stands still there; empty where none is noted. `last_batch` is the mark of the batch right below it."""

    offset: int
    topic_id: str
    output_id: str
    stands: str
    last_batch: BatchMark | None = None


def _position(offset: int, metadata: str) -> CommittedPosition:
    noted = Noted(metadata)
    return CommittedPosition(offset, noted.text("topic_id"), noted.text("output_id"), noted.stands, noted.last_batch)


class ClusterView:
    """Questions to one cluster, by the name that people know it by."""

    def __init__(self, name: str, bootstrap: str, timeouts: Timeouts) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._timeouts = timeouts
        self._admin: Admin | None = None
        self._connections = AsyncExitStack()

    async def _connected(self) -> Admin:
        if self._admin is None:
            admin = self._timeouts.admin(self._bootstrap, "penstock-etl")
            self._admin = await self._connections.enter_async_context(admin)
        return self._admin

    async def close(self) -> None:
        """Close the connections."""
        self._admin = None
        await self._connections.aclose()

    @contextmanager
    def _asking(self, about: str = "") -> Iterator[None]:
        try:
            yield
        except (KafkaError, OSError) as error:
            raise Unreachable(f"{self.name} can't be asked{about}: {error}") from None

    async def topic(self, topic: str) -> TopicInfo:
        """The topic as it is now. Raises Unreachable."""
        found = await self._find(topic)
        if found is None:
            raise Unreachable(f"{self.name} has no topic `{topic}`")
        return found

    async def _find(self, topic: str) -> TopicInfo | None:
        with self._asking():
            return (await (await self._connected()).metadata([topic], refresh=True)).topics.get(topic)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions. Raises Unreachable."""
        return [(topic, number) for number in sorted((await self.topic(topic)).partitions)]

    async def has(self, topic: str) -> bool:
        """Whether it has the topic. Raises Unreachable."""
        return await self._find(topic) is not None

    async def moved_topic(self, group: str, stage: str, topic: str) -> str:
        """See `find_moved_topic`. Raises Unreachable."""
        with self._asking(f" for the positions of `{group}`"):
            return await find_moved_topic(await self._connected(), group, stage, topic)

    async def offsets(self, tps: Iterable[TopicPartition], at: int, *, stable: bool = True) -> Offsets:
        """Per partition the first offset at or after a timestamp (-1 if there is none), EARLIEST, or with LATEST
        the last stable offset, unless `stable` the end. Raises Unreachable."""
        isolation: Literal["read_committed", "read_uncommitted"] = (
            "read_committed" if at == LATEST and stable else "read_uncommitted"
        )
        with self._asking(" for offsets"):
            found = await (await self._connected()).list_offsets(dict.fromkeys(tps, at), isolation)
        return {tp: answer.offset for tp, answer in found.items()}

    async def stable_ends(self, starts: Offsets) -> tuple[Offsets, dict[TopicPartition, LogEnd]]:
        """Per partition, whose log begins at an offset, the last stable offset and what the log has right below it. Raises
        Unreachable."""
        with self._asking(" for offsets"):
            admin = await self._connected()
            found = await admin.list_offsets(dict.fromkeys(starts, LATEST), "read_committed")
            last = await asyncio.gather(*(batch_before(admin, tp, at.offset, starts[tp]) for tp, at in found.items()))
        marks = {tp: None if batch is None else BatchMark.of(batch) for tp, batch in zip(found, last, strict=True)}
        return {tp: at.offset for tp, at in found.items()}, {tp: LogEnd(at.leader_epoch, marks[tp]) for tp, at in found.items()}

    async def differ(self, read: Mapping[TopicPartition, tuple[int, BatchMark]]) -> dict[TopicPartition, str]:
        """Which logs are others than were read up to an offset, with that mark right below it, each with the reason. Raises
        Unreachable."""
        with self._asking(" for batches"):
            admin = await self._connected()
            words = await asyncio.gather(*(differs(admin, tp, mark, offset) for tp, (offset, mark) in read.items()))
        return {tp: why for tp, why in zip(read, words, strict=True) if why}

    async def append(self, topic: str, configs: Mapping[str, str], key: bytes, value: bytes) -> int:
        """Append a record to the first partition of a topic of ours, which is made with these configs if it isn't there; when
        the cluster took it, by its clock (ms since 1970; -1 where the topic doesn't say that). Raises Refused where the cluster
        doesn't let this client, Unreachable."""
        with self._asking(f" to take a note in `{topic}`"):
            admin = await self._connected()
            try:
                await make_topic(admin, topic, 1, configs)
                deadline = asyncio.get_running_loop().time() + self._timeouts.timeout_s
                record = memoryview(note(value, {}, key))
                done = await Sender(admin, idempotent=False).submit((topic, 0), [record], deadline)
            except KafkaError as error:
                if error.code not in NOT_ALLOWED:
                    raise
                words = ["penstock", "topics", "create", topic, "-p", 1, "-b", self._bootstrap]
                words += [word for name, text in configs.items() for word in ("-c", f"{name}={text}")]
                command = "`" + " ".join(map(quoted, words)) + "`"
                raise Refused(
                    f"{self.name} doesn't let nights write to `{topic}`: {error}\nhint: let somebody who may run {command}, "
                    "and give nights the rights to describe, read and write it"
                ) from None
        return done.log_append_time_ms

    async def newest(self, topic: str, key: bytes) -> bytes | None:
        """The value of the newest record with a key in a topic of ours; None if there is none. Raises Unreachable."""
        with self._asking(f" for the notes in `{topic}`"):
            return (await smalltopic.newest(await self._connected(), topic)).get(key)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Offsets:
        """Where the log has the ends of leader epochs; -1 of one that it doesn't know. Raises Unreachable."""
        with self._asking(" for the ends of leader epochs"):
            found = await (await self._connected()).offsets_for_leader_epoch(epochs)
        return {tp: end for tp, (_, end) in found.items()}

    async def groups(self) -> list[str]:
        """The names of all groups. Raises Unreachable."""
        with self._asking(" for its groups"):
            return list(await (await self._connected()).list_groups())

    async def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedPosition]:
        """A group's positions, of those partitions that have one. Raises Unreachable."""
        with self._asking(f" for the positions of `{group}`"):
            admin = await self._connected()
            # One by one: of all positions of a busy stage together some are never stable.
            asked = await asyncio.gather(*(admin.committed(group, [tp]) for tp in tps))
        answers = {tp: answer for each in asked for tp, answer in each.items() if answer is not None}
        return {tp: _position(*answer) for tp, answer in answers.items()}

    async def records_at_or_after(self, found: Offsets, timestamp_ms: int) -> Offsets:
        """Correct what was found by timestamp for control records, which bear the wall clock's time.

        Where the first data record from there on is early, the next batch that reaches the timestamp counts, with
        the offset behind it; -1 where none is there yet. Raises Unreachable.
        """
        left = {tp: offset for tp, offset in found.items() if offset >= 0}
        confirmed = dict.fromkeys(found, -1)
        if not left:
            return confirmed
        stable = await self.offsets(left, LATEST)
        starts = {tp: offset for tp, offset in left.items() if offset < stable[tp]}
        async with Fetcher(await self._connected(), starts, partition_max_bytes=PEEK_BYTES) as fetcher:
            while fetcher.assigned():
                for fetched in await fetcher.fetch():
                    if fetched.error is not None:
                        raise Unreachable(f"{self.name} can't be read: {fetched.error}")
                    late = [batch for batch in fetched.batches if batch.max_timestamp >= timestamp_ms]
                    if late:
                        covers = late[0].base_offset <= found[fetched.tp]
                        confirmed[fetched.tp] = found[fetched.tp] if covers else late[0].last_offset + 1
                    if late or fetched.next_offset >= stable[fetched.tp]:
                        left.pop(fetched.tp, None)
                fetcher.assign({tp: at for tp, at in fetcher.assigned().items() if tp in left})
        return confirmed

    async def holds_records(self, tp: TopicPartition, start: int, end: int) -> bool:
        """Whether a committed data record stands in [start, end), or may yet: what is behind the last stable offset
        can't be read before a transaction ends. Raises Unreachable."""
        stable = (await self.offsets([tp], LATEST))[tp]
        async with Fetcher(await self._connected(), {tp: start}, isolation="read_committed", max_wait_ms=1000) as fetcher:
            while True:
                for fetched in await fetcher.fetch():
                    if fetched.error is not None:
                        raise Unreachable(f"{self.name} can't be read at {tp[0]}-{tp[1]}: {fetched.error}")
                    if fetched.batches:
                        return bool(fetched.batches[0].base_offset < end)
                if fetcher.position(tp) >= min(end, stable):
                    return stable < end

    async def corrupt(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[CorruptBatch]:
        """The committed batches in some ranges that Spark can't read. Raises Unreachable."""
        found: list[CorruptBatch] = []
        behind = {tp: start for tp, (start, _) in ranges.items()}  # the offset behind the last record that could be read
        starts = {tp: start for tp, (start, end) in ranges.items() if start < end}
        async with Fetcher(await self._connected(), starts, isolation="read_committed") as fetcher:
            while fetcher.assigned():
                for fetched in await fetcher.fetch(ahead=False):
                    tp, batches = fetched.tp, list(fetched.batches)
                    if fetched.corrupt is not None:
                        batches.append(fetched.corrupt)
                        fetcher.seek(tp, fetched.corrupt.last_offset + 1)
                    elif fetched.error is not None:
                        raise Unreachable(f"{self.name} can't be read at {tp[0]}-{tp[1]}: {fetched.error}")
                    for batch in batches:
                        last = None if batch is fetched.corrupt else _last_record(batch)
                        if last is not None:
                            behind[tp] = max(behind[tp], last + 1)
                        elif batch.base_offset < ranges[tp][1]:
                            found.append(_corrupt(tp, ranges[tp][0], batch, behind[tp]))
                fetcher.assign({tp: at for tp, at in fetcher.assigned().items() if at < ranges[tp][1]})
        return found

    async def raw_bytes(self, batch: CorruptBatch) -> bytes:
        """A corrupt batch as the log has it. Raises Unreachable."""
        tp, admin = (batch.topic, batch.partition), await self._connected()
        async with Fetcher(admin, {tp: batch.start}, isolation="read_uncommitted", check_crcs=False) as fetcher:
            while True:
                for fetched in await fetcher.fetch():
                    if not fetched.batches or fetched.batches[0].last_offset + 1 != batch.end:
                        raise Unreachable(f"{self.name} no longer has the batch at {tp[0]}-{tp[1]} offset {batch.start}")
                    return bytes(fetched.batches[0])


def _corrupt(tp: TopicPartition, start: int, batch: RawBatch, behind: int) -> CorruptBatch:
    """What of a corrupt batch lies in a range from `start` on; a header may claim more records than there are offsets."""
    first, end = max(start, batch.base_offset), batch.last_offset + 1
    return CorruptBatch(*tp, behind, first, end, min(batch.record_count, end - first))


def _last_record(batch: RawBatch) -> int | None:
    """The offset of a batch's last record, -1 if it has none (compaction leaves such); None when it can't be opened, or
    a record's time is none of Spark's."""
    from penstock.pyx.record.columns import decode  # here, since numpy comes with it, which the command's help must not pay for

    try:
        if batch.magic == 2:
            columns = decode([batch])
            offsets, times_ms = columns.offsets.tolist(), columns.timestamps.tolist()
        else:
            opened = records(batch)
            offsets, times_ms = [record.offset for record in opened], [record.timestamp_ms for record in opened]
    except BatchError:
        return None
    return max(offsets, default=-1) if all(time_ms in TIMES_MS for time_ms in times_ms) else None
