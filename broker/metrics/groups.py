"""Consumer groups on a page: those that are furthest behind first."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.context import Context
from penstock.broker.coordination.grouplag import GroupLag, lag
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.metrics.bounds import ROWS_MAX, Bounds
from penstock.broker.metrics.families import (
    GROUP_LAG,
    GROUP_LAG_ESTIMATED,
    GROUP_LAG_SECONDS,
    GROUP_LAG_SUM,
    GROUP_MEMBERS,
    GROUP_OFFSET,
)
from penstock.broker.metrics.partitions import LogFigures
from penstock.broker.turns import Turns
from penstock.metrics import Page, labels_text

EACH_BYTES, SUMS_BYTES, MEMBERS_BYTES = 200_000, 80_000, 60_000
OF_PARTITION = (GROUP_LAG, GROUP_OFFSET, GROUP_LAG_SECONDS, GROUP_LAG_ESTIMATED)


class GroupGatherer:
    """Groups on a page."""

    def __init__(self, context: Context, group_lag: GroupLag) -> None:
        self._context = context
        self._group_lag = group_lag

    async def write(self, page: Page, bounds: Bounds, logs: Mapping[TopicPartition, LogFigures], turns: Turns) -> None:
        """All families of groups; `logs` are the open ones."""
        rows: list[tuple[int, str, TopicPartition, int]] = []  # lag, group, partition, committed offset
        sums: dict[tuple[str, str], int] = {}
        members: dict[tuple[str], int] = {}
        for name in list(self._context.groups.entries):
            await turns.take()
            group = self._context.groups.find(name)
            if group is None or group.dead:
                continue
            members[name,] = len(group.members)
            for key, offset in self._group_lag.committed(name):
                if (log := logs.get(key)) is None:
                    continue  # It isn't open, or its topic was deleted.
                behind = lag(offset, log[1], log[2])
                rows.append((behind, name, key, offset))
                sums[name, key[0]] = sums.get((name, key[0]), 0) + behind
        await turns.take()
        rows.sort(reverse=True)
        await self._write_each(page, bounds, rows, turns)
        await turns.take()
        bounds.write_largest(page, GROUP_LAG_SUM, sums.items(), SUMS_BYTES)
        await turns.take()
        bounds.write_largest(page, GROUP_MEMBERS, members.items(), MEMBERS_BYTES)

    async def _write_each(
        self, page: Page, bounds: Bounds, rows: list[tuple[int, str, TopicPartition, int]], turns: Turns
    ) -> None:
        config = self._context.config["penstock.metrics.partitions"]
        shown = [] if config == "false" else rows if config == "true" else rows[:ROWS_MAX]
        labels = []
        for _, name, (topic, partition), _ in shown:
            await turns.take()
            labels.append(labels_text(GROUP_LAG, (name, topic, str(partition))))
        wanted = 0 if config == "false" else len(rows)
        count = len(labels) if config == "true" else bounds.fitting(OF_PARTITION, labels, EACH_BYTES, wanted)
        each = list(zip(labels[:count], shown[:count], strict=True))
        page.family(GROUP_LAG)
        page.samples([(text, behind) for text, (behind, *_) in each])
        page.family(GROUP_OFFSET)
        page.samples([(text, offset) for text, (*_, offset) in each])
        ages = []
        for text, (behind, name, key, offset) in each:
            await turns.take()
            if (age := self._group_lag.seconds(name, key, offset, behind)) is not None:
                ages.append((text, age))
        page.family(GROUP_LAG_SECONDS)
        page.samples([(text, seconds) for text, (seconds, _) in ages])
        page.family(GROUP_LAG_ESTIMATED)
        page.samples([(text, int(not is_exact)) for text, (_, is_exact) in ages])
