"""Each hop's count beside the one before it, and the first hop at which they part."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.audit.counts import BUCKET_MS, TopicCounts, Unreadable, count_topic
from penstock.pipeline.audit.snapshot import TRIES, Mark, MovingError, Snapshot, StageMarks, take
from penstock.pipeline.etl import places
from penstock.pipeline.etl.ledger import NightCommit
from penstock.pipeline.etl.rowcounts import rows_by_partition
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import committed
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages.ranges import Range
from penstock.pipeline.stages.topics import TopicChoice

Count = Callable[..., Awaitable[TopicCounts]]
"""`count_topic`, which knows whom to tell how far it is, and how long to wait for a cluster."""


@dataclass
class Hop:
    """One line of the audit.

    `records` is what was counted, `expected` what the hop before says that it should be (None: nothing to compare with),
    `waiting` what has not reached the next hop yet, `left_out` what operators let the mirror pass without a copy, in the
    offsets `gaps` by partition, `again` what the aggregate has beside what is in the source's log, since operators let the
    mirror copy it once more, or begin in another log. `trouble` says why the counts part or what can't be read, `note` why
    nothing can be told of the comparison with the hop before, both in words. `without_id` are records in which dedupe found no
    id, so that repeats of them aren't seen. `by_notes`: compaction has removed records from
    the log, so what the stages noted of it is compared instead. `standing`: the partitions in which the stage that reads them
    stands still, each with the reason. `never_read`: the offsets by partition that operators let dedupe pass over.
    """

    name: str
    records: int
    expected: int | None = None
    dropped: int = 0
    waiting: int = 0
    partitions: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    note: str = ""
    unreadable: list[Unreadable] = field(default_factory=list)
    left_out: int = 0
    again: int = 0
    without_id: int = 0
    gaps: dict[str, list[Range]] = field(default_factory=dict)
    by_notes: bool = False
    standing: dict[str, str] = field(default_factory=dict)
    never_read: dict[str, list[Range]] = field(default_factory=dict)

    def conclude(self, damage: str, limits: str, compare: Callable[[], str]) -> None:
        """Set `trouble` and `note`: the counts are compared only if nothing limits it."""
        self.note = limits
        if limits:
            self.expected = None
        parts = "" if limits else compare()
        self.trouble = "; ".join(words for words in (damage, parts) if words)


def _bucket(number: int) -> str:
    """A bucket by the moment at which it begins; in milliseconds where no calendar has it."""
    try:
        return datetime.datetime.fromtimestamp(number * BUCKET_MS / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{number * BUCKET_MS} ms"


def _limits(*counts: TopicCounts) -> str:
    """Words for logs that no longer hold all their records: their counts are only part of the story."""
    partitions = sum(start > 0 for one in counts for start in one.starts.values())
    return f"retention, or a trim, has removed the beginning of {partitions} partitions: not compared" if partitions else ""


def _damage(counts: TopicCounts) -> str:
    """What is wrong with a log itself, in words: the first three places."""
    places = [
        f"partition {one.partition}: the batch at offset {one.offset} can't be read ({one.reason})" for one in counts.unreadable
    ]
    places += _short(counts)
    return "; ".join(places[:3] + ([f"and {len(places) - 3} more"] if len(places) > 3 else []))


def _short(counts: TopicCounts) -> list[str]:
    return [
        f"partition {partition} ends at {end}, but was read up to {asked}: it was cut back or recreated"
        for partition, (end, asked) in sorted(counts.short.items())
    ]


def _trouble(found: Counter[Any], expected: Counter[Any], unit: str, name: Callable[[Any], str] = str) -> str:
    """Where two counts part, in words: the first three places."""
    places = sorted(key for key in found.keys() | expected.keys() if found[key] != expected[key])
    if not places:
        return ""
    shown = ", ".join(f"{unit} {name(key)}: {found[key]:,} for {expected[key]:,}" for key in places[:3])
    return shown + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _by_partition(counts: TopicCounts) -> dict[str, int]:
    return {str(partition): counts.records[partition] + counts.left_out[partition] for partition in sorted(counts.ends)}


def _standing(marks: Mapping[int, Mark]) -> dict[str, str]:
    return {str(partition): mark.stands for partition, mark in sorted(marks.items()) if mark.stands}


def _frontiers(marks: Mapping[int, Mark]) -> dict[int, int]:
    return {partition: mark.frontier for partition, mark in marks.items()}


def _gaps(marks: Mapping[int, Mark]) -> dict[int, list[Range]]:
    return {partition: mark.gaps for partition, mark in sorted(marks.items()) if mark.gaps}


def _never_read(marks: Mapping[int, Mark], counted: TopicCounts, of: str) -> list[str]:
    """Words for the records that operators let dedupe pass over, and that it has never read since."""
    found = []
    for partition, mark in sorted(marks.items()):
        if mark.unknown_gaps:
            found.append(
                f"partition {partition}{of}: {mark.unknown_gaps:,} offsets were passed over, and which isn't noted any more"
            )
        if records := counted.left_out[partition]:
            places = ", ".join(f"{first} to {last}" for first, last in mark.gaps)
            found.append(f"partition {partition}{of}: {records:,} records were passed over and never read, offsets {places}")
    return found


def _untold(marks: Mapping[int, Mark]) -> str:
    """Words for decisions of which nobody can tell what was never read."""
    untold = sum(mark.untold for mark in marks.values())
    return f"{untold:,} decisions of operators don't say which records were passed over and never read" if untold else ""


def _noted(marks: Iterable[dict[int, Mark]], *counters: str) -> Counter[int]:
    """The sums of some of the counters that the stages committed, by partition."""
    sums = Counter[int]()
    for by_partition in marks:
        for partition, mark in by_partition.items():
            sums[partition] += sum(mark.counters.get(name, 0) for name in counters)
    return sums


def _compacted(hop: Hop, missing: Counter[int], what: str) -> tuple[str, str]:
    """Trouble and limits of a hop whose input was compacted, by what is missing of the notes before it by partition:
    compaction may have removed records before they were read, and adds none.
    """
    hop.by_notes = True
    more = [f"partition {p}: {-count:,} more {what}" for p, count in sorted(missing.items()) if count < 0]
    fewer = sum(count for count in missing.values() if count > 0)
    limits = f"the topic is compacted, and {fewer:,} records fewer were {what}: compaction may have removed them before"
    return "; ".join(more[:3]), limits if fewer and not more else ""


@dataclass
class Sources:
    """The sources' records up to the mirror's positions, together; `noted` is what the mirror says that it copied.

    `buckets_differ`: of some batches only a part was copied, or others have other maximum timestamps on the target.
    """

    hops: list[Hop] = field(default_factory=list)
    records: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    noted: Counter[int] = field(default_factory=Counter)
    buckets_differ: bool = False


async def _sources(config: Config, snapshot: Snapshot, count: Count) -> Sources:
    """Each source's own count, and what of it the mirror has reached."""
    topics, into, together = TopicChoice(config), job.input_topic(config), Sources()
    for name, marks in snapshot.mirror.marks.items():
        topic, bootstrap = topics.out_of(name, into), job.sources(config)[name]
        assert topic is not None, "the snapshot has those sources whose topic it is"
        gaps = {partition: mark.gaps for partition, mark in marks.items() if mark.gaps}
        whole = await count(bootstrap, topic, gaps=gaps)
        reached = {partition: mark.offset for partition, mark in marks.items()}
        mirrored = whole
        if any(reached.get(partition, 0) != end for partition, end in whole.ends.items()):
            mirrored = await count(bootstrap, topic, reached, gaps=gaps)
        noted, again = _noted([marks], "records"), _noted([marks], "again_records")
        hop = Hop(f"{name} {topic}", whole.total + whole.left_out.total(), waiting=whole.total - mirrored.total,
                  partitions=_by_partition(whole), left_out=whole.left_out.total(), by_notes=whole.compacted)  # fmt: skip
        hop.gaps = {str(partition): ranges for partition, ranges in sorted(gaps.items())}
        hop.unreadable, hop.standing = whole.unreadable, _standing(marks)
        damage = "; ".join(filter(None, [_damage(whole), *(_short(mirrored) if mirrored is not whole else ())]))
        unknown = sum(mark.unknown_gaps for mark in marks.values())
        limits = f"{unknown:,} offsets were left out by operators, and which isn't noted: not compared" if unknown else ""
        told = noted if whole.compacted else mirrored.records + again
        hop.again = again.total()
        hop.conclude(
            damage,
            limits or _limits(whole) or _limits(mirrored),
            partial(_trouble, noted, told, "mirrored by its own note, partition"),
        )
        together.hops.append(hop)
        together.noted.update(noted)
        together.records.update(told)
        together.buckets.update(mirrored.buckets)
        rebuilt = _noted([marks], "rebuilt").total()
        together.buckets_differ |= whole.compacted or mirrored.is_cut or rebuilt > 0 or again.total() > 0
    return together


def _mirror_hop(config: Config, arrived: TopicCounts, sources: Sources) -> Hop:
    topic = job.input_topic(config)
    hop = Hop(f"aggregate {topic}", arrived.total, sources.records.total(), partitions=_by_partition(arrived))
    hop.unreadable, hop.by_notes = arrived.unreadable, arrived.compacted
    limits = _limits(arrived) or next((f"{source.name}: {source.note}" for source in sources.hops if source.note), "")
    if not sources.hops:
        limits = f"`penstock.mirror.rename` gives no topic of a source the name `{topic}`: not compared"

    def compare() -> str:
        minutes = BUCKET_MS // 60_000
        found = sources.noted if arrived.compacted else arrived.records
        parts = _trouble(found, sources.records, "partition")
        if parts or arrived.compacted or sources.buckets_differ:
            return parts
        return _trouble(arrived.buckets, sources.buckets, f"{minutes} minutes from", _bucket)

    hop.conclude(_damage(arrived), limits, compare)
    return hop


async def _dedupe_hop(
    config: Config, dedupe: StageMarks, arrived: TopicCounts, mirrored: Counter[int], count: Count
) -> tuple[Hop, Hop]:
    """What dedupe has read of its input, and what it wrote; the rest is dropped by its own committed counters, or moved
    into another partition of a topic that it reads, too. `mirrored`: the records that came into its input by the notes."""
    target, topic, output = config["bootstrap.servers"], job.input_topic(config), job.output_topic(config)
    (marks,) = dedupe.marks.values()
    both = marks, dedupe.moved
    read = await count(target, topic, _frontiers(marks), gaps=_gaps(marks))
    written = await count(target, output, dedupe.ends)
    moved, still_moving = TopicCounts(), 0
    if dedupe.moved:
        moved = await count(target, dedupe.moved_topic, _frontiers(dedupe.moved), gaps=_gaps(dedupe.moved))
        still_moving = _noted(both, "moved", "marks").total() - moved.total - moved.left_out.total()
    waiting = Counter({p: arrived.records[p] - read.records[p] - read.left_out[p] for p in read.ends})
    before = Hop(f"read by {config['penstock.dedupe.name']}", read.total,
                 waiting=waiting.total() + max(0, still_moving), partitions=_by_partition(read))  # fmt: skip
    trouble, limits = "", ""
    again = _noted(both, "again")
    records = Counter({p: read.records[p] + again[p] for p in read.ends})
    if read.compacted:
        records = _noted([marks], "read")
        missing = Counter({p: mirrored[p] - records[p] - waiting[p] for p in read.ends})
        trouble, limits = _compacted(before, missing, "read")
    before.standing = _standing(marks)
    before.never_read = {str(p): ranges for p, ranges in _gaps(marks).items()}
    lost = _never_read(marks, read, "") + _never_read(dedupe.moved, moved, " of moved records")
    untold = _untold(marks) or _untold(dedupe.moved)
    before.conclude("; ".join(filter(None, [trouble, *lost, *_short(read), *_short(moved)])), limits or untold, str)
    kept = _noted(both, "written") if written.compacted else written.records
    dropped = Counter({p: records[p] + moved.records[p] - kept[p] for p in read.ends})
    gone = _noted(both, "dropped", "quarantined")
    noted = _noted(both, "dropped", "quarantined", "moved", "marks")
    hop = Hop(f"aggregate {output}", written.total, records.total() + moved.total - noted.total(), gone.total(),
              partitions=_by_partition(written), by_notes=read.compacted or written.compacted, again=again.total())  # fmt: skip
    hop.unreadable, hop.without_id = written.unreadable, _noted(both, "without_id").total()
    limits = _limits(read, moved, written) or _untold(dedupe.moved)
    hop.conclude(_damage(written), limits, lambda: _trouble(dropped, noted, "dropped in partition"))
    return before, hop


Loaded = tuple[list[NightCommit], dict[tuple[str, int], int]]


def _loaded(table: Storage) -> Loaded:
    """The table's nights and its rows by partition, read when no commit came in between."""
    for _ in range(TRIES):
        nights = committed(table)
        rows = rows_by_partition(table) if nights else {}
        if nights == committed(table):
            return nights, rows
    raise MovingError(f"the table `{table}` changed at each of {TRIES} reads; audit again when it is calmer")


async def _table_hop(config: Config, noted: Counter[int], loaded: Loaded, written: Hop, count: Count) -> Hop:
    """The table's rows, counted from its files, against the records of the ranges that its commits name. `noted` is what the
    stage before says that it wrote, by partition."""
    path, topic = config["penstock.etl.table"], job.output_topic(config)
    nights, by_partition = loaded
    if not nights:
        return Hop(f"table {Path(path).name}", 0, waiting=written.records)
    ends: dict[int, int] = {}
    rows, rejects = Counter[int](), Counter[int]()
    for night in nights:
        for (_, partition), span in night.partitions.items():
            ends[partition] = max(ends.get(partition, 0), span.end)
            rows[partition] += span.rows
            rejects[partition] += span.rejects
    counted = await count(config["bootstrap.servers"], topic, ends)
    found = Counter({partition: count for (_, partition), count in by_partition.items()})
    hop = Hop(f"table {Path(path).name}", found.total(), counted.total - rejects.total(), rejects.total(),
              waiting=written.records - counted.total, partitions={str(p): found[p] for p in sorted(ends)})  # fmt: skip
    # The table's own rows are compared with its ledger, whatever is left of the topic.
    lost = _trouble(found, rows, "rows of partition")
    limits, more = _limits(counted), ""
    if counted.compacted and not limits:
        above = Counter({int(p): count - counted.records[int(p)] for p, count in written.partitions.items()})
        missing = Counter({p: noted[p] - rows[p] - rejects[p] - above[p] for p in ends})
        more, limits = _compacted(hop, missing, "loaded")
    damage = "; ".join(filter(None, [*_short(counted), lost, more]))
    compared = "" if lost or counted.compacted else _trouble(rows + rejects, +counted.records, "loaded of partition")
    hop.conclude(damage, limits, lambda: compared)
    return hop


async def audit(
    config: Config, progress: Callable[[int], None], audited: Collection[str], timeouts: Timeouts
) -> dict[str, Any]:
    """Count every hop of one table; `audited` are the topics of the aggregate that the audits of others count.

    The answer has `hops` (dictionaries of Hop's fields), `parts_at` (the first hop whose count parts from the one
    before it, or None), `findings` (the batches that can't be read, by hop), `untold` (the hops of which nothing can be
    told), `not_audited` (topics that are mirrored, and aren't among those that are audited) and `complete` (no hop parts, all
    could be told of, and nothing waits). Raises KafkaError, EtlError, MovingError.
    """
    # The table first, then stage by stage towards the sources: nothing may seem to be ahead of what it came from.
    loaded = await asyncio.to_thread(_loaded, places.at(config["penstock.etl.table"], config))
    snapshot = await take(config, timeouts)
    count = partial(count_topic, on_progress=progress, timeouts=timeouts)
    topic = job.input_topic(config)
    sources = await _sources(config, snapshot, count)
    arrived = await count(config["bootstrap.servers"], topic, snapshot.mirror.ends)
    arrived.merge(snapshot.mirror.tail)
    written, noted = _mirror_hop(config, arrived, sources), sources.noted
    hops = [*sources.hops, written]
    if snapshot.dedupe is not None:
        before, written = await _dedupe_hop(config, snapshot.dedupe, arrived, sources.noted, count)
        hops += [before, written]
        noted = _noted((*snapshot.dedupe.marks.values(), snapshot.dedupe.moved), "written")
    hops.append(await _table_hop(config, noted, loaded, written, count))
    parts_at = next((hop.name for hop in hops if hop.trouble), None)
    chosen = TopicChoice(config)
    counted = {topic, *audited}
    names = {name: {chosen.into(source, name) for source in job.sources(config)} for name in config["topics"]}
    others = [name for name, into in names.items() if not into & counted]
    others += sorted(snapshot.mirrored.difference(counted, *names.values()))  # those that an expression has found
    untold = [hop.name for hop in hops if hop.note]
    return {
        "hops": [asdict(hop) for hop in hops],
        "parts_at": parts_at,
        "findings": [{"hop": hop.name, **asdict(one)} for hop in hops for one in hop.unreadable],
        "gaps": [
            {"hop": hop.name, "partition": int(partition), "first": first, "last": last}
            for hop in hops
            for partition, ranges in hop.gaps.items()
            for first, last in ranges
        ],
        "untold": untold,
        "not_audited": others,
        "complete": parts_at is None and not untold and not any(hop.waiting for hop in hops),
    }
