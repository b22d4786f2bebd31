"""Moving partitions between log folders (AlterReplicaLogDirs, KIP-113).

The files are copied beside, into `<topic>-<partition>.<32 hex>-future`, while the partition serves. Then it is stopped for
the moment that the rest takes (clients get NOT_LEADER_OR_FOLLOWER, which they try again): what has changed since is copied,
all is synced, the copy takes the partition's name, and the old folder is renamed away before the partition is opened in
its new place. A crash between the two renames leaves both, with the same content: `LogDirs` then drops the smaller one.
A move that a crash or a stop cuts short is forgotten, and its copy removed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from penstock import log
from penstock.broker import tasks
from penstock.broker.folder import sync_folder
from penstock.broker.logdirs import FUTURE, Key, LogDir
from penstock.errors import ErrorCode, KafkaError

_log = log.get("broker.moving")
Seen = tuple[int, int, int]
"""A file's inode, size and time of change: the same again means the same bytes."""
Sizes = Callable[[], Mapping[str, int]]
"""Bytes of batches in each segment, by its file's name, of a log that is open: the file may have room ahead behind them."""
PIECE_BYTES = 8 << 20


@dataclass
class Move:
    """A partition on its way; `copied` is what lies in the new place already, by file name."""

    key: Key
    target: LogDir
    source: Path
    future: Path
    sizes: Sizes
    copied: dict[str, Seen]
    ended: bool = False

    def copied_bytes(self) -> int:
        """Bytes of the log that the copy has. Slow."""
        return _log_bytes(self.future)


Finish = Callable[["Move", "Copying"], Awaitable[None]]
"""Stops the partition, copies the rest, opens it in its new place."""


class Copying:
    """The disk's side of a move; every method may be slow and raises OSError."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def ahead(self) -> None:
        """Copy what there is, while the log is written to; what changes meanwhile is copied again by `rest`."""
        self._move.future.mkdir()
        self._pass(self._move.sizes())

    def rest(self) -> None:
        """Copy what has changed, once the log is closed; then the copy is the log, byte by byte, and on the disk."""
        names = self._pass(None)
        for path in list(self._move.future.iterdir()):
            if path.name not in names:
                path.unlink()  # It was deleted, or cleaned away.
        sync_folder(self._move.future)

    def swap(self) -> Path:
        """Let the copy take the partition's name; the old folder is renamed to the path that is answered."""
        final = self._move.target.holds(self._move.key)
        self._move.future.rename(final)
        sync_folder(final.parent)
        name, index = self._move.key
        suffix = f"-{index}.{os.urandom(16).hex()}-delete"
        gone = self._move.source.with_name(name[: 255 - len(suffix)] + suffix)
        self._move.source.rename(gone)
        sync_folder(gone.parent)
        return gone

    def undo(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._move.future, ignore_errors=True)

    def _pass(self, sizes: Mapping[str, int] | None) -> set[str]:
        names = set()
        for entry in _files(self._move.source):
            with contextlib.suppress(FileNotFoundError):
                size = None
                if sizes is not None and entry.name.endswith(".log"):
                    size = sizes.get(entry.name, 0)  # One that is newer than the sizes is copied by the next pass.
                self._copy(entry, size)
                names.add(entry.name)
        return names

    def _copy(self, entry: os.DirEntry[str], size: int | None) -> None:
        if self._move.ended:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the move was ended")
        found = entry.stat()
        seen = (found.st_ino, found.st_size if size is None else size, found.st_mtime_ns)
        before = self._move.copied.get(entry.name)
        if before == seen:
            return
        # A log that is the same file only grows: what was copied of its batches stays right.
        grown = entry.name.endswith(".log") and before is not None and before[0] == seen[0] and before[1] <= seen[1]
        start = before[1] if grown and before is not None else 0
        to = self._move.future / entry.name
        with Path(entry.path).open("rb") as source, to.open("r+b" if start else "wb") as copy:
            source.seek(start)
            copy.seek(start)
            left = seen[1] - start
            while left > 0 and (piece := source.read(min(left, PIECE_BYTES))):
                copy.write(piece)
                left -= len(piece)
            copy.truncate()
            copy.flush()
            os.fsync(copy.fileno())
        self._move.copied[entry.name] = seen


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file() and not entry.name.endswith((".deleted", ".cleaned", ".swap", ".tmp")):
                yield entry


def _log_bytes(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in _files(folder) if entry.name.endswith(".log"))
    except OSError:
        return 0


class Moving:
    """The moves that are under way. On the loop; one copies at a time, so that they don't slow each other down."""

    def __init__(self) -> None:
        self._moves: dict[Key, Move] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "moving")

    def begin(self, key: Key, source: LogDir, target: LogDir, sizes: Sizes, finish: Finish) -> None:
        """Begin to move a partition; another move of it is given up for this one."""
        self.end(key)
        name, index = key
        suffix = f"-{index}.{os.urandom(16).hex()}{FUTURE}"
        future = target.path / (name[: 255 - len(suffix)] + suffix)
        move = Move(key, target, source.holds(key), future, sizes, {})
        self._moves[key] = move
        task = tasks.start(self._run(move, finish), f"move {name}-{index}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, key: Key) -> None:
        """Give a partition's move up, if there is one."""
        move = self._moves.pop(key, None)
        if move is not None:
            move.ended = True

    def to(self, log_dir: LogDir) -> list[Move]:
        """The moves into a folder."""
        return [move for move in self._moves.values() if move.target is log_dir]

    async def stop(self) -> None:
        """Give up all that isn't done; a swap that has begun is finished."""
        for key in list(self._moves):
            self.end(key)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    async def _run(self, move: Move, finish: Finish) -> None:
        loop, copying = asyncio.get_running_loop(), Copying(move)
        try:
            await loop.run_in_executor(self._thread, copying.ahead)
            if not move.ended:
                await finish(move, copying)
        except (OSError, KafkaError) as error:
            if not move.ended:
                _log.error("topic=%s partition=%d can't be moved to %s: %s", *move.key, move.target.path, error)
        finally:
            if self._moves.get(move.key) is move:
                del self._moves[move.key]
            await loop.run_in_executor(self._thread, copying.undo)
