"""Where a night ends: at each partition's last stable offset, once all that the night holds has come through.

A source partition's records of the night are followed hop by hop: the source's end once the night is over (replaying
history: its offset at the night's end, by timestamps), the mirror's position in the source, the aggregate input's end after
that, dedupe's position in the input, the output's end after that. A goal, once known, stays fixed for the call, so that new
records don't move it away while the stages catch up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from penstock import log
from penstock.config import Config
from penstock.errors import KafkaError
from penstock.pipeline import job
from penstock.pipeline.admin import EARLIEST, LATEST, Admin
from penstock.pipeline.etl.errors import EtlError, Refused
from penstock.pipeline.etl.night import Night
from penstock.pipeline.etl.plan import CorruptBatch
from penstock.pipeline.etl.table import Status, TopicPartition
from penstock.pipeline.fetcher import Fetcher
from penstock.pipeline.metadata import TopicInfo
from penstock.pyx.record.columns import decode
from penstock.pyx.record.rawbatch import BatchError, RawBatch, records

Clock = Literal["wall", "records"]
Offsets = dict[TopicPartition, int]

# A cluster that is down is a reason to wait, so each question to it gives up soon: the wait is ours.
ANSWER_LIMIT_MS = 5000
# Positions stop before trailing control records, of which each takes one offset: a short gap is looked into.
GAP_LOOKED_INTO = 10_000
# Enough to see a batch's header or a few, far less than a fetch that is after the records.
PEEK_BYTES = 64 << 10


class Unreachable(Exception):
    """A cluster or topic that can't be asked now; the text says which and why."""


class Position(NamedTuple):
    """A stage's committed position and the id (hexadecimal) of the topic that it is in; empty where none is noted."""

    offset: int
    topic_id: str


def _noted_topic(metadata: str) -> str:
    """The topic id that mirror and dedupe commit beside an offset."""
    try:
        noted = json.loads(metadata)["topic_id"]
    except (ValueError, KeyError, TypeError):
        return ""
    return noted if isinstance(noted, str) else ""


class ClusterView:
    """Questions to one cluster, by the name that people know it by."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._admin: Admin | None = None

    async def _connected(self) -> Admin:
        if self._admin is None:
            admin = Admin(self._bootstrap, client_id="penstock-etl", default_api_timeout_ms=ANSWER_LIMIT_MS)
            try:
                await admin.start()
            except BaseException:
                await admin.close()
                raise
            self._admin = admin
        return self._admin

    async def close(self) -> None:
        """Close the connections."""
        if self._admin is not None:
            await self._admin.close()
            self._admin = None

    async def topic(self, topic: str) -> TopicInfo:
        """The topic as it is now. Raises Unreachable."""
        try:
            cluster = await (await self._connected()).metadata([topic], refresh=True)
        except (KafkaError, OSError) as error:
            raise Unreachable(f"{self.name} can't be asked: {error}") from None
        if topic not in cluster.topics:
            raise Unreachable(f"{self.name} has no topic `{topic}`")
        return cluster.topics[topic]

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions. Raises Unreachable."""
        return [(topic, number) for number in sorted((await self.topic(topic)).partitions)]

    async def has(self, topic: str) -> bool:
        """Whether it has the topic. Raises Unreachable."""
        try:
            return topic in (await (await self._connected()).metadata([topic], refresh=True)).topics
        except (KafkaError, OSError) as error:
            raise Unreachable(f"{self.name} can't be asked: {error}") from None

    async def offsets(self, tps: Iterable[TopicPartition], at: int, *, stable: bool = True) -> Offsets:
        """Per partition the first offset at or after a timestamp (-1 if there is none), EARLIEST, or with LATEST
        the last stable offset, unless `stable` the end. Raises Unreachable."""
        isolation: Literal["read_committed", "read_uncommitted"] = (
            "read_committed" if at == LATEST and stable else "read_uncommitted"
        )
        try:
            found = await (await self._connected()).list_offsets(dict.fromkeys(tps, at), isolation)
        except (KafkaError, OSError) as error:
            raise Unreachable(f"{self.name} can't be asked for offsets: {error}") from None
        return {tp: answer.offset for tp, answer in found.items()}

    async def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """A group's positions, of those partitions that have one. Raises Unreachable."""
        try:
            found = await (await self._connected()).committed(group, tps)
        except (KafkaError, OSError) as error:
            raise Unreachable(f"{self.name} can't be asked for the positions of `{group}`: {error}") from None
        return {tp: Position(answer[0], _noted_topic(answer[1])) for tp, answer in found.items() if answer is not None}

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
        fetcher = Fetcher(await self._connected(), isolation="read_committed", partition_max_bytes=PEEK_BYTES)
        fetcher.assign({tp: offset for tp, offset in left.items() if offset < stable[tp]})
        try:
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
        finally:
            await fetcher.close()
        return confirmed

    async def holds_records(self, tp: TopicPartition, start: int, end: int) -> bool:
        """Whether a committed data record stands in [start, end), or may yet: what is behind the last stable offset
        can't be read before a transaction ends. Raises Unreachable."""
        stable = (await self.offsets([tp], LATEST))[tp]
        fetcher = Fetcher(await self._connected(), isolation="read_committed", max_wait_ms=1000)
        fetcher.assign({tp: start})
        try:
            while True:
                for fetched in await fetcher.fetch():
                    if fetched.error is not None:
                        raise Unreachable(f"{self.name} can't be read at {tp[0]}-{tp[1]}: {fetched.error}")
                    if fetched.batches:
                        return bool(fetched.batches[0].base_offset < end)
                if fetcher.position(tp) >= min(end, stable):
                    return stable < end
        finally:
            await fetcher.close()

    async def corrupt(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[CorruptBatch]:
        """The committed batches in some ranges that can't be opened. Raises Unreachable."""
        found: list[CorruptBatch] = []
        behind = {tp: start for tp, (start, _) in ranges.items()}  # the last record that can be read
        fetcher = Fetcher(await self._connected(), isolation="read_committed")
        fetcher.assign({tp: start for tp, (start, end) in ranges.items() if start < end})
        try:
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
        finally:
            await fetcher.close()
        return found

    async def raw_bytes(self, batch: CorruptBatch) -> bytes:
        """A corrupt batch as the log has it. Raises Unreachable."""
        tp = (batch.topic, batch.partition)
        fetcher = Fetcher(await self._connected(), isolation="read_uncommitted", check_crcs=False)
        fetcher.assign({tp: batch.start})
        try:
            while True:
                for fetched in await fetcher.fetch():
                    if not fetched.batches or fetched.batches[0].last_offset + 1 != batch.end:
                        raise Unreachable(
                            f"{self.name} no longer has the batch at {tp[0]}-{tp[1]} offset {batch.start}"
                        )
                    return bytes(fetched.batches[0])
        finally:
            await fetcher.close()


def _corrupt(tp: TopicPartition, start: int, batch: RawBatch, behind: int) -> CorruptBatch:
    """What of a corrupt batch lies in a range from `start` on; a header may claim more records than there are offsets."""
    first, end = max(start, batch.base_offset), batch.last_offset + 1
    return CorruptBatch(*tp, behind, first, end, min(batch.record_count, end - first))


def _last_record(batch: RawBatch) -> int | None:
    """The offset of a batch's last record, -1 if it has none (compaction leaves such); None when it can't be opened."""
    try:
        offsets = decode([batch]).offsets.tolist() if batch.magic == 2 else [record.offset for record in records(batch)]
    except BatchError:
        return None
    return max(offsets, default=-1)


class Cut:
    """Resolves the ends of nights. One object serves many nights and keeps its connections."""

    def __init__(self, config: Config, clock: Clock, zone: ZoneInfo) -> None:
        self._config = config
        self._clock = clock
        self._zone = zone
        self._target = ClusterView("the aggregate cluster", config["bootstrap.servers"])
        self._sources = {name: ClusterView(f"source {name}", address) for name, address in job.sources(config).items()}
        self._input = job.input_topic(config)
        self._topic = job.etl_topic(config)
        self._log = log.get(__name__)

    async def close(self) -> None:
        """Close all connections."""
        for cluster in (self._target, *self._sources.values()):
            await cluster.close()

    def goals(self, night: Night) -> Goals:
        """A new, empty set of goals for a night."""
        return Goals(night.end_ms(self._zone))

    def too_early(self, goals: Goals, now_ms: int) -> bool:
        """Whether the night itself is still going on, by the wall clock."""
        return self._clock == "wall" and now_ms < goals.night_end_ms

    async def missing(self, goals: Goals, now_ms: int, *, everywhere: bool = False) -> list[str]:
        """What of the night has not arrived, one sentence each; empty when it is complete. Fills in the
        goals.

        With `everywhere` dedupe is looked at too while a source is behind: a night that is marked says all.
        Raises Refused when the topics' partition counts differ.
        """
        if self.too_early(goals, now_ms):
            return [f"the night is not over for another {(goals.night_end_ms - now_ms) // 1000 + 1} seconds"]
        missing: list[str] = []
        for name, cluster in self._sources.items():
            try:
                missing += await self._not_mirrored(name, cluster, goals)
            except Unreachable as error:
                missing.append(str(error))
        if missing and not everywhere:
            return missing
        try:
            # What has come of an incomplete night is no goal to keep: more of it is on its way.
            missing += await self._not_deduplicated(Goals(goals.night_end_ms) if missing else goals)
        except Unreachable as error:
            missing.append(str(error))
        return missing

    async def _not_mirrored(self, name: str, cluster: ClusterView, goals: Goals) -> list[str]:
        tps = await cluster.partitions(self._input)
        self._check_count(cluster, self._input, tps, await self._target.partitions(self._input))
        known = goals.sources.setdefault(name, {})
        open_partitions = [tp for tp in tps if tp not in known]
        ends: Offsets = {}
        if open_partitions and self._clock == "records":
            found = await cluster.offsets(open_partitions, goals.night_end_ms)
            ends = await cluster.records_at_or_after(found, goals.night_end_ms)
        elif open_partitions:
            # All that is there now that the night is over. A search by time would believe a clock that is days ahead.
            ends = await cluster.offsets(open_partitions, LATEST, stable=False)
        known.update({tp: end for tp, end in ends.items() if end != -1})
        missing = [
            f"{cluster.name}: {tp[0]}-{tp[1]} holds no record of after the night yet"
            for tp, end in ends.items()
            if end == -1
        ]
        positions = await self._target.committed(job.mirror_group(self._config, name), tps)
        missing += await self._elsewhere(cluster, self._input, positions)
        behind = await self._behind(cluster, known, positions)
        return missing + [f"{cluster.name}: {tp[0]}-{tp[1]} is mirrored up to {at} of {end}" for tp, at, end in behind]

    async def _not_deduplicated(self, goals: Goals) -> list[str]:
        tps = await self._target.partitions(self._input)
        self._check_count(self._target, self._topic, await self._target.partitions(self._topic), tps)
        # Ends, not last stable offsets: a position may be seen before the markers of its own transaction's data are.
        if not goals.input:
            goals.input = await self._target.offsets(tps, LATEST, stable=False)
        missing = await self._not_read(self._input, goals.input)
        if not missing and await self._target.has(moved := job.moved_topic(self._input)):
            # What is read was moved before: the two are one transaction.
            if not goals.moved:
                goals.moved = await self._target.offsets(await self._target.partitions(moved), LATEST, stable=False)
            missing = await self._not_read(moved, goals.moved)
        if missing:
            return missing
        outputs = await self._target.partitions(self._topic)
        if not goals.output:
            goals.output = await self._target.offsets(outputs, LATEST, stable=False)
        stable = await self._target.offsets(outputs, LATEST)
        short = [(tp, stable[tp], end) for tp, end in goals.output.items() if stable[tp] < end]
        return [f"{self._target.name}: {tp[0]}-{tp[1]} is not stable up to {end} but {at}" for tp, at, end in short]

    async def _not_read(self, topic: str, goals: Offsets) -> list[str]:
        """What dedupe hasn't read of a topic up to its goals, one sentence each."""
        positions = await self._target.committed(job.dedupe_group(self._config), goals)
        elsewhere = await self._elsewhere(self._target, topic, positions)
        behind = await self._behind(self._target, goals, positions)
        return elsewhere + [f"dedupe: {tp[0]}-{tp[1]} is done up to {at} of {end}" for tp, at, end in behind]

    async def _elsewhere(
        self, cluster: ClusterView, topic: str, positions: Mapping[TopicPartition, Position]
    ) -> list[str]:
        """The positions that are not in the log as it is now, one sentence each: they say nothing of what it holds."""
        topic_id = (await cluster.topic(topic)).topic_id.hex()
        ends = await cluster.offsets(positions, LATEST, stable=False) if positions else {}
        recreated = [tp for tp, position in positions.items() if position.topic_id not in ("", topic_id)]
        cut = [tp for tp, position in positions.items() if tp not in recreated and position.offset > ends[tp]]
        return [f"{cluster.name}: {tp[0]}-{tp[1]} was recreated since it was read last" for tp in recreated] + [
            f"{cluster.name}: {tp[0]}-{tp[1]} was read up to {positions[tp].offset}, but ends at {ends[tp]}: it was cut back"
            for tp in cut
        ]

    async def _behind(
        self, cluster: ClusterView, goals: Offsets, positions: Mapping[TopicPartition, Position]
    ) -> list[tuple[TopicPartition, int, int]]:
        """The partitions whose position has records before its goal: (partition, position, goal)."""
        short = {tp: goal for tp, goal in goals.items() if tp not in positions or positions[tp].offset < goal}
        if not short:
            return []
        starts = await cluster.offsets(short, EARLIEST)
        behind = []
        for tp, goal in short.items():
            at = positions[tp].offset if tp in positions else starts[tp]
            if at < goal and (
                goal - at > GAP_LOOKED_INTO or await cluster.holds_records(tp, max(at, starts[tp]), goal)
            ):
                behind.append((tp, at, goal))
        return behind

    def _check_count(
        self, cluster: ClusterView, topic: str, tps: list[TopicPartition], others: list[TopicPartition]
    ) -> None:
        if len(tps) != len(others):
            raise Refused(
                f"{cluster.name} has {len(tps)} partitions of `{topic}`, the aggregate's `{self._input}` has"
                f" {len(others)}: they have to be as many everywhere, since an id must always meet the same worker"
            )

    async def ranges(self, status: Status) -> tuple[dict[TopicPartition, tuple[int, int]], str]:
        """Per partition of the deduplicated topic from where the table ends to the last stable offset now; and that
        topic's id.

        Raises Refused when the table can't be continued from the topic, EtlError when it can't be asked.
        """
        try:
            topic = await self._target.topic(self._topic)
            tps = await self._target.partitions(self._topic)
            earliest = await self._target.offsets(tps, EARLIEST)
            stable = await self._target.offsets(tps, LATEST)
        except Unreachable as error:
            raise EtlError(str(error)) from None
        ends = status.ends
        if ends and set(ends) != set(tps):
            raise Refused(f"the table was loaded from {_names(ends)}, but the topic has {_names(tps)}")
        self._check_id(topic, status.topic_id)
        starts = ends or earliest
        for tp in tps:
            check_range(tp, starts[tp], earliest[tp], stable[tp])
        return {tp: (starts[tp], stable[tp]) for tp in tps}, topic.topic_id.hex()

    def _check_id(self, topic: TopicInfo, noted: str) -> None:
        """See that the deduplicated topic is the one that was noted. Raises Refused."""
        found = topic.topic_id.hex()
        if noted not in ("", found):
            raise Refused(
                f"`{self._topic}` was recreated (its id is {found}, the table was loaded from {noted}): its offsets"
                " are other records' now; load it into another table"
            )

    async def corrupt(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> tuple[CorruptBatch, ...]:
        """The batches in these ranges of the deduplicated topic that can't be opened. Raises EtlError."""
        try:
            return tuple(await self._target.corrupt(ranges))
        except Unreachable as error:
            raise EtlError(str(error)) from None

    async def raw_bytes(self, batches: Iterable[CorruptBatch], limit: int) -> list[bytes | None]:
        """The bytes of corrupt batches; None once they would be more than `limit` together. Raises EtlError."""
        found: list[bytes | None] = []
        try:
            for batch in batches:
                data = await self._target.raw_bytes(batch) if limit > 0 else None
                limit -= len(data or b"")
                found.append(data if limit >= 0 else None)
        except Unreachable as error:
            raise EtlError(str(error)) from None
        return found

    async def check_still_there(self, ranges: Mapping[TopicPartition, tuple[int, int]], topic_id: str) -> None:
        """See that the topic is still that one and holds the ranges. Raises Refused when it doesn't, EtlError when it
        can't be asked."""
        try:
            topic = await self._target.topic(self._topic)
            known = set(await self._target.partitions(self._topic))
            if not set(ranges) <= known:
                raise Refused(f"the plan reads {_names(ranges)}, but the topic has {_names(known)}")
            earliest = await self._target.offsets(ranges, EARLIEST)
            stable = await self._target.offsets(ranges, LATEST)
        except Unreachable as error:
            raise EtlError(str(error)) from None
        self._check_id(topic, topic_id)
        for tp, (start, end) in ranges.items():
            if start < end:
                check_range(tp, start, earliest[tp], stable[tp])
                check_range(tp, end, earliest[tp], stable[tp])


class Goals:
    """The offsets that the stages have to pass for one night, as far as they are known yet."""

    def __init__(self, night_end_ms: int) -> None:
        self.night_end_ms = night_end_ms
        self.sources: dict[str, Offsets] = {}
        self.input: Offsets = {}
        self.moved: Offsets = {}
        self.output: Offsets = {}


def check_range(tp: TopicPartition, offset: int, earliest: int, stable: int) -> None:
    """See that an offset is one that the topic can continue from. Raises Refused."""
    if offset < earliest:
        raise Refused(
            f"{tp[0]}-{tp[1]}: offset {offset} is needed, but the topic starts at {earliest} by now: records are lost"
        )
    if offset > stable:
        raise Refused(
            f"{tp[0]}-{tp[1]}: offset {offset} is needed, but the topic ends at {stable}: it was truncated or recreated"
        )


def _names(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(tps))
