"""How far groups are behind, in records and in seconds, as the broker itself knows it.

In records: from the committed offset to the log's end (the high watermark, also where transactions are open), clamped at the
log's start: what retention took isn't there to be read. In seconds: how old the first batch is that a group has not read. Its
time is looked up in the log every 15 s, for groups that are behind, as long as the page cache has the batch; else the newest
time of its segment stands for it. A batch that is stamped in the future has waited for as long as it has been known, at least.
Each log folder has a thread for that, so a disk that hangs holds up its own figures alone.

Groups of the mirror hold offsets of another cluster, which say nothing of a log here: they have no lag.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker import tasks
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.turns import Turns
from penstock.errors import KafkaError
from penstock.groupnames import MIRROR_GROUPS
from penstock.pyx.log.logmanager import LogManager

EVERY_S = 15.0
LOOK_UPS_MAX = 2_000
"""Of a round; the next one goes on where it ended."""
LOOK_UPS_AT_ONCE = 100
SKEW_MS = 1_000
"""By so much a producer's clock may be ahead of this one without being wrong."""
PATIENCE_S = 5.0
"""How long a round waits for the look-ups in a folder."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Unread(NamedTuple):
    """The first batch that a group has not read in a partition."""

    offset: int  # the group's committed one
    timestamp_ms: int
    is_exact: bool
    seen_ms: int  # when it was looked up
    since_ms: int  # when it was first: at least so long the group has stood before it


def lag(offset: int, log_start: int, log_end: int) -> int:
    """Records from a committed offset to the end of what the log has."""
    return max(0, log_end - max(offset, log_start))


class GroupLag(tasks.Background):
    """Of one broker's groups, from `start`, which makes the first round at once, to `stop`. On the loop."""

    NAME = "group lag"

    def __init__(
        self, groups: GroupCoordinator, logs: LogManager, folder_of: Callable[[TopicPartition], str], now_ms: Callable[[], int]
    ) -> None:
        self._groups = groups
        self._logs = logs
        self._folder_of = folder_of
        self._now_ms = now_ms
        self._threads = FolderThreads("group-lag", 1)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._unread: dict[tuple[str, TopicPartition], Unread] = {}
        self._last = ""  # group up to which the last round came

    async def stop(self) -> None:
        """End; a thread that hangs is left behind."""
        await tasks.end(self._task, *self._under_way.values())
        self._threads.leave()

    def committed(self, name: str) -> list[tuple[TopicPartition, int]]:
        """What a group has committed, of partitions here."""
        group = self._groups.find(name)
        if group is None or group.dead or name.startswith(MIRROR_GROUPS):
            return []
        return [(key, one.offset) for key, one in group.offsets.committed.items()]

    def seconds(self, group: str, key: TopicPartition, offset: int, behind: int) -> tuple[float, bool] | None:
        """How old the first unread batch is, and whether that is exact; None: nobody knows. `offset`: the group's committed
        one now, `behind`: its lag in records."""
        if not behind:
            return 0.0, True
        found = self._unread.get((group, key))
        if found is None:
            return None
        # A group that has gone on since is as far behind as it was then, for all that is known.
        until_ms = self._now_ms() if found.offset == offset else found.seen_ms
        if found.timestamp_ms > until_ms + SKEW_MS:
            return max(0, until_ms - found.since_ms) / 1000, False
        return max(0, until_ms - found.timestamp_ms) / 1000, found.is_exact

    async def _run(self) -> None:
        while True:
            await self._round()
            await asyncio.sleep(EVERY_S)

    async def _round(self) -> None:
        turns = Turns()
        wanted: dict[Place, list[tuple[str, int]]] = {}  # groups and their committed offsets, by place
        behind: set[tuple[str, TopicPartition]] = set()
        names = sorted(self._groups.entries)
        first = next((at for at, name in enumerate(names) if name > self._last), 0)
        last = self._last
        async for name in turns.each(itertools.chain(names[first:], names[:first])):
            for key, offset in self.committed(name):
                try:
                    where = self._logs.offsets(*key)
                except KafkaError:
                    continue  # It isn't open, or was deleted.
                if not lag(offset, where.log_start, where.high_watermark):
                    continue
                behind.add((name, key))
                known = self._unread.get((name, key))
                place = (*key, max(offset, where.log_start))
                if known is not None and known.offset == offset and known.is_exact and offset >= where.log_start:
                    continue
                if place in wanted or len(wanted) < LOOK_UPS_MAX:
                    wanted.setdefault(place, []).append((name, offset))
                    last = name
        self._last = last
        self._unread = {which: found for which, found in self._unread.items() if which in behind}
        by_folder: dict[str, list[Place]] = {}
        for place in wanted:
            by_folder.setdefault(self._folder_of(place[:2]), []).append(place)
        for folder, places in by_folder.items():
            if folder not in self._under_way:
                self._under_way[folder] = tasks.start(self._look_up(folder, places, wanted), f"group lag {folder}")
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=PATIENCE_S)

    async def _look_up(self, folder: str, places: list[Place], wanted: dict[Place, list[tuple[str, int]]]) -> None:
        try:
            for at in range(0, len(places), LOOK_UPS_AT_ONCE):
                some = places[at : at + LOOK_UPS_AT_ONCE]
                times = await self._threads.run(folder, self._logs.batch_times, some)
                now_ms = self._now_ms()
                for place, found in zip(some, times, strict=True):
                    for name, offset in wanted[place]:
                        if found is not None:
                            known = self._unread.get((name, place[:2]))
                            since_ms = known.since_ms if known is not None and known.offset == offset else now_ms
                            self._unread[name, place[:2]] = Unread(offset, *found, now_ms, since_ms)
                        else:
                            self._unread.pop((name, place[:2]), None)
        finally:
            del self._under_way[folder]
