"""Topics that come, grow, change and go: the picture in memory (`image.py`) behind `/brokers/topics` and `/config/topics`.

The order of the steps makes each change whole after a crash:

- create: each partition gets its log folder; one store transaction writes assignment, partition states, configs and a mark
  that its logs are to be made; then they are made and led; the mark goes; then the topic is seen. A crash in between leaves
  the mark, and the next start makes them. Without it a log that isn't there is lost, and its partition offline.
- delete: the name is put into `/admin/delete_topics`; the topic is no longer seen; the logs go, while other topics come and
  go and one of this name waits; then what the coordinators keep under the name goes; one store transaction removes its nodes
  and the mark. The next start finishes what is marked.

The nodes of a topic are in `nodes.py`, the marks in `marks.py`; `restoring.py` is the next start.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.confignodes import ConfigNode, config_json
from penstock.broker.configs.topicconfig import CONFIRMED, awaits_confirmation, check_topic_configs
from penstock.broker.descriptors import check_partitions
from penstock.broker.logs.logdirs import Key, LogDirs
from penstock.broker.logs.topiclogs import TopicLogs
from penstock.broker.store.base import Delete, Operation, Set, Store, StoreError, TooLargeError, paths
from penstock.broker.store.values import to_json
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE, PartitionState, Topic, check_name
from penstock.broker.topics.image import Image
from penstock.broker.topics.marks import Marks
from penstock.broker.topics.nodes import state_json, state_nodes, topic_json, topic_nodes
from penstock.broker.turns import Turns
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.log.logmanager import LogManager

DELETED_RECENTLY_S = 0.5  # longer than a client's check after a deletion takes, shorter than any client tries again

CHANGES_MAX = 10_000
"""Topics, partitions and configs that one request may make, or topics that it may delete. Kafka's controller, which writes them
as one batch of records, has the same bound."""

FACTORS = {
    GROUP_OFFSETS: "offsets.topic.replication.factor",
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
}
"""The properties that say how many replicas the coordinators' topics have."""

SLOW_DELETION_S = 5
"""A deletion that takes longer is said in the log."""

CREATED = declare("topics.created", "a new topic is in the store, its logs are not there yet")
MARKED = declare("topics.marked", "a topic is marked as deleted, its logs are all there")
EMPTIED = declare("topics.emptied", "a marked topic's logs are gone, its nodes are still in the store")

_log = log.get(__name__)
T = TypeVar("T")


async def check_changes(turns: Turns, changes: Iterable[int]) -> None:
    """Raise KafkaError if a request asks for so much that it would keep others from their changes for long; `changes`: those
    for each topic that it names, which are counted in turns."""
    count = 0
    async for each in turns.each(changes):
        count += each
    if count > CHANGES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Unable to perform excessively large batch operation: {count} changes, at most {CHANGES_MAX} fit into a request.",
        )


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raise KafkaError if the metrics of one of these topics would have the names of this one's."""
    collision = next((other for other in others if other.replace(".", "_") == name.replace(".", "_")), None)
    if collision is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {collision}")


class Topics(Image):
    """All topics, and changes to them, which are awaited and durable when they return.

    Changes are made one after the other (one lock), so two requests can't create one topic twice. The logs of a deleted topic
    are removed without it: its disk may hang.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        store: Store,
        dirs: LogDirs,
        logs: LogManager,
        executor: ThreadPoolExecutor,
        opening: ThreadPoolExecutor,
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._config = config
        self._store = store
        self.marks = Marks(node_id, store)
        self._changes = asyncio.Lock()
        self.logs = TopicLogs(node_id, config, dirs, logs, executor, opening, self._changes, self._moved)
        self.controller_epoch = 0
        self.leader_epoch = 0  # of this start, and of every partition that is made during it
        self._leaving: dict[str, asyncio.Event] = {}  # names whose logs are being removed; set when they are free
        self.former: dict[str, Topic] = {}  # topics that are gone but for their nodes in the store
        self._deleted_s: dict[str, float] = {}  # when topics were deleted, monotonic; the latest only
        # Set when a topic or a setting changed; upkeep, whose rhythm depends on them, waits for it.
        self.changed = asyncio.Event()

    def deleted_recently(self, name: str) -> bool:
        """Whether a topic of that name was deleted a moment ago: asking for it must not make it again.

        The client that deleted it checks whether it is gone, and members of its groups still have it in their lists. In Kafka
        the answer is that it isn't there, since a creation takes a moment. So it is while its disk holds up the deletion.
        """
        return name in self._leaving or time.monotonic() - self._deleted_s.get(name, -DELETED_RECENTLY_S) < DELETED_RECENTLY_S

    def note_deleted(self, name: str) -> None:
        """From now on a topic of that name was deleted recently."""
        now = time.monotonic()
        self._deleted_s.pop(name, None)
        self._deleted_s[name] = now
        for oldest, at in list(itertools.islice(self._deleted_s.items(), 2)):  # Two go where one comes: few are kept.
            if now - at >= DELETED_RECENTLY_S:
                del self._deleted_s[oldest]

    async def ask(self, name: str, index: int, work: Callable[..., T], *given: object) -> T:
        """What `work(*given)` gives or raises, which asks a partition's log and waits for its disk or its lock. Raises
        KafkaError UNKNOWN_TOPIC_OR_PARTITION, also if it may be a later topic of that name that has answered."""
        topic = self.holding(name, index)
        answer = await self.logs.ask((name, index), work, *given)
        self.check_is_there(topic)
        return answer

    async def catch_up(self, name: str) -> None:
        """Wait until a topic that another broker has made or deleted is shown so. Raises KafkaError."""

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> None:
        """Raise KafkaError if such a topic can't be created; changes nothing."""
        check_name(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_collision(name, self._by_name)
        self._check_count(partitions)
        check_partitions(self.partition_count(), partitions)
        check_topic_configs(self._config, configs)

    def _check_count(self, partitions: int) -> None:
        most = self._config["max.partitions.per.topic"]
        if partitions <= 0:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        if partitions > most:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {most} partitions.")

    @property
    def brokers(self) -> list[int]:
        """The brokers that live: partitions can be put on them."""
        return [self._node_id]

    def check_factor(self, name: str, factor: int) -> int:
        """How many replicas a topic gets for which `factor` was asked; -1: as many as the broker's properties say. Raises
        KafkaError INVALID_REPLICATION_FACTOR."""
        if factor == -1:
            factor = self._config[FACTORS.get(name, "default.replication.factor")]
        if factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if factor > len(self.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
                f"reached because only {len(self.brokers)} broker(s) are registered.",
            )
        return factor

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        *,
        factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Create a topic; its partitions serve when it returns. factor: replicas of each, -1 = as many as the properties say;
        assignment: on which brokers, instead. Raises KafkaError."""
        async with self._changes_of(name):
            return await self._create(name, partitions, configs, factor, assignment)

    async def ensure(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """The topic of that name, created if it isn't there; concurrent callers get the same one. Raises KafkaError."""
        async with self._changes_of(name):
            return self._by_name.get(name) or await self._create(name, partitions, configs)

    @asynccontextmanager
    async def _changes_of(self, name: str) -> AsyncIterator[None]:
        """The lock, once the name is free of a topic that is being deleted."""
        while True:
            async with self._changes:
                leaving = self._leaving.get(name)
                if leaving is None:
                    yield
                    return
            await leaving.wait()

    async def _create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """factor, assignment: on one node there is one replica, wherever it is asked for."""
        self.check_new(name, partitions, configs)
        if assignment is None:
            self.check_factor(name, factor)
        topic = Topic(name, new_uuid(), [self.new_partition(i) for i in range(partitions)], dict(configs))
        self.logs.place(topic, topic.partitions)
        self.marks.making[name] = list(range(partitions))
        operations = topic_nodes(self.controller_epoch, topic)
        try:
            async with stored(name):
                await self.forget_former(name)
                await self._store.multi([*operations, await self.marks.making_node()])
        except KafkaError:
            del self.marks.making[name]
            self.logs.displace(topic, topic.partitions)
            raise
        failpoint(CREATED)
        try:
            await self.logs.make(topic, topic.partitions)
        except (OSError, ValueError, KafkaError) as error:
            _log.error("topic=%s can't be created: %s", name, error)
            await self.logs.delete(topic)
            self.former[name] = topic
            async with stored(name):
                await self.forget_former(name)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
        finally:
            del self.marks.making[name]
        await self.marks.made(name)
        self.show(topic)
        self.changed.set()
        _log.info("created topic=%s id=%s partitions=%d", name, uuid_text(topic.topic_id), partitions)
        return topic

    def _check_growth(self, topic: Topic, count: int) -> None:
        """Raise KafkaError unless a topic can grow to `count` partitions."""
        have = len(topic.partitions)
        if count <= have:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {have} partition(s); {count} would not be an increase.",
            )
        self._check_count(count)
        check_partitions(self.partition_count(), count - have)

    async def add_partitions(
        self, name: str, count: int, *, validate_only: bool = False, assignment: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow a topic to `count` partitions; `assignment`: the brokers of each new one. Raises KafkaError."""
        topic = self.known(name)
        async with self._changes:
            self.check_is_there(topic)
            self._check_growth(topic, count)
            have = len(topic.partitions)
            if validate_only:
                return
            added = [self.new_partition(index) for index in range(have, count)]
            grown = Topic(name, topic.topic_id, topic.partitions + added, topic.configs)
            self.logs.place(topic, added)
            there = await self.logs.take_over(topic, added)
            fresh = [state for state in added if state not in there]
            self.marks.making[name] = list(range(have, count))
            nodes: list[Operation] = [
                Set(paths.topic(name), topic_json(grown)),
                *state_nodes(self.controller_epoch, topic, added),
            ]
            try:
                async with stored(name):
                    await self._store.multi([*nodes, await self.marks.making_node()])
            except KafkaError:
                del self.marks.making[name]
                self.logs.displace(topic, fresh)
                raise
            try:
                await self.logs.make(topic, added)
            except (OSError, ValueError, KafkaError) as error:
                await self._take_back(topic, fresh, there)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
            finally:
                del self.marks.making[name]
            await self.marks.made(name)
            topic.partitions.extend(added)
            self.version += 1

    async def _take_back(self, topic: Topic, fresh: Sequence[PartitionState], there: Sequence[PartitionState]) -> None:
        """Undo partitions whose logs could not be made; those that lay there already are strangers again."""
        await self.logs.delete(Topic(topic.name, topic.topic_id, list(fresh), topic.configs))
        try:
            await self.logs.close(topic, there)
        except OSError as error:
            _log.error("topic=%s: logs can't be closed: %s", topic.name, error)
        added = (*fresh, *there)
        gone = [Delete(f"{paths.topic(topic.name)}/partitions/{state.index}", recursive=True) for state in added]
        async with stored(topic.name):
            await self._store.multi([Set(paths.topic(topic.name), topic_json(topic)), *gone])

    async def own_configs(self, name: str) -> ConfigNode:
        """A topic's own configs, for `alter_configs`. Raises KafkaError, StoreError."""
        return ConfigNode(paths.topic_config(name), dict(self.known(name).configs), None)

    async def alter_configs(self, name: str, configs: Mapping[str, str], own: ConfigNode) -> None:
        """Replace a topic's own configs; they hold for the next append, and nothing is removed by the old ones any more.
        own: those that were altered; one node is alone with its store. Raises KafkaError, StoreError."""
        topic = self.known(name)
        async with self._changes:
            self.check_is_there(topic)
            check_topic_configs(self._config, configs)
            async with stored(name):
                await self._store.set(paths.topic_config(name), config_json(configs))
            paused, topic.configs = awaits_confirmation(topic.configs), dict(configs)
            swapping = self.logs.reconfigure(topic)
            self.changed.set()
            if awaits_confirmation(configs):
                _log.warning("topic=%s was altered; its retention and compaction are paused until %s is true", name, CONFIRMED)
            elif paused:
                _log.info("the configs of topic=%s are confirmed; retention and compaction go on", name)
        await self.logs.swapped(swapping)

    def broker_configs_changed(self) -> list[Key]:
        """Give every log its settings again, because the broker's defaults were altered; answers as `TopicLogs.reconfigure`."""
        swapping = [key for topic in self._by_name.values() for key in self.logs.reconfigure(topic)]
        self.changed.set()
        return swapping

    async def delete(self, name: str, forget: Callable[[str], None]) -> None:
        """Delete a topic; a crash in between is finished at the next start. Raises KafkaError.

        forget: takes back what is kept under the name (committed offsets), before another topic may have it.
        """
        topic = self.known(name)
        async with self._changes:
            self.check_is_there(topic)
            async with stored(name):
                await self.marks.mark_deleted(name)
            failpoint(MARKED)
            self.note_deleted(name)
            self.hide(topic)
            lay_in = self.logs.leave(topic)
            free = self._leaving[name] = asyncio.Event()
        where = ", ".join(sorted({str(log_dir.path) for log_dir in lay_in if log_dir is not None}))
        said = asyncio.get_running_loop().call_later(
            SLOW_DELETION_S, _log.warning,
            "the deletion of topic=%s waits for its logs (%s) for %d s by now: until they are removed a new topic of this name "
            "waits, too", name, where, SLOW_DELETION_S,
        )  # fmt: skip
        try:
            await self.logs.remove(topic, lay_in)
            failpoint(EMPTIED)
            async with self._changes:
                self.former[name] = topic
                forget(name)
                async with stored(name):
                    await self.forget_former(name)
        finally:
            said.cancel()
            del self._leaving[name]
            free.set()
        _log.info("deleted topic=%s id=%s", name, uuid_text(topic.topic_id))

    async def forget_former(self, name: str) -> None:
        """Remove the nodes of a topic that is gone, in case the store has refused that until now. A new topic of its name
        must not find them: neither its configs nor its mark are the new one's."""
        if name in self.former:
            await self._remove(self.former[name])
            del self.former[name]

    async def _remove(self, topic: Topic) -> None:
        """Take a topic's nodes and its mark out of the store; its logs are gone already."""
        left = [name for name in await self.marks.deleted() if name != topic.name]
        operations: list[Operation] = [
            Set(paths.DELETE_TOPICS, to_json(version=1, topics=left)),
            Delete(paths.topic(topic.name), recursive=True),
            Delete(paths.topic_config(topic.name)),
        ]
        await self._store.multi(operations)

    async def _moved(self, topic: Topic, state: PartitionState) -> None:
        """A partition lies in another log folder. Until that is stored, a start finds it there by the topic's id."""
        try:
            await self._store.set(paths.partition_state(topic.name, state.index), state_json(self.controller_epoch, state))
        except StoreError as error:
            _log.warning("topic=%s partition=%d: it can't be stored where it lies now: %s", topic.name, state.index, error)

    def folder_failed(self, path: str) -> None:
        """Take the partitions of a log folder out of the picture; their logs answer KAFKA_STORAGE_ERROR already."""
        for topic in self._by_name.values():
            self.logs.folder_failed(topic, path)
        self.version += 1

    def new_partition(self, index: int) -> PartitionState:
        """A partition of a new topic, led here."""
        return PartitionState(index, self._node_id, self.leader_epoch, [self._node_id], [self._node_id])


@asynccontextmanager
async def stored(name: str) -> AsyncIterator[None]:
    """What the store refuses (its disk is full, or failed) is an answer that a client tries again; but for what it would refuse
    again."""
    try:
        yield
    except TooLargeError as error:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"Topic '{name}': {error}") from error
    except StoreError as error:
        _log.error("topic=%s: %s", name, error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
