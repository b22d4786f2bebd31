"""The topics of a cluster, as handlers see them.

A change goes into the store, by whichever broker was asked: it is the controller that then makes it true, and tells all brokers
(UpdateMetadata). So a change is done here once the controller's picture shows it, on each broker that lives: the client may
ask any of them next. The configs of topics are read from the store: when a topic is seen for the first time, and when a node
below `/config/changes` says that they are others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from penstock import log
from penstock.broker.cluster import metadata
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NOT_CREATED, LeaderAndIsr
from penstock.broker.cluster.messages import BEING_DELETED, LiveBroker, Partition, PartitionMetadata, UpdateMetadata
from penstock.broker.cluster.placement import place
from penstock.broker.configs.confignodes import ConfigNode, config_json, notification, read_node
from penstock.broker.configs.topicconfig import check_topic_configs, stored_configs
from penstock.broker.logs.logdirs import Key
from penstock.broker.replication.departures import Departures
from penstock.broker.replication.reading import read_one_state, read_one_topic
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    Check,
    Create,
    Event,
    NodeExistsError,
    NoNodeError,
    Set,
    Stat,
    Watch,
    paths,
    putting,
)
from penstock.broker.store.values import Fields
from penstock.broker.topic import PartitionState, Topic, partition_in
from penstock.broker.topics.changes import Topics, check_collision, stored
from penstock.broker.topics.nodes import topic_json
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode, KafkaError

SHOWN_S = 60.0
"""How long a change waits to be shown by a controller."""
CATCH_UP_S = 5.0
"""How long an answer waits for the picture, of a topic that another broker may have made or deleted a moment ago."""
TOLD_S = 5.0
"""How long a change waits for the other brokers, once this one shows it."""
LOOK_S = 0.01
"""How often they are asked meanwhile, at first."""
KEEPING = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The configs of a topic of which they can't be read: nothing of it is deleted by mistake."""

_log = log.get(__name__)


class Stored(NamedTuple):
    """What the store says of a topic: its id, its own configs, and the replicas of each partition."""

    topic_id: str
    configs: dict[str, str]
    replicas: list[list[int]]


class Prepared(NamedTuple):
    """What the store says for a picture: of topics that are new in it or have grown, and which of those shown are gone."""

    topics: Mapping[str, Stored]
    gone: Sequence[Topic]


class ClusterTopics(Topics):
    """All topics of the cluster, wherever their replicas lie."""

    live: Mapping[int, LiveBroker] = {}
    """The brokers of the controller's last picture."""
    controller = -1
    """The broker that sent it."""
    count_led: Callable[[int, bytes], Awaitable[int]]
    """How many partitions of a topic, by its id, another broker shows with a leader. Raises ConnectionError."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._shown = asyncio.Event()
        self.departures = Departures(self._leader_of)
        self.pictured = asyncio.Event()
        """Set once this broker has been told of all partitions."""
        self._told = metadata.Told()
        self._isolated: Collection[Partition] = ()
        self._coming: set[str] = set()
        """Topics that were made here, and aren't shown yet."""
        self.folder_lost: Callable[[str], None] = lambda path: None
        """Called with the path of a log folder that has failed."""
        self.taking = asyncio.Lock()
        """Held from reading what the store has of topics until that is shown: what was read before isn't shown over it."""
        self.deleted: Callable[[str], None] = lambda name: None
        """Called when a topic is seen no more, before one of its name can be seen."""
        self.led_uncleanly: Callable[[Collection[Partition]], None] = lambda partitions: None
        """Called when partitions are seen in which an unclean election was held that wasn't seen before."""
        self.brokers_changed: Callable[[], None] = lambda: None
        """Called when other brokers live, or the same ones elsewhere."""

    @property
    def brokers(self) -> list[int]:
        """The brokers that live."""
        return sorted(self.live)

    @property
    def racks(self) -> dict[int, str]:
        """Where brokers stand that say it."""
        return {broker: one.rack for broker, one in self.live.items() if one.rack is not None}

    async def until_live(self, brokers: AbstractSet[int]) -> None:
        """Wait until a controller's picture shows that all of these live."""
        await self._is_shown(lambda: self.controller >= 0 and brokers <= self.live.keys(), None)

    def is_overtaken(self, picture: UpdateMetadata) -> bool:
        """Whether the controller sent a picture before one that is shown."""
        return metadata.is_overtaken(self._told, picture)

    async def prepare(self, picture: UpdateMetadata) -> Prepared:
        """What the store says for a picture. Raises StoreError."""
        seen = _by_name(picture)
        new = [name for name, some in seen.items() if not self._is_known(name, some[0].topic_id) or self._has_grown(name, some)]
        if new:
            await self._store.sync()
        read = await asyncio.gather(*map(self._prepare, new))
        topics = {name: one for name, one in zip(new, read, strict=True) if one is not None}
        return Prepared(topics, await self._find_gone(picture))

    async def _find_gone(self, picture: UpdateMetadata) -> list[Topic]:
        """The shown topics that neither a picture of all topics nor the store has. A picture alone hides none of them:
        a controller may have been unable to read its node. Raises StoreError."""
        unnamed = metadata.find_unnamed(self._told, picture, list(self.names))
        if not unnamed:
            return []
        await self._store.sync()
        topics = [topic for topic in self.all() if topic.topic_id in unnamed]
        are_gone = await asyncio.gather(*map(self._is_gone, topics))
        return [topic for topic, is_gone in zip(topics, are_gone, strict=True) if is_gone]

    async def _is_gone(self, topic: Topic) -> bool:
        try:
            return await self._live_id(topic.name) != uuid_text(topic.topic_id)
        except BadValueError as error:
            _log.error("topic=%s stays as it is, though its controller names it no more: %s", topic.name, error.why)
            return False

    async def _prepare(self, name: str) -> Stored | None:
        found = await self._read_topic(name)
        if found is None:
            return None  # It was deleted meanwhile.
        partitions = found[0].table("partitions")
        return Stored(
            found[0].text("topic_id"),
            await self.read_configs(name),
            [list(partitions[key]) for key in sorted(partitions, key=int)],
        )

    def _has_grown(self, name: str, told: Sequence[PartitionMetadata]) -> bool:
        topic = self._by_name.get(name)
        return topic is not None and told[-1].partition[1] >= len(topic.partitions)

    def take(self, picture: UpdateMetadata, prepared: Prepared) -> None:
        """Show what the controller tells, with what `prepare` has read for it."""
        before = self.live
        self.live, self.controller = {one.broker: one for one in picture.brokers}, picture.controller
        gone = {broker: self._led_by(broker) for broker in before.keys() - self.live.keys() - {self._node_id}}
        if self.live != before:
            self.brokers_changed()
        for topic in prepared.gone:
            _log.warning("topic=%s was deleted while this broker heard nothing: it isn't shown any more", topic.name)
            self._hide_deleted(topic)
        known = {one.partition: self._unclean_epoch(one.partition, one.topic_id) for one in picture.partitions}
        for name, some in _by_name(picture).items():
            self._show(name, some, prepared.topics.get(name))
        self.departures.take(gone, self.live.keys())
        metadata.on_taken(self._told, picture)
        self.version += 1
        if picture.is_whole:
            self.pictured.set()
        self._wake()
        self.changed.set()
        self.led_uncleanly([one for one, epoch in known.items() if self._unclean_epoch(one) > epoch])

    def _unclean_epoch(self, partition: Partition, topic_id: bytes | None = None) -> int:
        """What is shown of a partition's newest unclean election. topic_id: of the topic that it is to be one of."""
        topic = self._by_name.get(partition[0])
        state = None if topic is not None and topic_id not in (None, topic.topic_id) else partition_in(topic, partition[1])
        return NO_EPOCH if state is None else state.unclean_epoch

    def _led_by(self, broker: int) -> list[Partition]:
        return [(topic.name, state.index) for topic in self.all() for state in topic.partitions if state.leader == broker]

    def _leader_of(self, partition: Partition) -> int | None:
        topic, index = self._by_name.get(partition[0]), partition[1]
        return None if topic is None or index >= len(topic.partitions) else topic.partitions[index].leader

    def _wake(self) -> None:
        """Have those look again who wait for something to be shown."""
        self._shown.set()
        self._shown = asyncio.Event()

    def _is_known(self, name: str, topic_id: bytes) -> bool:
        topic = self._by_name.get(name)
        return topic is not None and topic.topic_id == topic_id

    def _show(self, name: str, told: Sequence[PartitionMetadata], read: Stored | None) -> None:
        """A topic is shown with all its partitions from the first moment on: by a part of them keys would go elsewhere."""
        topic, (first, *_) = self._by_name.get(name), told
        if topic is not None and topic.topic_id != first.topic_id:
            if read is not None and read.topic_id == uuid_text(topic.topic_id):
                _log.warning("topic=%s stays as it is: its controller speaks of one that isn't there", name)
                return
            self._hide_deleted(topic)  # Deleted and made again since the last picture.
            topic = None
        if first.state.leader == BEING_DELETED:
            if topic is not None:
                self._hide_deleted(topic)
            return
        if read is not None and read.topic_id != uuid_text(first.topic_id):
            _log.warning("topic=%s isn't shown: the store has another one of that name", name)
            return
        states = {} if topic is None else {state.index: state for state in topic.partitions}
        for index, replicas in enumerate(() if read is None else read.replicas):
            states.setdefault(index, PartitionState(index, -1, 0, replicas, [], away=[]))
        for one in told:
            states[one.partition[1]] = PartitionState(
                one.partition[1], one.state.leader, one.state.leader_epoch, list(one.replicas), list(one.state.isr),
                away=list(one.offline), is_isolated=one.partition in self._isolated,
                eligible=list(one.state.elr), last_eligible=list(one.state.unclean), unclean_epoch=one.state.unclean_epoch,
            )  # fmt: skip
        if sorted(states) != list(range(len(states))):
            _log.warning("topic=%s isn't shown: the store has it no more, or without some of its partitions", name)
            return
        partitions = [states[index] for index in range(len(states))]
        if topic is None:
            self.show(Topic(name, first.topic_id, partitions, {} if read is None else read.configs))
        else:
            topic.partitions[:] = partitions

    def show_leaders(self, states: Mapping[Partition, LeaderAndIsr]) -> None:
        """Show who leads these partitions, as this broker has read it in the store before the controller told it."""
        uncleanly = list[Partition]()
        for (name, index), state in states.items():
            topic = self._by_name.get(name)
            if topic is None or index >= len(topic.partitions) or not state.is_of(topic.topic_id):
                continue
            shown = topic.partitions[index]
            if shown.leader_epoch < state.leader_epoch:
                shown.leader, shown.leader_epoch, shown.isr = state.leader, state.leader_epoch, list(state.isr)
                if shown.unclean_epoch < state.unclean_epoch:
                    shown.unclean_epoch = state.unclean_epoch
                    uncleanly.append((name, index))
        self.version += 1
        self._wake()
        self.changed.set()
        self.led_uncleanly(uncleanly)

    def _hide_deleted(self, topic: Topic) -> None:
        self.note_deleted(topic.name)
        self.hide(topic)
        self.deleted(topic.name)

    def isolate(self, partitions: Collection[Partition]) -> None:
        """Show these, which this broker leads, without a leader, and all others with theirs."""
        self._isolated = partitions
        self.isolated = {name for name, _ in partitions}
        for topic in self._by_name.values():
            for state in topic.partitions:
                state.is_isolated = (topic.name, state.index) in partitions

    async def read_configs(self, name: str) -> dict[str, str]:
        """A topic's own configs, as the store has them; where they can't be read, those that it had. Raises StoreError."""
        return dict((await self._read_configs(name)).texts)

    async def _read_configs(self, name: str) -> ConfigNode:
        topic = self._by_name.get(name)

        def instead(error: BadValueError) -> Mapping[str, str]:
            _log.error("topic=%s keeps %s: %s", name, "its configs" if topic else "all its records", error.why)
            return KEEPING if topic is None else topic.configs

        node = await read_node(self._store, paths.topic_config(name), instead)
        configs, said, _ = stored_configs(node.texts)
        for sentence in said:
            _log.warning("topic=%s: %s", name, sentence)
        return node._replace(texts=configs)

    async def is_gone(self, partition: Partition, topic_id: bytes = b"") -> bool:
        """Whether a partition that isn't shown was deleted, or its topic is being: absence here says nothing. topic_id: of the
        topic that it was one of; b"": whichever has the name. Raises StoreError."""
        name, index = partition
        await self._store.sync()
        found = await self._read_topic(name)
        if found is None or str(index) not in found[0].table("partitions"):
            return True
        stored_id = found[0].text("topic_id")
        if topic_id and stored_id != uuid_text(topic_id):
            return True
        try:
            meant, _ = await self._store.get(paths.deleted_topic(name))
        except NoNodeError:
            return False
        return meant in (b"", stored_id.encode())

    async def read_leaders(self, name: str) -> dict[int, tuple[int, int]]:
        """Leader and leader epoch of each partition of a topic, as they are after the call; {}: there is no such topic. Raises
        StoreError."""
        await self._store.sync()
        topic = await read_one_topic(self._store, name)
        partitions = [] if topic is None else [(name, index) for index in range(len(topic.replicas))]
        states = await asyncio.gather(*(read_one_state(self._store, one) for one in partitions))
        return {index: (state.leader, state.leader_epoch) for index, state in enumerate(one or NOT_CREATED for one in states)}

    async def next_picture(self, timeout_s: float) -> None:
        """Wait until the controller's next picture is shown, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._shown.wait()

    async def _is_shown(self, is_so: Callable[[], bool], within_s: float | None) -> bool:
        """Wait until the controller's pictures show something, or the time is over: whether they do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_so():
                    await self._shown.wait()
                return True
        return False

    async def _until(self, is_done: Callable[[], bool], what: str) -> None:
        """Until the controller's picture shows it. Raises KafkaError REQUEST_TIMED_OUT."""
        if not await self._is_shown(is_done, SHOWN_S):
            raise _not_carried_out(what)

    async def catch_up(self, name: str) -> None:
        """Wait until the topic of a name is shown as the store has it, or CATCH_UP_S are over. Raises KafkaError."""
        async with stored(name):
            await self._store.sync()
            stored_id = await self._live_id(name)

        def is_as_stored() -> bool:
            topic = self._by_name.get(name)
            return (None if topic is None else uuid_text(topic.topic_id)) == stored_id

        await self._is_shown(is_as_stored, CATCH_UP_S)

    async def _until_told(self, topic_id: bytes, is_told: Callable[[int], bool], is_so: Callable[[], bool], what: str) -> None:
        """Wait until each other broker that lives shows as many led partitions of a topic as a change left, since a client may
        ask it next; for as long as that is so here, and TOLD_S at most. A broker that can't be reached isn't waited for: nor do
        clients reach it."""
        late = {broker for broker in self.live if broker != self._node_id}

        async def wait(broker: int) -> None:
            pause_s = LOOK_S
            with contextlib.suppress(ConnectionError):
                while broker in self.live and is_so() and not is_told(await self.count_led(broker, topic_id)):
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
            late.discard(broker)

        try:
            async with asyncio.timeout(TOLD_S):
                await asyncio.gather(*map(wait, sorted(late)))
        except TimeoutError:
            _log.warning("%s is answered, though brokers %s have not heard of it within %g s", what, sorted(late), TOLD_S)

    async def stored_id(self, name: str) -> bytes | None:
        """The id of the topic that the store has under a name now, also while somebody deletes it; None: it has none. Raises
        StoreError."""
        await self._store.sync()
        stored = await read_one_topic(self._store, name)
        return None if stored is None else stored.topic_id

    async def _live_id(self, name: str) -> str | None:
        """The id of a topic that the store has and nobody is deleting. Raises StoreError."""
        if await self._store.exists(paths.deleted_topic(name)) is not None:
            return None
        found = await self._read_topic(name)
        return None if found is None else found[0].text("topic_id")

    async def _read_topic(self, name: str, watch: Watch | None = None) -> tuple[Fields, Stat] | None:
        """A topic's node; None: there is none. Raises StoreError."""
        try:
            data, stat = await self._store.get(paths.topic(name), watch)
        except NoNodeError:
            return None
        return Fields.read(paths.topic(name), data), stat

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        *,
        factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Create a topic; its partitions serve when it returns. See `Topics.create`. Raises KafkaError."""
        self.check_new(name, partitions, configs)
        await self._until_free(name)
        async with self._changes:
            topic_id = await self._store_new(name, partitions, configs, factor, assignment)
            self._coming.add(name)
        try:
            # Others go on meanwhile: how long this takes is up to the controller, and to the brokers that are to lead.
            await self._until_served(name, topic_id, partitions, f"the creation of topic '{name}'")
        finally:
            self._coming.discard(name)
        return self.known(name)

    async def _store_new(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        factor: int,
        assignment: Sequence[Sequence[int]] | None,
    ) -> bytes:
        """Write the nodes of a new topic; its id. Raises KafkaError."""
        self.check_new(name, partitions, configs)
        check_collision(name, self._coming - {name})
        topic_id = new_uuid()
        placed = assignment or place(self.brokers, partitions, self.check_factor(name, factor), topic_id, racks=self.racks)
        states = [PartitionState(index, -1, 0, list(replicas), []) for index, replicas in enumerate(placed)]
        topic = Topic(name, topic_id, states, dict(configs))
        async with stored(name):
            config = await putting(self._store, paths.topic_config(name), config_json(configs))
            try:
                # The topic's node comes last: what has none isn't there.
                await self._store.multi([config, Create(paths.topic(name), topic_json(topic))])
            except NodeExistsError:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.") from None
        return topic_id

    async def _until_served(self, name: str, topic_id: bytes, partitions: int, what: str) -> None:
        """Until the controller's picture shows a topic with leaders for so many partitions, here and on the other brokers.
        Raises KafkaError, one of UNKNOWN_TOPIC_OR_PARTITION as soon as the topic was deleted again: no picture would ever show
        it."""
        wants_look = True

        def look(_: str, __: Event) -> None:
            nonlocal wants_look
            wants_look = True
            self._wake()

        try:
            async with asyncio.timeout(SHOWN_S):
                while not self._serves(name, topic_id, partitions):
                    shown = self._shown
                    if wants_look:
                        wants_look = False
                        await self._check_stored(name, topic_id, look)
                    await shown.wait()
        except TimeoutError:
            raise _not_carried_out(what) from None
        is_so = partial(self._serves, name, topic_id, partitions)
        await self._until_told(topic_id, lambda led: led >= partitions, is_so, what)

    async def _check_stored(self, name: str, topic_id: bytes, changed: Watch) -> None:
        """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION if a topic that was there is the store's no more."""
        async with stored(name):
            found = await self._read_topic(name, changed)
            is_there = found is not None and found[0].text("topic_id") == uuid_text(topic_id)
        if not is_there:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' was deleted again before it served.")

    def _serves(self, name: str, topic_id: bytes, partitions: int) -> bool:
        topic = self._by_name.get(name)
        if topic is None or topic.topic_id != topic_id or len(topic.partitions) < partitions:
            return False
        return all(state.leader >= 0 for state in topic.partitions)

    async def ensure(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """The topic of that name, created if it isn't there, by whichever broker is first. Raises KafkaError."""
        try:
            return self.get(name) or await self.create(name, partitions, configs)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        await self._until(lambda: self.get(name) is not None, f"the creation of topic '{name}'")
        return self.known(name)

    async def add_partitions(
        self, name: str, count: int, *, validate_only: bool = False, assignment: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow a topic to `count` partitions. Raises KafkaError."""
        topic = self.known(name)
        if topic.internal:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic '{name}' can't grow in a cluster: its names' coordinators would be looked for in other partitions.",
            )
        self._check_growth(topic, count)
        if validate_only:
            return
        is_stored = False
        while not is_stored:
            guard, version = await self._until_as_stored(topic)
            async with self._changes:
                self.check_is_there(topic)
                self._check_growth(topic, count)
                is_stored = await self._store_grown(topic, count, guard, version, assignment)
        await self._until_served(name, topic.topic_id, count, f"the growth of topic '{name}'")

    async def _store_grown(
        self, topic: Topic, count: int, guard: Check, version: int, assignment: Sequence[Sequence[int]] | None
    ) -> bool:
        """Write the node of a topic that grows; False: it isn't as it was read, or may not be. Raises KafkaError."""
        have = len(topic.partitions)
        factor = min(len(topic.partitions[0].replicas), len(self.brokers))
        placed = assignment or place(self.brokers, count - have, factor, topic.topic_id, have, self.racks)
        added = [PartitionState(have + at, -1, 0, list(replicas), []) for at, replicas in enumerate(placed)]
        grown = Topic(topic.name, topic.topic_id, [*topic.partitions, *added], topic.configs)
        async with stored(topic.name):
            try:
                await self._store.multi([guard, Set(paths.topic(topic.name), topic_json(grown), version)])
            except (BadVersionError, NoNodeError):
                return False
        return True

    async def _until_as_stored(self, topic: Topic) -> tuple[Check, int]:
        """Wait until a topic is shown with the partitions that the store has: it may have grown since. What says that the node
        is this topic's still, and the node's version. Raises KafkaError."""
        while True:
            async with stored(topic.name):
                guard = await self._no_deletion()
                found = await self._read_topic(topic.name)
                if found is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' is being deleted.")
                node, stat = found
                there = len(node.table("partitions"))
            if node.text("topic_id") != uuid_text(topic.topic_id):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' was deleted and made again.")
            if there == len(topic.partitions):
                return guard, stat.version
            await self._until(
                lambda there=there: self._by_name.get(topic.name) is not topic or len(topic.partitions) >= there,  # type: ignore[misc]
                f"the growth of topic '{topic.name}' to {there} partitions",
            )

    async def _no_deletion(self) -> Check:
        """The operation that holds until any topic is deleted. The nodes of a topic that is made again begin with the versions
        that a former one's had (*a topic that gets configs or partitions of the former one of its name*). Raises StoreError."""
        await self._store.sync()
        _, stat = await self._store.get(paths.DELETED)
        return Check(paths.DELETED, stat.version)

    async def own_configs(self, name: str) -> ConfigNode:
        """A topic's own configs as the store has them, for `alter_configs`: they are in force when it returns. Raises
        KafkaError, StoreError."""
        guard = await self._no_deletion()
        await self.catch_up(name)
        topic = self.known(name)
        node, _ = await self._take_configs(name)
        self.check_is_there(topic)
        return node._replace(guards=(guard,))

    async def alter_configs(self, name: str, configs: Mapping[str, str], own: ConfigNode) -> None:
        """Replace a topic's own configs where they are `own`: durable when it returns, in force here; other brokers follow.
        Raises KafkaError, StoreError, one of OVERTAKEN if others have altered them meanwhile."""
        topic = self.known(name)
        async with self._changes:
            self.check_is_there(topic)
            check_topic_configs(self._config, configs)
            try:
                # The topic is there still: its configs are removed with it.
                await self._store.multi([Check(paths.topic(name)), *own.guards, own.written(configs), notification(own.path)])
            except NoNodeError as error:
                if error.path != paths.topic(name):
                    raise
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.") from None
        await self.logs.swapped(await self.take_configs(name))

    async def take_configs(self, name: str) -> list[Key]:
        """Put in force the configs that the store has for a topic, if it is shown; answers the logs whose compaction goes by
        others just now (`TopicLogs.swapped`). Raises StoreError."""
        return (await self._take_configs(name))[1]

    async def _take_configs(self, name: str) -> tuple[ConfigNode, list[Key]]:
        async with self.taking:
            node, topic = await self._read_configs(name), self._by_name.get(name)
            if topic is None:
                return node, []
            topic.configs = dict(node.texts)
            self.changed.set()
            return node, self.logs.reconfigure(topic)

    async def delete(self, name: str, forget: Callable[[str], None]) -> None:
        """Delete a topic. Raises KafkaError. forget: isn't called, as the picture tells all coordinators (`deleted`)."""
        topic = self.known(name)
        async with stored(name):
            try:
                # This broker may not have heard yet that the topic was deleted and made again: the id says which one is meant.
                await self._store.create(paths.deleted_topic(name), uuid_text(topic.topic_id).encode())
            except NodeExistsError:
                _log.debug("topic=%s is being deleted already", name)
        what = f"the deletion of topic '{name}'"
        await self._until(lambda: not self._is_known(name, topic.topic_id), what)
        await self._until_free(name)
        await self._until_told(topic.topic_id, lambda led: led == 0, lambda: True, what)

    async def _until_free(self, name: str) -> None:
        """Until the controller has removed the nodes of a deleted topic, so that one of its name can be made."""
        try:
            async with asyncio.timeout(SHOWN_S), stored(name):
                while True:
                    changed = asyncio.Event()
                    if await self._store.exists(paths.deleted_topic(name), lambda *_, event=changed: event.set()) is None:
                        return
                    await changed.wait()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the deletion of topic '{name}' has not ended within {SHOWN_S:g} s"
            ) from None

    def folder_failed(self, path: str) -> None:
        """The replicas in a log folder can't serve: a controller has to hear of it, so that others lead."""
        self.version += 1
        self.folder_lost(path)


def _not_carried_out(what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, f"{what} is stored, but no controller has carried it out within {SHOWN_S:g} s"
    )


def _by_name(picture: UpdateMetadata) -> dict[str, list[PartitionMetadata]]:
    """The partitions of a picture by topic, in their order."""
    found: dict[str, list[PartitionMetadata]] = {}
    for one in sorted(picture.partitions, key=attrgetter("partition")):
        found.setdefault(one.partition[0], []).append(one)
    return found
