"""Each hop's count beside the one before it, and the first hop at which they part."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.audit.counts import BUCKET_MS, TopicCounts, Unreadable, count_topic
from penstock.pipeline.audit.snapshot import TRIES, MovingError, Snapshot, take
from penstock.pipeline.etl import places
from penstock.pipeline.etl.storage import Storage
from penstock.pipeline.etl.table import NightCommit, committed, rows_by_partition


@dataclass
class Hop:
    """One line of the audit.

    `records` is what was counted, `expected` what the hop before says that it should be (None: nothing to compare
    with), `waiting` what has not reached the next hop yet, `trouble` why the counts part or what can't be read, `note`
    why nothing can be told of the comparison with the hop before, both in words.
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

    def conclude(self, damage: str, limits: str, compare: Callable[[], str]) -> None:
        """Set `trouble` and `note`: the counts are compared only if nothing limits it."""
        self.note = limits
        if limits:
            self.expected = None
        parts = "" if limits else compare()
        self.trouble = "; ".join(words for words in (damage, parts) if words)


def _bucket(number: int) -> str:
    """A bucket by the moment at which it begins."""
    return datetime.datetime.fromtimestamp(number * BUCKET_MS / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _limits(*counts: TopicCounts) -> str:
    """Words for logs that no longer hold all their records: their counts are only part of the story."""
    if any(one.compacted for one in counts):
        return "the topic is compacted: not compared"
    partitions = sum(start > 0 for one in counts for start in one.starts.values())
    return f"retention has removed the beginning of {partitions} partitions: not compared" if partitions else ""


def _damage(counts: TopicCounts) -> str:
    """What is wrong with a log itself, in words: the first three places."""
    places = [
        f"partition {one.partition}: the batch at offset {one.offset} can't be read ({one.reason})"
        for one in counts.unreadable
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
    return {str(partition): counts.records[partition] for partition in sorted(counts.ends)}


async def _source_hops(
    config: Config, snapshot: Snapshot, progress: Callable[[int], None]
) -> tuple[list[Hop], TopicCounts]:
    """The sources' own counts up to the mirror's positions, and their sum (which has neither starts nor ends)."""
    topic, together, hops = job.input_topic(config), TopicCounts(), []
    for name, bootstrap in job.sources(config).items():
        whole = await count_topic(bootstrap, topic, on_progress=progress)
        marks = snapshot.mirror.marks[name]
        reached = {partition: mark.offset for partition, mark in marks.items()}
        mirrored = whole
        if any(reached.get(partition, 0) != end for partition, end in whole.ends.items()):
            mirrored = await count_topic(bootstrap, topic, reached, progress)
        together.records.update(mirrored.records)
        together.buckets.update(mirrored.buckets)
        hop = Hop(f"{name} {topic}", whole.total, waiting=whole.total - mirrored.total, partitions=_by_partition(whole))
        hop.unreadable = whole.unreadable
        noted = Counter({partition: mark.counters.get("records", 0) for partition, mark in marks.items()})
        damage = "; ".join(filter(None, [_damage(whole), *(_short(mirrored) if mirrored is not whole else ())]))
        hop.conclude(
            damage,
            _limits(whole, mirrored),
            partial(_trouble, noted, mirrored.records, "mirrored by its own note, partition"),
        )
        hops.append(hop)
    return hops, together


def _mirror_hop(topic: str, arrived: TopicCounts, together: TopicCounts, sources: list[Hop]) -> Hop:
    hop = Hop(f"aggregate {topic}", arrived.total, together.total, partitions=_by_partition(arrived))
    hop.unreadable = arrived.unreadable
    limits = _limits(arrived) or next((f"{source.name}: {source.note}" for source in sources if source.note), "")

    def compare() -> str:
        minutes = BUCKET_MS // 60_000
        return _trouble(arrived.records, together.records, "partition") or _trouble(
            arrived.buckets, together.buckets, f"{minutes} minutes from", _bucket
        )

    hop.conclude(_damage(arrived), limits, compare)
    return hop


async def _dedupe_hop(
    config: Config, snapshot: Snapshot, arrived: TopicCounts, progress: Callable[[int], None]
) -> tuple[Hop, Hop]:
    """What dedupe has read of its input, and what it wrote; the rest is dropped by its own committed counters, or moved
    into another partition of a topic that it reads, too."""
    target, topic, output = config["bootstrap.servers"], job.input_topic(config), job.output_topic(config)
    (marks,) = snapshot.dedupe.marks.values()
    read = await count_topic(target, topic, {partition: mark.offset for partition, mark in marks.items()}, progress)
    written = await count_topic(target, output, snapshot.dedupe.ends, progress)
    moved, still_moving = TopicCounts(), 0
    if snapshot.dedupe.moved:
        reached = {partition: mark.offset for partition, mark in snapshot.dedupe.moved.items()}
        moved = await count_topic(target, job.moved_topic(topic), reached, progress)
        still_moving = sum(mark.counters.get("moved", 0) for mark in marks.values()) - moved.total
    before = Hop(f"read by {config['penstock.dedupe.name']}", read.total,
                 waiting=arrived.total - read.total + max(0, still_moving), partitions=_by_partition(read))  # fmt: skip
    dropped = Counter({p: read.records[p] + moved.records[p] - written.records[p] for p in read.ends})
    noted, gone = Counter[int](), Counter[int]()
    for by_partition in (marks, snapshot.dedupe.moved):
        for partition, mark in by_partition.items():
            left_out = mark.counters.get("dropped", 0) + mark.counters.get("quarantined", 0)
            gone[partition] += left_out
            noted[partition] += left_out + mark.counters.get("moved", 0)
    hop = Hop(
        f"aggregate {output}",
        written.total,
        read.total + moved.total - noted.total(),
        gone.total(),
        partitions=_by_partition(written),
    )
    hop.unreadable = written.unreadable
    hop.conclude(_damage(written), _limits(read, moved, written), lambda: _trouble(dropped, noted, "dropped in partition"))
    before.conclude("; ".join([*_short(read), *_short(moved)]), "", str)
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


async def _table_hop(config: Config, loaded: Loaded, written: Hop, progress: Callable[[int], None]) -> Hop:
    """The table's rows, counted from its files, against the records of the ranges that its commits name."""
    path, topic = config["penstock.etl.table"], job.etl_topic(config)
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
    counted = await count_topic(config["bootstrap.servers"], topic, ends, progress)
    found = Counter({partition: count for (_, partition), count in by_partition.items()})
    hop = Hop(f"table {Path(path).name}", found.total(), counted.total - rejects.total(), rejects.total(),
              waiting=written.records - counted.total, partitions={str(p): found[p] for p in sorted(ends)})  # fmt: skip
    # The table's own rows are compared with its ledger, whatever is left of the topic.
    lost = _trouble(found, rows, "rows of partition")
    damage = "; ".join([*_short(counted), *([lost] if lost else [])])
    hop.conclude(
        damage,
        _limits(counted),
        lambda: "" if lost else _trouble(rows + rejects, +counted.records, "loaded of partition"),
    )
    return hop


async def audit(config: Config, progress: Callable[[int], None] = lambda records: None) -> dict[str, Any]:
    """Count every hop.

    The answer has `hops` (dictionaries of Hop's fields), `parts_at` (the first hop whose count parts from the one
    before it, or None), `findings` (the batches that can't be read, by hop), `untold` (the hops of which nothing can be
    told), `not_audited` (topics that are mirrored, and aren't the one that the nights load) and `complete` (no hop parts, all
    could be told of, and nothing waits). Raises KafkaError, EtlError, MovingError.
    """
    # The table first, then stage by stage towards the sources: nothing may seem to be ahead of what it came from.
    loaded = await asyncio.to_thread(_loaded, places.at(config["penstock.etl.table"], config))
    snapshot = await take(config)
    topic = job.input_topic(config)
    hops, together = await _source_hops(config, snapshot, progress)
    arrived = await count_topic(config["bootstrap.servers"], topic, snapshot.mirror.ends, progress)
    hops.append(_mirror_hop(topic, arrived, together, hops))
    before, written = await _dedupe_hop(config, snapshot, arrived, progress)
    hops += [before, written, await _table_hop(config, loaded, written, progress)]
    parts_at = next((hop.name for hop in hops if hop.trouble), None)
    others = [name for name in config["topics"] if name != topic]
    untold = [hop.name for hop in hops if hop.note]
    return {
        "hops": [asdict(hop) for hop in hops],
        "parts_at": parts_at,
        "findings": [{"hop": hop.name, **asdict(one)} for hop in hops for one in hop.unreadable],
        "untold": untold,
        "not_audited": others,
        "complete": parts_at is None and not untold and not any(hop.waiting for hop in hops),
    }
