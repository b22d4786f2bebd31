"""Topics and their partitions: the picture in memory of `/brokers/topics` and `/config/topics`.

The order of the steps makes each change whole after a crash:

- create: one store transaction writes assignment, partition states and configs; then the logs are led; then
  the topic is seen. A crash in between leaves a topic without records, which the next start leads.
- delete: the name is put into `/admin/delete_topics`; the topic is no longer seen; the logs go, then what the coordinators
  keep under the name; one store transaction removes its nodes and the mark. The next start finishes what is marked.

Nodes (source B): topic `{"version":3,"topic_id":"...","partitions":{"0":[1]},...}`, its partition states
`{"version":1,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":1}`, configs
`{"version":1,"config":{}}`, marks `{"version":1,"topics":["a"]}`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from penstock import log
from penstock.broker.adoption import adopted, strangers
from penstock.broker.brokerconfig import BrokerConfig
from penstock.broker.folder import new_uuid, uuid_bytes, uuid_text
from penstock.broker.logdirs import LogDirs
from penstock.broker.store.base import Create, Delete, NoNodeError, Operation, Set, Store, StoreError, paths
from penstock.broker.topic import INTERNAL, PartitionState, Topic, check_name, internal_settings
from penstock.broker.topicconfig import check_topic_configs
from penstock.broker.topiclogs import TopicLogs
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.logs import Logs

DELETED_LATELY_S = 0.5  # longer than a look after a deletion takes, shorter than any client tries again

CREATED = declare("topics.created", "a new topic is in the store, its logs are not there yet")
MARKED = declare("topics.marked", "a topic is marked as deleted, its logs are all there")
EMPTIED = declare("topics.emptied", "a marked topic's logs are gone, its nodes are still in the store")

_log = log.get("broker.topics")


class Topics:
    """All topics. Reads are plain dictionary look-ups; changes are awaited and durable when they return.

    Changes are made one after the other (one lock), so two requests can't create one topic twice.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        store: Store,
        dirs: LogDirs,
        logs: Logs,
        executor: ThreadPoolExecutor,
        opening: ThreadPoolExecutor,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._store = store
        self._dirs = dirs
        self._executor = executor
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._changes = asyncio.Lock()
        self.logs = TopicLogs(node_id, config, dirs, logs, executor, opening, self._changes)
        self.controller_epoch = 0
        self._marked_topics: list[Topic] = []  # whose deletion the start has to finish
        self._deleted_s: dict[str, float] = {}  # when topics were deleted, monotonic; the latest only
        # Grows whenever a topic is created, gets partitions or is deleted.
        self.version = 0
        # Set when a topic or a setting changed; housekeeping, whose rhythm depends on them, waits for it.
        self.changed = asyncio.Event()

    def get(self, name: str) -> Topic | None:
        """A topic by name, None if it is unknown or being deleted."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        """A topic by its id of 16 bytes."""
        return self._by_id.get(bytes(topic_id))

    def deleted_lately(self, name: str) -> bool:
        """Whether a topic of that name was deleted a moment ago: asking for it must not make it again.

        Who deleted it looks whether it is gone, and members of its groups still have it in their lists. In Kafka
        they are told that it isn't there, since a creation takes a moment.
        """
        return time.monotonic() - self._deleted_s.get(name, -DELETED_LATELY_S) < DELETED_LATELY_S

    def all(self) -> Iterable[Topic]:
        """Every topic, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def partition(self, name: str, index: int) -> PartitionState:
        """A partition that is led here. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index}")
        return topic.partitions[index]

    def check_leader_epoch(self, name: str, index: int, epoch: int) -> PartitionState:
        """A partition whose leader epoch a client believes to be `epoch` (-1 = it does not say; KIP-320)."""
        state = self.partition(name, index)
        if epoch >= 0 and epoch != state.leader_epoch:
            older = epoch < state.leader_epoch
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH, f"{name}-{index}"
            )
        return state

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> None:
        """Raise KafkaError if such a topic can't be created; changes nothing."""
        check_name(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        collision = next((t for t in self._by_name if t.replace(".", "_") == name.replace(".", "_")), None)
        if collision is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {collision}"
            )
        self._check_count(partitions)
        check_topic_configs(configs)

    def _check_count(self, partitions: int) -> None:
        most = self._config["max.partitions.per.topic"]
        if partitions <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if partitions > most:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {most} partitions.")

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic and lead its partitions; they serve when it returns. Raises KafkaError."""
        async with self._changes:
            return await self._create(name, partitions, configs)

    async def ensure(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """The topic of that name, created if it isn't there. Raises KafkaError."""
        async with self._changes:
            return self._by_name.get(name) or await self._create(name, partitions, configs)

    async def ensure_internal(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """A coordinator's topic, created at its first use; concurrent callers get the same one."""
        return await self.ensure(name, partitions, configs)

    async def _create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        self.check_new(name, partitions, configs)
        topic = Topic(name, new_uuid(), [self._new_partition(i) for i in range(partitions)], dict(configs))
        operations = self._topic_nodes(topic)
        async with _stored(name):
            await self._store.multi(operations)
        failpoint(CREATED)
        try:
            await self.logs.make(topic, topic.partitions)
        except (OSError, ValueError, KafkaError) as error:
            _log.error("topic=%s can't be created: %s", name, error)
            await self.logs.delete(topic)
            async with _stored(name):
                await self._remove(topic)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
        self._by_name[name] = self._by_id[topic.topic_id] = topic
        self.version += 1
        self.changed.set()
        _log.info("created topic=%s id=%s partitions=%d", name, uuid_text(topic.topic_id), partitions)
        return topic

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions. Raises KafkaError."""
        async with self._changes:
            topic = self._by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            have = len(topic.partitions)
            if count <= have:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} currently has {have} partition(s); {count} would not be an increase.",
                )
            self._check_count(count)
            if validate_only:
                return
            added = [self._new_partition(index) for index in range(have, count)]
            grown = Topic(name, topic.topic_id, topic.partitions + added, topic.configs)
            async with _stored(name):
                await self._store.multi(
                    [Set(paths.topic(name), _topic_json(grown)), *self._state_nodes(topic, added)]
                )
            try:
                await self.logs.make(topic, added)
            except (OSError, ValueError, KafkaError) as error:
                await self._take_back(topic, added)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
            topic.partitions.extend(added)
            self.version += 1

    async def _take_back(self, topic: Topic, added: Sequence[PartitionState]) -> None:
        """Undo partitions whose logs could not be made."""
        await self.logs.delete(Topic(topic.name, topic.topic_id, list(added), topic.configs))
        gone = [Delete(f"{paths.topic(topic.name)}/partitions/{state.index}", recursive=True) for state in added]
        async with _stored(topic.name):
            await self._store.multi([Set(paths.topic(topic.name), _topic_json(topic)), *gone])

    async def alter_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's own configs; they hold for the next append. Raises KafkaError."""
        async with self._changes:
            topic = self._by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            check_topic_configs(configs)
            async with _stored(name):
                await self._store.set(paths.topic_config(name), _config_json(configs))
            topic.configs = dict(configs)
            self.logs.reconfigure(topic)
            self.changed.set()

    def broker_configs_changed(self) -> None:
        """Tell every log its settings anew, because the broker's defaults were altered."""
        for topic in self._by_name.values():
            self.logs.reconfigure(topic)
        self.changed.set()

    async def delete(self, name: str, forget: Callable[[str], None]) -> None:
        """Delete a topic; a crash in between is finished at the next start. Raises KafkaError.

        forget: takes back what is kept under the name (committed offsets), before another topic may have it.
        """
        async with self._changes:
            topic = self._by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            async with _stored(name):
                await self._mark_deleted(name)
            failpoint(MARKED)
            now = time.monotonic()
            self._deleted_s = {one: at for one, at in self._deleted_s.items() if now - at < DELETED_LATELY_S}
            self._deleted_s[name] = now
            del self._by_name[name], self._by_id[topic.topic_id]
            self.version += 1
            await self.logs.delete(topic)
            failpoint(EMPTIED)
            forget(name)
            async with _stored(name):
                await self._remove(topic)
            _log.info("deleted topic=%s id=%s", name, uuid_text(topic.topic_id))

    async def _mark_deleted(self, name: str) -> None:
        marked = await self._marked()
        await self._store.set(paths.DELETE_TOPICS, _json(version=1, topics=sorted({*marked, name})))

    async def _marked(self) -> list[str]:
        """Names whose deletion has begun; makes the node if it isn't there."""
        if await self._store.exists(paths.DELETE_TOPICS) is None:
            await self._store.create(paths.DELETE_TOPICS, _json(version=1, topics=[]), parents=True)
        marked: list[str] = json.loads((await self._store.get(paths.DELETE_TOPICS))[0])["topics"]
        return marked

    async def _remove(self, topic: Topic) -> None:
        """Take a topic's nodes and its mark out of the store; its logs are gone already."""
        left = [name for name in await self._marked() if name != topic.name]
        operations: list[Operation] = [
            Set(paths.DELETE_TOPICS, _json(version=1, topics=left)),
            Delete(paths.topic(topic.name), recursive=True),
            Delete(paths.topic_config(topic.name)),
        ]
        await self._store.multi(operations)

    async def load(self, controller_epoch: int) -> None:
        """Read the store at start, remove deleted topics' logs, announce every partition; open the coordinators' logs.

        Each start is an election, so leader epochs grow by one: a client or a copy can tell what was written
        before a crash from what came after it. Raises StoreError, OSError.
        """
        self.controller_epoch = controller_epoch
        topics = await self._read_topics()
        await self.logs.settle(topics)
        marked = set(await self._marked())
        self._marked_topics = [topic for topic in topics if topic.name in marked]
        for topic in self._marked_topics:
            await self.logs.delete(topic)
        await self.logs.remove_deleted()
        topics = [topic for topic in topics if topic.name not in marked]
        known = {(topic.name, state.index) for topic in topics for state in topic.partitions}
        for path in strangers(self._dirs, known):
            _log.warning("the folder %s belongs to no topic; it is left alone", path)
        await self._raise_epochs(topics)
        for topic in topics:
            self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
            self.logs.announce(topic)
        await self.logs.open_internal()

    async def finish_deletions(self, forget: Callable[[str], None]) -> None:
        """The rest of the deletions that a crash cut short, once the coordinators are there. Raises StoreError."""
        for topic in self._marked_topics:
            forget(topic.name)
            await self._remove(topic)
            _log.info("finished the deletion of topic=%s", topic.name)
        self._marked_topics.clear()

    def folder_failed(self, path: str) -> None:
        """Take the partitions of a log folder out of the picture; their logs answer KAFKA_STORAGE_ERROR already."""
        for topic in self._by_name.values():
            self.logs.folder_failed(topic, path)
        self.version += 1

    async def _raise_epochs(self, topics: Sequence[Topic]) -> None:
        operations: list[Operation] = []
        for topic in topics:
            for state in topic.partitions:
                state.leader, state.isr = self._node_id, [self._node_id]
                state.leader_epoch += 1
                path = paths.partition_state(topic.name, state.index)
                operations.append(Set(path, self._state_json(state)))
        await self._store.multi(operations)

    async def _read_topics(self) -> list[Topic]:
        """The topics in the store; in a store without any history those that lie in the folders."""
        try:
            nodes = await self._store.tree(paths.TOPICS)
        except NoNodeError:
            return await self._adopt()
        configs = await self._store.tree(paths.TOPIC_CONFIGS) if nodes else {}
        names = sorted(name for name in nodes if "/" not in name)
        return [_read_topic(name, nodes, configs) for name in names]

    async def _adopt(self) -> list[Topic]:
        found = await asyncio.get_running_loop().run_in_executor(self._executor, adopted, self._dirs)
        operations: list[Operation] = [Create(paths.TOPICS, parents=True)]
        topics = []
        for name, (topic_id, epochs) in found.items():
            configs = internal_settings(self._config, name)[1] if name in INTERNAL else {}
            topic = Topic(name, topic_id, [self._new_partition(index) for index in range(len(epochs))], configs)
            for state, epoch in zip(topic.partitions, epochs, strict=True):
                state.leader_epoch = epoch
            operations += self._topic_nodes(topic)
            topics.append(topic)
            _log.info("found topic=%s id=%s partitions=%d", name, uuid_text(topic_id), len(epochs))
        await self._store.multi(operations)
        return topics

    def _new_partition(self, index: int) -> PartitionState:
        return PartitionState(index, self._node_id, 0, [self._node_id], [self._node_id])

    def _topic_nodes(self, topic: Topic) -> list[Operation]:
        return [
            Create(paths.topic(topic.name), _topic_json(topic), parents=True),
            Create(paths.topic_config(topic.name), _config_json(topic.configs), parents=True),
            *self._state_nodes(topic, topic.partitions),
        ]

    def _state_nodes(self, topic: Topic, states: Sequence[PartitionState]) -> list[Create]:
        return [
            Create(paths.partition_state(topic.name, state.index), self._state_json(state), parents=True)
            for state in states
        ]

    def _state_json(self, state: PartitionState) -> bytes:
        return _json(
            controller_epoch=self.controller_epoch,
            leader=state.leader,
            version=1,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
        )


def _topic_json(topic: Topic) -> bytes:
    return _json(
        version=3,
        topic_id=uuid_text(topic.topic_id),
        partitions={str(state.index): state.replicas for state in topic.partitions},
        adding_replicas={},
        removing_replicas={},
    )


def _config_json(configs: Mapping[str, str]) -> bytes:
    return _json(version=1, config=dict(configs))


def _json(**fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _read_topic(name: str, nodes: Mapping[str, bytes], configs: Mapping[str, bytes]) -> Topic:
    """A topic from the nodes below `/brokers/topics` and `/config/topics`, by path relative to these."""
    node = json.loads(nodes[name])
    states = []
    for index in range(len(node["partitions"])):
        state = json.loads(nodes[f"{name}/partitions/{index}/state"])
        replicas = node["partitions"][str(index)]
        states.append(PartitionState(index, state["leader"], state["leader_epoch"], replicas, state["isr"]))
    return Topic(name, uuid_bytes(node["topic_id"]), states, json.loads(configs[name])["config"])


@asynccontextmanager
async def _stored(name: str) -> AsyncIterator[None]:
    """What the store refuses (its disk is full, or failed) is an answer that a client tries again."""
    try:
        yield
    except StoreError as error:
        _log.error("topic=%s: %s", name, error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
