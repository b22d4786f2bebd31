"""Partitions on a page: how many there are in which state, and, as long as they are few enough, each one's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.configs.topicconfig import topic_value
from penstock.broker.context import Context
from penstock.broker.logs.logdirs import Key
from penstock.broker.metrics.bounds import ROWS_MAX, Bounds, Row, row_bytes
from penstock.broker.metrics.families import (
    AT_MIN_ISR,
    AT_MIN_ISR_COUNT,
    CURRENT_OFFSET,
    GLOBAL_PARTITIONS,
    GLOBAL_TOPICS,
    IMBALANCE,
    IN_SYNC,
    LEADER_COUNT,
    LEADER_IS_PREFERRED,
    LOG_END,
    LOG_SIZE,
    LOG_START,
    OFFLINE_PARTITIONS,
    OFFLINE_REPLICAS,
    OLDEST_OFFSET,
    PARTITION_COUNT,
    REPLICAS,
    REPLICAS_COUNT,
    UNDER_MIN_ISR,
    UNDER_MIN_ISR_COUNT,
    UNDER_REPLICATED,
    UNDER_REPLICATED_COUNT,
)
from penstock.broker.topic import PartitionState
from penstock.broker.turns import Turns
from penstock.metrics import Family, Page, labels_text, one

LogFigures = tuple[int, int, int]
"""Bytes, first offset, end."""
OF_LOGS = ((LOG_END, 2), (LOG_SIZE, 0), (LOG_START, 1), (CURRENT_OFFSET, 2), (OLDEST_OFFSET, 1))
"""Families of each partition's log, the most useful first, with the place of their figure in LogFigures."""
OF_COPIES = (
    UNDER_REPLICATED, IN_SYNC, UNDER_MIN_ISR, AT_MIN_ISR, REPLICAS, REPLICAS_COUNT, LEADER_IS_PREFERRED,
)  # fmt: skip


@dataclass
class Counts:
    """Partitions by their state, and the bytes of each log folder's."""

    partitions: int = 0
    led: int = 0
    offline: int = 0
    opening: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    led_by_another: int = 0
    folder_bytes: dict[str, int] = field(default_factory=dict)


class PartitionGatherer:
    """Partitions on a page."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._labels: dict[Key, str] = {}

    async def write(self, page: Page, bounds: Bounds, logs: Mapping[Key, LogFigures], turns: Turns) -> Counts:
        """All families of partitions; `logs` are the open ones. Answers what was counted."""
        context, counts = self._context, Counts()
        wanted: str = context.config["penstock.metrics.partitions"]
        count = context.topics.partition_count()
        is_each = wanted == "true" or (wanted == "auto" and count <= ROWS_MAX)
        keys: list[Key] = []
        copies: list[tuple[int, ...]] = []
        topics = list(context.topics.all())
        for topic in topics:
            await turns.take()
            min_isr = topic_value(context.config, topic.configs, "min.insync.replicas")
            for state in topic.partitions:
                key = (topic.name, state.index)
                row = _judged(state, min_isr)
                _count(counts, state, row)
                if (log_dir := context.dirs.of(key)) is not None and (figures := logs.get(key)) is not None:
                    path = str(log_dir.path)
                    counts.folder_bytes[path] = counts.folder_bytes.get(path, 0) + figures[0]
                if is_each:
                    keys.append(key)
                    copies.append(row)
        await self._write_each(page, bounds, keys, copies, logs, wanted == "true", turns)
        if not is_each:
            for family in (*(family for family, _ in OF_LOGS), *OF_COPIES):
                bounds.drop(family, count)
        _write_counts(page, counts, len(topics))
        return counts

    async def _write_each(
        self,
        page: Page,
        bounds: Bounds,
        keys: Sequence[Key],
        copies: Sequence[tuple[int, ...]],
        logs: Mapping[Key, LogFigures],
        is_forced: bool,
        turns: Turns,
    ) -> None:
        """Each partition's figures: a family as a whole, or not at all."""
        before, self._labels = self._labels, {}
        for key in keys:
            await turns.take()
            self._labels[key] = before.get(key) or labels_text(LOG_SIZE, (key[0], str(key[1])))
        labels = self._labels
        for family, at in OF_LOGS:
            await turns.take()
            self._put(page, bounds, family, [(labels[key], logs[key][at]) for key in keys if key in logs], is_forced)
        for at, family in enumerate(OF_COPIES):
            await turns.take()
            self._put(page, bounds, family, zip(labels.values(), (row[at] for row in copies), strict=True), is_forced)

    def _put(self, page: Page, bounds: Bounds, family: Family, rows: Iterable[Row], is_forced: bool) -> None:
        page.family(family)
        rows = list(rows)
        size = sum(row_bytes(family, labels) for labels, _ in rows)
        if not is_forced and size > bounds.left_bytes:
            bounds.drop(family, len(rows))
            return
        bounds.left_bytes -= size
        page.samples(rows)


def _judged(state: PartitionState, min_isr: int) -> tuple[int, ...]:
    """A partition's figures in the order of OF_COPIES."""
    copies = len(state.replicas)
    in_sync = 0 if state.offline else len(state.isr)
    preferred = state.leader_for_clients == state.replicas[0]
    return (int(in_sync < copies), in_sync, int(in_sync < min_isr), int(in_sync == min_isr), copies, copies, int(preferred))


def _count(counts: Counts, state: PartitionState, row: tuple[int, ...]) -> None:
    counts.partitions += 1
    counts.offline += state.offline
    counts.led += state.leader >= 0 and not state.offline
    counts.opening += state.leader < 0 and not state.offline
    counts.under_replicated += row[0]
    counts.under_min_isr += row[2]
    counts.at_min_isr += row[3]
    counts.led_by_another += not state.offline and not row[6]


def _write_counts(page: Page, counts: Counts, topics: int) -> None:
    for family, number in (
        (PARTITION_COUNT, counts.partitions),
        (LEADER_COUNT, counts.led),
        (UNDER_REPLICATED_COUNT, counts.under_replicated),
        (UNDER_MIN_ISR_COUNT, counts.under_min_isr),
        (AT_MIN_ISR_COUNT, counts.at_min_isr),
        (OFFLINE_REPLICAS, counts.offline),
        (OFFLINE_PARTITIONS, counts.offline),
        (GLOBAL_TOPICS, topics),
        (GLOBAL_PARTITIONS, counts.partitions),
        (IMBALANCE, counts.led_by_another),
    ):
        one(page, family, number)
