"""Partitions on a page: how many there are in which state, and, as long as they are few enough, each one's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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

EACH_BYTES = 2_500_000
"""Of series by partition, beside all else on the page. `ROWS_MAX` partitions with names of usual lengths fit."""

LogFigures = tuple[int, int, int]
"""Bytes, first offset, end."""
OF_LOGS = ((LOG_END, 2), (LOG_SIZE, 0), (LOG_START, 1), (CURRENT_OFFSET, 2), (OLDEST_OFFSET, 1))
"""Families of each partition's log, the most useful first, with the place of their figure in LogFigures."""
OF_LEADERS = frozenset({CURRENT_OFFSET, OLDEST_OFFSET})
"""Those that one broker of a cluster has of a partition."""
MIN_ISR = "min.insync.replicas"
OF_COPIES = (
    UNDER_REPLICATED, IN_SYNC, UNDER_MIN_ISR, AT_MIN_ISR, REPLICAS, REPLICAS_COUNT, LEADER_IS_PREFERRED,
)  # fmt: skip


class State(NamedTuple):
    """What matters of a partition here; most partitions have the same."""

    is_offline: bool  # nobody can serve it
    is_lost: bool  # the copy of this broker
    holds: bool  # it has a copy
    leads: bool
    speaks: bool  # what is said of the partition it says: it leads, or nobody does and it is the controller
    copies: int
    in_sync: int
    min_isr: int
    is_preferred: bool


def _figures(state: State) -> tuple[int, ...]:
    """A partition's figures in the order of OF_COPIES."""
    in_sync = 0 if state.is_offline else state.in_sync
    is_short, is_below, is_at = in_sync < state.copies, in_sync < state.min_isr, in_sync == state.min_isr
    return (int(is_short), in_sync, int(is_below), int(is_at), state.copies, state.copies, int(state.is_preferred))


class PartitionGatherer:
    """Partitions on a page."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._labels: dict[Key, str] = {}

    async def write(self, page: Page, bounds: Bounds, logs: Mapping[Key, LogFigures], turns: Turns) -> dict[str, int]:
        """All families of partitions; `logs` are the open ones. Answers the bytes of each log folder's."""
        context = self._context
        wanted: str = context.config["penstock.metrics.partitions"]
        is_controller = context.replication.is_controller
        keys: list[Key] = []
        states: list[State] = []
        counts: Counter[State] = Counter()
        folder_bytes: Counter[Path] = Counter()
        everywhere = topic_value(context.config, {}, MIN_ISR)
        topics = list(context.topics.all())
        for topic in topics:
            await turns.take()
            min_isr = topic_value(context.config, topic.configs, MIN_ISR) if MIN_ISR in topic.configs else everywhere
            for partition in topic.partitions:
                key = (topic.name, partition.index)
                # No more than there are copies: producers with acks=all are refused by that.
                state = _state(partition, context.node_id, min(min_isr, len(partition.replicas)), is_controller)
                counts[state] += 1
                if (log_dir := context.dirs.of(key)) is not None and (figures := logs.get(key)) is not None:
                    folder_bytes[log_dir.path] += figures[0]
                if state.speaks or state.holds:
                    keys.append(key)
                    states.append(state)
        if wanted == "false" or (wanted == "auto" and len(keys) > ROWS_MAX):
            if wanted == "auto":
                for family in (*(family for family, _ in OF_LOGS), *OF_COPIES):
                    bounds.drop(family, len(keys))
            keys, states = [], []
        await self._write_each(page, bounds, keys, states, logs, wanted == "true", turns)
        _write_counts(page, counts, len(topics), is_controller)
        return {str(path): size for path, size in folder_bytes.items()}

    async def _write_each(
        self,
        page: Page,
        bounds: Bounds,
        keys: Sequence[Key],
        states: Sequence[State],
        logs: Mapping[Key, LogFigures],
        is_forced: bool,
        turns: Turns,
    ) -> None:
        """Each partition's figures: a family as a whole, or not at all."""
        bounds = Bounds(EACH_BYTES, bounds.dropped)
        before, self._labels = self._labels, {}
        for key in keys:
            await turns.take()
            self._labels[key] = before.get(key) or labels_text(LOG_SIZE, (key[0], str(key[1])))
        labels = self._labels
        led = {key for key, state in zip(keys, states, strict=True) if state.leads}
        for family, at in OF_LOGS:
            await turns.take()
            shown = [key for key in keys if key in logs and (key in led or family not in OF_LEADERS)]
            self._put(page, bounds, family, [(labels[key], logs[key][at]) for key in shown], is_forced)
        spoken = [(labels[key], _figures(state)) for key, state in zip(keys, states, strict=True) if state.speaks]
        for at, family in enumerate(OF_COPIES):
            await turns.take()
            self._put(page, bounds, family, [(label, figures[at]) for label, figures in spoken], is_forced)

    def _put(self, page: Page, bounds: Bounds, family: Family, rows: Iterable[Row], is_forced: bool) -> None:
        page.family(family)
        rows = list(rows)
        size = sum(row_bytes(family, labels) for labels, _ in rows)
        if not is_forced and size > bounds.left_bytes:
            bounds.drop(family, len(rows))
            return
        bounds.left_bytes -= size
        page.samples(rows)


def _state(partition: PartitionState, node_id: int, min_isr: int, is_controller: bool) -> State:
    replicas, copies, in_sync = partition.replicas, len(partition.replicas), len(partition.isr)
    is_preferred = partition.leader_for_clients == replicas[0]
    if partition.away is None:  # One node.
        leads = partition.leader >= 0 and not partition.offline
        return State(partition.offline, partition.offline, True, leads, True, copies, in_sync, min_isr, is_preferred)
    is_offline, holds, leads = partition.leader < 0, node_id in replicas, partition.leader == node_id
    speaks = leads or (is_offline and is_controller)
    return State(is_offline, node_id in partition.away, holds, leads, speaks, copies, in_sync, min_isr, is_preferred)


def _write_counts(page: Page, counts: Mapping[State, int], topics: int, is_controller: bool) -> None:
    figures = {state: _figures(state) for state in counts}

    def total(fits: Callable[[State], bool]) -> int:
        return sum(count for state, count in counts.items() if fits(state))

    def alone(number: int) -> int:
        return number if is_controller else 0

    for family, number in (
        (PARTITION_COUNT, total(lambda state: state.holds)),
        (LEADER_COUNT, total(lambda state: state.leads)),
        (UNDER_REPLICATED_COUNT, total(lambda state: state.speaks and bool(figures[state][0]))),
        (UNDER_MIN_ISR_COUNT, total(lambda state: state.speaks and bool(figures[state][2]))),
        (AT_MIN_ISR_COUNT, total(lambda state: state.speaks and bool(figures[state][3]))),
        (OFFLINE_REPLICAS, total(lambda state: state.holds and state.is_lost)),
        (OFFLINE_PARTITIONS, alone(total(lambda state: state.is_offline))),
        (GLOBAL_TOPICS, alone(topics)),
        (GLOBAL_PARTITIONS, alone(total(lambda state: True))),
        (IMBALANCE, alone(total(lambda state: not state.is_offline and not state.is_preferred))),
    ):
        one(page, family, number)
