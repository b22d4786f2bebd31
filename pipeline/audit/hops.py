"""Each hop's count beside the one before it, and the first hop at which they part."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.errors import KafkaError
from penstock.groupnames import MIRROR_GROUPS
from penstock.pipeline import job
from penstock.pipeline.audit import accepted
from penstock.pipeline.audit.accepted import Accepted
from penstock.pipeline.audit.counts import BUCKET_MS, Patience, Read, TopicCounts, Unreadable, count_topic
from penstock.pipeline.audit.report import LEFT_LOGS, LOST_OFFSETS
from penstock.pipeline.audit.snapshot import TRIES, Mark, MovingError, Snapshot, StageMarks, take
from penstock.pipeline.etl import changes, places, table
from penstock.pipeline.etl.changenotes import Change, Place
from penstock.pipeline.etl.changes import Changes
from penstock.pipeline.etl.ledger import Status
from penstock.pipeline.etl.rowcounts import reject_counts, rows_by_night
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.options import Timeouts
from penstock.pipeline.stages.ranges import Range, size
from penstock.pipeline.stages.topics import TopicChoice

Count = Callable[..., Awaitable[TopicCounts]]
"""`count_topic`, which knows whom to tell how far it is, and how long to wait for a cluster."""


@dataclass
class Hop:
    """One line of the audit.

    `records` is what was counted (None: the cluster couldn't be asked), `expected` what the hop before says that it should be
    (None: nothing to compare with), `waiting` what has not reached the next hop yet, `left_out` what operators let the mirror
    pass without a copy, in the offsets `gaps` by partition, `again` what the aggregate has beside what is in the source's log,
    since operators let the mirror copy it once more, or begin in another log. `trouble` says why the counts part or what can't
    be read (`damage` the latter alone), `note` why nothing can be told of the comparison with the hop before, both in words.
    `by_notes`: compaction has removed records from the log, so what the stages noted of it is compared instead. `standing`: the
    partitions in which the stage that reads them stands still, each with the reason. `open`: the transactions that hold the log
    back, in words. `changes`: what others have changed in the table. `left_logs`: in words, where an operator let the mirror
    leave a log for another one, so that nobody can tell whether all of it was copied. `without_id` are records in which dedupe
    found no id, so that repeats of them aren't seen. `never_read`: the offsets by partition that operators let dedupe pass
    over.

    `key` is what differences are `accepted` under (accepted.py). `unaccepted` are the differences that nobody has accepted, or
    not as they are now: by place, how many records too many (or, below 0, too few) were found.
    """

    key: str
    name: str
    records: int | None
    expected: int | None = None
    dropped: int = 0
    waiting: int | None = 0
    partitions: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    damage: str = ""
    note: str = ""
    open: list[str] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    left_out: int = 0
    again: int = 0
    without_id: int = 0
    gaps: dict[str, list[Range]] = field(default_factory=dict)
    by_notes: bool = False
    standing: dict[str, str] = field(default_factory=dict)
    never_read: dict[str, list[Range]] = field(default_factory=dict)
    left_logs: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    accepted: dict[str, Accepted] = field(default_factory=dict)
    unaccepted: dict[str, int] = field(default_factory=dict)

    def compare(self, found: Counter[Any], expected: Counter[Any], unit: str, name: Callable[[Any], str] = str) -> str:
        """Note where two counts part and nobody has accepted it, and say it in words: the first three places. What was
        accepted, and isn't so any more, is said likewise."""
        words = []
        places = {f"{unit} {name(key)}": (found[key], expected[key]) for key in sorted(found.keys() | expected.keys())}
        places |= {place: (0, 0) for place in self.accepted if place.startswith(f"{unit} ") and place not in places}
        for place, (count, wanted) in places.items():
            known = self.accepted.get(place)
            if count - wanted != (known.difference if known else 0):
                self.unaccepted[place] = count - wanted
                words.append(f"{place}: {count:,} for {wanted:,}" + (f" ({known.difference:+,} was accepted)" if known else ""))
        return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")

    def conclude(self, damage: str, limits: str, compare: Callable[[], str], *compared: str) -> None:
        """Set `damage`, `trouble` and `note`: the counts are compared only if nothing limits it. `compared`: what other
        comparisons came to."""
        self.note, self.damage = limits, damage
        if limits:
            self.expected = None
        parts = "" if limits else compare()
        self.trouble = "; ".join(words for words in (damage, *compared, parts) if words)


def _bucket(number: int) -> str:
    """A bucket by the moment at which it begins; in milliseconds where no calendar has it."""
    try:
        return datetime.datetime.fromtimestamp(number * BUCKET_MS / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{number * BUCKET_MS} ms"


def _limits(*counts: TopicCounts) -> str:
    """Words for logs that no longer hold all their records, or can't be read up to where they are compared: their counts are
    only part of the story."""
    partitions = sum(start > 0 for one in counts for start in one.starts.values())
    if partitions:
        return f"retention, or a trim, has removed the beginning of {partitions} partitions: not compared"
    held = [words for one in counts for partition, words in one.open.items() if partition in one.held]
    if held or any(one.held for one in counts):
        return held[0] if held else "a transaction was open for long, and has ended only now: audit again"
    return ""


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
    ] + [f"partition {partition} is not the log that was read: {why}" for partition, why in sorted(counts.others.items())]


def _by_partition(counts: TopicCounts) -> dict[str, int]:
    return {str(partition): counts.records[partition] + counts.left_out[partition] for partition in sorted(counts.ends)}


def _standing(marks: Mapping[int, Mark]) -> dict[str, str]:
    return {str(partition): mark.stands for partition, mark in sorted(marks.items()) if mark.stands}


def _frontiers(marks: Mapping[int, Mark]) -> dict[int, int]:
    return {partition: mark.frontier for partition, mark in marks.items()}


def _read_to(marks: Mapping[int, Mark]) -> dict[int, Read]:
    return {partition: (mark.offset, mark.last_batch) for partition, mark in marks.items()}


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


def _left_logs(hop: Hop, marks: Mapping[int, Mark]) -> str:
    """Words for the logs that were left for others, unless a person has accepted just these."""
    left = Counter({partition: mark.counters.get("other_logs", 0) for partition, mark in marks.items()})
    if not hop.compare(left, Counter(), LEFT_LOGS):
        return ""
    at = ", ".join(str(partition) for partition in sorted(left) if f"{LEFT_LOGS} {partition}" in hop.unaccepted)
    return (
        f"an operator let the mirror go on in another log of partition {at}, and nobody can tell whether all that the log "
        "before it had was copied"
    )


def _lost(hop: Hop, marks: Mapping[int, Mark]) -> str:
    """Words for the copies that the target has lost and that no operator had made again, unless a person has accepted just
    these."""
    lost = Counter({partition: size(mark.lost) for partition, mark in marks.items()})
    words = hop.compare(lost, Counter(), LOST_OFFSETS)
    places = [
        f"partition {partition}: the aggregate lost the copies of offsets {', '.join(f'{a} to {b}' for a, b in mark.lost)}"
        for partition, mark in sorted(marks.items())
        if f"{LOST_OFFSETS} {partition}" in hop.unaccepted and mark.lost
    ]
    return "; ".join(places) or words


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


AllAccepted = Mapping[str, Mapping[str, Accepted]]


def _hop(known: AllAccepted, key: str, name: str, records: int | None, **more: Any) -> Hop:
    """A hop, with what was accepted of it."""
    return Hop(key, name, records, accepted=dict(known.get(key, {})), **more)


async def _sources(config: Config, snapshot: Snapshot, known: AllAccepted, count: Count) -> Sources:
    """Each source's own count, and what of it the mirror has reached."""
    topics, into, together = TopicChoice(config), job.input_topic(config), Sources()
    for name, marks in snapshot.mirror.marks.items():
        topic, bootstrap = topics.out_of(name, into), job.sources(config)[name]
        assert topic is not None, "the snapshot has those sources whose topic it is"
        gaps = {partition: mark.gaps for partition, mark in marks.items() if mark.gaps}
        reached = {partition: mark.offset for partition, mark in marks.items()}
        try:
            mirrored = whole = await count(bootstrap, topic, gaps=gaps, read=_read_to(marks))
            if any(reached.get(partition, 0) != end for partition, end in whole.ends.items()):
                mirrored = await count(bootstrap, topic, reached, gaps=gaps)
        except (KafkaError, OSError) as error:
            hop = _hop(known, f"{job.mirror_group(config, name)} {topic}", f"{name} {topic}", None, waiting=None)
            hop.standing, hop.note = _standing(marks), f"the source can't be counted: {error}"
            together.hops.append(hop)
            continue
        noted, again = _noted([marks], "records"), _noted([marks], "again_records")
        hop = _hop(known, f"{job.mirror_group(config, name)} {topic}", f"{name} {topic}",
                   whole.total + whole.left_out.total(), waiting=whole.total - mirrored.total,
                  partitions=_by_partition(whole), left_out=whole.left_out.total(), by_notes=whole.compacted)  # fmt: skip
        hop.gaps = {str(partition): ranges for partition, ranges in sorted(gaps.items())}
        hop.unreadable, hop.standing, hop.open = whole.unreadable, _standing(marks), list(whole.open.values())
        damage = "; ".join(filter(None, [_damage(whole), *(_short(mirrored) if mirrored is not whole else ())]))
        unknown = sum(mark.unknown_gaps for mark in marks.values())
        limits = f"{unknown:,} offsets were left out by operators, and which isn't noted: not compared" if unknown else ""
        told = noted if whole.compacted else mirrored.records + again
        hop.again = again.total()
        hop.left_logs = _left_logs(hop, marks)
        hop.conclude(
            damage,
            limits or _limits(whole) or _limits(mirrored),
            partial(hop.compare, noted, told, "mirrored by its own note, partition"),
            _lost(hop, marks),
        )
        together.hops.append(hop)
        together.noted.update(noted)
        together.records.update(told)
        together.buckets.update(mirrored.buckets)
        rebuilt = _noted([marks], "rebuilt").total()
        together.buckets_differ |= whole.compacted or mirrored.is_cut or rebuilt > 0 or again.total() > 0
    return together


def _mirror_hop(config: Config, arrived: TopicCounts, sources: Sources, known: AllAccepted) -> Hop:
    topic, key = job.input_topic(config), f"{MIRROR_GROUPS}{config['penstock.mirror.name']} aggregate"
    hop = _hop(
        known,
        f"{key} {topic}",
        f"aggregate {topic}",
        arrived.total,
        expected=sources.records.total(),
        partitions=_by_partition(arrived),
    )
    hop.unreadable, hop.by_notes, hop.open = arrived.unreadable, arrived.compacted, list(arrived.open.values())
    limits = _limits(arrived) or next((f"{source.name}: {source.note}" for source in sources.hops if source.note), "")
    if not sources.hops:
        limits = f"`penstock.mirror.rename` gives no topic of a source the name `{topic}`: not compared"

    def compare() -> str:
        minutes = BUCKET_MS // 60_000
        found = sources.noted if arrived.compacted else arrived.records
        parts = hop.compare(found, sources.records, "partition")
        if arrived.compacted or sources.buckets_differ:
            return parts
        by_time = hop.compare(arrived.buckets, sources.buckets, f"{minutes} minutes from", _bucket)
        return parts or by_time

    hop.conclude(_damage(arrived), limits, compare)
    return hop


async def _dedupe_hop(
    config: Config, dedupe: StageMarks, arrived: TopicCounts, mirrored: Counter[int], known: AllAccepted, count: Count
) -> tuple[Hop, Hop]:
    """What dedupe has read of its input, and what it wrote; the rest is dropped by its own committed counters, or moved
    into another partition of a topic that it reads, too. `mirrored`: the records that came into its input by the notes."""
    target, topic, output = config["bootstrap.servers"], job.input_topic(config), job.output_topic(config)
    (marks,) = dedupe.marks.values()
    both = marks, dedupe.moved
    read = await count(target, topic, _frontiers(marks), gaps=_gaps(marks), read=_read_to(marks))
    written = await count(target, output, dedupe.ends)
    moved, still_moving = TopicCounts(), 0
    if dedupe.moved:
        there = _read_to(dedupe.moved)
        moved = await count(target, dedupe.moved_topic, _frontiers(dedupe.moved), gaps=_gaps(dedupe.moved), read=there)
        still_moving = _noted(both, "moved", "marks").total() - moved.total - moved.left_out.total()
    waiting = Counter({p: arrived.records[p] - read.records[p] - read.left_out[p] for p in read.ends})
    group = job.dedupe_group(config)
    before = _hop(known, f"{group} {topic}", f"read by {config['penstock.dedupe.name']}", read.total,
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
    hop = _hop(
        known,
        f"{group} {topic} {output}",
        f"aggregate {output}",
        written.total,
        expected=records.total() + moved.total - noted.total(),
        dropped=gone.total(),
        partitions=_by_partition(written),
        by_notes=read.compacted or written.compacted,
        again=again.total(),
    )
    hop.unreadable, hop.without_id = written.unreadable, _noted(both, "without_id").total()
    hop.open = list(written.open.values())
    limits = _limits(read, moved, written) or _untold(dedupe.moved)
    hop.conclude(_damage(written), limits, lambda: hop.compare(dropped, noted, "dropped in partition"))
    return before, hop


@dataclass(frozen=True)
class Loaded:
    """The table at one version: its nights, its rows, what others have changed in it (with the statements' conditions, by
    version), and the rejects that are kept of each run."""

    status: Status
    rows: Counter[Place]
    changes: Changes
    rejects: Mapping[tuple[int, str], int]
    conditions: Mapping[int, str]


def _loaded(place: Storage, rejects: Storage) -> Loaded:
    """What the table holds, read when no commit came in between. Raises EtlError, MovingError."""
    for _ in range(TRIES):
        before = table.version(place)
        status = table.status(place)
        found = Loaded(
            status,
            rows_by_night(place, status.nights) if status.nights else Counter(),
            others := changes.of_others(place, status),
            reject_counts(rejects),
            {change.version: changes.condition(place, change.version) for change in others.changes if change.commits == 1},
        )
        if before == table.version(place):
            return found
    raise MovingError(f"the table `{place}` changed at each of {TRIES} reads; audit again when it is calmer")


def _shown(change: Change, condition: str) -> dict[str, Any]:
    nights: defaultdict[str, int] = defaultdict(int)
    for (night, _, _), count in change.rows.items():
        nights[night] += count
    return {
        "version": change.version,
        "time_ms": change.time_ms,
        "operation": change.operation,
        "condition": condition,
        "removed": change.removed,
        "added": change.added,
        "updated": change.updated,
        "untold": change.untold,
        "commits": change.commits,
        "nights": dict(sorted(nights.items())),
    }


def _of_night(place: tuple[str, int]) -> str:
    night, partition = place
    return f"{night or 'none'}, partition {partition}"


def _row_trouble(hop: Hop, loaded: Loaded) -> tuple[str, str]:
    """Trouble and limits of the table's own rows: those of its files against its ledger, by night and partition, but for what
    others have changed."""
    wanted = loaded.changes.expected(loaded.status.nights, loaded.rows)
    if wanted is None:
        return "", "the files of rows that others have changed are gone, and Delta's log doesn't say how many those were"
    found, expected = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for counts, by_place in ((found, loaded.rows), (expected, wanted)):
        for (night, _, partition), rows in by_place.items():
            counts[night, partition] += rows
    words, taken = hop.compare(found, expected, "rows of night", _of_night), loaded.changes.taken
    notes = [
        f"version {change.version} ({change.operation}) took rows of {', '.join(nights)} along"
        for change in loaded.changes.changes
        if not change.is_statement and (nights := sorted({each[0] for each in taken if change.rows.get(each, 0) > 0}))
    ]
    if words and loaded.changes.unread is not None:
        notes.append("versions {} to {} are gone from the table's log, so what they changed isn't known".format(
            *loaded.changes.unread))  # fmt: skip
    return "; ".join([words, *notes]) if words else "", ""


def _reject_trouble(hop: Hop, loaded: Loaded, rejects: Storage) -> str:
    """Trouble of the rejects that are kept, by night, against the table's ledger."""
    found, expected = Counter[str](), Counter[str]()
    for commit in loaded.status.nights:
        kept = found[commit.night] = sum(loaded.rejects.get(run, 0) for run in commit.runs)
        # Earlier versions didn't note how many rows those were: a batch that can't be read is one, whatever it holds.
        expected[commit.night] = commit.kept if commit.kept >= 0 else min(max(kept, min(1, commit.rejects)), commit.rejects)
    words = hop.compare(found, expected, "rejects of night")
    return words + (f"; no table of rejects is at `{rejects}`" if words and not rejects.names(table.LOG) else "")


async def _table_hop(
    config: Config, noted: Counter[int], loaded: Loaded, written: Hop, known: AllAccepted, count: Count
) -> Hop:
    """The table's rows, counted from its files, against the records of the ranges that its commits name. `noted` is what the
    stage before says that it wrote, by partition."""
    place, topic = places.at(config["penstock.etl.table"], config), job.output_topic(config)
    name, key = f"table {Path(config['penstock.etl.table']).name}", f"table {place.uri}"
    before = written.records or 0
    if not loaded.status.nights:
        return _hop(known, key, name, 0, waiting=before)
    ends: dict[int, int] = {}
    rows, rejects, left = Counter[int](), Counter[int](), Counter[int]()
    for night in loaded.status.nights:
        for (_, partition), span in night.partitions.items():
            ends[partition] = max(ends.get(partition, 0), span.end)
            rows[partition] += span.rows
            rejects[partition] += span.rejects
            left[partition] += span.deleted
    last = {tp[1]: (loaded.status.ends[tp], end.last_batch) for tp, end in loaded.status.epochs.items()}
    counted = await count(config["bootstrap.servers"], topic, ends, read=last)
    found = Counter[int]()
    for (_, _, partition), number in loaded.rows.items():
        found[partition] += number
    removed = sum(change.removed - change.added for change in loaded.changes.changes)
    hop = _hop(
        known,
        key,
        name,
        found.total(),
        expected=counted.total - rejects.total() - left.total() - removed,
        dropped=rejects.total(),
        waiting=before - counted.total,
        partitions={str(p): found[p] for p in sorted(ends)},
    )
    hop.changes = [_shown(change, loaded.conditions.get(change.version, "")) for change in loaded.changes.changes]
    # The table's own rows are compared with its ledger, whatever is left of the topic.
    lost, untold = _row_trouble(hop, loaded)
    kept = _reject_trouble(hop, loaded, places.at(places.rejects(config), config))
    limits, more = _limits(counted) or untold, ""
    if counted.compacted and not limits:
        above = Counter({int(p): count - counted.records[int(p)] for p, count in written.partitions.items()})
        missing = Counter({p: noted[p] - rows[p] - rejects[p] - left[p] - above[p] for p in ends})
        more, limits = _compacted(hop, missing, "loaded")
    damage = "; ".join(filter(None, [*_short(counted), more]))

    def compare() -> str:
        if counted.compacted:
            return ""
        parts = hop.compare(rows + rejects + left, +counted.records, "loaded of partition")
        return "" if lost else parts

    hop.conclude(damage, limits, compare, lost, kept)
    return hop


async def audit(
    config: Config, progress: Callable[[int], None], audited: Collection[str], timeouts: Timeouts, patience: Patience
) -> dict[str, Any]:
    """Count every hop of one table; `audited` are the topics of the aggregate that the audits of others count.
    `patience` waits for transactions that are open.

    The answer has `hops` (dictionaries of Hop's fields), `parts_at` (the first hop whose count parts from the one
    before it, or None), `findings` (the batches that can't be read, by hop), `untold` (the hops of which nothing can be
    told), `not_audited` (topics that are mirrored, and aren't among those that are audited) and `complete` (no hop parts, all
    could be told of, and nothing waits). Raises KafkaError, EtlError, MovingError.
    """
    # The table first, then stage by stage towards the sources: nothing may seem to be ahead of what it came from.
    at, rejects = (places.at(place, config) for place in (config["penstock.etl.table"], places.rejects(config)))
    loaded = await asyncio.to_thread(_loaded, at, rejects)
    known = await accepted.read(config, timeouts)
    snapshot = await take(config, timeouts, patience)
    count = partial(count_topic, on_progress=progress, timeouts=timeouts, patience=patience)
    topic = job.input_topic(config)
    sources = await _sources(config, snapshot, known, count)
    arrived = await count(config["bootstrap.servers"], topic, snapshot.mirror.ends)
    arrived.merge(snapshot.mirror.tail)
    written, noted = _mirror_hop(config, arrived, sources, known), sources.noted
    hops = [*sources.hops, written]
    if snapshot.dedupe is not None:
        before, written = await _dedupe_hop(config, snapshot.dedupe, arrived, sources.noted, known, count)
        hops += [before, written]
        noted = _noted((*snapshot.dedupe.marks.values(), snapshot.dedupe.moved), "written")
    hops.append(await _table_hop(config, noted, loaded, written, known, count))
    parts_at = next((hop.name for hop in hops if hop.trouble), None)
    chosen = TopicChoice(config)
    counted = {topic, *audited}
    names = {name: {chosen.into(source, name) for source in job.sources(config)} for name in config["topics"]}
    others = [name for name, into in names.items() if not into & counted]
    others += sorted(snapshot.mirrored.difference(counted, *names.values()))  # those that an expression has found
    untold = [hop.name for hop in hops if hop.note or hop.open or hop.left_logs]
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
