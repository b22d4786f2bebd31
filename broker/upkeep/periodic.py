"""The work that no request asks for: roll and drop old segments, flush by policy, write checkpoints, note the time.

For each log folder one task wakes at the shortest of the configured intervals (a changed setting holds at once) and works
in a thread of its own (the log releases the GIL), partition by partition, so that a slow disk holds up neither the loop nor
the network threads, and one that hangs no other folder. A round that takes very long is said in the log, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from errno import EMFILE, ENFILE

from penstock import log
from penstock.broker import lasttime, tasks
from penstock.broker.context import Context
from penstock.broker.logs.logdirs import LogDir
from penstock.errors import KafkaError

_log = log.get(__name__)
LONGEST_INTERVAL_MS = 60_000
LATE_INTERVALS = 3
LATE_MIN_MS = 30_000
"""A round is late after so many intervals; before so long it is only busy."""


class PeriodicUpkeep:
    """Starts with `start`, ends with `stop`; a partition whose disk fails is logged and the others go on."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._threads: list[ThreadPoolExecutor] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._unremoved: set[str] = set()  # folders in which files of deleted segments are left to be removed

    def start(self) -> None:
        """Begin; the first round comes after one interval."""
        for log_dir in self._context.dirs.online:
            self._threads.append(ThreadPoolExecutor(1, "upkeep"))
            self._tasks.append(tasks.start(self._run(log_dir, self._threads[-1]), f"upkeep {log_dir.path}"))

    async def stop(self) -> None:
        """End; a round that is under way is waited for."""
        await tasks.end(*self._tasks)
        await asyncio.get_running_loop().run_in_executor(self._threads[0], self._note_time)
        for thread in self._threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)

    async def _changed(self, wait_ms: int) -> bool:
        """Wait; True when topics or settings changed before the time was over."""
        changed = self._context.topics.changed
        try:
            await asyncio.wait_for(changed.wait(), wait_ms / 1000)
        except TimeoutError:
            return False
        changed.clear()
        return True

    def _interval_ms(self) -> int:
        """The shortest interval that matters, also of topics with a flush time of their own."""
        context = self._context
        config = context.config
        own_flush_ms = [int(t.configs["flush.ms"]) for t in context.topics.all() if "flush.ms" in t.configs]
        wanted: list[int] = [
            config["log.retention.check.interval.ms"],
            config["log.flush.scheduler.interval.ms"],
            config["log.flush.offset.checkpoint.interval.ms"],
            config["log.flush.interval.ms"] or LONGEST_INTERVAL_MS,
            *own_flush_ms,
        ]
        return max(100, min(LONGEST_INTERVAL_MS, *wanted))

    async def _run(self, log_dir: LogDir, thread: ThreadPoolExecutor) -> None:
        loop, context = asyncio.get_running_loop(), self._context
        config = context.config
        if (
            log_dir.path == context.dirs.first.path
        ):  # Else a broker that is killed again and again would never know that time passes.
            await loop.run_in_executor(thread, self._note_time)
        checkpointed_ms = worked_ms = context.monotonic_ms()
        retain_ms = config["log.retention.check.interval.ms"]
        retained_ms = worked_ms + min(config["log.initial.task.delay.ms"] - retain_ms, 0)
        while True:
            left_ms = worked_ms + self._interval_ms() - context.monotonic_ms()
            if left_ms > 0 and await self._changed(left_ms):
                continue  # The interval may be another one now.
            worked_ms = context.monotonic_ms()
            keys = ((topic.name, state.index) for topic in context.topics.all() for state in topic.partitions)
            work = [key for key in keys if context.dirs.of(key) is log_dir]
            checkpoints = worked_ms - checkpointed_ms >= config["log.flush.offset.checkpoint.interval.ms"]
            # However often logs are flushed: what is old goes at its own time.
            retain = worked_ms - retained_ms >= retain_ms
            if retain:
                retained_ms = worked_ms
            try:
                path = str(log_dir.path)
                await self._watch(path, loop.run_in_executor(thread, self._round, path, work, retain, checkpoints))
            except Exception:  # noqa: BLE001 - without rounds the disk would fill
                _log.exception("a round of upkeep has failed")
            if checkpoints:
                checkpointed_ms = context.monotonic_ms()

    async def _watch(self, path: str, work: asyncio.Future[None]) -> None:
        """Wait for a round; say it when that takes very long."""
        began_ms = self._context.monotonic_ms()
        late_ms = max(LATE_MIN_MS, LATE_INTERVALS * self._interval_ms())
        await asyncio.wait([work], timeout=late_ms / 1000)
        if not work.done():
            _log.error(
                "log_dir=%s: a round of upkeep takes longer than %d s; does its disk hang? Retention, flush.ms and "
                "checkpoints of its partitions wait, those of other folders don't", path, late_ms // 1000,
            )  # fmt: skip
            await asyncio.wait([work])
            took_s = (self._context.monotonic_ms() - began_ms) // 1000
            _log.warning("log_dir=%s: upkeep goes on after %d s", path, took_s)
        await work

    def _round(self, path: str, work: list[tuple[str, int]], retain: bool, checkpoints: bool) -> None:
        logs, short, removes = self._context.log_manager, 0, False
        for name, index in work:
            try:
                done = logs.upkeep(name, index, self._context.age_now_ms(), retain, remove=False)
            except KafkaError:
                continue  # It was deleted since the list was made.
            except OSError as error:
                if error.errno in (EMFILE, ENFILE):
                    short += 1
                    continue
                _log.error("upkeep failed topic=%s partition=%d: %s", name, index, error)
                continue
            if done.segments_deleted:
                _log.info(
                    "deleted %d segments, %d bytes topic=%s partition=%d: %s; their newest record is of %s",
                    done.segments_deleted, done.bytes_deleted, name, index, _reasons(done.reasons), _time(done.newest_ms),
                )  # fmt: skip
                removes = True
        if short:
            _log.warning(
                "upkeep of %d partitions waits for the next round: the process, or the system, has no file"
                " descriptor left (`ulimit -n`)", short,
            )  # fmt: skip
        if removes or path in self._unremoved:  # Of all at once: the checkpoints are written first.
            self._unremoved.discard(path)
            try:
                logs.remove_expired(path, self._context.age_now_ms())
            except OSError as error:
                self._unremoved.add(path)
                _log.error("log_dir=%s: segments that retention let go can't be removed: %s", path, error)
        if checkpoints:
            try:
                logs.write_checkpoints(path)
            except OSError as error:
                _log.error("log_dir=%s: checkpoints can't be written: %s", path, error)
            if path == str(self._context.dirs.first.path):
                self._note_time()

    def _note_time(self) -> None:
        """For the next start, which can't tell how much time has passed."""
        folder = self._context.dirs.first.path
        try:
            lasttime.write(folder, self._context.age_now_ms())
        except OSError as error:
            _log.error("log_dir=%s: the time can't be noted for the next start: %s", folder, error)


def _reasons(reasons: Mapping[str, int]) -> str:
    """By which configs segments were deleted."""
    return ", ".join(f"{count} by {reason}" for reason, count in reasons.items())


def _time(timestamp_ms: int) -> str:
    """A timestamp for people; it is a client's, and may be no time at all."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
