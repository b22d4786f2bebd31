"""The topics at a start: read from the store, or out of the log folders; what a crash cut short is finished.

Each start is an election, so all partitions get a later leader epoch (`epochs.py`). Where the logs and the store don't agree,
the start takes over what is safe, and says it: later epochs, folders of no topic, partitions that aren't where they lay, a
store that was restored from its backup.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.confignodes import config_json
from penstock.broker.configs.topicconfig import CONFIRMED, awaits_confirmation, stored_configs
from penstock.broker.epochs import EPOCH_BELIEVED, next_epoch
from penstock.broker.logs.adoption import adopted, last_epochs, strangers
from penstock.broker.logs.logdirs import Key, LogDirs, partition_of, some, topic_id_in
from penstock.broker.store.base import Create, Delete, NoNodeError, Operation, Set, Store, paths
from penstock.broker.topic import INTERNAL, Topic, internal_settings
from penstock.broker.topics.changes import Topics
from penstock.broker.topics.nodes import check_topic_ids, read_topic, state_json, topic_nodes
from penstock.broker.uuids import uuid_text
from penstock.hints import quoted

_log = log.get(__name__)


class Restoring:
    """One start: `read`, `load` once the epoch is known, `finish_deletions` once the coordinators are there."""

    def __init__(
        self, topics: Topics, node_id: int, config: BrokerConfig, store: Store, dirs: LogDirs, executor: ThreadPoolExecutor
    ) -> None:
        self._topics = topics
        self._marks = topics.marks
        self._node_id = node_id
        self._config = config
        self._store = store
        self._dirs = dirs
        self._executor = executor
        self._read: list[Topic] = []  # between `read` and `load`
        self._deleted: set[str] = set()  # likewise: names whose deletion had begun
        self._log_dirs: dict[str, str] = {}  # path by id

    async def read(self, forget: Path | None = None) -> None:
        """Read the store at start, and find where every partition lies. No log is touched. forget: a log folder whose
        partitions are given up if they aren't there. Raises StoreError, FolderError, OSError."""
        stored = await self._read_topics()
        self._deleted = set(await self._marks.deleted())
        await self._marks.read_making()
        holding = Counter(state.directory for topic in stored or () for state in topic.partitions)
        known = await self._marks.log_dirs()
        self._log_dirs = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._dirs.admit, known, holding, forget
        )
        self._read = await self._adopt() if stored is None else stored
        unmade = {(name, index) for name, indices in self._marks.making.items() for index in indices}
        await self._topics.logs.locate(self._read, unmade)

    async def load(self, controller_epoch: int) -> None:
        """After `read`: remove deleted topics' logs, announce every partition; open the coordinators' logs.

        Each start is an election, so all partitions get a later leader epoch (`epochs.py`): a client or a copy can tell
        what was written before a crash from what came after it. It is above those of the logs, should the store be an old
        copy. Raises StoreError, OSError.
        """
        self._topics.controller_epoch = controller_epoch
        topics, self._read = self._read, []
        self._topics.former = {topic.name: topic for topic in topics if topic.name in self._deleted}
        await self._topics.logs.remove_deleted()  # Before others are added that may be refused: each is said once.
        for topic in self._topics.former.values():
            await self._topics.logs.delete(topic)
        topics = [topic for topic in topics if topic.name not in self._topics.former]
        known = {(topic.name, state.index) for topic in topics for state in topic.partitions}
        self._tell_strangers(strangers(self._dirs, known), topics)
        self._tell_missing(topics)
        await self._keep_up(topics)
        await self._raise_epochs(topics, await self._after_restoring(topics))
        self._warn_of_paused(topics)
        for topic in topics:
            self._topics.show(topic)
            self._topics.logs.announce(topic)
        await self._make_unmade()
        await self._topics.logs.open_internal()

    async def _make_unmade(self) -> None:
        """Make what has its place and no log; the mark that it is to be made stays until it is."""
        if not self._dirs.unmade:
            return
        for name in sorted({name for name, _ in self._dirs.unmade}):
            await self._topics.logs.make_unmade(self._topics.known(name))
        self._marks.set_making(self._dirs.unmade)
        await self._store.multi([await self._marks.making_node()])

    async def finish_deletions(self, forget: Callable[[str], None]) -> None:
        """The rest of the deletions that a crash cut short, once the coordinators are there. Raises StoreError."""
        for name in tuple(self._topics.former):
            forget(name)
            await self._topics.forget_former(name)
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
        self._topics.leader_epoch = self._topics.controller_epoch
        if (last := max(believed, default=-1)) >= self._topics.controller_epoch:
            self._topics.leader_epoch = next_epoch(last, time.time_ns() // 1_000_000)
        for topic in topics:
            for state in topic.partitions:
                state.leader, state.isr = self._node_id, [self._node_id]
                state.leader_epoch = max(self._topics.leader_epoch, state.leader_epoch + 1)
                path = paths.partition_state(topic.name, state.index)
                operations.append(Set(path, state_json(self._topics.controller_epoch, state)))
        self._marks.set_making(self._dirs.unmade)
        operations += [await self._marks.making_node(), await self._marks.log_dirs_node(self._log_dirs)]
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
            topic = Topic(name, topic_id, [self._topics.new_partition(index) for index in range(len(epochs))], configs)
            for state, epoch in zip(topic.partitions, epochs, strict=True):
                state.leader_epoch = epoch
            operations += topic_nodes(self._topics.controller_epoch, topic)
            topics.append(topic)
            _log.info("found topic=%s id=%s partitions=%d", name, uuid_text(topic_id), len(epochs))
        check_topic_ids(topics)
        keys = ((topic.name, state.index) for topic in topics for state in topic.partitions)
        self._marks.set_making(key for key in keys if self._dirs.of(key) is None)
        await self._store.multi([*operations, await self._marks.making_node()])
        return topics


def _some(words: Iterable[str], most: int = 20) -> str:
    """A list for the log, cut where it gets long."""
    every = list(words)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
