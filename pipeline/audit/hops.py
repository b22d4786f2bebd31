"""Each hop's count beside the one before it, and the first hop at which they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.pipeline import job
from penstock.pipeline.audit.counts import BUCKET_MS, TopicCounts, count_topic
from penstock.pipeline.audit.snapshot import Snapshot, take
from penstock.pipeline.etl.table import committed, rows_by_partition


@dataclass
class Hop:
    """One line of the audit.

    `records` is what was counted, `expected` what the hop before says that it should be (None: nothing to compare
    with), `waiting` what has not reached the next hop yet, `trouble` why the counts part, in words.
    """

    name: str
    records: int
    expected: int | None = None
    dropped: int = 0
    waiting: int = 0
    partitions: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


def _trouble(found: Counter[Any], expected: Counter[Any], unit: str) -> str:
    """Where two counts part, in words: the first three places."""
    places = sorted(key for key in found.keys() | expected.keys() if found[key] != expected[key])
    if not places:
        return ""
    shown = ", ".join(f"{unit} {key}: {found[key]:,} for {expected[key]:,}" for key in places[:3])
    return shown + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _by_partition(counts: TopicCounts) -> dict[str, int]:
    return {str(partition): counts.records[partition] for partition in sorted(counts.ends)}


async def _source_hops(
    config: Config, snapshot: Snapshot, progress: Callable[[int], None]
) -> tuple[list[Hop], TopicCounts]:
    """The sources' own counts up to the mirror's positions, and their sum."""
    topic, together, hops = job.input_topic(config), TopicCounts(), []
    for name, bootstrap in job.sources(config).items():
        whole = await count_topic(bootstrap, topic, on_progress=progress)
        marks = snapshot.mirror.marks[name]
        reached = {partition: mark.offset for partition, mark in marks.items()}
        mirrored = whole
        if any(reached.get(partition, 0) < end for partition, end in whole.ends.items()):
            mirrored = await count_topic(bootstrap, topic, reached, progress)
        together.records.update(mirrored.records)
        together.buckets.update(mirrored.buckets)
        hop = Hop(f"{name} {topic}", whole.total, waiting=whole.total - mirrored.total, partitions=_by_partition(whole))
        noted = Counter({partition: mark.counters.get("records", 0) for partition, mark in marks.items()})
        if any(whole.starts.values()):
            hop.trouble = (
                "" if sum(noted.values()) >= mirrored.total else _trouble(noted, mirrored.records, "partition")
            )
        else:
            hop.trouble = _trouble(noted, mirrored.records, "mirrored by its own note, partition")
        hops.append(hop)
    return hops, together


def _mirror_hop(topic: str, arrived: TopicCounts, together: TopicCounts) -> Hop:
    hop = Hop(f"aggregate {topic}", arrived.total, together.total, partitions=_by_partition(arrived))
    hop.trouble = _trouble(arrived.records, together.records, "partition")
    if not hop.trouble:
        minutes = BUCKET_MS // 60_000
        hop.trouble = _trouble(arrived.buckets, together.buckets, f"{minutes}-minute bucket")
    return hop


async def _dedupe_hop(
    config: Config, snapshot: Snapshot, arrived: TopicCounts, progress: Callable[[int], None]
) -> tuple[Hop, Hop]:
    """What dedupe has read of its input, and what it wrote; the rest is dropped by its own committed counters."""
    target, topic, output = config["bootstrap.servers"], job.input_topic(config), job.output_topic(config)
    (marks,) = snapshot.dedupe.marks.values()
    read = await count_topic(target, topic, {partition: mark.offset for partition, mark in marks.items()}, progress)
    written = await count_topic(target, output, snapshot.dedupe.ends, progress)
    before = Hop(f"read by {config['penstock.dedupe.name']}", read.total, waiting=arrived.total - read.total,
                 partitions=_by_partition(read))  # fmt: skip
    dropped = Counter({p: read.records[p] - written.records[p] for p in read.ends})
    noted = Counter(
        {p: mark.counters.get("dropped", 0) + mark.counters.get("quarantined", 0) for p, mark in marks.items()}
    )
    hop = Hop(
        f"aggregate {output}",
        written.total,
        read.total - noted.total(),
        noted.total(),
        partitions=_by_partition(written),
    )
    hop.trouble = _trouble(dropped, noted, "dropped in partition")
    return before, hop


async def _table_hop(config: Config, written: Hop, progress: Callable[[int], None]) -> Hop:
    """The table's rows, counted from its files, against the records of the ranges that its commits name."""
    path, topic = config["penstock.etl.table"], job.etl_topic(config)
    nights = committed(path)
    if not nights:
        return Hop(f"table {Path(path).name}", 0, waiting=written.records)
    ends: dict[int, int] = {}
    rows, rejects = Counter[int](), Counter[int]()
    for night in nights:
        for (_, partition), span in night.partitions.items():
            ends[partition] = max(ends.get(partition, 0), span.end)
            rows[partition] += span.rows
            rejects[partition] += span.rejects
    loaded = await count_topic(config["bootstrap.servers"], topic, ends, progress)
    found = Counter({partition: count for (_, partition), count in rows_by_partition(path).items()})
    hop = Hop(f"table {Path(path).name}", found.total(), loaded.total - rejects.total(), rejects.total(),
              waiting=written.records - loaded.total, partitions={str(p): found[p] for p in sorted(ends)})  # fmt: skip
    hop.trouble = _trouble(found, rows, "rows of partition") or _trouble(
        rows + rejects, +loaded.records, "loaded of partition"
    )
    return hop


async def audit(config: Config, progress: Callable[[int], None] = lambda records: None) -> dict[str, Any]:
    """Count every hop.

    The answer has `hops` (dictionaries of Hop's fields), `parts_at` (the first hop whose count parts from the one
    before it, or None) and `complete` (no hop parts, and nothing waits). Raises KafkaError, MovingError.
    """
    snapshot = await take(config)
    topic = job.input_topic(config)
    hops, together = await _source_hops(config, snapshot, progress)
    arrived = await count_topic(config["bootstrap.servers"], topic, snapshot.mirror.ends, progress)
    hops.append(_mirror_hop(topic, arrived, together))
    before, written = await _dedupe_hop(config, snapshot, arrived, progress)
    hops += [before, written, await _table_hop(config, written, progress)]
    parts_at = next((hop.name for hop in hops if hop.trouble), None)
    return {
        "hops": [asdict(hop) for hop in hops],
        "parts_at": parts_at,
        "complete": parts_at is None and not any(hop.waiting for hop in hops),
    }
