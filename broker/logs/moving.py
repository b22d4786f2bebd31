"""Moving partitions between log folders (AlterReplicaLogDirs, KIP-113). movestate.py has the rules of what follows what.

While a partition moves, its files are copied beside, into `<topic>-<partition>.<32 hex>-future`: again and again what has
changed since, until little is left. Then it is closed for the moment that the rest takes: the rest is copied, the copy takes
the partition's name, and the old folder is renamed to `<topic>-<partition>.<32 hex>-delete` before the partition is opened in
its new place. What goes wrong while it is closed is taken back: it is opened in the one folder that it lies in then.

The partition is held meanwhile (`LogManager.hold`). A network thread leaves a produce or a fetch where it is until the
partition is open, and goes on with other connections; the control plane waits in the same way (`settled`). Nothing is
refused and each connection keeps its order. If the disk takes longer than `HELD_S` of topiclogs.py, requests are answered
NOT_LEADER_OR_FOLLOWER from then on.

A crash between the two renames leaves both under the partition's name. The copy has a mark until then (`MOVING`), by which
the next start knows that the old folder has all its batches, and removes it.
A move that a crash or a stop cuts short is forgotten, and its copy removed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from penstock import log
from penstock.broker import tasks
from penstock.broker.logs import movestate
from penstock.broker.logs.logdirs import DELETED, FUTURE, MOVING, Key, LogDir, beside, unmark
from penstock.broker.logs.movestate import MoveState, Phase
from penstock.broker.topic import Topic
from penstock.durable import sync_folder
from penstock.errors import ErrorCode, KafkaError
from penstock.failpoints import declare, failpoint
from penstock.pyx.log.partitionfolder import refuse_log_folder, remove_folder, rename_folder
from penstock.pyx.log.writeout import write_out

PIECE = declare("moving.piece", "a piece of a file is copied")
COPIED = declare("moving.copied", "a partition's copy is made, its log is still open")
CLOSED = declare("moving.closed", "the log that moves is closed, its copy lacks the rest")
WHOLE = declare("moving.whole", "the copy is the log and synced, it hasn't the partition's name yet")
CARRIED = declare("moving.carried", "the new folder's checkpoints know the partition, its copy hasn't the name yet")
NAMED = declare("moving.named", "both folders have the partition's name, the new one isn't synced")
SYNCED = declare("moving.synced", "both folders have the partition's name")
UNNAMED = declare("moving.unnamed", "the old folder hasn't the partition's name any more, which isn't synced")
SWAPPED = declare("moving.swapped", "only the new folder has the partition's name, it isn't open")
OPENED = declare("moving.opened", "the partition is open in its new place, its old files are there")
REMOVED = declare("moving.removed", "the partition is open in its new place, its old files are gone")
BACK = declare("moving.back", "a move is taken back: the old folder has the partition's name, the new one may have it too")

PIECE_BYTES = 8 << 20
"""What is copied at once. Two of them are at most on their way to the disk: a move that is given up ends with these."""
LAST_PASS_BYTES = 64 << 10
"""The partition is closed for the rest when the last pass found no more, or when another pass wouldn't find less."""

_log = log.get(__name__)
T = TypeVar("T")
Seen = tuple[int, int, int]
"""A file's inode, size and mtime: the same again means the same bytes."""


class GivenUpError(Exception):
    """The move was given up while its files were copied."""


@dataclass(eq=False)
class Move:
    """One copy of a partition on its way to a folder, until it is given up or over; `log_bytes` once the log is closed,
    `closed_s` once it is open again."""

    topic: Topic
    index: int
    source: LogDir
    state: MoveState[LogDir]
    future: Path
    given_up: bool = False
    log_bytes: int = 0
    closed_s: float = 0.0

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic.name, self.index

    @property
    def target(self) -> LogDir:
        """Where it goes."""
        return self.state.target

    @property
    def has_arrived(self) -> bool:
        """Whether the partition lies in its new folder, what is left of the move aside."""
        return self.key in self.target.partitions

    def copied_bytes(self) -> int:
        """Bytes of the log that the copy has. Slow."""
        return _log_bytes(self.future) or _log_bytes(self.target.holds(self.key))


class Partitions(Protocol):
    """What a move needs of the partitions (`TopicLogs`)."""

    def lies_in(self, key: Key) -> LogDir | None:
        """The folder that holds a partition now; None = there is no such partition."""
        ...

    def batch_bytes(self, key: Key) -> Mapping[str, int]:
        """Bytes of batches in each segment of an open log, by its file's name: the file may have room ahead behind them.
        Raises KafkaError."""
        ...

    def flush(self, key: Key) -> None:
        """Sync what an open log has. Raises OSError, KafkaError."""
        ...

    async def swap(self, move: Move, copying: Copying) -> None:
        """Close the partition, copy the rest, open it where it then lies. Raises KafkaError, and what has failed."""
        ...


@dataclass
class Copying:
    """The disk's side of a move; every method may be slow and raises OSError. `doing` says what it is at, for people."""

    move: Move
    doing: str = "copying its files"
    moved: bool = False  # whether the copy is the partition: the old folder hasn't the name any more
    _copied: dict[str, Seen] = field(default_factory=dict)
    _gone: Path | None = None
    # The newest segment when it was last copied. Its file is held open, so that its inode isn't given to another one: what
    # has the same inode is the same file, which has only grown. (A cleaned segment is another file of the same name.)
    _growing: str = ""
    _growing_fd: int = -1

    def ahead(self, partitions: Partitions) -> None:
        """Copy what there is, while the log is written to. Raises GivenUpError, KafkaError."""
        refuse_log_folder(self.move.source.holds(self.move.key))
        self.move.future.mkdir()
        unmark(self.move.source.holds(self.move.key))  # Of an earlier move that failed when it was over.
        before = None
        while True:
            copied, _ = self._pass(partitions.batch_bytes(self.move.key))
            if copied <= LAST_PASS_BYTES or (before is not None and copied >= before):
                break
            before = copied
        # All that takes a disk's time is done while the log is open: the closing flushes, and copies, what came since.
        self._mark(self.move.future)
        partitions.flush(self.move.key)
        self._pass(partitions.batch_bytes(self.move.key))
        failpoint(COPIED)

    def finish(self) -> None:
        """Copy what has changed, once the log is closed. Then the copy is the log, byte by byte. On the disk are all its
        batches, and all that was there before; what isn't has a checksum and follows from the batches."""
        self.doing = "copying what was written last"
        _, names = self._pass(None)
        for path in list(self.move.future.iterdir()):
            if path.name not in names and path.name != MOVING:
                path.unlink()  # It was deleted, or cleaned away.
        sync_folder(self.move.future)
        failpoint(WHOLE)

    def swap(self) -> None:
        """Let the copy take the partition's name, and rename the old folder away."""
        self.doing = "renaming its folders"
        key, target = self.move.key, self.move.target
        rename_folder(self.move.future, target.holds(key))
        failpoint(NAMED)
        sync_folder(target.path)
        failpoint(SYNCED)
        gone = beside(self.move.source, key, DELETED)
        rename_folder(self.move.source.holds(key), gone)
        self._gone, self.moved = gone, True
        failpoint(UNNAMED)
        sync_folder(self.move.source.path)
        failpoint(SWAPPED)

    def back(self) -> None:
        """Take back what `swap` has done: only the old folder has the partition's name then. It comes first, so that
        a crash leaves at least one."""
        self.doing = "renaming its folders back"
        key, target = self.move.key, self.move.target
        if self._gone is not None:
            with contextlib.suppress(OSError):  # Without it the copy is only set aside, should a crash come.
                self._mark(target.holds(key))
            rename_folder(self._gone, self.move.source.holds(key))
            self._gone, self.moved = None, False
            sync_folder(self.move.source.path)
        failpoint(BACK)
        if not self.move.future.exists():
            rename_folder(target.holds(key), self.move.future)
            sync_folder(target.path)

    def _mark(self, copy: Path) -> None:
        """Say that a copy wasn't opened, and which folder has all its batches."""
        (copy / MOVING).write_text(self.move.source.id, encoding="ascii")
        sync_folder(copy)

    def end(self) -> None:
        """Once the copy is open: it was the partition before, and says so now."""
        self.doing = "noting that it is over"
        unmark(self.move.target.holds(self.move.key))

    def clear(self) -> None:
        """Remove what isn't the partition: the old files, or the copy. What is left of them goes with the next start."""
        self._let_go()
        with contextlib.suppress(OSError):
            remove_folder(self.move.future if self._gone is None else self._gone)

    def _pass(self, sizes: Mapping[str, int] | None) -> tuple[int, set[str]]:
        """Copy what isn't copied yet. `sizes`: of an open log's segments. Answers bytes that were copied, names of files."""
        copied, names = 0, set()
        entries = sorted(_files(self.move.source.holds(self.move.key)), key=lambda entry: entry.name)
        newest = max((entry.name for entry in entries if entry.name.endswith(".log")), default="")
        stem = newest.removesuffix("log")
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                size = None
                if sizes is not None and entry.name.endswith(".log"):
                    size = sizes.get(entry.name, 0)  # One that is newer than the sizes is copied by the next pass.
                follows = entry.name.endswith(_FOLLOW) or (entry.name.startswith(stem) and entry.name != newest)
                copied += self._copy(entry, size, grows=entry.name == newest, sync=sizes is not None or not follows)
                names.add(entry.name)
        return copied, names

    def _copy(self, entry: os.DirEntry[str], size: int | None, *, grows: bool, sync: bool) -> int:
        self._go_on()
        if self._copied.get(entry.name) == _seen(entry.stat(), size):
            return 0
        with Path(entry.path).open("rb") as source:
            seen = _seen(os.fstat(source.fileno()), size)
            before = self._copied.get(entry.name)
            grown = before is not None and entry.name == self._growing and before[0] == seen[0] and before[1] <= seen[1]
            start = before[1] if grown and before is not None else 0
            if grows:
                self._hold(entry.name, source.fileno())
            with (self.move.future / entry.name).open("r+b" if start else "wb") as copy:
                source.seek(start)
                copy.seek(start)
                at = begun = start
                while at < seen[1] and (piece := source.read(min(seen[1] - at, PIECE_BYTES))):
                    self._go_on()
                    copy.write(piece)
                    copy.flush()
                    if at + len(piece) < seen[1]:
                        # One sync of all of a large file would hold up a stop for as long as it takes. A sync of each piece
                        # lets the disk idle until the next one: a log that grows fast would outrun its copy.
                        write_out(copy.fileno(), at, len(piece), wait=False)
                        if begun < at:
                            write_out(copy.fileno(), begun, at - begun, wait=True)
                    begun, at = at, at + len(piece)
                    failpoint(PIECE)
                copy.truncate()
                if sync:
                    os.fsync(copy.fileno())
        self._copied[entry.name] = seen
        return at - start

    def _go_on(self) -> None:
        if self.move.given_up:
            raise GivenUpError

    def _hold(self, name: str, file_fd: int) -> None:
        self._let_go()
        self._growing, self._growing_fd = name, os.dup(file_fd)

    def _let_go(self) -> None:
        if self._growing_fd >= 0:
            os.close(self._growing_fd)
        self._growing, self._growing_fd = "", -1


_FOLLOW = (".snapshot", ".sequences", ".checks")
"""Files that follow from the batches; one that a power cut tears is found out by its checksum, and made again."""
_LEFT = (".deleted", ".cleaned", ".swap", ".tmp")


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file() and entry.name != MOVING and not entry.name.endswith(_LEFT):
                yield entry


def _seen(found: os.stat_result, size: int | None) -> Seen:
    """What is known of a file; `size`: of its batches, None = all of it counts."""
    return found.st_ino, found.st_size if size is None else size, found.st_mtime_ns


def _log_bytes(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in _files(folder) if entry.name.endswith(".log"))
    except OSError:
        return 0


class Moving:
    """The moves that are under way. On the loop; one copies at a time, so that they don't slow each other down."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._moves: dict[Key, Move] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "moving")
        self._stopping = False
        self.settled = asyncio.Event()
        """Set while no partition is held because its move is being finished."""
        self.settled.set()

    def ask(self, topic: Topic, index: int, here: LogDir, target: LogDir) -> None:
        """A partition that lies `here` shall lie in another folder. Raises KafkaError when the broker stops."""
        if self._stopping:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "the broker stops")
        self._become(topic, index, here, movestate.ask(self._state((topic.name, index)), here, target))

    def forget(self, key: Key) -> None:
        """Give a partition's move up, if there is one; one that is being finished is finished, under the lock of topics."""
        move = self._moves.get(key)
        if move is not None:
            self._become(move.topic, move.index, move.source, movestate.forget(move.state))

    def to(self, log_dir: LogDir) -> list[Move]:
        """The moves into a folder."""
        return [move for move in self._moves.values() if move.target is log_dir]

    def followed_into(self, log_dir: LogDir) -> list[Move]:
        """The moves that have arrived elsewhere, and after which the partition goes on into this folder."""
        return [move for move in self._moves.values() if move.state.then is log_dir and move.has_arrived]

    def closed_bytes(self, key: Key) -> int | None:
        """Bytes of a log that is closed because its move is being finished; None if it isn't."""
        move = self._moves.get(key)
        return move.log_bytes if move is not None and move.state.phase is Phase.SWAPPING else None

    async def retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work()` gives, which asks a log. If it finds that closed it is called once more, when no partition is held
        because its move is being finished. Raises what it raises."""
        try:
            return await work()
        except KafkaError as error:
            if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        await self.settled.wait()
        return await work()

    def closes(self, move: Move) -> bool:
        """Say that a partition is to be closed, for the rest of its move; False if the move was given up."""
        if not move.given_up:
            move.state = movestate.copied(move.state)
        return not move.given_up

    async def stop(self) -> None:
        """Give up all that isn't done, and begin nothing more; a swap that has begun is finished."""
        self._stopping = True
        for key in list(self._moves):
            self.forget(key)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    def _state(self, key: Key) -> MoveState[LogDir] | None:
        move = self._moves.get(key)
        return None if move is None else move.state

    def _become(self, topic: Topic, index: int, here: LogDir, state: MoveState[LogDir] | None) -> None:
        """Do what another state asks for: go on, give the copy up, begin one."""
        key = topic.name, index
        move = self._moves.get(key)
        if move is not None and state is not None and state.target is move.target:
            move.state = state
            return
        if move is not None:
            move.given_up = True
            del self._moves[key]
        if state is None:
            return
        begun = self._moves[key] = Move(topic, index, here, state, beside(state.target, key, FUTURE))
        task = tasks.start(self._run(begun), f"move {topic.name}-{index}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, move: Move) -> None:
        loop, copying = asyncio.get_running_loop(), Copying(move)
        try:
            await loop.run_in_executor(self._thread, _copy_ahead, copying, self._partitions)
            await self._partitions.swap(move, copying)
        except GivenUpError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the partition serves where it lies, and the others move
            if not move.given_up:  # Else it is how the deletion of its topic shows here.
                _log.error(
                    "topic=%s partition=%d: its move to %s failed while %s: %s; "
                    "it lies in %s: mend what is wrong there, then ask for the move again",
                    *move.key, move.target.path, copying.doing, _causes(error),
                    (move.target if copying.moved else move.source).path,
                )  # fmt: skip
        finally:
            if not move.given_up:
                del self._moves[move.key]
                here = self._partitions.lies_in(move.key)
                state = movestate.over(move.state, here)
                if here is not None:
                    self._become(move.topic, move.index, here, state)
            await loop.run_in_executor(self._thread, copying.clear)


def _causes(error: BaseException) -> str:
    """What has failed, and what had failed before while that was tried."""
    return str(error) if error.__context__ is None else f"{error} (after: {_causes(error.__context__)})"


def _copy_ahead(copying: Copying, partitions: Partitions) -> None:
    try:
        copying.ahead(partitions)
    except BaseException:
        copying.clear()  # Before the next copy takes room.
        raise
