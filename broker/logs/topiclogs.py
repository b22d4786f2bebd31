"""The logs behind the topics: opened at start, made, deleted, moved between log folders."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from errno import EIO, ETIMEDOUT
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.topicconfig import log_config
from penstock.broker.epochs import EPOCH_BELIEVED
from penstock.broker.logs.adoption import last_epochs
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.logs.logdirs import DELETED, Key, LogDir, LogDirs, Placed, give_way, set_aside, topic_id_in
from penstock.broker.logs.moving import CARRIED, CLOSED, OPENED, REMOVED, Copying, Move, Moving
from penstock.broker.logs.opening import PASSING, Job, Opening, each, lead
from penstock.broker.topic import PartitionState, Topic
from penstock.durable import sync_folder
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import failpoint
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.partitionfolder import remove_folder

ASKING_THREADS = 4
"""Requests that wait for the logs of one folder at the same time."""
PATIENCE_S, PATIENCE_TIMES = 5.0, 4
"""How long a stop waits for deletions before it says so, and how often."""
HELD_S = 2.0
"""How long requests for a partition are held while its move is finished. Usually that takes milliseconds; should its disk hang,
they are answered NOT_LEADER_OR_FOLLOWER from then on, and clients try again."""
APPENDS_S = 0.0005
"""How often it is asked whether the appends are done that began before the partition was held."""
SWAPPED_S = 0.01
"""How often it is asked whether a compaction has put its files in their place."""

_log = log.get(__name__)
S = TypeVar("S")
T = TypeVar("T")


class TopicLogs:
    """Of one broker. `changes` is the lock under which topics are created and deleted: a move ends under it too.

    Logs that are there already are opened in threads of their own, `opening`: topics come and go meanwhile.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        dirs: LogDirs,
        logs: LogManager,
        executor: ThreadPoolExecutor,
        opening: ThreadPoolExecutor,
        changes: asyncio.Lock,
        moved: Callable[[Topic, PartitionState], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._dirs = dirs
        self._logs = logs
        self._executor = executor
        self._changes = changes
        self._moved = moved  # called when a partition lies in another folder, `PartitionState.directory`
        self._opening = Opening(node_id, dirs, logs, opening)
        self.moving = Moving(self)
        self._asking = FolderThreads("asking", ASKING_THREADS)
        self._deleting = FolderThreads("deleting", 1)
        self.left_behind = False
        """After `stop`: a thread still removes a topic's logs, and its disk hangs."""
        self._unopened: list[Job] = []
        self._opened = 0  # of those that the start had to open
        self._missed: list[Topic] = []  # their settings changed while their logs weren't open

    async def locate(self, topics: Sequence[Topic], unmade: Set[Key]) -> None:
        """Find these topics' logs, and say in each partition's state where it lies. unmade: those that a crash kept from being
        made. Raises OSError, FolderError."""
        states = {(topic.name, state.index): (topic, state) for topic in topics for state in topic.partitions}
        placed = {key: Placed(topic.topic_id, state.directory) for key, (topic, state) in states.items()}
        await asyncio.get_running_loop().run_in_executor(self._executor, self._dirs.locate, placed, unmade)
        for key, (_, state) in states.items():
            log_dir = self._dirs.of(key)
            if log_dir is not None and log_dir.id:
                state.directory = log_dir.id

    async def make_unmade(self, topic: Topic) -> None:
        """Make the partitions of an announced topic that have a place and never had a log there, or have none any more."""
        unmade = [state for state in topic.partitions if (topic.name, state.index) in self._dirs.unmade]
        states = [state for state in unmade if not state.offline]
        try:
            await self.make(topic, states)
        except (OSError, ValueError, KafkaError) as error:
            _log.error("%d partitions of topic=%s can't be made and are offline: %s", len(states), topic.name, error)
            for state in states:
                state.offline = True
            return
        for state in states:
            self._dirs.unmade.discard((topic.name, state.index))
            if not state.offline:
                state.leader = self._node_id

    def announce(self, topic: Topic) -> None:
        """Make a topic's partitions known; they are opened later."""
        self._unopened += self._opening.announce(topic, log_config(self._config, topic.configs))

    async def open_internal(self) -> None:
        """Open the coordinators' logs."""
        await self._open([job for job in self._unopened if job.topic.internal])

    async def open_rest(self) -> None:
        """Open all that was only announced. A disk that fails takes its partitions offline, nothing is raised."""
        await self._open(self._unopened)

    async def note_opened(self) -> None:
        """Say in the log folders that all logs are open, and what a power cut has left is dealt with: from here on a crash of
        this process is no power cut."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._note_opened)

    def _note_opened(self) -> None:
        for log_dir in self._dirs.online:
            if log_dir.folder is not None and not log_dir.unopened:
                try:
                    log_dir.folder.opened()
                except OSError as error:  # The next start takes a kill for a power cut.
                    _log.warning("log_dir=%s: it can't be noted that its logs are open: %s", log_dir.path, error)

    async def stop(self) -> None:
        """Begin no further log: the broker stops. Nobody may call `ask` or `delete` any more."""
        self._opening.stop()
        await self._asking.stop()
        for _ in range(PATIENCE_TIMES):
            left = await self._deleting.wait(PATIENCE_S)
            if not left:
                break
            _log.warning(
                "the stop waits for deletions of topics in %s: does that disk hang?", ", ".join(sorted(map(str, left)))
            )
        self._deleting.leave()
        if left:
            self.left_behind = True
            _log.error("the stop leaves deletions in %s to the next start", ", ".join(sorted(map(str, left))))

    async def ask(self, key: Key, work: Callable[..., T], *given: object) -> T:
        """What `work(*given)` gives or raises, which asks a partition's log and waits for its disk or its lock."""
        return await self._asking.run(self.folder_of(key), work, *given)

    async def ask_each(self, keys: Sequence[Key], work: Callable[[list[S]], list[T]], given: Sequence[S]) -> list[T]:
        """What `work` gives for each log, of which it is given a list: those that lie in one folder, so that a disk that
        hangs holds up no other folder's."""
        by_folder: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            by_folder.setdefault(self.folder_of(key), []).append(place)
        answers = await asyncio.gather(
            *(self._asking.run(folder, work, [given[i] for i in places]) for folder, places in by_folder.items())
        )
        found = {
            place: answer
            for places, got in zip(by_folder.values(), answers, strict=True)
            for place, answer in zip(places, got, strict=True)
        }
        return [found[place] for place in range(len(keys))]

    def folder_of(self, key: Key) -> str:
        """The path of the log folder that a partition lies in; "" if it lies in none."""
        log_dir = self._dirs.of(key)
        return "" if log_dir is None else str(log_dir.path)

    @property
    def all_open(self) -> bool:
        """Whether every log was opened, or is offline for good."""
        return not self._unopened

    @property
    def opened(self) -> tuple[int, int]:
        """Of the logs that the start has to open, how many are open or offline, and how many there are."""
        logs = self._opened + len(self._unopened)
        return (logs, logs) if self.all_open else (min(logs - 1, self._opened + self._opening.opened), logs)

    async def _open(self, jobs: Sequence[Job]) -> None:
        await self._opening.open(jobs)
        opened = {job.key for job in jobs if job.state.leader >= 0 or job.state.offline}
        self._opened += len(opened)
        self._unopened = [job for job in self._unopened if job.key not in opened]
        missed, self._missed = self._missed, []
        for topic in missed:
            self.reconfigure(topic)

    def reconfigure(self, topic: Topic) -> list[Key]:
        """Give a topic's logs their settings again; those that aren't open yet get them when they are. Answers the logs
        from which compaction may remove records by the settings before just now: `swapped` waits for these."""
        settings, swapping = log_config(self._config, topic.configs), []
        for state in topic.partitions:
            try:  # Whoever leads: an open log of a cluster may have no leader just now.
                if self._logs.reconfigure(topic.name, state.index, settings):
                    swapping.append((topic.name, state.index))
            except KafkaError:  # It isn't here, or on its way to another folder, where it is opened with them.
                if state.leader < 0 and not state.offline and not self.all_open and topic not in self._missed:
                    self._missed.append(topic)
        return swapping

    async def swapped(self, swapping: Sequence[Key]) -> None:
        """Return when no compaction puts files in the place of others in these logs. It takes some renames and two fsyncs;
        should the disk hang, no thread hangs here."""
        while any(map(self._is_swapping, swapping)):  # noqa: ASYNC110 - the data plane has no event for the loop
            await asyncio.sleep(SWAPPED_S)

    def _is_swapping(self, key: Key) -> bool:
        with contextlib.suppress(KafkaError):  # Closed or deleted meanwhile, which has waited for the pass.
            return self._logs.is_swapping(*key)
        return False

    def folder_failed(self, topic: Topic, path: str) -> None:
        """Take a topic's partitions in a log folder offline."""
        for state in topic.partitions:
            log_dir = self._dirs.of((topic.name, state.index))
            if log_dir is not None and str(log_dir.path) == path:
                state.leader, state.offline = -1, True

    async def remove_deleted(self) -> None:
        """Remove what a crash has left of deleted logs. A disk that fails takes its folder offline, nothing is raised."""
        loop = asyncio.get_running_loop()
        for log_dir in self._dirs.online:
            try:
                await loop.run_in_executor(self._executor, self._logs.remove_deleted, str(log_dir.path))
            except OSError as error:
                _log.error("log_dir=%s: what deleted partitions have left can't be removed: %s", log_dir.path, error)
                self._logs.fail_folder(str(log_dir.path), error.errno or EIO)

    def move(self, topic: Topic, index: int, target: LogDir) -> None:
        """Begin to move a partition to another log folder. Raises KafkaError."""
        name, log_dir = topic.name, self._dirs.of((topic.name, index))
        if not 0 <= index < len(topic.partitions) or log_dir is None:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{name}-{index}")
        if topic.partitions[index].offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index}")
        if topic.partitions[index].leader < 0:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{name}-{index} is not open yet")
        self.moving.ask(topic, index, log_dir, target)

    def lies_in(self, key: Key) -> LogDir | None:
        """The folder that holds a partition now."""
        return self._dirs.of(key)

    def batch_bytes(self, key: Key) -> dict[str, int]:
        """Bytes of batches in each segment of an open log, by its file's name. Raises KafkaError."""
        return {Path(segment.path).name: segment.size_bytes for segment in self._logs.segments(*key)}

    def flush(self, key: Key) -> None:
        """Sync what an open log has. Raises OSError, KafkaError."""
        self._logs.flush(*key)

    async def swap(self, move: Move, copying: Copying) -> None:
        """Close a partition, copy the rest, open it in the folder where it then lies, which is the old one if anything
        fails. Raises what has failed."""
        async with self._changes:
            log_dir, state = self._dirs.of(move.key), move.topic.partitions[move.index]
            if log_dir is None or not self.moving.closes(move):
                return
            for one in (log_dir, move.target):
                if one.offline:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{one.path} is offline: {one.error}")
            if state.leader < 0:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "it is offline")
            move.log_bytes = self._logs.size_bytes(*move.key)
            settings = log_config(self._config, move.topic.configs)
            jobs = (Job(move.topic, state, log_dir, settings), Job(move.topic, state, move.target, settings))
            loop, held = asyncio.get_running_loop(), self._logs.produces_held
            copying.doing = "writing checkpoints"
            try:  # While it is open, since this waits for a disk.
                await loop.run_in_executor(self._executor, self._carry_checkpoints, move)
            except Exception:
                self._logs.drop_checkpoints(*move.key, str(move.target.path))
                raise
            self._logs.hold(*move.key)
            self.moving.settled.clear()
            opened = partial(loop.call_soon_threadsafe, self.moving.settled.set)
            bound = loop.call_later(HELD_S, self._release, move, self.moving.settled.set)
            try:
                await loop.run_in_executor(self._executor, self._swap, move, copying, opened, *jobs)
            finally:
                bound.cancel()
                self._finish_move(move, move.target if copying.moved else log_dir)
                self._release(move, self.moving.settled.set)  # Again, should it be open in no folder.
                if copying.moved:
                    state.directory = move.target.id
                    await self._moved(move.topic, state)
            _log.info(
                "moved topic=%s partition=%d from %s to %s: %d MB, closed for %.1f ms, %d produces held",
                *move.key, log_dir.path, move.target.path, move.log_bytes >> 20, move.closed_s * 1000,
                self._logs.produces_held - held,
            )  # fmt: skip

    def _carry_checkpoints(self, move: Move) -> None:
        self._logs.carry_checkpoints(*move.key, str(move.source.path), str(move.target.path))

    def _release(self, move: Move, tell: Callable[[], object]) -> None:
        """Let the requests go on that wait for the end of a move, here and on the network threads. From any thread."""
        self._logs.release(*move.key)
        tell()

    def _finish_move(self, move: Move, lies_in: LogDir) -> None:
        """Take down what has become of a partition that was closed."""
        state = move.topic.partitions[move.index]
        self._dirs.put(move.key, lies_in)
        if move.key not in self._logs.partitions():
            self._logs.announce(move.topic.name, move.topic.topic_id, state.index, True)
            state.leader, state.offline = -1, True
            lies_in.unopened = True
            _log.error(
                "topic=%s partition=%d can't be opened in %s after its move and is offline until the next start: "
                "mend that disk and start the broker again", *move.key, lies_in.path,
            )  # fmt: skip
        elif lies_in.offline:  # It has failed meanwhile, when the partition lay in the other one.
            state.leader, state.offline = -1, True
        else:
            # The other folder may have failed meanwhile, and the broker's settings may have been altered.
            state.leader, state.offline = self._node_id, False
            self._logs.reconfigure(*move.key, log_config(self._config, move.topic.configs))

    def _swap(self, move: Move, copying: Copying, opened: Callable[[], object], here: Job, there: Job) -> None:
        """Raises what has failed; the partition is open all the same, unless its disk refuses that too. opened: to be called
        as soon as it is."""
        key, old, new = move.key, str(here.log_dir.path), str(there.log_dir.path)
        clean, begun_s = False, time.monotonic()
        try:
            copying.doing = "waiting for appends to end"
            while self._logs.held_appends(*key):
                if time.monotonic() - begun_s > HELD_S:
                    raise OSError(ETIMEDOUT, "an append doesn't end, does its disk hang?")
                time.sleep(APPENDS_S)
            copying.doing = "closing its log"
            self._logs.stop(*key, announced=True)
            clean = True
            failpoint(CLOSED)
            copying.finish()
            copying.doing = "writing checkpoints"
            self._carry_checkpoints(move)  # What is new since, if a crash must not forget it.
            failpoint(CARRIED)
            copying.swap()
            copying.doing = "opening it in the new folder"
            lead(self._logs, there, clean=True)
            self._release(move, opened)
            move.closed_s = time.monotonic() - begun_s
        except Exception:
            doing = copying.doing
            try:
                copying.back()
            except Exception as error:  # noqa: BLE001 - the partition must be opened, wherever it lies
                _log.error("topic=%s partition=%d: the move to %s can't be taken back: %s", *key, new, error)
            copying.doing = doing
            place, other = (there, old) if copying.moved else (here, new)
            self._logs.drop_checkpoints(*key, other)
            try:
                lead(self._logs, place, clean=clean)
            except OSError as error:
                if error.errno not in PASSING:
                    self._logs.fail_folder(str(place.log_dir.path), error.errno or EIO)
                raise
            self._release(move, opened)
            raise
        failpoint(OPENED)
        copying.end()
        copying.doing = "removing its old files"
        self._logs.drop_checkpoints(*key, old)
        copying.clear()
        failpoint(REMOVED)

    def place(self, topic: Topic, states: Sequence[PartitionState]) -> None:
        """Choose the log folders of new partitions. Raises KafkaError."""
        try:
            for state in states:
                state.directory = self._dirs.place((topic.name, state.index)).id
        except KafkaError:
            self.displace(topic, states)
            raise

    def displace(self, topic: Topic, states: Sequence[PartitionState]) -> None:
        """Take that back: nothing was made."""
        for state in states:
            self._dirs.drop((topic.name, state.index))

    async def make(self, topic: Topic, states: Sequence[PartitionState]) -> None:
        """Make and open the logs of new partitions, which have their places (`place`). One sync of each folder is enough for
        all their names: what was acknowledged survives kill -9 in any case. Raises OSError, ValueError, KafkaError."""
        settings = log_config(self._config, topic.configs)
        jobs = []
        for state in states:
            log_dir = self._dirs.of((topic.name, state.index))
            if log_dir is None or log_dir.offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log folder of {topic.name}-{state.index} is offline")
            jobs.append(Job(topic, state, log_dir, settings))
        await each(self._executor, self._make_one, jobs)
        loop = asyncio.get_running_loop()
        for path in dict.fromkeys(job.log_dir.path for job in jobs):
            await loop.run_in_executor(self._executor, self._logs.write_overdue_checkpoints, str(path))
            await loop.run_in_executor(self._executor, sync_folder, path)
        for job in jobs:
            if job.log_dir.offline:  # It has failed meanwhile, when these partitions weren't known.
                job.state.leader, job.state.offline = -1, True

    def _make_one(self, job: Job) -> None:
        folder = job.log_dir.holds(job.key)
        if topic_id_in(folder) == job.topic.topic_id:  # The store is an older one, which didn't know of it.
            lead(self._logs, job)
            _log.warning("topic=%s partition=%d lay in %s already: it goes on with its records", *job.key, folder)
            return
        if folder.exists():  # A deleted topic's, which its disk brought back.
            set_aside(job.log_dir, job.key)
        lead(self._logs, job, new=True)

    async def take_over(self, topic: Topic, states: Sequence[PartitionState]) -> list[PartitionState]:
        """Of new partitions, which have their places, those that lie there already with the topic's id: their leader epochs
        go on."""
        here = [state for state in states if self._is_there(topic, state)]
        keys = [(topic.name, state.index) for state in here]
        loop = asyncio.get_running_loop()
        for state, epoch in zip(here, await loop.run_in_executor(self._executor, last_epochs, self._dirs, keys), strict=True):
            if state.leader_epoch <= epoch < EPOCH_BELIEVED:
                state.leader_epoch = epoch + 1
        return here

    def _is_there(self, topic: Topic, state: PartitionState) -> bool:
        log_dir = self._dirs.of((topic.name, state.index))
        return log_dir is not None and topic_id_in(log_dir.holds((topic.name, state.index))) == topic.topic_id

    async def close(self, topic: Topic, states: Sequence[PartitionState]) -> None:
        """Close logs that were taken over, as the topic can't have them: they stay where they lie. Raises OSError."""
        led = self._logs.partitions()
        for state in states:
            if (topic.name, state.index) in led:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._logs.stop, topic.name, state.index)

    async def delete(self, topic: Topic) -> None:
        """Remove a topic's logs; what lies on a broken disk stays there and is a stranger when the disk is back."""
        await self.remove(topic, self.leave(topic))

    def leave(self, topic: Topic) -> list[LogDir | None]:
        """The first half, under `changes`: the partitions serve nobody and lie nowhere any more, and none of their moves
        swaps its folders. Where each lay."""
        for state in topic.partitions:
            self.moving.forget((topic.name, state.index))
            self._logs.retire(topic.name, state.index)
        return [self._dirs.drop((topic.name, state.index)) for state in topic.partitions]

    async def remove(self, topic: Topic, lay_in: Sequence[LogDir | None]) -> None:
        """The other half, which waits for the disks and needs no lock."""
        keys = [(topic.name, state.index) for state in topic.partitions]
        await self._opening.give_up(keys)
        self._unopened = [job for job in self._unopened if job.key not in keys]
        self._missed = [one for one in self._missed if one is not topic]
        by_folder: dict[str, tuple[LogDir | None, list[Key]]] = {}
        for key, log_dir in zip(keys, lay_in, strict=True):
            by_folder.setdefault("" if log_dir is None else str(log_dir.path), (log_dir, []))[1].append(key)
        await asyncio.gather(
            *(self._deleting.run(folder, self._delete_all, topic, *here) for folder, here in by_folder.items())
        )

    def _delete_all(self, topic: Topic, log_dir: LogDir | None, keys: Sequence[Key]) -> None:
        for key in keys:
            try:
                self._delete_log(key, topic.topic_id, log_dir)
            except OSError as error:
                _log.error("the log of topic=%s partition=%d can't be removed: %s", *key, error)
            if log_dir is not None and not log_dir.offline:
                self._logs.drop_checkpoints(*key, str(log_dir.path))
        if log_dir is not None and not log_dir.offline:
            try:
                self._logs.write_overdue_checkpoints(str(log_dir.path))
            except OSError as error:
                _log.error("log_dir=%s: checkpoints can't be written: %s", log_dir.path, error)

    def _delete_log(self, key: Key, topic_id: bytes, log_dir: LogDir | None) -> None:
        try:
            self._logs.delete(*key)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        if log_dir is None or log_dir.offline or not log_dir.holds(key).exists():
            return
        # It wasn't open, and may be a later topic's of this name, when an older store was restored.
        if (topic_id_in(log_dir.holds(key)) or topic_id) == topic_id:
            # What a removal that fails halfway leaves must not lie under a name that the next topic may have.
            remove_folder(give_way(log_dir, key, DELETED))
        else:
            _log.warning("the folder %s belongs to another topic of this name; it is left alone", log_dir.holds(key))
