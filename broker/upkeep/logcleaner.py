"""The log cleaner: which compacted log is due, and in which thread (the pass itself is `penstock.pyx.compaction.cleaner`).

A log is due when its dirty part is more than `min.cleanable.dirty.ratio` of it, or when something in the dirty part is
older than `max.compaction.lag.ms` (KIP-354). The dirtiest goes first, as in Kafka. `log.cleaner.threads` threads work, each
with its part of `log.cleaner.dedupe.buffer.size`; `log.cleaner.io.max.bytes.per.second` holds for all of them together.
All three may be altered at run time.
When nothing is due a thread waits for `log.cleaner.backoff.ms`.

Each log folder has threads of its own, of which `log.cleaner.threads` work at the same time in all. A pass that takes longer
than LONG_S doesn't count any more, since its disk may hang: then the other folders' logs are compacted beside it.

How far each log was compacted is in the checkpoints of its log folder (`penstock.pyx.log.checkpoint`), by topic id. They say
that a log is compacted before the cleaner replaces its first file. Should it be lost, the log counts as dirty and is compacted
again.

A log with a batch that can't be read (corrupt bytes, or more than `penstock.log.cleaner.inflated.max.bytes` once it is
inflated) or whose disk refuses is left alone until the broker restarts, with one line in the log; the others go on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from errno import EDQUOT, EMFILE, ENFILE, ENOENT, ENOSPC
from itertools import product
from pathlib import Path

from penstock import log
from penstock.broker import tasks
from penstock.broker.configs.properties import CLEANER_THREADS_MAX
from penstock.broker.configs.topicconfig import awaits_confirmation, topic_value
from penstock.broker.context import Context
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.logs.logdirs import LogDir
from penstock.errors import KafkaError
from penstock.pyx.compaction.cleaner import Cleanable, Cleaner, Compacted, UncleanableError, cleanable
from penstock.pyx.compaction.pace import Pace
from penstock.pyx.log.checkpoint import Key

PASSING = frozenset((ENOSPC, EDQUOT, EMFILE, ENFILE, ENOENT))
"""Errors that say nothing about the log: it is tried again later."""

LONG_S = 10.0
"""A pass that takes longer doesn't count against `log.cleaner.threads` any more."""

_log = log.get(__name__)


@dataclass(frozen=True)
class Candidate:
    """A partition of a compacted topic, with its settings in force; times in ms."""

    topic: str
    index: int
    topic_id: bytes
    min_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.index


def dirty_ratio(found: Cleanable) -> float:
    """The dirty part of what could be compacted, 0 to 1."""
    total = found.clean_bytes + found.cleanable_bytes
    return found.cleanable_bytes / total if total else 0.0


def is_due(candidate: Candidate, found: Cleanable, now_ms: int) -> bool:
    """Whether a log should be compacted now."""
    if not found.cleanable_bytes:
        return False
    too_old = 0 < found.oldest_dirty_ms < now_ms - candidate.max_lag_ms
    return too_old or dirty_ratio(found) > candidate.min_ratio


class LogCleaner:
    """Compacts logs from `start` to `stop`. Its threads touch nothing of the loop's but what is copied for them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pace = Pace(context.config["log.cleaner.io.max.bytes.per.second"])
        self._threads = FolderThreads("cleaner", CLEANER_THREADS_MAX)  # which makes as many as are needed
        self._tasks: dict[tuple[Path, int], asyncio.Task[None]] = {}
        self._stopped = False
        self._working = 0  # passes that count
        self._ended = asyncio.Event()  # set whenever these get fewer
        self._locks = {log_dir.path: threading.Lock() for log_dir in context.dirs}  # of choosing: it may wait for the disk
        self._busy: set[Key] = set()
        self._left_alone: set[tuple[bytes, int]] = set()

    def start(self) -> None:
        """Begin, unless `log.cleaner.enable` is false."""
        self._context.config.watch(self._altered)
        self._altered()

    def _altered(self) -> None:
        """Threads that are too many end after their pass, the others take new sizes of buffers before their next one."""
        config = self._context.config
        self._pace.limit(config["log.cleaner.io.max.bytes.per.second"])
        if config["log.cleaner.enable"] and not self._stopped:
            for log_dir, number in product(self._context.dirs, range(config["log.cleaner.threads"])):
                task = self._tasks.get((log_dir.path, number))
                if task is None or task.done():
                    work = tasks.start(self._run(log_dir, number), f"cleaner-{number} of {log_dir.path}")
                    self._tasks[log_dir.path, number] = work

    async def stop(self) -> None:
        """End; a pass that is under way ends between two batches and leaves its log as it was."""
        self._stopped = True
        self._pace.end()
        await tasks.end(*self._tasks.values())
        await self._threads.stop()

    def _sizes(self) -> tuple[int, float, int]:
        """What a thread's Cleaner is made with."""
        config = self._context.config
        return (
            config["log.cleaner.dedupe.buffer.size"] // config["log.cleaner.threads"],
            config["log.cleaner.io.buffer.load.factor"],
            config["penstock.log.cleaner.inflated.max.bytes"],
        )

    async def _run(self, log_dir: LogDir, number: int) -> None:
        config = self._context.config
        sizes = self._sizes()
        cleaner = Cleaner(self._pace, *sizes)
        while number < config["log.cleaner.threads"]:
            if sizes != self._sizes():
                sizes = self._sizes()
                cleaner = Cleaner(self._pace, *sizes)
            candidates = self._candidates(log_dir)
            worked = False
            if candidates:
                try:
                    async with self._counted():
                        work = self._turn, self._locks[log_dir.path], cleaner, candidates
                        worked = await self._threads.run(log_dir.path, *work)
                except Exception:  # noqa: BLE001 - without it compacted topics would grow for ever
                    _log.exception("a pass of the cleaner has failed")
            if not worked:
                await asyncio.sleep(config["log.cleaner.backoff.ms"] / 1000)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """Wait until fewer passes are under way than may be, and count as one for a while."""
        while self._working >= self._context.config["log.cleaner.threads"]:
            self._ended.clear()
            await self._ended.wait()
        self._working += 1
        once = ExitStack()
        once.callback(self._count_no_more)
        timer = asyncio.get_running_loop().call_later(LONG_S, once.close)
        try:
            yield
        finally:
            timer.cancel()
            once.close()  # Which does nothing the second time.

    def _count_no_more(self) -> None:
        self._working -= 1
        self._ended.set()

    def _candidates(self, log_dir: LogDir) -> list[Candidate]:
        """Every partition of a folder whose topic is compacted and has confirmed configs. On the loop."""
        of = self._context.dirs.of
        config, found = self._context.config, []
        for topic in self._context.topics.all():

            def value(name: str, configs: dict[str, str] = topic.configs) -> int:
                number: int = topic_value(config, configs, name)
                return number

            if "compact" not in topic_value(config, topic.configs, "cleanup.policy") or awaits_confirmation(topic.configs):
                continue
            found += [
                Candidate(
                    topic.name,
                    state.index,
                    topic.topic_id,
                    value("min.cleanable.dirty.ratio"),
                    value("min.compaction.lag.ms"),
                    value("max.compaction.lag.ms"),
                    value("delete.retention.ms"),
                )
                for state in topic.partitions
                if of((topic.name, state.index)) is log_dir
            ]
        return found

    def _turn(self, lock: threading.Lock, cleaner: Cleaner, candidates: list[Candidate]) -> bool:
        """Compact the dirtiest log that is due. False: there was none, or its disk had no room. In a thread."""
        with lock:
            chosen = self._choose(candidates)
            if chosen is None:
                return False
            self._busy.add(chosen.key)
        try:
            return self._compact(cleaner, chosen)
        finally:
            self._busy.discard(chosen.key)

    def _choose(self, candidates: list[Candidate]) -> Candidate | None:
        now_ms, logs = self._context.age_now_ms(), self._context.log_manager
        chosen, dirtiest = None, -1.0
        for candidate in candidates:
            if candidate.key in self._busy or (candidate.topic_id, candidate.index) in self._left_alone:
                continue
            try:
                offset = logs.first_dirty(candidate.topic, candidate.topic_id, candidate.index)
                found = cleanable(logs, *candidate.key, offset, now_ms, candidate.min_lag_ms)
            except (KafkaError, OSError):
                continue  # Deleted, not open yet, or offline: said elsewhere.
            if is_due(candidate, found, now_ms) and dirty_ratio(found) > dirtiest:
                chosen, dirtiest = candidate, dirty_ratio(found)
        return chosen

    def _compact(self, cleaner: Cleaner, chosen: Candidate) -> bool:
        topic, index = chosen.key
        logs = self._context.log_manager
        try:
            began = time.monotonic()
            done = cleaner.compact(
                logs,
                topic,
                index,
                logs.first_dirty(topic, chosen.topic_id, index),
                self._context.age_now_ms(),
                chosen.min_lag_ms,
                chosen.delete_retention_ms,
            )
            logs.compacted(topic, chosen.topic_id, index, done.first_dirty)
        except KafkaError:
            return False  # Stopped, deleted or changed by retention meanwhile.
        except UncleanableError as error:
            self._leave_alone(chosen, str(error))
            return True
        except OSError as error:
            if error.errno in PASSING:
                _log.warning("topic=%s partition=%d can't be compacted now: %s", topic, index, error)
                return False
            self._leave_alone(chosen, str(error))
            return True
        _report(chosen, done, time.monotonic() - began)
        return True

    def _leave_alone(self, candidate: Candidate, why: str) -> None:
        _log.error(
            "topic=%s partition=%d is not compacted any more until the broker restarts: %s",
            candidate.topic, candidate.index, why,
        )  # fmt: skip
        self._left_alone.add((candidate.topic_id, candidate.index))


def _report(candidate: Candidate, done: Compacted, seconds: float) -> None:
    _log.info(
        "compacted topic=%s partition=%d to offset %d: %d of %d records stay, %d of %d bytes, %d segments for %d, %.1f s",
        candidate.topic, candidate.index, done.first_dirty, done.records_kept, done.records_read,
        done.bytes_written, done.bytes_read, done.segments_after, done.segments_before, seconds,
    )  # fmt: skip
    if done.records_without_key:
        _log.warning(
            "topic=%s partition=%d had %d records without a key: compaction dropped them",
            candidate.topic, candidate.index, done.records_without_key,
        )  # fmt: skip
