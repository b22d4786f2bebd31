"""What appends leave to be done: segments that were rolled are flushed, and files that have room ahead for appends are cut
once there are no more. And what fetches come upon: index files that may be wrong are held against the batches.

No append waits for that. The data plane marks the log folder and writes an eventfd; `disks.py` hears it and tells us.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from penstock import log
from penstock.broker import tasks
from penstock.pyx.log.logmanager import LogManager

FLUSH_PAUSE_S = 1.0
"""Most time between the flushes of two logs that were rolled; else it is as long as the flush took."""
LOOK_S = 0.25
"""Between two looks whether what was rolled has rested for long enough to be flushed."""
IDLE_S = 0.5
"""A log without an append for so long gives back what its file has ahead, within as long again."""

_log = log.get("broker.upkeep.pending")


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
        for path, state in self._logs.folder_states().items():
            if state.rolled and _is_over(self._flushing.get(path)):
                self._flushing[path] = tasks.start(self._flush(path), f"flush {path}")
        if self._ahead() and _is_over(self._giving_back):
            self._giving_back = tasks.start(self._give_back(), "give back")
        if self._doubted() and _is_over(self._proving):
            self._proving = tasks.start(self._prove(), "prove")

    async def stop(self) -> None:
        """End; what is under way is waited for. Nobody may call `look` any more."""
        tasks_of_all = (*self._flushing.values(), self._giving_back, self._proving)
        running = [task for task in tasks_of_all if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _rolled(self, path: str) -> bool:
        return self._logs.folder_states()[path].rolled

    def _ahead(self) -> bool:
        return any(state.ahead for state in self._logs.folder_states().values())

    def _doubted(self) -> bool:
        return any(state.doubted for state in self._logs.folder_states().values())

    async def _flush(self, path: str) -> None:
        """Flush sealed segments soon, as Kafka does: after kill -9 only the segments that are written are checked."""
        loop = asyncio.get_running_loop()
        flushed_since = False
        while self._rolled(path):
            began = time.monotonic()
            flushed = await loop.run_in_executor(
                self._threads, self._logs.flush_rolled, int(time.time() * 1000), 1, path
            )
            # Partitions that are filled alike are rolled together: their flushes shall not be one burst.
            await asyncio.sleep(min(time.monotonic() - began, FLUSH_PAUSE_S) if flushed else LOOK_S)
            flushed_since = flushed_since or flushed > 0
            # What is rolled while they are written isn't told again: the loop's condition sees it.
            if flushed_since and not (flushed and self._rolled(path)):
                flushed_since = False
                await self._write_checkpoints(path)

    async def _write_checkpoints(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.write_checkpoints, path)
        except OSError as error:
            _log.error("log_dir=%s: checkpoints can't be written: %s", path, error)

    async def _give_back(self) -> None:
        """Give back the room ahead of idle logs; which are idle shows from one look to the next."""
        while self._ahead():
            await asyncio.sleep(IDLE_S)
            await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.give_back_idle)

    async def _prove(self) -> None:
        """Let fetches go on that came upon an index file that is wrong, or that nobody has held against its batches."""
        while self._doubted():
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._logs.prove_doubted)
            except OSError as error:
                _log.error("index files can't be held against their batches: %s", error)
                return  # The next fetch, or the next upkeep, tries again.


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
