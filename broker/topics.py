"""Topics and their partitions: the picture in memory of `/brokers/topics` and `/config/topics`.

The order of the steps makes each change whole after a crash:

- create: each partition gets its log folder; one store transaction writes assignment, partition states, configs and a mark
  that its logs are to be made; then they are made and led; the mark goes; then the topic is seen. A crash in between leaves
  the mark, and the next start makes them. Without it a log that isn't there is lost, and its partition offline.
- delete: the name is put into `/admin/delete_topics`; the topic is no longer seen; the logs go, while other topics come and
  go and one of this name waits; then what the coordinators keep under the name goes; one store transaction removes its nodes
  and the mark. The next start finishes what is marked.

The nodes of a topic are in `topicnodes.py`; marks are `{"version":1,"topics":["a"]}`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.topicconfig import CONFIRMED, awaits_confirmation, check_topic_configs, stored_configs
from penstock.broker.descriptors import check_partitions
from penstock.broker.epochs import EPOCH_BELIEVED, next_epoch
from penstock.broker.logs.adoption import adopted, last_epochs, strangers
from penstock.broker.logs.logdirs import Key, LogDirs, partition_of, some, topic_id_in
from penstock.broker.logs.topiclogs import TopicLogs
from penstock.broker.store.base import (
    Create,
    Delete,
    NoNodeError,
    Operation,
    Set,
    Store,
    StoreError,
    paths,
)
from penstock.broker.store.values import Fields
from penstock.broker.topic import INTERNAL, PartitionState, Topic, check_name, internal_settings
from penstock.broker.topicnodes import check_topic_ids, config_json, read_topic, state_json, to_json, topic_json
from penstock.broker.turns import Turns
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.hints import quoted
from penstock.pyx.log.logmanager import LogManager

DELETED_RECENTLY_S = 0.5  # longer than a client's check after a deletion takes, shorter than any client tries again

CHANGES_MAX = 10_000
"""Topics, partitions and configs that one request may make, or topics that it may delete. Kafka's controller, which writes them
as one batch of records, has the same bound."""

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


class Topics:
    """All topics. Reads are plain dictionary look-ups; changes are awaited and durable when they return.

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
        self._node_id = node_id
        self._config = config
        self._store = store
        self._dirs = dirs
        self._executor = executor
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._changes = asyncio.Lock()
        self.logs = TopicLogs(node_id, config, dirs, logs, executor, opening, self._changes, self._moved)
        self.controller_epoch = 0
        self._leader_epoch = 0  # of this start, and of every partition that is made during it
        self._read: list[Topic] = []  # between `read` and `load`
        self._deleted: set[str] = set()  # likewise: names whose deletion had begun
        self._log_dirs: dict[str, str] = {}  # path by id
        self._making: dict[str, list[int]] = {}  # partitions whose logs are being made, as the store has it
        self._leaving: dict[str, asyncio.Event] = {}  # names whose logs are being removed; set when they are free
        self._former: dict[str, Topic] = {}  # topics that are gone but for their nodes in the store
        self._deleted_s: dict[str, float] = {}  # when topics were deleted, monotonic; the latest only
        # Grows whenever a topic is created, gets partitions or is deleted.
        self.version = 0
        # Set when a topic or a setting changed; upkeep, whose rhythm depends on them, waits for it.
        self.changed = asyncio.Event()

    def get(self, name: str) -> Topic | None:
        """A topic by name, None if it is unknown or being deleted."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        """A topic by its id of 16 bytes."""
        return self._by_id.get(bytes(topic_id))

    def _known(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic

    def deleted_recently(self, name: str) -> bool:
        """Whether a topic of that name was deleted a moment ago: asking for it must not make it again.

        The client that deleted it checks whether it is gone, and members of its groups still have it in their lists. In Kafka
        the answer is that it isn't there, since a creation takes a moment. So it is while its disk holds up the deletion.
        """
        return name in self._leaving or time.monotonic() - self._deleted_s.get(name, -DELETED_RECENTLY_S) < DELETED_RECENTLY_S

    def all(self) -> Iterable[Topic]:
        """Every topic, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def holding(self, name: str, index: int) -> Topic:
        """The topic, which has that partition. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index}")
        return topic

    def partition(self, name: str, index: int) -> PartitionState:
        """A partition that is led here. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        return self.holding(name, index).partitions[index]

    async def ask(self, name: str, index: int, work: Callable[..., T], *given: object) -> T:
        """What `work(*given)` gives or raises, which asks a partition's log and waits for its disk or its lock. Raises
        KafkaError UNKNOWN_TOPIC_OR_PARTITION, also if it may be a later topic of that name that has answered."""
        topic = self.holding(name, index)
        answer = await self.logs.ask((name, index), work, *given)
        self._check_is_there(topic)
        return answer

    def _check_is_there(self, topic: Topic) -> None:
        """After a pause: that the topic wasn't deleted, and another one made of its name. Raises KafkaError."""
        if self._by_name.get(topic.name) is not topic:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")

    def check_leader_epoch(self, name: str, index: int, epoch: int) -> PartitionState:
        """A partition whose leader epoch a client believes to be `epoch` (-1 = it does not say; KIP-320)."""
        state = self.partition(name, index)
        if epoch >= 0 and epoch != state.leader_epoch:
            older = epoch < state.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH, f"{name}-{index}")
        return state

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str | None]) -> None:
        """Raise KafkaError if such a topic can't be created; changes nothing."""
        check_name(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        collision = next((t for t in self._by_name if t.replace(".", "_") == name.replace(".", "_")), None)
        if collision is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {collision}")
        self._check_count(partitions)
        check_partitions(self.partition_count(), partitions)
        check_topic_configs(self._config, configs)

    def partition_count(self) -> int:
        """Of all topics."""
        return sum(len(topic.partitions) for topic in self._by_name.values())

    def _check_count(self, partitions: int) -> None:
        most = self._config["max.partitions.per.topic"]
        if partitions <= 0:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        if partitions > most:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {most} partitions.")

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic and lead its partitions; they serve when it returns. Raises KafkaError."""
        async with self._changes_of(name):
            return await self._create(name, partitions, configs)

    async def ensure(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """The topic of that name, created if it isn't there. Raises KafkaError."""
        async with self._changes_of(name):
            return self._by_name.get(name) or await self._create(name, partitions, configs)

    async def ensure_internal(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """A coordinator's topic, created at its first use; concurrent callers get the same one."""
        return await self.ensure(name, partitions, configs)

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

    async def _create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        self.check_new(name, partitions, configs)
        topic = Topic(name, new_uuid(), [self._new_partition(i) for i in range(partitions)], dict(configs))
        self.logs.place(topic, topic.partitions)
        self._making[name] = list(range(partitions))
        operations = self._topic_nodes(topic)
        try:
            async with _stored(name):
                await self._forget_former(name)
                await self._store.multi([*operations, await self._making_node()])
        except KafkaError:
            del self._making[name]
            self.logs.displace(topic, topic.partitions)
            raise
        failpoint(CREATED)
        try:
            await self.logs.make(topic, topic.partitions)
        except (OSError, ValueError, KafkaError) as error:
            _log.error("topic=%s can't be created: %s", name, error)
            await self.logs.delete(topic)
            self._former[name] = topic
            async with _stored(name):
                await self._forget_former(name)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
        finally:
            del self._making[name]
        await self._made(name)
        self._by_name[name] = self._by_id[topic.topic_id] = topic
        self.version += 1
        self.changed.set()
        _log.info("created topic=%s id=%s partitions=%d", name, uuid_text(topic.topic_id), partitions)
        return topic

    async def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions. Raises KafkaError."""
        topic = self._known(name)
        async with self._changes:
            self._check_is_there(topic)
            have = len(topic.partitions)
            if count <= have:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} currently has {have} partition(s); {count} would not be an increase.",
                )
            self._check_count(count)
            check_partitions(self.partition_count(), count - have)
            if validate_only:
                return
            added = [self._new_partition(index) for index in range(have, count)]
            grown = Topic(name, topic.topic_id, topic.partitions + added, topic.configs)
            self.logs.place(topic, added)
            there = await self.logs.take_over(topic, added)
            fresh = [state for state in added if state not in there]
            self._making[name] = list(range(have, count))
            nodes: list[Operation] = [Set(paths.topic(name), topic_json(grown)), *self._state_nodes(topic, added)]
            try:
                async with _stored(name):
                    await self._store.multi([*nodes, await self._making_node()])
            except KafkaError:
                del self._making[name]
                self.logs.displace(topic, fresh)
                raise
            try:
                await self.logs.make(topic, added)
            except (OSError, ValueError, KafkaError) as error:
                await self._take_back(topic, fresh, there)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
            finally:
                del self._making[name]
            await self._made(name)
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
        async with _stored(topic.name):
            await self._store.multi([Set(paths.topic(topic.name), topic_json(topic)), *gone])

    async def alter_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's own configs; they hold for the next append, and nothing is removed by the old ones any more.
        Raises KafkaError."""
        topic = self._known(name)
        async with self._changes:
            self._check_is_there(topic)
            check_topic_configs(self._config, configs)
            async with _stored(name):
                await self._store.set(paths.topic_config(name), config_json(configs))
            paused, topic.configs = awaits_confirmation(topic.configs), dict(configs)
            swapping = self.logs.reconfigure(topic)
            self.changed.set()
            if awaits_confirmation(configs):
                _log.warning("topic=%s was altered; its retention and compaction are paused until %s is true", name, CONFIRMED)
            elif paused:
                _log.info("the configs of topic=%s are confirmed; retention and compaction go on", name)
        await self.logs.swapped(swapping)

    async def broker_configs_changed(self) -> None:
        """Give every log its settings again, because the broker's defaults were altered."""
        swapping = [key for topic in self._by_name.values() for key in self.logs.reconfigure(topic)]
        self.changed.set()
        await self.logs.swapped(swapping)

    async def delete(self, name: str, forget: Callable[[str], None]) -> None:
        """Delete a topic; a crash in between is finished at the next start. Raises KafkaError.

        forget: takes back what is kept under the name (committed offsets), before another topic may have it.
        """
        topic = self._known(name)
        async with self._changes:
            self._check_is_there(topic)
            async with _stored(name):
                await self._mark_deleted(name)
            failpoint(MARKED)
            now = time.monotonic()
            self._deleted_s = {one: at for one, at in self._deleted_s.items() if now - at < DELETED_RECENTLY_S}
            self._deleted_s[name] = now
            del self._by_name[name], self._by_id[topic.topic_id]
            self.version += 1
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
                self._former[name] = topic
                forget(name)
                async with _stored(name):
                    await self._forget_former(name)
        finally:
            said.cancel()
            del self._leaving[name]
            free.set()
        _log.info("deleted topic=%s id=%s", name, uuid_text(topic.topic_id))

    async def _mark_deleted(self, name: str) -> None:
        marked = await self._marked()
        await self._store.set(paths.DELETE_TOPICS, to_json(version=1, topics=sorted({*marked, name})))

    async def _marked(self) -> list[str]:
        """Names whose deletion has begun; makes the node if it isn't there."""
        if await self._store.exists(paths.DELETE_TOPICS) is None:
            await self._store.create(paths.DELETE_TOPICS, to_json(version=1, topics=[]), parents=True)
        node = Fields.read(paths.DELETE_TOPICS, (await self._store.get(paths.DELETE_TOPICS))[0])
        marked = node.several("topics")
        if not all(isinstance(name, str) for name in marked):
            raise node.wrong("`topics` should hold names")
        return marked

    async def _forget_former(self, name: str) -> None:
        """Remove the nodes of a topic that is gone, in case the store has refused that until now. A new topic of its name
        must not find them: neither its configs nor its mark are the new one's."""
        if name in self._former:
            await self._remove(self._former[name])
            del self._former[name]

    async def _remove(self, topic: Topic) -> None:
        """Take a topic's nodes and its mark out of the store; its logs are gone already."""
        left = [name for name in await self._marked() if name != topic.name]
        operations: list[Operation] = [
            Set(paths.DELETE_TOPICS, to_json(version=1, topics=left)),
            Delete(paths.topic(topic.name), recursive=True),
            Delete(paths.topic_config(topic.name)),
        ]
        await self._store.multi(operations)

    async def read(self, forget: Path | None = None) -> None:
        """Read the store at start, and find where every partition lies. No log is touched. forget: a log folder whose
        partitions are given up if they aren't there. Raises StoreError, FolderError, OSError."""
        stored = await self._read_topics()
        self._deleted = set(await self._marked())
        self._making = await self._stored_making()
        holding = Counter(state.directory for topic in stored or () for state in topic.partitions)
        known = await self._stored_log_dirs()
        self._log_dirs = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._dirs.admit, known, holding, forget
        )
        self._read = await self._adopt() if stored is None else stored
        unmade = {(name, index) for name, indices in self._making.items() for index in indices}
        await self.logs.locate(self._read, unmade)

    async def load(self, controller_epoch: int) -> None:
        """After `read`: remove deleted topics' logs, announce every partition; open the coordinators' logs.

        Each start is an election, so all partitions get a later leader epoch (`epochs.py`): a client or a copy can tell
        what was written before a crash from what came after it. It is above those of the logs, should the store be an old
        copy. Raises StoreError, OSError.
        """
        self.controller_epoch = controller_epoch
        topics, self._read = self._read, []
        self._former = {topic.name: topic for topic in topics if topic.name in self._deleted}
        await self.logs.remove_deleted()  # Before others are added that may be refused: each is said once.
        for topic in self._former.values():
            await self.logs.delete(topic)
        topics = [topic for topic in topics if topic.name not in self._former]
        known = {(topic.name, state.index) for topic in topics for state in topic.partitions}
        self._tell_strangers(strangers(self._dirs, known), topics)
        self._tell_missing(topics)
        await self._keep_up(topics)
        await self._raise_epochs(topics, await self._after_restoring(topics))
        self._warn_of_paused(topics)
        for topic in topics:
            self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
            self.logs.announce(topic)
        await self._make_unmade()
        await self.logs.open_internal()

    async def _make_unmade(self) -> None:
        """Make what has its place and no log; the mark that it is to be made stays until it is."""
        if not self._dirs.unmade:
            return
        for name in sorted({name for name, _ in self._dirs.unmade}):
            await self.logs.make_unmade(self._by_name[name])
        self._set_making(self._dirs.unmade)
        await self._store.multi([await self._making_node()])

    def _set_making(self, keys: Iterable[Key]) -> None:
        self._making = {}
        for name, index in sorted(keys):
            self._making.setdefault(name, []).append(index)

    async def _making_node(self) -> Operation:
        """The change of the store that says which logs are to be made."""
        return await self._put(paths.MAKING, to_json(version=1, topics=self._making))

    async def _put(self, path: str, content: bytes) -> Operation:
        """The change that makes this a node's content, whether it is there or not."""
        there = await self._store.exists(path) is not None
        return Set(path, content) if there else Create(path, content, parents=True)

    async def _made(self, name: str) -> None:
        """Take the mark back. If the store refuses that now, the next creation does it, or the next start finds the logs."""
        try:
            await self._store.multi([await self._making_node()])
        except StoreError as error:
            _log.warning("topic=%s: it can't be stored that its logs are made: %s", name, error)

    async def _stored_making(self) -> dict[str, list[int]]:
        if await self._store.exists(paths.MAKING) is None:
            return {}
        node = Fields.read(paths.MAKING, (await self._store.get(paths.MAKING))[0])
        making = dict(node.table("topics"))
        if not all(isinstance(one, list) and all(isinstance(index, int) for index in one) for one in making.values()):
            raise node.wrong("`topics` should hold lists of partitions")
        return making

    async def _stored_log_dirs(self) -> dict[str, str]:
        """The log folders that there were, path by id; none at the first start, and at that of an earlier version's store."""
        path = paths.log_dirs(self._node_id)
        if await self._store.exists(path) is None:
            return {}
        return Fields.read(path, (await self._store.get(path))[0]).texts("dirs")

    async def _log_dirs_node(self) -> Operation:
        """The change of the store that says which log folders there are."""
        return await self._put(paths.log_dirs(self._node_id), to_json(version=1, dirs=self._log_dirs))

    async def _moved(self, topic: Topic, state: PartitionState) -> None:
        """A partition lies in another log folder. Until that is stored, a start finds it there by the topic's id."""
        try:
            await self._store.set(paths.partition_state(topic.name, state.index), state_json(self.controller_epoch, state))
        except StoreError as error:
            _log.warning("topic=%s partition=%d: it can't be stored where it lies now: %s", topic.name, state.index, error)

    async def finish_deletions(self, forget: Callable[[str], None]) -> None:
        """The rest of the deletions that a crash cut short, once the coordinators are there. Raises StoreError."""
        for name in tuple(self._former):
            forget(name)
            await self._forget_former(name)
            _log.info("finished the deletion of topic=%s", name)

    def _tell_missing(self, topics: Sequence[Topic]) -> None:
        """Say which partitions are offline because the folder that held them works and doesn't hold them any more."""
        names = {topic.name for topic in topics}
        by_folder: dict[str, list[Key]] = {}
        for key, directory in sorted(self._dirs.missing.items()):
            if key[0] in names:
                by_folder.setdefault(directory, []).append(key)
        for directory, keys in by_folder.items():
            path = self._dirs.path_of(directory)
            _log.error(
                "%d partitions lay in %s, and no log folder holds them now: they are offline and answer KAFKA_STORAGE_ERROR "
                "(%s). Bring their folders back and start again, or delete their topics; or start once with "
                "`--forget-log-dir %s`: they begin again, empty",
                len(keys), path or "a folder that isn't known", some(keys),
                quoted(path or self._dirs.first.path),
            )  # fmt: skip

    def _tell_strangers(self, folders: Sequence[Path], topics: Sequence[Topic]) -> None:
        by_id = {topic.topic_id: topic for topic in topics}
        for folder in folders:
            key, topic = partition_of(folder.name), by_id.get(topic_id_in(folder) or b"")
            if topic is None or key is None or key[0] != topic.name:
                _log.warning("the folder %s belongs to no topic; it is left alone", folder)
                continue
            _log.warning(
                "the folder %s has the id of topic=%s, of which the store knows %d partitions; it is left alone. Grow the "
                "topic to %d partitions, and it goes on with its records",
                folder, topic.name, len(topic.partitions), key[1] + 1,
            )  # fmt: skip

    def _warn_of_paused(self, topics: Sequence[Topic]) -> None:
        names = [topic.name for topic in topics if awaits_confirmation(topic.configs)]
        if names:
            _log.warning(
                "retention and compaction are paused in %d topics whose configs wait to be confirmed, and disks may fill: %s. "
                "Check their configs, put them right, then `penstock topics confirm NAME...` (or --all)",
                len(names), _some(names),
            )  # fmt: skip

    async def _after_restoring(self, topics: Sequence[Topic]) -> list[Operation]:
        """What is to be stored when the store was restored from a backup that may lack changes.

        Configs may have been altered since, so that retention and compaction are paused.
        """
        if await self._store.exists(paths.RESTORED) is None:
            return []
        lost = (await self._store.get(paths.RESTORED))[0].decode("ascii", "replace")
        _log.warning(
            "the metadata store was restored from a backup that lacks changes (%s): topics that were deleted since are back, "
            "those that were created since are left in their folders, configs may be older than the records", lost,
        )  # fmt: skip
        operations: list[Operation] = [Delete(paths.RESTORED)]
        for topic in topics:
            if topic.name not in INTERNAL:
                topic.configs[CONFIRMED] = "false"
                operations.append(Set(paths.topic_config(topic.name), config_json(topic.configs)))
        return operations

    def folder_failed(self, path: str) -> None:
        """Take the partitions of a log folder out of the picture; their logs answer KAFKA_STORAGE_ERROR already."""
        for topic in self._by_name.values():
            self.logs.folder_failed(topic, path)
        self.version += 1

    async def _keep_up(self, topics: Sequence[Topic]) -> None:
        """Take over leader epochs of logs that the store doesn't know: an epoch must not be used twice."""
        keys = [(topic.name, state.index) for topic in topics for state in topic.partitions]
        loop = asyncio.get_running_loop()
        epochs = await loop.run_in_executor(self._executor, last_epochs, self._dirs, keys)
        behind = 0
        for state, epoch in zip((state for topic in topics for state in topic.partitions), epochs, strict=True):
            if state.leader_epoch < epoch < EPOCH_BELIEVED:
                state.leader_epoch = epoch
                behind += 1
        if behind:
            _log.warning(
                "the metadata store is older than the logs: %d of %d partitions have had later leader epochs, which are taken "
                "over; topics and configs may be out of date",
                behind, len(keys),
            )  # fmt: skip

    async def _raise_epochs(self, topics: Sequence[Topic], operations: list[Operation]) -> None:
        """Store the new epochs, and what else is to be stored with them."""
        believed = [one.leader_epoch for topic in topics for one in topic.partitions if one.leader_epoch < EPOCH_BELIEVED]
        self._leader_epoch = self.controller_epoch
        if (last := max(believed, default=-1)) >= self.controller_epoch:
            self._leader_epoch = next_epoch(last, time.time_ns() // 1_000_000)
        for topic in topics:
            for state in topic.partitions:
                state.leader, state.isr = self._node_id, [self._node_id]
                state.leader_epoch = max(self._leader_epoch, state.leader_epoch + 1)
                path = paths.partition_state(topic.name, state.index)
                operations.append(Set(path, state_json(self.controller_epoch, state)))
        self._set_making(self._dirs.unmade)
        operations += [await self._making_node(), await self._log_dirs_node()]
        await self._store.multi(operations)

    async def _read_topics(self) -> list[Topic] | None:
        """The topics in the store; None: it has no history yet."""
        try:
            nodes = await self._store.tree(paths.TOPICS)
        except NoNodeError:
            return None
        configs = await self._store.tree(paths.TOPIC_CONFIGS) if nodes else {}
        names = sorted(name for name in nodes if "/" not in name)
        topics = [read_topic(name, nodes, configs) for name in names]
        check_topic_ids(topics)
        for topic in topics:
            topic.configs, said, lost = stored_configs(topic.configs)
            for sentence in said:
                _log.warning("topic=%s: %s", topic.name, sentence)
            if lost and not topic.internal:  # What wrong configs delete doesn't come back.
                topic.configs[CONFIRMED] = "false"
        return topics

    async def _adopt(self) -> list[Topic]:
        """The topics that lie in the folders. What no folder holds of their partitions was another broker's, and is made."""
        most = self._config["max.partitions.per.topic"]
        found = await asyncio.get_running_loop().run_in_executor(self._executor, adopted, self._dirs, most)
        operations: list[Operation] = [Create(paths.TOPICS, parents=True)]
        topics = []
        for name, (topic_id, epochs) in found.items():
            configs = internal_settings(self._config, name)[1] if name in INTERNAL else {CONFIRMED: "false"}
            topic = Topic(name, topic_id, [self._new_partition(index) for index in range(len(epochs))], configs)
            for state, epoch in zip(topic.partitions, epochs, strict=True):
                state.leader_epoch = epoch
            operations += self._topic_nodes(topic)
            topics.append(topic)
            _log.info("found topic=%s id=%s partitions=%d", name, uuid_text(topic_id), len(epochs))
        check_topic_ids(topics)
        keys = ((topic.name, state.index) for topic in topics for state in topic.partitions)
        self._set_making(key for key in keys if self._dirs.of(key) is None)
        await self._store.multi([*operations, await self._making_node()])
        return topics

    def _new_partition(self, index: int) -> PartitionState:
        return PartitionState(index, self._node_id, self._leader_epoch, [self._node_id], [self._node_id])

    def _topic_nodes(self, topic: Topic) -> list[Operation]:
        return [
            Create(paths.topic(topic.name), topic_json(topic), parents=True),
            Create(paths.topic_config(topic.name), config_json(topic.configs), parents=True),
            *self._state_nodes(topic, topic.partitions),
        ]

    def _state_nodes(self, topic: Topic, states: Sequence[PartitionState]) -> list[Create]:
        return [
            Create(paths.partition_state(topic.name, state.index), state_json(self.controller_epoch, state), parents=True)
            for state in states
        ]


def _some(words: Iterable[str], most: int = 20) -> str:
    """A list for the log, cut where it gets long."""
    every = list(words)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


@asynccontextmanager
async def _stored(name: str) -> AsyncIterator[None]:
    """What the store refuses (its disk is full, or failed) is an answer that a client tries again."""
    try:
        yield
    except StoreError as error:
        _log.error("topic=%s: %s", name, error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {error}") from error
