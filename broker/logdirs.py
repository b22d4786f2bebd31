"""The log folders of a broker (`log.dirs`): which of them work, and which one holds which partition.

The first folder is the broker's own: it holds the metadata store too, and without it the broker doesn't start. Any other
that can't be used is offline until the next start: its partitions answer KAFKA_STORAGE_ERROR, the rest serve. A new
partition goes to the folder with the fewest; one that exists is found where it lies. A partition that the store knows and
no folder holds is made anew only while every folder can be seen: else it may lie in the one that can't.

A topic may be deleted while one of its folders is away. What comes back then is a stray: it is left where it is, and set
aside under the name `<topic>-<partition>.<32 hex>-stray` when a topic of that name needs the place.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

from penstock import log
from penstock.broker.ballast import Ballast
from penstock.broker.folder import DataFolder, FolderError, FolderUnusableError, uuid_bytes
from penstock.errors import ErrorCode, KafkaError

Key = tuple[str, int]

_log = log.get("broker.logdirs")
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})\Z")
FUTURE, DELETED, STRAY = "-future", "-delete", "-stray"
"""Ends of the names of folders that are no partition: a copy that is being made, one to be removed, one of no topic."""
_FUTURE = re.compile(rf".+-\d+\.[0-9a-f]{{32}}{FUTURE}\Z")
_BATCH_HEAD = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic and (of magic 2) last offset delta of a batch."""


@dataclass
class LogDir:
    """One folder of `log.dirs`; `folder` is None when it could not be opened."""

    path: Path
    folder: DataFolder | None
    ballast: Ballast
    error: str = ""  # why it is offline; empty = it works
    partitions: set[Key] = field(default_factory=set)

    @property
    def offline(self) -> bool:
        """Whether its partitions can't be served."""
        return bool(self.error)

    @property
    def was_clean(self) -> bool:
        """Whether all that it holds was flushed when the broker stopped."""
        return self.folder is not None and self.folder.was_clean

    def holds(self, key: Key) -> Path:
        """Where a partition of this folder lies."""
        return self.path / f"{key[0]}-{key[1]}"


def partition_of(name: str) -> Key | None:
    """Topic and partition of a partition folder's name; None for any other name."""
    found = _PARTITION.match(name)
    if found is None or found[1] in (".", "..") or str(int(found[2])) != found[2] or int(found[2]) >= 1 << 31:
        return None
    return found[1], int(found[2])


class LogDirs:
    """All folders, in the order of `log.dirs`. Used on the loop, but for `open`."""

    def __init__(self, dirs: Sequence[LogDir]) -> None:
        self._dirs = list(dirs)
        self._where: dict[Key, LogDir] = {}
        self._doubled: dict[Key, list[LogDir]] = {}  # partitions of several topics, one of which was made after another
        for log_dir in self._dirs:
            for key in tuple(log_dir.partitions):
                other = self._where.setdefault(key, log_dir)
                if other is log_dir:
                    continue
                if key in self._doubled or not _of_one_topic(other.holds(key), log_dir.holds(key)):
                    self._doubled.setdefault(key, [other]).append(log_dir)
                else:
                    self._where[key] = _keep_one(key, other, log_dir)

    @classmethod
    def open(cls, paths: Sequence[Path], node_id: int, ballast_bytes: int = 0) -> LogDirs:
        """Lock the folders and look what they hold. Raises FolderError: the first can't be used, or one is another's."""
        opened: list[LogDir] = []
        cluster_id: str | None = None
        try:
            for path in dict.fromkeys(path.absolute() for path in paths):
                log_dir = _open(path, node_id, cluster_id, Ballast(path, ballast_bytes))
                if log_dir.folder is None and not opened:
                    raise FolderError(log_dir.error)
                opened.append(log_dir)
                if log_dir.folder is not None:
                    cluster_id = log_dir.folder.cluster_id
        except FolderError:
            for log_dir in opened:
                if log_dir.folder is not None:
                    log_dir.folder.close(clean=log_dir.was_clean)
            raise
        return cls(opened)

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._dirs)

    @property
    def first(self) -> DataFolder:
        """The broker's own folder."""
        folder = self._dirs[0].folder
        assert folder is not None
        return folder

    @property
    def online(self) -> list[LogDir]:
        """The folders that work."""
        return [log_dir for log_dir in self._dirs if not log_dir.offline]

    def by_path(self, path: str) -> LogDir | None:
        """The folder of that path, as Kafka's admin tools give it."""
        wanted = Path(path).absolute()
        return next((log_dir for log_dir in self._dirs if log_dir.path == wanted), None)

    def of(self, key: Key) -> LogDir | None:
        """The folder that holds a partition; None: none that can be seen."""
        return self._where.get(key)

    def settle(self, topic_ids: Mapping[Key, bytes]) -> None:
        """Of partitions that lie in several folders, each with another topic's id, keep the one of the topic that there is
        and set the others aside. Touches the disk. Raises OSError."""
        for key, holders in self._doubled.items():
            kept = [one for one in holders if topic_id_in(one.holds(key)) == topic_ids.get(key)]
            if kept:
                self._where[key] = reduce(partial(_keep_one, key), kept)
                for log_dir in holders:
                    if log_dir not in kept:
                        log_dir.partitions.discard(key)
                        set_aside(log_dir, key)
        self._doubled.clear()

    def found(self) -> set[Key]:
        """Every partition that lies in a folder that works."""
        return {key for key, log_dir in self._where.items() if not log_dir.offline}

    def place(self, key: Key, *, new: bool) -> LogDir | None:
        """The folder that holds the partition, or is to hold it; None while it may lie in one that is offline.

        Raises KafkaError KAFKA_STORAGE_ERROR if no folder works.
        """
        there = self._where.get(key)
        if there is not None:
            return None if there.offline else there
        if not new and len(self.online) < len(self._dirs):
            return None
        if not self.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no log folder works")
        chosen = min(self.online, key=lambda log_dir: len(log_dir.partitions))
        self.put(key, chosen)
        return chosen

    def put(self, key: Key, log_dir: LogDir) -> None:
        """Take down where a partition lies from now on."""
        before = self._where.get(key)
        if before is not None:
            before.partitions.discard(key)
        log_dir.partitions.add(key)
        self._where[key] = log_dir

    def drop(self, key: Key) -> LogDir | None:
        """Forget a partition that was deleted; the folder that held it."""
        log_dir = self._where.pop(key, None)
        if log_dir is not None:
            log_dir.partitions.discard(key)
        return log_dir

    def close(self, *, clean: bool) -> None:
        """Let all folders go; one that failed gets no clean mark. Raises OSError when all have been tried."""
        failure: OSError | None = None
        for log_dir in self._dirs:
            if log_dir.folder is None:
                continue
            log_dir.ballast.release()
            try:
                log_dir.folder.close(clean=clean and not log_dir.offline)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def beside(log_dir: LogDir, key: Key, ending: str) -> Path:
    """Another path of a log folder for a partition's files, as Kafka names such: at most 255 bytes."""
    name, index = key
    suffix = f"-{index}.{os.urandom(16).hex()}{ending}"
    return log_dir.path / (name[: 255 - len(suffix)] + suffix)


def topic_id_in(folder: Path) -> bytes | None:
    """The id in a partition's `partition.metadata`; None if the file isn't there (a log of before Kafka 2.8) or has none."""
    try:
        text = (folder / "partition.metadata").read_text(encoding="ascii")
        topic_id = uuid_bytes(text.partition("topic_id: ")[2].strip())
    except (OSError, ValueError):
        return None
    return topic_id if any(topic_id) else None


def set_aside(log_dir: LogDir, key: Key) -> None:
    """Rename a partition's folder that belongs to no topic any more, as Apache Kafka does with such. Raises OSError."""
    stray = beside(log_dir, key, STRAY)
    log_dir.holds(key).rename(stray)
    _log.warning("what a deleted topic=%s partition=%d has left is now %s", *key, stray)


def _of_one_topic(first: Path, second: Path) -> bool:
    """Whether two folders can be the same partition's: one without an id may be anybody's."""
    ids = {topic_id_in(first), topic_id_in(second)} - {None}
    return len(ids) < 2


def _keep_one(key: Key, first: LogDir, second: LogDir) -> LogDir:
    """Of a partition that lies in two folders, the one whose log ends later stays; the other is renamed, to be removed with
    the deleted ones. Raises FolderError.

    A copy takes the partition's name when it has all of a log that is closed, and is synced: both end at the same offset
    then. Whichever of the two was opened since, only it has grown, so it is the one that ends later. Sizes say nothing of
    that: old segments go, and a file may have room ahead. Where both end alike, both have all that was acknowledged; the
    one with more bytes stays.
    """
    try:
        places = [(_log_end(one.holds(key)), one) for one in (first, second)]
        kept, dropped = (first, second) if places[0][0] > places[1][0] else (second, first)
        dropped.holds(key).rename(beside(dropped, key, DELETED))
    except OSError as error:
        raise FolderError(
            f"`{key[0]}-{key[1]}` lies in `{first.path}` and `{second.path}`, and which of them is newer can't be settled: "
            f"{error}; mend that disk, or move one of the two away"
        ) from None
    dropped.partitions.discard(key)
    _log.warning("topic=%s partition=%d lay in two log folders; %s keeps it: it doesn't end earlier", *key, kept.path)
    return kept


def _log_end(folder: Path) -> tuple[int, int]:
    """The offset at which a partition's log ends, by the headers of its last segment's batches, and its bytes."""
    segments = sorted(path for path in folder.glob("*.log") if path.stem.isdigit())
    if not segments:
        return 0, 0
    end = int(segments[-1].stem)
    with segments[-1].open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while len(head := os.pread(file.fileno(), _BATCH_HEAD.size, at)) == _BATCH_HEAD.size:
            base, length, magic, delta = _BATCH_HEAD.unpack(head)
            at += 12 + length
            if length < _BATCH_HEAD.size - 12 or at > size or base < 0:
                break  # Room ahead, or a batch that isn't whole.
            end = max(end, base + (delta if magic >= 2 else 0) + 1)
    return end, sum(path.stat().st_size for path in segments)


def _open(path: Path, node_id: int, cluster_id: str | None, ballast: Ballast) -> LogDir:
    try:
        folder = DataFolder.open(path, node_id, cluster_id)
    except FolderUnusableError as error:
        _log.error("log_dir=%s is offline: %s", path, error)
        return LogDir(path, None, ballast, str(error))
    try:
        for entry in path.iterdir():
            if _FUTURE.match(entry.name) and entry.is_dir():
                shutil.rmtree(entry)  # A move that was cut short.
        held = {key for entry in path.iterdir() if (key := partition_of(entry.name)) and entry.is_dir()}
    except OSError as error:
        folder.close(clean=False)
        _log.error("log_dir=%s is offline: %s", path, error)
        return LogDir(path, None, ballast, str(error))
    return LogDir(path, folder, ballast, partitions=held)
