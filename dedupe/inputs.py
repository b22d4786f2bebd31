"""What a worker reads: its partition of the input topic, and that of the topic of moved records once there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import DedupePosition
from penstock.dedupe.settings import Settings
from penstock.dedupe.sift import Misplaced, Rules
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.job import moved_topic
from penstock.pipeline.stages import hints
from penstock.pipeline.stages.sourcelog import SourceLog
from penstock.pipeline.stages.stagetopics import find_moved_topic


@dataclass
class Input:
    """One log: how its records are judged, and where the worker stands in it."""

    tp: TopicPartition
    name: str
    log: SourceLog
    rules: Rules
    position: DedupePosition


def input_log(admin: Admin, own: TopicPartition, tp: TopicPartition) -> SourceLog:
    """The log of an input, read by the worker of a partition of its own, with an operator's ways on."""
    go_on = f"{hints.to_move(own)} says where to go on"
    lost, cut = f"{go_on}, once you know what is missing", f"{go_on}, once you know what is missing or there twice"
    return SourceLog(admin, tp, "input", lost, cut)


class Inputs:
    """`own` is the partition that the worker is of, `moved` that of moved records; iterated over, those that are read."""

    def __init__(self, tp: TopicPartition, settings: Settings, admin: Admin, source: IdSource) -> None:
        self._settings = settings
        self._admin = admin
        self._source = source
        self.own = self._input(tp, tp, "input topic", settings.misplaced)
        self.moved = self._moved(moved_topic(tp[0], settings.stage))

    def _moved(self, topic: str) -> Input:
        misplaced, own = self._settings.misplaced, self.own.tp
        # A moved record whose id belongs into yet another partition can't be moved once more: it stops the partition.
        misplaced = "stop" if misplaced == "move" else misplaced
        return self._input(own, (topic, own[1]), "topic of moved records", misplaced)

    def _input(self, own: TopicPartition, tp: TopicPartition, name: str, misplaced: Misplaced) -> Input:
        settings = self._settings
        rules = Rules(tp, self._source, settings.max_batch_bytes, settings.without_id, misplaced, were_moved=tp != own)
        return Input(tp, name, input_log(self._admin, own, tp), rules, DedupePosition(0, "", ""))

    def __iter__(self) -> Iterator[Input]:
        """Moved records are read from when the position notes their topic on."""
        yield self.own
        if self.own.position.moved_id:
            yield self.moved

    async def learn(self) -> None:
        """Take the positions that are committed. Raises OperatorNeeded for one that no worker wrote, KafkaError."""
        settings = self._settings
        topic = await find_moved_topic(self._admin, settings.group, settings.stage, self.own.tp[0])
        if topic != self.moved.tp[0]:
            self.moved = self._moved(topic)
        committed = await self._admin.committed(settings.group, [self.own.tp, self.moved.tp])
        for each in (self.own, self.moved):
            found = committed[each.tp]
            each.position = DedupePosition(0, "", "") if found is None else self._parse(each.tp, found)

    def _parse(self, tp: TopicPartition, found: tuple[int, str]) -> DedupePosition:
        return DedupePosition.parse(self._settings.group, tp, *found, self.own.tp)

    def to_commit(self, changed: Mapping[TopicPartition, DedupePosition]) -> dict[TopicPartition, tuple[int, str]]:
        """All positions that there are, with those that change: so none expires alone."""
        positions = {each.tp: each.position for each in self if each.position.topic_id} | dict(changed)
        if positions[self.own.tp].moved_id:
            positions.setdefault(self.moved.tp, self.moved.position)
        return {tp: (position.offset, position.by_us().metadata()) for tp, position in positions.items()}

    async def holder(self) -> str:
        """The process that committed the position last; empty where that isn't known. Raises OperatorNeeded, KafkaError."""
        found = (await self._admin.committed(self._settings.group, [self.own.tp], require_stable=False))[self.own.tp]
        return "" if found is None else self._parse(self.own.tp, found).process

    async def look(self) -> tuple[int, bool]:
        """The committed offset (the sum over what is read), and whether somebody has work there: input behind a position, or an
        input that ends before it, and nothing stopped it."""
        both = [self.own.tp, self.moved.tp]
        committed = await self._admin.committed(self._settings.group, both, require_stable=False)
        at, waits, stopped = 0, False, False
        for tp, found in committed.items():
            if found is not None:
                position = self._parse(tp, found)
                at += position.offset
                stopped |= bool(position.stopped)
                waits |= position.offset != await self._admin.end_offset(tp, "read_committed")
        return at, waits and not stopped
