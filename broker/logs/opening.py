"""Opening the logs at start: a few at a time, those with the least to check first, with progress in the log.

Every partition is announced before any is opened, so that a request for one that isn't open yet gets an error that a
client tries again (NOT_LEADER_OR_FOLLOWER; Metadata says LEADER_NOT_AVAILABLE) and never UNKNOWN_TOPIC_OR_PARTITION. One
that can't be opened because its disk fails takes its log folder offline, the others go on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from penstock import log, notify
from penstock.broker.logs.logdirs import Key, LogDir, LogDirs
from penstock.broker.topic import PartitionState, Topic
from penstock.pyx.log.logmanager import LogManager

PROGRESS_S = 1.0
CHUNK = 64
"""Logs that one job opens after another, if all are small: a job costs more than opening a log that was left clean."""
CHUNK_BYTES = 1 << 20
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ENOENT})
"""Errors that say nothing about the disk, or that go by; a partition whose folder has gone is offline by itself."""

_log = log.get(__name__)


@dataclass
class Job:
    """A partition whose log is to be opened."""

    topic: Topic
    state: PartitionState
    log_dir: LogDir
    settings: Mapping[str, int]
    check_bytes: int = 0  # to be read and checked; 0 = the log was left clean

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic.name, self.state.index


class Opening:
    """Opens logs in the executor's threads and keeps `PartitionState.leader` and `.offline` true. On the loop."""

    def __init__(self, node_id: int, dirs: LogDirs, logs: LogManager, executor: ThreadPoolExecutor) -> None:
        self._node_id = node_id
        self._dirs = dirs
        self._logs = logs
        self._executor = executor
        self._pending: dict[Key, asyncio.Future[None]] = {}
        self._stopping = False
        self._lock = threading.Lock()  # of the two below, which the threads look at too
        self._begun: set[Key] = set()
        self._skipped: set[Key] = set()
        self._progress: _Progress | None = None

    @property
    def opened(self) -> int:
        """Of the logs that `open` is opening, how many are open."""
        return 0 if self._progress is None else self._progress.opened

    def announce(self, topic: Topic, settings: Mapping[str, int]) -> list[Job]:
        """Make a topic's partitions known; answers what has to be opened. Those of broken disks, or that no folder holds,
        are offline; those that are to be made aren't opened."""
        jobs = []
        for state in topic.partitions:
            key = topic.name, state.index
            log_dir = self._dirs.of(key)
            offline = log_dir is None or log_dir.offline
            state.leader, state.offline = -1, offline
            self._logs.announce(topic.name, topic.topic_id, state.index, offline)
            if log_dir is not None and not offline and key not in self._dirs.unmade:
                jobs.append(Job(topic, state, log_dir, settings))
        return jobs

    async def open(self, jobs: Sequence[Job]) -> None:
        """Open announced partitions; returns when each is open or offline. Never raises for a disk."""
        loop = asyncio.get_running_loop()
        for job in jobs:
            self._pending[job.key] = loop.create_future()
        started = time.monotonic()
        await loop.run_in_executor(self._executor, _weigh, self._logs, jobs)
        progress = self._progress = _Progress(self._logs, len(jobs), sum(job.check_bytes for job in jobs))
        reporting = asyncio.create_task(progress.report())
        try:
            await asyncio.gather(*(self._chunk(chunk, progress) for chunk in _chunks(jobs)))
            paths = {str(job.log_dir.path) for job in jobs if not job.log_dir.offline}
            await asyncio.gather(*(loop.run_in_executor(self._executor, self._write_first, path) for path in paths))
        finally:
            reporting.cancel()
            self._progress = None
            for job in jobs:
                self._release_waiting(job.key)
            with self._lock:
                self._begun.clear()
                self._skipped.clear()
        if progress.bytes_all:
            _log.info(
                "recovered %d logs in %.1f s: checked %d batches, %d MB, cut %d bytes",
                progress.opened, time.monotonic() - started, progress.batches, progress.bytes_done >> 20,
                progress.cut_bytes,
            )  # fmt: skip

    def stop(self) -> None:
        """Begin no further log."""
        self._stopping = True

    async def give_up(self, keys: Iterable[Key]) -> None:
        """Don't open these partitions; waits for those that are being opened just now."""
        pending = [key for key in keys if key in self._pending]
        with self._lock:
            begun = [key for key in pending if key in self._begun]
            self._skipped.update(key for key in pending if key not in self._begun)
        await asyncio.gather(*(self._pending[key] for key in begun))

    def _release_waiting(self, key: Key) -> None:
        waiting = self._pending.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _chunk(self, jobs: Sequence[Job], progress: _Progress) -> None:
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._open_all, jobs, progress)
        for job, failure in zip(jobs, await work, strict=True):
            if failure is None and job.log_dir.offline:
                job.state.offline = True  # It has failed since, like the others of its folder.
            elif failure is None:
                job.state.leader = self._node_id
            elif not isinstance(failure, asyncio.CancelledError):
                self._failed(job, failure)
            self._release_waiting(job.key)

    def _open_all(self, jobs: Sequence[Job], progress: _Progress) -> list[BaseException | None]:
        failures: list[BaseException | None] = []
        for job in jobs:
            try:
                self._begin(job.key)
                lead(self._logs, job, progress)
                failures.append(None)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the others must be opened, whatever it is
                failures.append(error)
        return failures

    def _write_first(self, path: str) -> None:
        """Where checkpoints were lost, what opening has found goes to the disk before anybody alters a topic."""
        try:
            self._logs.write_overdue_checkpoints(path)
        except OSError as error:
            _log.error("log_dir=%s: checkpoints can't be written: %s", path, error)

    def _begin(self, key: Key) -> None:
        with self._lock:
            if self._stopping or key in self._skipped:
                raise asyncio.CancelledError
            self._begun.add(key)

    def _failed(self, job: Job, failure: BaseException) -> None:
        _log.error("topic=%s partition=%d can't be opened and is offline: %s", *job.key, failure)
        job.state.offline = True
        job.log_dir.unopened = True
        self._logs.announce(job.topic.name, job.topic.topic_id, job.state.index, True)
        if isinstance(failure, OSError) and failure.errno not in PASSING:
            self._logs.fail_folder(str(job.log_dir.path), failure.errno or errno.EIO)


class _Progress:
    """What was done of an opening; the threads only add."""

    def __init__(self, logs: LogManager, count: int, bytes_all: int) -> None:
        self._logs = logs
        self._walked_before = logs.walked_bytes
        self.count = count
        self.bytes_all = bytes_all
        self.opened = self.bytes_done = self.batches = self.cut_bytes = 0

    async def report(self) -> None:
        before = (-1, -1)
        while True:
            await asyncio.sleep(PROGRESS_S)
            # Of a log that is being walked it is known how far the walk is; of those that are open what they had.
            walked = self._logs.walked_bytes - self._walked_before
            done = max(walked, self.bytes_done)
            what = "recovering" if self.bytes_all else "opening"
            said = f"{what} {self.opened} of {self.count} logs, {done >> 20} of about {self.bytes_all >> 20} MB checked"
            _log.info("%s", said)
            # A recovery that moves is waited for, however long it takes; one that doesn't runs into the unit's limit.
            (notify.progress if (self.opened, walked) != before else notify.status)(said)
            before = self.opened, walked


def lead(
    logs: LogManager, job: Job, progress: _Progress | None = None, *, clean: bool | None = None, new: bool = False
) -> None:
    """Open one log. Slow. Raises OSError, ValueError. clean: it was just closed; None = as its folder was. new: make it."""
    recovered = logs.lead(
        job.topic.name,
        job.topic.topic_id,
        job.state.index,
        job.state.leader_epoch,
        str(job.log_dir.path),
        dict(job.settings),
        job.log_dir.was_clean if clean is None else clean,
        new,
        job.log_dir.power_cut,
    )
    if recovered.cut_bytes:
        _log.warning(
            "cut %d bytes of no whole batch topic=%s partition=%d log_end=%d",
            recovered.cut_bytes, job.topic.name, job.state.index, recovered.log_end,
        )  # fmt: skip
    if progress is not None:
        progress.opened += 1
        progress.bytes_done += job.check_bytes
        progress.batches += recovered.batches_checked
        progress.cut_bytes += recovered.cut_bytes


async def each(executor: ThreadPoolExecutor, work: Callable[[Job], None], jobs: Sequence[Job]) -> None:
    """Do disk work for each job, many to a thread; raises the first error when all are done."""

    def several(chunk: Sequence[Job]) -> BaseException | None:
        failure: BaseException | None = None
        for job in chunk:
            try:
                work(job)
            except (OSError, ValueError) as error:
                failure = failure or error
        return failure

    loop = asyncio.get_running_loop()
    running: list[Awaitable[BaseException | None]] = [
        loop.run_in_executor(executor, several, jobs[at : at + CHUNK]) for at in range(0, len(jobs), CHUNK)
    ]
    for failure in await asyncio.gather(*running):
        if failure is not None:
            raise failure


def _chunks(jobs: Sequence[Job]) -> Iterable[Sequence[Job]]:
    """The least work first; logs with much to check each by itself, so that no thread waits for another's."""
    chunk: list[Job] = []
    held_bytes = 0
    for job in sorted(jobs, key=lambda job: job.check_bytes):
        chunk.append(job)
        held_bytes += job.check_bytes
        if len(chunk) == CHUNK or held_bytes > CHUNK_BYTES:
            yield chunk
            chunk, held_bytes = [], 0
    if chunk:
        yield chunk


def _weigh(logs: LogManager, jobs: Sequence[Job]) -> None:
    """Find out how many bytes of each log that wasn't left clean must be checked: a guess, no more."""
    for job in jobs:
        if job.log_dir.was_clean:
            continue
        point = logs.recovery_point(job.topic.name, job.topic.topic_id, job.state.index, str(job.log_dir.path))
        job.check_bytes = _unchecked_bytes(job.log_dir.holds(job.key), point)


def _unchecked_bytes(folder: Path, recovery_point: int) -> int:
    """Bytes of the segments from the one that holds the recovery point on."""
    sizes: list[tuple[int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix == "log" and stem.isdigit():
                    sizes.append((int(stem), entry.stat().st_size))
    except OSError:
        return 0  # Opening it will say what is wrong.
    sizes.sort()
    first = max((base for base, _ in sizes if base <= recovery_point), default=0)
    return sum(size for base, size in sizes if base >= first)
