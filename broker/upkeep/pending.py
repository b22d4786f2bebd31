"""What appends leave to be done: segments that were rolled are flushed, and files that have room ahead for appends are
truncated when appends to their log stop. And what fetches come upon: index files that may be wrong are compared with the
batches.

No append waits for that. The data plane marks the log folder and writes an eventfd; `disks.py` reads it and calls `look`.

A sealed segment is flushed a second after it was rolled, one log of a folder at a time: what retention removes before then
(logs that keep little and grow fast) never goes to the disk. Until it is flushed the recovery point stays before it, so
that after a kill recovery walks it, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from penstock import log
from penstock.broker import tasks
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import FolderState

FLUSH_PAUSE_S = 1.0
"""The pause after the flush of a log is as long as the flush took, and at most this."""
CHECK_S = 0.25
"""Between two checks whether a rolled segment is old enough to be flushed."""
IDLE_S = 0.5
"""A log without an append for so long gives back what its file has ahead, within as long again."""

_log = log.get(__name__)


class PendingUpkeep:
    """Of one broker's logs. Used on the loop; the work itself is done in threads, until `stop`. folders: log folders."""

    def __init__(self, logs: LogManager, folders: int = 1) -> None:
        self._logs = logs
        # One for each work, and for the flushes of each folder: they take as long as its disk does.
        self._threads = ThreadPoolExecutor(2 + folders, "pending-upkeep")
        self._flushing: dict[str, asyncio.Task[None]] = {}
        self._giving_back: asyncio.Task[None] | None = None
        self._proving: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin what is to be done and isn't under way."""
        states = self._logs.folder_states()
        for path, state in states.items():
            if state.rolled and _is_over(self._flushing.get(path)):
                self._flushing[path] = tasks.start(self._flush(path), f"flush {path}")
        if _ahead(states) and _is_over(self._giving_back):
            self._giving_back = tasks.start(self._give_back(), "give back")
        if _doubted(states) and _is_over(self._proving):
            self._proving = tasks.start(self._prove(), "prove")

    async def stop(self) -> None:
        """End; what is under way is waited for. `look` may not be called any more."""
        await tasks.end(*self._flushing.values(), self._giving_back, self._proving)
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _rolled(self, path: str) -> bool:
        return self._logs.folder_states()[path].rolled

    async def _flush(self, path: str) -> None:
        """Flush sealed segments soon, as Kafka does: after kill -9 only the segments that are written are checked."""
        loop = asyncio.get_running_loop()
        flushed_since = False
        while self._rolled(path):
            began = time.monotonic()
            flushed = await loop.run_in_executor(self._threads, self._logs.flush_rolled, int(time.time() * 1000), 1, path)
            # Partitions that are filled alike are rolled together: their flushes shall not be one burst.
            await asyncio.sleep(min(time.monotonic() - began, FLUSH_PAUSE_S) if flushed else CHECK_S)
            flushed_since = flushed_since or flushed > 0
            # What is rolled while they are written brings no further event: the loop's condition sees it.
            if flushed_since and not (flushed and self._rolled(path)):
                flushed_since = False
                await self._write_checkpoints(path)

    async def _write_checkpoints(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.write_checkpoints, path)
        except OSError as error:
            _log.error("log_dir=%s: checkpoints can't be written: %s", path, error)

    async def _give_back(self) -> None:
        """Give back the room ahead of idle logs; which are idle shows from one check to the next."""
        while _ahead(self._logs.folder_states()):
            await asyncio.sleep(IDLE_S)
            await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.give_back_idle)

    async def _prove(self) -> None:
        """Let fetches go on that came upon an index file that is wrong, or that wasn't compared with its batches yet."""
        while _doubted(self._logs.folder_states()):
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.prove_doubted)
            except OSError as error:
                _log.error("index files can't be compared with their batches: %s", error)
                return  # The next fetch, or the next upkeep, tries again.


def _ahead(states: Mapping[str, FolderState]) -> bool:
    return any(state.ahead for state in states.values())


def _doubted(states: Mapping[str, FolderState]) -> bool:
    return any(state.doubted for state in states.values())


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
