"""Which records of some batches go on: batches are opened, ids looked up, repeats left out, batches rebuilt if need be.
A record whose id belongs into another partition goes there.

Everything here is work for a thread of its own: nothing waits, and the GIL is released around what costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.dedupe.ids import IdSource
from penstock.dedupe.movedtopic import by_home
from penstock.dedupe.opening import join, open_batches
from penstock.dedupe.quarantine import records_aside
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages.batches import prepare
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.ids.place import homes
from penstock.pyx.ids.store import IdStore
from penstock.pyx.record.columns import Column, keep
from penstock.pyx.record.rawbatch import BatchError, RawBatch

WithoutId = Literal["pass", "stop", "quarantine"]
Misplaced = Literal["move", "pass", "stop"]


@dataclass(frozen=True)
class Rules:
    """How the batches of one input partition are sifted; `max_batch_bytes` is what the output takes.

    `partitions`: how many the input has (0: where an id belongs isn't looked at). `were_moved`: its records came from other
    partitions, and none is moved twice.
    """

    tp: TopicPartition
    source: IdSource
    max_batch_bytes: int
    without_id: WithoutId = "pass"
    misplaced: Misplaced = "pass"
    partitions: int = 0
    were_moved: bool = False


@dataclass
class Sifted:
    """What some input batches came to.

    `batches` go on, untouched where nothing was dropped. `ids` are those of all records read that stay here (their union with
    what the store has is what it must have afterwards). `corrupt` batches could not be opened. `aside` are batches for the
    quarantine topic, of the `set_aside` records. `misplaced` ids belong into another partition, `misplaced_at` is the
    offset of the first; `moved` are batches of those that go there, by partition, `moved_records` how many records they have.

    read = written + dropped + set_aside + moved_records.
    """

    batches: list[RawBatch]
    ids: Column
    moved: dict[int, list[RawBatch]] = field(default_factory=dict)
    moved_records: int = 0
    corrupt: list[RawBatch] = field(default_factory=list)
    aside: list[RawBatch] = field(default_factory=list)
    set_aside: int = 0
    read: int = 0
    written: int = 0
    dropped: int = 0
    without_id: int = 0
    misplaced: int = 0
    misplaced_at: int = -1


def sift(batches: Sequence[RawBatch], position: int, store: IdStore, rules: Rules) -> Sifted:
    """Sift batches of one input partition; records below `position` were read before and are left out uncounted.

    The store is read, not written. Raises RocksError, and OperatorNeeded for a record that no output batch can hold or
    that has no id where each must have one, or whose id belongs into another partition where none may.
    """
    corrupt: list[RawBatch] = []
    set_aside: list[RawBatch] = []
    sound: list[RawBatch] = []
    counts: list[int] = []
    columns: list[Column] = []
    places = [np.empty(0, np.int32)]
    misplaced_count, misplaced_at = 0, -1
    for group, records in open_batches(_modern(batches, position, rules.max_batch_bytes, corrupt), corrupt):
        sound += group
        counts += np.bincount(records.batch_index, minlength=len(group)).tolist()
        columns.append(join([rules.source.column(records)]))
        places.append(_homes(columns[-1], rules))
        elsewhere = np.flatnonzero(_away(places[-1], rules))
        if len(elsewhere):
            misplaced_at = misplaced_at if misplaced_count else int(records.offsets[elsewhere[0]])
            misplaced_count += len(elsewhere)
            if rules.misplaced == "stop":
                ways = "" if rules.were_moved else "move` sends them there, `"
                raise OperatorNeeded(
                    f"the id of the record at offset {misplaced_at} of `{rules.tp[0]}` belongs into another partition by "
                    "Kafka's murmur2, where its repeats are looked for: mend its producer; until such records are read "
                    f"`penstock.dedupe.misplaced={ways}pass` lets them through"
                )
        without = np.flatnonzero(columns[-1].null)
        if rules.without_id == "stop" and len(without):
            raise OperatorNeeded(
                f"the record at offset {records.offsets[without[0]]} has no id ({rules.source}): set "
                "`penstock.dedupe.without.id` to `quarantine` to keep such records aside, or to `pass` to let them through"
            )
        if rules.without_id == "quarantine":
            set_aside += records_aside(records, without, rules.tp, f"no id ({rules.source})")
    ids, home = join(columns), np.concatenate(places)
    fresh = store.unseen(ids.data, ids.starts, ids.null)
    without_id = int(np.count_nonzero(ids.null))
    if rules.without_id == "quarantine":
        fresh &= ~ids.null
    moving = np.zeros_like(fresh)
    if rules.misplaced == "move":
        away = _away(home, rules)
        moving = fresh & away
        fresh &= ~away
        ids = ids._replace(null=ids.null | away)  # the partition that they go to notes them
    read, written, moved = len(fresh), int(np.count_nonzero(fresh)), int(np.count_nonzero(moving))
    aside_count = without_id if rules.without_id == "quarantine" else 0
    kept: list[RawBatch] = []
    start = 0
    for batch, count in zip(sound, counts, strict=True):
        mask = fresh[start : start + count]
        start += count
        if mask.all():
            kept.append(batch)
        elif mask.any():
            kept.append(RawBatch(keep(batch, mask, append_time=True)))
    return Sifted(
        batches=prepare(kept, 0, rules.max_batch_bytes).batches,
        ids=ids,
        moved=by_home(sound, counts, moving, home, rules.max_batch_bytes) if moved else {},
        moved_records=moved,
        corrupt=corrupt,
        aside=set_aside,
        set_aside=aside_count,
        read=read,
        written=written,
        dropped=read - written - moved - aside_count,
        without_id=without_id,
        misplaced=misplaced_count,
        misplaced_at=misplaced_at,
    )


def _homes(ids: Column, rules: Rules) -> npt.NDArray[np.int32]:
    """The partition that each record's id belongs into; -1 for those that may be anywhere."""
    if not rules.partitions:
        return np.full(len(ids.null), -1, np.int32)
    return homes(*ids, rules.partitions)


def _away(home: npt.NDArray[np.int32], rules: Rules) -> npt.NDArray[np.bool_]:
    """Which records' ids belong into another partition."""
    elsewhere: npt.NDArray[np.bool_] = (home >= 0) & (home != rules.tp[1])
    return elsewhere


def _modern(batches: Sequence[RawBatch], position: int, max_batch_bytes: int, corrupt: list[RawBatch]) -> list[RawBatch]:
    """The batches; those of magic 0 and 1, and one that begins below the position, are rebuilt."""
    modern: list[RawBatch] = []
    for batch in batches:
        if batch.magic == 2 and batch.base_offset >= position:
            modern.append(batch)
            continue
        try:
            modern += prepare([batch], position, max_batch_bytes).batches
        except BatchError:
            corrupt.append(batch)
    return modern
