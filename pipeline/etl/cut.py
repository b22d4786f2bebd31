"""Where a night ends: at each partition's last stable offset, once all that the night holds has come through.

A source partition's records of the night are followed hop by hop: the source's end once the night is over (replaying
history: its offset at the night's end, by timestamps), the mirror's position in the source, the aggregate input's end after
that, dedupe's position in the input, the output's end after that. A table of a topic that isn't deduplicated follows them up
to the aggregate. A goal, once known, stays fixed for the call, so that new
records don't move it away while the stages catch up.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from penstock import log
from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.clients.admin import EARLIEST, LATEST
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.etl.clusterview import SHORT_TIMEOUTS, ClusterView, CommittedPosition, Offsets, Unreachable
from penstock.pipeline.etl.errors import Refused
from penstock.pipeline.etl.ledger import LogEnd, Status, TopicPartition
from penstock.pipeline.etl.night import Night
from penstock.pipeline.etl.plan import CorruptBatch
from penstock.pipeline.etl.tablenotes import TableNotes
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages.topics import TopicChoice

Clock = Literal["wall", "records"]

# Clocks that differ by more are not a matter of waiting: one of them is wrong.
CLOCKS_APART_MS = 3_600_000
# Positions stop before trailing control records, of which each takes one offset: a short gap is looked into.
GAP_LOOKED_INTO = 10_000

ANOTHER_TABLE = "load what the topic has into another table"


Behind = tuple[TopicPartition, int, int, str]
"""A partition, its position, its goal, and in words why the stage stands still there (empty: it goes on)."""


class Cut:
    """Resolves the ends of nights. One object serves many nights and keeps its connections."""

    def __init__(self, config: Config, clock: Clock, zone: ZoneInfo, timeouts: Timeouts = SHORT_TIMEOUTS) -> None:
        self._config = config
        self._clock = clock
        self._zone = zone
        self._target = ClusterView("the aggregate cluster", config["bootstrap.servers"], timeouts)
        self.notes = TableNotes(self._target)
        self._sources = {
            name: ClusterView(f"source {name}", address, timeouts) for name, address in job.sources(config).items()
        }
        self._input = job.input_topic(config)
        self._topics = TopicChoice(config)
        self.topic = job.output_topic(config)
        self._deduplicated = config["penstock.etl.after"] == "dedupe"
        self._log = log.get(__name__)

    async def close(self) -> None:
        """Close all connections."""
        for cluster in (self._target, *self._sources.values()):
            await cluster.close()

    def goals(self, night: Night) -> Goals:
        """A new, empty set of goals for a night."""
        return Goals(night.end_ms(self._zone))

    def over_in_ms(self, goals: Goals) -> int:
        """How long the night itself still goes on, by the wall clock, or by the aggregate's where that is known to be behind; 0
        once it is over, or if the records say when it is."""
        now_ms = round(time.time() * 1000)
        return max(0, goals.night_end_ms + max(0, goals.clock_ahead_ms or 0) - now_ms) if self._clock == "wall" else 0

    def is_over(self, goals: Goals) -> bool:
        """Whether the night itself is over, by this machine's clock and by the aggregate's, as far as they matter."""
        return goals.clock_ahead_ms is not None and self.over_in_ms(goals) == 0

    async def clock_ahead_ms(self) -> int:
        """By how much this machine's clock is ahead of the aggregate's. Raises Refused if they are far apart, Unreachable."""
        shown_ms = await self.notes.clock_ms()
        ahead_ms = round(time.time() * 1000) - shown_ms
        if abs(ahead_ms) > CLOCKS_APART_MS:
            here, there = (
                datetime.datetime.fromtimestamp(ms / 1000, self._zone).isoformat(" ", "seconds")
                for ms in (shown_ms + ahead_ms, shown_ms)
            )
            raise Refused(
                f"this machine's clock shows {here}, that of {self._target.name} {there}, so that nobody knows which"
                " nights are over\nhint: set the wrong one right: `timedatectl status` says whether a machine's is synchronized"
            )
        return ahead_ms

    async def missing(self, goals: Goals, *, everywhere: bool = False) -> list[str]:
        """What of the night has not arrived, one sentence each; empty when it is complete. Fills in the
        goals.

        With `everywhere` dedupe is looked at too while a source is behind: a night that is marked says all.
        Raises Refused when the topics' partition counts differ, or clocks.
        """
        if self.over_in_ms(goals) == 0 and goals.clock_ahead_ms is None:
            try:
                goals.clock_ahead_ms = await self.clock_ahead_ms()
            except Unreachable as error:
                return [str(error)]
        if over_in_ms := self.over_in_ms(goals):
            whose = f" by the clock of {self._target.name}" if (goals.clock_ahead_ms or 0) > 0 else ""
            return [f"the night is not over for another {over_in_ms // 1000 + 1} seconds{whose}"]
        missing: list[str] = []
        if not goals.sources_are_known:
            try:
                await self._check_sources()
            except Unreachable as error:
                return [str(error)]
            goals.sources_are_known = True
        for name, cluster in self._sources.items():
            try:
                missing += await self._not_mirrored(name, cluster, goals)
            except Unreachable as error:
                missing.append(str(error))
        if missing and not everywhere:
            return missing
        try:
            # What has come of an incomplete night is no goal to keep: more of it is on its way.
            kept = Goals(goals.night_end_ms) if missing else goals
            missing += await (self._not_deduplicated(kept) if self._deduplicated else self._not_stable(kept))
        except Unreachable as error:
            missing.append(str(error))
        return missing

    def _source_topic(self, source: str) -> str | None:
        """The source's topic that the nights' rows come from; None if the mirror copies none of its topics under that name."""
        topic = self._topics.out_of(source, self._input)
        says_what = self._topics.named or self._topics.are_searched  # else only the mirror's file does
        return topic if topic is not None and (not says_what or self._topics.wants(topic)) else None

    async def _check_sources(self) -> None:
        """See that some source feeds what is loaded, and that the file has all sources that do. Raises Refused, Unreachable."""
        if not any(self._source_topic(name) is not None for name in self._sources):
            raise Refused(
                f"no source feeds `{self._input}`, from which `{self.topic}` is loaded: no topic is copied under that name\n"
                "hint: set `topics` (or `topics.include`) and `penstock.mirror.rename` as they are in the mirror's file, or"
                " the table's topic to one that is copied"
            )
        known = {job.mirror_group(self._config, name) for name in self._sources} | set(self._config["penstock.etl.groups.gone"])
        tps = await self._target.partitions(self._input)
        for group in sorted(await self._target.groups()):
            found = job.mirror_and_source(group)
            if found is None or group in known or not await self._target.committed(group, tps):
                continue
            mirror, source = found
            which = f"source `{source}`" if mirror == self._config["penstock.mirror.name"] else f"mirror `{mirror}`"
            raise Refused(
                f"{which} feeds `{self._input}` (group `{group}` has positions in it), and the nights' file doesn't know it\n"
                f"hint: add `source.{source}.bootstrap.servers` and the mirror's name as the mirror's file has them, or, if"
                f" nothing comes from there any more, `penstock.etl.groups.gone={group}`"
            )

    async def _not_mirrored(self, name: str, cluster: ClusterView, goals: Goals) -> list[str]:
        topic = self._source_topic(name)
        if topic is None:
            return []
        tps = await cluster.partitions(topic)
        self._check_count(cluster, topic, tps, await self._target.partitions(self._input))
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
            f"{cluster.name}: {tp[0]}-{tp[1]} holds no record of after the night yet" for tp, end in ends.items() if end == -1
        ]
        into = {(self._input, partition): (topic, partition) for _, partition in tps}
        committed = await self._target.committed(job.mirror_group(self._config, name), into)
        positions = {into[tp]: position for tp, position in committed.items()}
        missing += await self._elsewhere(cluster, tps, positions)
        behind = await self._behind(cluster, known, positions)
        missing += [f"{cluster.name}: {tp[0]}-{tp[1]} is mirrored up to {at} of {end}{why}" for tp, at, end, why in behind]
        return missing

    async def _not_deduplicated(self, goals: Goals) -> list[str]:
        tps = await self._target.partitions(self._input)
        self._check_count(self._target, self.topic, await self._target.partitions(self.topic), tps)
        # Ends, not last stable offsets: a position may be seen before the markers of its own transaction's data are.
        if not goals.input:
            goals.input = await self._target.offsets(tps, LATEST, stable=False)
        missing = await self._not_read(self._input, goals.input)
        if not missing and (moved := await self._moved_topic()):
            # What is read was moved before: the two are one transaction.
            if not goals.moved:
                goals.moved = await self._target.offsets(await self._target.partitions(moved), LATEST, stable=False)
            missing = await self._not_read(moved, goals.moved)
        return missing or await self._not_stable(goals)

    async def _moved_topic(self) -> str:
        """The topic of moved records; empty if there is none."""
        group, stage = job.dedupe_group(self._config), self._config["penstock.dedupe.name"]
        topic = await self._target.moved_topic(group, stage, self._input)
        return topic if await self._target.has(topic) else ""

    async def _not_stable(self, goals: Goals) -> list[str]:
        """The partitions of what is loaded that can't be read up to the end that they had, one sentence each."""
        outputs = await self._target.partitions(self.topic)
        if not goals.output:
            goals.output = await self._target.offsets(outputs, LATEST, stable=False)
        stable = await self._target.offsets(outputs, LATEST)
        short = [(tp, stable[tp], end) for tp, end in goals.output.items() if stable[tp] < end]
        return [f"{self._target.name}: {tp[0]}-{tp[1]} is not stable up to {end} but {at}" for tp, at, end in short]

    async def _not_read(self, topic: str, goals: Offsets) -> list[str]:
        """What dedupe hasn't read of a topic up to its goals, one sentence each."""
        positions = await self._target.committed(job.dedupe_group(self._config), goals)
        elsewhere = await self._elsewhere(self._target, goals, positions)
        output_id = (await self._target.topic(self.topic)).topic_id.hex()
        elsewhere += [
            f"dedupe: {tp[0]}-{tp[1]} was written to a topic that isn't `{self.topic}` (its id is {position.output_id})"
            for tp, position in positions.items()
            if position.output_id not in ("", output_id)
        ]
        behind = await self._behind(self._target, goals, positions)
        return elsewhere + [f"dedupe: {tp[0]}-{tp[1]} is done up to {at} of {end}{why}" for tp, at, end, why in behind]

    async def _elsewhere(
        self, cluster: ClusterView, tps: Iterable[TopicPartition], positions: Mapping[TopicPartition, CommittedPosition]
    ) -> list[str]:
        """The partitions whose log, as it is now, doesn't go on at the position of the stage that reads it, one sentence each:
        the position says nothing of what the log holds, or what lay between the two is gone."""
        tps = list(tps)
        starts = await cluster.offsets(tps, EARLIEST)
        ends = await cluster.offsets(tps, LATEST, stable=False)
        topic_ids = {topic: (await cluster.topic(topic)).topic_id.hex() for topic in dict.fromkeys(topic for topic, _ in tps)}
        breaks = {tp: _break(positions.get(tp), topic_ids[tp[0]], starts[tp], ends[tp]) for tp in tps}
        read = {tp: (at.offset, at.last_batch) for tp, at in positions.items() if at.last_batch is not None}
        others = await cluster.differ({tp: mark for tp, mark in read.items() if not breaks.get(tp)})
        breaks |= {tp: f"is not the log that was read: {why}" for tp, why in others.items()}
        return [f"{cluster.name}: {tp[0]}-{tp[1]} {words}" for tp, words in breaks.items() if words]

    async def _behind(
        self, cluster: ClusterView, goals: Offsets, positions: Mapping[TopicPartition, CommittedPosition]
    ) -> list[Behind]:
        """The partitions whose position has records before its goal, or whose stage stands still there, those first."""
        standing = [
            (tp, position.offset, goals[tp], f" and {position.stands}")
            for tp, position in positions.items()
            if tp in goals and position.stands
        ]
        short = {tp: goal for tp, goal in goals.items() if tp not in positions or positions[tp].offset < goal}
        for tp, *_ in standing:
            short.pop(tp, None)
        if not short:
            return standing
        starts = await cluster.offsets(short, EARLIEST)
        behind: list[Behind] = []
        for tp, goal in short.items():
            at = positions[tp].offset if tp in positions else starts[tp]
            if at < goal and (goal - at > GAP_LOOKED_INTO or await cluster.holds_records(tp, max(at, starts[tp]), goal)):
                behind.append((tp, at, goal, ""))
        return standing + behind

    def _check_count(self, cluster: ClusterView, topic: str, tps: list[TopicPartition], others: list[TopicPartition]) -> None:
        if len(tps) != len(others):
            raise Refused(
                f"{cluster.name} has {len(tps)} partitions of `{topic}`, the aggregate's `{self._input}` has"
                f" {len(others)}: they have to be as many everywhere: grow the smaller one with `penstock topics grow`"
            )

    async def ranges(self, status: Status) -> Ranges:
        """Per partition of the topic that is loaded from where the table ends to the last stable offset now.

        Raises Refused when the table can't be continued from the topic, EtlError when it can't be asked.
        """
        topic = await self._target.topic(self.topic)
        tps = await self._target.partitions(self.topic)
        earliest = await self._target.offsets(tps, EARLIEST)
        stable, epochs = await self._target.stable_ends(earliest)
        ends = status.ends
        if ends and set(ends) != set(tps):
            raise Refused(f"the table was loaded from {_names(ends)}, but the topic has {_names(tps)}: {ANOTHER_TABLE}")
        self._check_id(topic, status.topic_id)
        starts = ends or earliest
        for tp in tps:
            check_range(tp, starts[tp], earliest[tp], stable[tp])
        await self._check_ends({tp: (ends[tp], end) for tp, end in status.epochs.items()})
        return Ranges({tp: (starts[tp], stable[tp]) for tp in tps}, topic.topic_id.hex(), epochs)

    async def _check_ends(self, read: Mapping[TopicPartition, tuple[int, LogEnd]]) -> None:
        """See that the topic still has all below the offsets that were seen with some ends of their logs.

        A log that was cut back ends the leader epoch (-1: not known), or has grown again under another, before (KIP-320). One
        that was put back from a copy may have that epoch again, but another batch there. Raises Refused, EtlError.
        """
        known = {tp: end.leader_epoch for tp, (_, end) in read.items() if end.leader_epoch >= 0}
        ends = await self._target.epoch_ends(known) if known else {}
        for tp, end in ends.items():
            offset = read[tp][0]
            if end < offset:
                found = f"leader epoch {known[tp]} ends at {end}" if end >= 0 else f"leader epoch {known[tp]} is unknown"
                raise Refused(
                    f"{tp[0]}-{tp[1]}: everything below {offset} was read, but by now {found} there: the topic was cut back and"
                    f" has other records behind that: {ANOTHER_TABLE}"
                )
        marked = {tp: (offset, end.last_batch) for tp, (offset, end) in read.items() if end.last_batch is not None}
        for tp, why in (await self._target.differ(marked)).items():
            raise Refused(f"{tp[0]}-{tp[1]} is not the log that was loaded: {why}; was a copy put back? {ANOTHER_TABLE}")

    def _check_id(self, topic: TopicInfo, noted: str) -> None:
        """See that the topic that is loaded is the one that was noted. Raises Refused."""
        found = topic.topic_id.hex()
        if noted not in ("", found):
            raise Refused(
                f"`{self.topic}` was recreated (its id is {found}, the table was loaded from {noted}): its offsets"
                f" are other records' now: {ANOTHER_TABLE}"
            )

    async def corrupt(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> tuple[CorruptBatch, ...]:
        """The batches in these ranges of the topic that is loaded that Spark can't read. Raises EtlError."""
        return tuple(await self._target.corrupt(ranges))

    async def raw_bytes(self, batches: Iterable[CorruptBatch], limit: int) -> list[bytes | None]:
        """The bytes of corrupt batches; None once they would be more than `limit` together. Raises EtlError."""
        found: list[bytes | None] = []
        for batch in batches:
            data = await self._target.raw_bytes(batch) if limit > 0 else None
            limit -= len(data or b"")
            found.append(data if limit >= 0 else None)
        return found

    async def check_still_there(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], topic_id: str, epochs: Mapping[TopicPartition, LogEnd]
    ) -> None:
        """See that the topic is still that one and holds the ranges, whose ends were seen so. Raises Refused when
        it doesn't, EtlError when it can't be asked."""
        topic = await self._target.topic(self.topic)
        known = set(await self._target.partitions(self.topic))
        if not set(ranges) <= known:
            raise Refused(f"the plan reads {_names(ranges)}, but the topic has {_names(known)}: {ANOTHER_TABLE}")
        earliest = await self._target.offsets(ranges, EARLIEST)
        stable = await self._target.offsets(ranges, LATEST)
        self._check_id(topic, topic_id)
        for tp, (start, end) in ranges.items():
            if start < end:
                check_range(tp, start, earliest[tp], stable[tp])
                check_range(tp, end, earliest[tp], stable[tp])
        await self._check_ends({tp: (ranges[tp][1], end) for tp, end in epochs.items()})

    async def check_same_log(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], topic_id: str, epochs: Mapping[TopicPartition, LogEnd]
    ) -> None:
        """See that the topic that the ranges were read from is still the one that they were planned on; what retention has
        removed since doesn't matter. Raises Refused, EtlError."""
        topic = await self._target.topic(self.topic)
        self._check_id(topic, topic_id)
        await self._check_ends({tp: (ranges[tp][1], end) for tp, end in epochs.items()})


class Ranges(NamedTuple):
    """What a night takes: per partition from start up to (not with) end, the topic's id, and the ends of its logs."""

    offsets: dict[TopicPartition, tuple[int, int]]
    topic_id: str
    epochs: dict[TopicPartition, LogEnd]


class Goals:
    """The offsets that the stages have to pass for one night, as far as they are known yet."""

    def __init__(self, night_end_ms: int) -> None:
        self.night_end_ms = night_end_ms
        self.clock_ahead_ms: int | None = None
        """By how much this machine's clock is ahead of the aggregate's; None: nobody has asked yet."""
        self.sources_are_known = False
        """The file has all sources that feed what is loaded."""
        self.sources: dict[str, Offsets] = {}
        self.input: Offsets = {}
        self.moved: Offsets = {}
        self.output: Offsets = {}


def _break(position: CommittedPosition | None, topic_id: str, start: int, end: int) -> str:
    """Why a log with this id, start and end doesn't go on at a position in it, as the end of a sentence; empty where it does.

    A stage commits a position wherever it begins, so that one that isn't there has expired, or was never given.
    """
    if position is None:
        return f"starts at {start}, and no position says what was read of the records before" if start > 0 else ""
    if position.topic_id not in ("", topic_id):
        return "was recreated since it was read last"
    if position.offset > end:
        return f"was read up to {position.offset}, but ends at {end}: it was cut back"
    if position.offset < start:
        return f"was read up to {position.offset}, but starts at {start}: the records between are gone"
    return ""


def check_range(tp: TopicPartition, offset: int, earliest: int, stable: int) -> None:
    """See that an offset is one that the topic can continue from. Raises Refused."""
    if offset < earliest:
        raise Refused(
            f"{tp[0]}-{tp[1]}: offset {offset} is needed, but the topic starts at {earliest} by now: records are lost;"
            f" {ANOTHER_TABLE}"
        )
    if offset > stable:
        raise Refused(
            f"{tp[0]}-{tp[1]}: offset {offset} is needed, but the topic ends at {stable}: it was truncated or recreated;"
            f" {ANOTHER_TABLE}"
        )


def _names(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(tps))
