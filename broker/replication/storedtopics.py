"""The topics of the store, as a controller follows them: new ones, those that grow, go, or get other configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import Out
from penstock.broker.cluster.messages import Partition
from penstock.broker.cluster.planning import PartitionImage
from penstock.broker.replication.pictures import Pictures
from penstock.broker.replication.reading import MAY_LOSE, MIN_ISR, StoredTopic, read_states, read_topics
from penstock.broker.replication.termevents import TermEvents
from penstock.broker.store.base import Event, Store, paths


class StoredTopics:
    """Of one term."""

    def __init__(self, events: TermEvents, store: Store, config: Mapping[str, Any], pictures: Pictures) -> None:
        self._events = events
        self._controller = events.controller
        self._store = store
        self._config = config
        self._pictures = pictures
        self.by_name: dict[str, StoredTopic] = {}
        self._removed: set[bytes] = set()
        """The ids of topics that were removed since the last look at topics began: that one may still have seen them."""

    async def begin(self) -> dict[Partition, PartitionImage]:
        """Read all topics; what the store has of their partitions. `begin_look` and `end_look` stand around it. Raises
        StoreError."""
        self.by_name = await self._read_all()
        return await read_states(self._store, list(self.by_name.values()), self._patience_ms)

    def look(self, _: str = "", __: Event = Event.CHANGED) -> None:
        """Read the topics again: one of them has changed, there is a new one, or configs are others."""
        self._events.look_again("topics", self._read)

    def begin_look(self) -> None:
        """Nobody else looks until `end_look`."""
        self._events.begin_look("topics")

    def end_look(self) -> None:
        """What has changed meanwhile is looked at."""
        self._events.end_look("topics", self._read)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic; None: there is none with that id."""
        return next((topic.name for topic in self.by_name.values() if topic.topic_id == topic_id), None)

    def forget(self, name: str, topic: StoredTopic | None) -> None:
        """A topic was removed; None: there was none of the name."""
        if topic is not None:
            self._removed.add(topic.topic_id)
        self.by_name.pop(name, None)

    async def _read_all(self) -> dict[str, StoredTopic]:
        """All topics; a change of one of them, and a new one, is looked at."""
        given = {MAY_LOSE: str(self._config[MAY_LOSE]).lower(), MIN_ISR: str(self._config[MIN_ISR])}
        return await read_topics(self._store, self.look, await self._store.children(paths.TOPICS, self.look), given)

    @property
    def _patience_ms(self) -> int:
        patience_ms: int = self._config["unclean.recovery.timeout.ms"]
        return patience_ms

    async def _read(self) -> None:
        removed = self._removed = set()
        topics = {name: topic for name, topic in (await self._read_all()).items() if topic.topic_id not in removed}
        before = self.by_name
        changed = [topic for name, topic in topics.items() if before.get(name) != topic]
        gone = [topic for name, topic in before.items() if name not in topics or topics[name].topic_id != topic.topic_id]
        self.by_name = topics
        if gone:  # By an old tool, which told nobody.
            self._events.put(lambda: self._on_gone(gone))
        if changed:
            images = await read_states(self._store, changed, self._patience_ms)
            left = [topic for topic in changed if topic.topic_id not in removed]
            there = {partition: images[partition] for partition in partitions_of(left) if partition in images}
            self._events.put(lambda: self._on_changed(left, there))

    def _on_gone(self, topics: Sequence[StoredTopic]) -> Out:
        self._pictures.on_deleted({topic.name: topic.topic_id for topic in topics})
        return machine.on_deleted(self._controller, partitions_of(topics), self._events.clock())

    def _on_changed(self, topics: Sequence[StoredTopic], images: Mapping[Partition, PartitionImage]) -> Out:
        """Topics that are new, have grown, or have other configs."""
        now_ms = self._events.clock()
        out = machine.on_partitions(self._controller, images, now_ms)
        for topic in topics:
            for partition in partitions_of([topic]):
                image = self._controller.partitions.get(partition)
                if image is None:
                    continue
                may_lose = topic.may_lose(partition[1])
                # A write that is out may make the stored state another one: what is wanted after it counts, too.
                if {image.state.min_isr, image.min_isr} != {topic.min_isr} or image.may_lose != may_lose:
                    out += machine.on_wish(self._controller, partition, now_ms, min_isr=topic.min_isr, may_lose=may_lose)
        return out


def partitions_of(topics: Iterable[StoredTopic]) -> Sequence[Partition]:
    """All partitions of these topics."""
    return [(topic.name, index) for topic in topics for index in range(len(topic.replicas))]
