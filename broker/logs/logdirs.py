"""The log folders of a broker (`log.dirs`): which of them work, and which one holds which partition.

The first folder is the broker's own: it holds the metadata store too, and without it the broker doesn't start. Any other
that can't be used is offline until the next start: its partitions answer KAFKA_STORAGE_ERROR, the rest serve. A new
partition goes to the folder with the fewest.

Each folder has an id (`directory.id`, KIP-858). The store knows the folders that there were, and for each partition the
folder that it was made in or moved to. So nothing that was there is ever made again, empty, by itself:

- a folder that was there and is absent, empty or another one now (its disk isn't mounted) is offline, and so is one that
  `log.dirs` doesn't name any more while partitions lie in it;
- a partition that its folder doesn't hold, and no other one, is offline too;
- `--forget-log-dir PATH` is the operator's word that what is missing of a folder is lost: it begins again.

Of two copies of a partition none is deleted. The one in the folder that the store names is served; the other is set aside
under the name `<topic>-<partition>.<32 hex>-stray`. Only a copy that a move had not finished goes: its mark (`MOVING`) says
of which folder's log it has every batch.

A topic may be deleted while one of its folders is away. What comes back then is a stray: it is left where it is, and set
aside too when a topic of that name needs the place.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from errno import EEXIST
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from penstock import log
from penstock.broker.configs.flushes import Flushes
from penstock.broker.logs.ballast import Ballast
from penstock.broker.logs.folder import META, STORE, DataFolder, FolderError, FolderUnusableError
from penstock.broker.logs.overlap import overlap
from penstock.broker.uuids import uuid_bytes
from penstock.durable import sync_folder
from penstock.errors import ErrorCode, KafkaError
from penstock.hints import quoted
from penstock.pyx.log.partitionfolder import remove_folder, rename_folder

Key = tuple[str, int]

_log = log.get(__name__)
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})\Z")
FUTURE, DELETED, STRAY = "-future", "-delete", "-stray"
METADATA = "partition.metadata"
"""Ends of the names of folders that are no partition: a copy that is being made, one to be removed, one of no topic."""
MOVING = ".moving"
"""A file in a move's copy, from before it has the partition's name until the old folder has it no more. It holds the id of the
folder that it is a copy of: the copy wasn't opened yet, so that all its batches are in that one."""
_REMNANT = re.compile(rf".+-\d+\.[0-9a-f]{{32}}({FUTURE}|{DELETED})\Z")
NEW = "it is new"
NOT_LISTED = "was there before and isn't in `log.dirs` now"
_BATCH_HEAD = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic and (of magic 2) last offset delta of a batch."""


@dataclass
class LogDir:
    """One folder of `log.dirs`; `folder` is None when it could not be opened."""

    path: Path
    folder: DataFolder | None
    ballast: Ballast
    error: str = ""  # why it is offline; empty = it works
    unopened: bool = False  # a log of it couldn't be opened: what that holds wasn't read
    partitions: set[Key] = field(default_factory=set)
    id: str = ""  # "" = not known: it has never been seen
    is_current: bool = True  # in a cluster: it is as the last run of this broker has left it

    @property
    def offline(self) -> bool:
        """Whether its partitions can't be served."""
        return bool(self.error)

    @property
    def was_clean(self) -> bool:
        """Whether all that it holds was flushed when the broker stopped."""
        return self.folder is not None and self.folder.was_clean

    @property
    def power_cut(self) -> bool:
        """The machine was started since the logs were opened last: what wasn't flushed may be lost, unless `was_clean`."""
        return self.folder is None or self.folder.power_cut

    @property
    def may_be_cut(self) -> bool:
        """There was a power cut, or nobody can tell: what wasn't flushed may be lost, unless `was_clean`."""
        return self.power_cut or (self.folder is not None and self.folder.is_unknown)

    @property
    def was_flushed(self) -> Flushes:
        """Of which transactions all that they wrote since its last clean stop was flushed (`penstock.transaction.flush`)."""
        return Flushes.NONE if self.folder is None else self.folder.was_flushed

    def holds(self, key: Key) -> Path:
        """Where a partition of this folder lies."""
        return self.path / f"{key[0]}-{key[1]}"


def partition_of(name: str) -> Key | None:
    """Topic and partition of a partition folder's name; None for any other name."""
    found = _PARTITION.match(name)
    if found is None or found[1] in (".", "..") or str(int(found[2])) != found[2] or int(found[2]) >= 1 << 31:
        return None
    return found[1], int(found[2])


def is_remnant(name: str) -> bool:
    """Whether a start removes a folder of that name: a copy of a move that was cut short, or what a deletion has left."""
    return _REMNANT.match(name) is not None


class Placed(NamedTuple):
    """What the store says of a partition: its topic's id, and the id of the folder that it lies in ("" = not known)."""

    topic_id: bytes
    directory: str


class LogDirs:
    """All folders, in the order of `log.dirs`, then those that it should name. Used on the loop, but for what is slow.

    `open`, then `admit` what the store knows of them, then `locate` the store's partitions.
    """

    def __init__(self, dirs: Sequence[LogDir], node_id: int, flushes: Flushes) -> None:
        self._dirs = list(dirs)
        self._flushes = flushes
        self._node_id = node_id
        self._where: dict[Key, LogDir] = {}
        self._given_up: set[str] = set()
        self.missing: dict[Key, str] = {}
        """Partitions that no folder holds, and the id of the one that should."""
        self.unmade: set[Key] = set()
        """Partitions that have a place and are to be made there: they never were, or were given up."""
        self._find()

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        node_id: int,
        ballast_bytes: int = 0,
        flushes: Flushes = Flushes.NONE,
        cluster_id: str | None = None,
    ) -> LogDirs:
        """Lock the folders and list what they hold. Nothing is made in one that has no meta.properties, but for the first.
        `flushes`: which transactions are flushed from now on; cluster_id: of the cluster that the broker joins. Slow. Raises
        FolderError: the first can't be used, or one is another's."""
        if wrong := overlap(paths):
            raise FolderError(wrong)
        opened: list[LogDir] = []
        try:
            for path in dict.fromkeys(path.absolute() for path in paths):
                ballast = Ballast(path, ballast_bytes)
                if opened and _is_new(path):
                    opened.append(LogDir(path, None, ballast, NEW))
                    continue
                log_dir = _open(path, node_id, cluster_id, ballast, flushes)
                if log_dir.folder is None and not opened:
                    raise FolderError(log_dir.error)
                twin = next((one for one in opened if one.id and one.id == log_dir.id), None)
                opened.append(log_dir)
                if twin is not None:
                    raise FolderError(
                        f"`{twin.path}` and `{path}` have the same directory.id: one is a copy of the other. Take the copy "
                        "out of `log.dirs`, or, to have it as a folder of its own, `directory.id` out of its meta.properties"
                    )
                if log_dir.folder is not None:
                    cluster_id = log_dir.folder.cluster_id
        except FolderError:
            for log_dir in opened:
                _let_go(log_dir)
            raise
        return cls(opened, node_id, flushes)

    def admit(self, known: Mapping[str, str], placed: Mapping[str, int] | None, forget: Path | None = None) -> dict[str, str]:
        """Hold what is there against the folders that there were; the first start of all knows none. Answers those that
        there are from now on. Slow. Raises FolderError, OSError.

        known: path by id. placed: partitions that the store places in a folder, by its id; None: a cluster's store doesn't, and
        has other replicas. forget: a folder whose partitions are given up if they aren't there.
        """
        missing, holding = dict(known), placed or {}
        if forget is not None:
            self._given_up = ids_of(forget, known)
            missing = {one: path for one, path in known.items() if one not in self._given_up}
        for log_dir in self._dirs:
            missing.pop(log_dir.id, None)
        for log_dir in self._dirs:
            before = next((one for one, path in missing.items() if Path(path) == log_dir.path), "")
            missing.pop(before, None)
            # The store lies in the first one: it is the right one, whatever was there before.
            self._admit_one(log_dir, before if log_dir is not self._dirs[0] else "", holding)
        for one, path in missing.items():
            if holding.get(one):
                lost = LogDir(Path(path), None, Ballast(Path(path), 0), f"it {NOT_LISTED}", id=one)
                # The store places nothing there, and it isn't empty: it may be the same folder under another path.
                moved = [log_dir for log_dir in self._dirs if log_dir.partitions and not holding.get(log_dir.id)]
                _tell_lost(lost, holding[one], {log_dir.path: len(log_dir.partitions) for log_dir in moved})
                self._dirs.append(lost)
            elif placed is None:
                _log.warning(
                    "log_dir=%s isn't in `log.dirs` any more: what lay in it is copied from other brokers, and a partition "
                    "without another replica has no leader until it is back", path,
                )  # fmt: skip
            else:
                _log.info("log_dir=%s isn't in `log.dirs` any more; no partition lay in it", path)
        self._find()
        return {log_dir.id: str(log_dir.path) for log_dir in self._dirs if log_dir.id}

    def _admit_one(self, log_dir: LogDir, before: str, holding: Mapping[str, int]) -> None:
        """Take a folder, unless another one (`before`) was there."""
        held = holding.get(before, 0)
        if before and log_dir.folder is not None and held:
            _let_go(log_dir)
            here_too = {log_dir.path: len(log_dir.partitions)} if log_dir.partitions else {}
            log_dir.folder, log_dir.partitions = None, set()
            here = log_dir.id or "none"
            log_dir.error = (
                f"it was there before and is another folder now (`directory.id` {here}, not {before}; if it is the same one, "
                f"its {META} is damaged: put `directory.id={before}` into it)"
            )
            _tell_lost(log_dir, held, here_too, before)
        elif before and log_dir.error == NEW:
            log_dir.error = f"it {not_there(log_dir.path)}"
            _tell_lost(log_dir, held, {})
        elif log_dir.error == NEW:
            made = _open(log_dir.path, self._node_id, self.first.cluster_id, log_dir.ballast, self._flushes)
            log_dir.folder, log_dir.error, log_dir.partitions, log_dir.id = (
                made.folder,
                made.error,
                made.partitions,
                made.id,
            )
        if log_dir.folder is not None:
            log_dir.id = log_dir.folder.take_id()
        elif before:
            log_dir.id = before

    def _find(self) -> None:
        """Where each partition is seen first. `locate` knows better."""
        for log_dir in self._dirs:
            for key in log_dir.partitions:
                self._where.setdefault(key, log_dir)

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

    def begin_incarnation(self, incarnation: str, newest: str) -> list[LogDir]:
        """Say in the folders under which incarnation this broker is about to register; `newest`: the store's up to then, "" if
        it has none. Answers those that another run of this broker has left, or none: they were put back from a copy, or were
        away. Slow. Raises OSError."""
        for log_dir in self.online:
            assert log_dir.folder is not None
            log_dir.is_current = not log_dir.partitions or newest in log_dir.folder.incarnations
            log_dir.folder.begin_incarnation(incarnation, newest, is_known=log_dir.is_current)
        return [log_dir for log_dir in self.online if not log_dir.is_current]

    def choose(self, key: Key, topic_id: bytes, *, may_guess: bool) -> LogDir | None:
        """The folder that holds a replica of a cluster; None: none does. Of several folders that hold one the only one that is
        as the last run left it, or else, if it `may_guess`, the one whose log is longest; the others are set aside. Slow.
        Raises KafkaError, OSError."""
        holders = [log_dir for log_dir in self.online if key in log_dir.partitions]
        if not holders and self.of(key) is None:
            return self._take_back(key, topic_id, may_guess=may_guess)
        if len(holders) < 2:
            return self.of(key)
        copies = [log_dir for log_dir in holders if topic_id_in(log_dir.holds(key)) == topic_id]
        current = [log_dir for log_dir in copies if log_dir.is_current]
        home = current[0] if len(current) == 1 else None
        if home is None and len(copies) > 1 and not may_guess and _source(key, copies) is None:
            places = " and ".join(f"`{log_dir.path}`" for log_dir in copies)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"it lies in {places}, and which of them is newer isn't known")
        kept = self._choose(key, topic_id, home, holders)
        if kept is not None:
            self._where[key] = kept
        return self.of(key)

    def _take_back(self, key: Key, topic_id: bytes, *, may_guess: bool) -> LogDir | None:
        """A replica that was set aside, as the store had no such topic, is one again; of several the longest."""
        named = re.compile(rf"{re.escape(key[0])}-{key[1]}\.[0-9a-f]{{32}}{STRAY}\Z")
        found = [
            (log_dir, entry)
            for log_dir in self.online
            for entry in log_dir.path.iterdir()
            if named.match(entry.name) and topic_id_in(entry) == topic_id
        ]
        if not found:
            return None
        log_dir, stray = max(found, key=lambda one: _log_end(one[1]))
        if not may_guess:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"it was set aside as `{stray}`, and may be older than its seat")
        rename_folder(stray, log_dir.holds(key))
        self.put(key, log_dir)
        _log.warning("topic=%s partition=%d is there again: `%s` is its log", *key, stray)
        return log_dir

    def locate(self, placed: Mapping[Key, Placed], unmade: Set[Key]) -> None:
        """Find the store's partitions; `unmade`: those that a crash kept from being made. Slow. Raises OSError."""
        by_id = {log_dir.id: log_dir for log_dir in self._dirs if log_dir.id}
        for key, (topic_id, directory) in placed.items():
            home = by_id.get(directory)
            holders = [log_dir for log_dir in self.online if key in log_dir.partitions]
            if home is not None and home.offline:
                self._where[key] = home
                if key in unmade:
                    self.unmade.add(key)
            elif home is not None and holders == [home]:
                continue
            elif (kept := self._choose(key, topic_id, home, holders)) is not None:
                self._where[key] = kept
            elif key in unmade or directory in self._given_up or (not directory and self._given_up):
                self._where.pop(key, None)
                self.place(key)
                self.unmade.add(key)
            elif not holders:
                self.missing[key] = directory
        self._tell_given_up(placed)

    def _choose(self, key: Key, topic_id: bytes, home: LogDir | None, holders: Sequence[LogDir]) -> LogDir | None:
        """Of the folders that hold a partition, the one that is served; the others set theirs aside. None: none holds it."""
        ids = {log_dir.path: topic_id_in(log_dir.holds(key)) for log_dir in holders}
        # A log of before Kafka 2.8 has no id. Where it isn't expected, or beside one that has the id, it may be anybody's.
        copies = [one for one in holders if ids[one.path] == topic_id] or [
            one for one in holders if ids[one.path] is None and home in (None, one)
        ]
        if not copies:
            return None
        kept = home if home is not None and home in copies else _source(key, copies) or reduce(_later(key), copies)
        for log_dir in holders:
            if log_dir is kept:
                unmark(log_dir.holds(key))
                continue
            log_dir.partitions.discard(key)
            if log_dir in copies and _copied_from(log_dir, key) == kept.id:
                give_way(log_dir, key, DELETED)
                _log.info("topic=%s partition=%d: its move to %s was cut short; it lies in %s", *key, log_dir.path, kept.path)
            elif log_dir in copies:
                stray = give_way(log_dir, key, STRAY)
                _log.warning(
                    "topic=%s partition=%d lay in two log folders: %s serves it, the other copy is now %s; remove that when "
                    "nothing in it is missed", *key, kept.path, stray,
                )  # fmt: skip
            else:
                set_aside(log_dir, key)
        return kept

    def _tell_given_up(self, placed: Mapping[Key, Placed]) -> None:
        if not self._given_up:
            return
        given_up = {*self._given_up, ""}
        lost = sorted(key for key in self.unmade if placed[key].directory in given_up)
        moved = sorted(key for key, one in placed.items() if one.directory in self._given_up and key not in self.unmade)
        back = [key for key in moved if (here := self._where.get(key)) is not None and here.id not in self._given_up]
        if not lost and not back and self._given_up <= {log_dir.id for log_dir in self._dirs}:
            raise FolderError(
                "the log folder to forget is there and holds all its partitions: start without `--forget-log-dir`"
            )
        _log.warning("given up: %d partitions begin again, empty (%s)", len(lost), some(lost))
        if back:
            _log.warning("%d partitions of that folder have a copy in another one, which serves (%s)", len(back), some(back))

    def found(self) -> set[Key]:
        """Every partition that lies in a folder that works."""
        return {key for key, log_dir in self._where.items() if not log_dir.offline}

    def place(self, key: Key) -> LogDir:
        """The folder that is to hold a new partition. Raises KafkaError: KAFKA_STORAGE_ERROR if no folder works,
        INVALID_TOPIC_EXCEPTION if something else has its name in each."""
        there = self._where.get(key)
        if there is not None and not there.offline and not foreign(there.holds(key)):
            return there  # What lies there is unknown to the store, and will be set aside.
        if not self.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no log folder works")
        reasons = []
        for chosen in sorted(self.online, key=lambda log_dir: len(log_dir.partitions)):
            if not (why := foreign(chosen.holds(key))):
                self.put(key, chosen)
                return chosen
            reasons.append(why)
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reasons[0])

    def path_of(self, directory: str) -> Path | None:
        """The path of the folder with that id."""
        return next((log_dir.path for log_dir in self._dirs if log_dir.id == directory), None) if directory else None

    def put(self, key: Key, log_dir: LogDir) -> None:
        """Take down where a partition lies from now on."""
        before = self._where.get(key)
        if before is not None:
            before.partitions.discard(key)
        log_dir.partitions.add(key)
        self._where[key] = log_dir

    def drop(self, key: Key) -> LogDir | None:
        """Forget a partition that was deleted; the folder that held it."""
        self.unmade.discard(key)
        self.missing.pop(key, None)
        log_dir = self._where.pop(key, None)
        if log_dir is not None:
            log_dir.partitions.discard(key)
        return log_dir

    def close(self, *, clean: bool) -> None:
        """Let all folders go; one that failed, or has a log that wasn't opened, gets no clean mark. Raises OSError when
        all have been tried."""
        failure: OSError | None = None
        for log_dir in self._dirs:
            if log_dir.folder is None:
                continue
            log_dir.ballast.release()
            try:
                log_dir.folder.close(clean=clean and not (log_dir.offline or log_dir.unopened))
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def ids_of(forget: Path, known: Mapping[str, str]) -> set[str]:
    """The ids of a folder that is to be forgotten; known: paths by id. Raises FolderError if there is none."""
    ids = {one for one, path in known.items() if Path(path) == forget.absolute()}
    if not ids:
        names = ", ".join(map(repr, known.values()))
        raise FolderError(f"this broker has no log folder `{forget}` to forget; it knows {names}")
    return ids


def not_there(path: Path) -> str:
    """What happened to a log folder that a start doesn't find, though `log.dirs` has it."""
    return f"was there before and is {'empty' if path.is_dir() else 'missing'} now (is its disk mounted?)"


def beside(log_dir: LogDir, key: Key, ending: str) -> Path:
    """Another path of a log folder for a partition's files, as Kafka names such: at most 255 bytes."""
    name, index = key
    suffix = f"-{index}.{os.urandom(16).hex()}{ending}"
    return log_dir.path / (name[: 255 - len(suffix)] + suffix)


def give_way(log_dir: LogDir, key: Key, ending: str) -> Path:
    """Rename what has a partition's name; its new path. Raises OSError, also where it is no partition's folder."""
    found = log_dir.holds(key)
    if why := foreign(found):
        raise OSError(EEXIST, why)
    gone = beside(log_dir, key, ending)
    rename_folder(found, gone)
    return gone


def foreign(path: Path) -> str:
    """Why what is at a partition's path is none of its files and must stay: one sentence. Empty: it is, or nothing is there.

    A log folder, this broker's or another's, is never set aside or removed, nor is a folder that has one in it.
    """
    try:
        with os.scandir(path) as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except NotADirectoryError:
        return f"`{path}` is there and is no folder: no partition can have that name here"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"`{path}` can't be read: {error.strerror}"
    if META in found or STORE in found:
        return f"`{path}` is a log folder of a broker: no partition can have that name here"
    if any(found.values()):
        return f"`{path}` holds folders, as no partition does: none can have that name here"
    return ""


def topic_id_in(folder: Path) -> bytes | None:
    """The id in a partition's `partition.metadata`; None if the file isn't there (a log of before Kafka 2.8) or has none."""
    try:
        text = (folder / METADATA).read_text(encoding="ascii")
        topic_id = uuid_bytes(text.partition("topic_id: ")[2].strip())
    except (OSError, ValueError):
        return None
    return topic_id if any(topic_id) else None


def set_aside(log_dir: LogDir, key: Key) -> None:
    """Rename a partition's folder that belongs to no topic any more, as Apache Kafka does with such. Raises OSError."""
    is_known = topic_id_in(log_dir.holds(key)) is not None
    stray = give_way(log_dir, key, STRAY)
    if is_known:
        _log.warning("what a deleted topic=%s partition=%d has left is now %s", *key, stray)
    else:
        _log.warning("a folder of topic=%s partition=%d whose %s names no topic is now %s", *key, METADATA, stray)


def unmark(copy: Path) -> None:
    """A move's copy is the partition from now on, whatever happens. Raises OSError."""
    if (copy / MOVING).exists():
        (copy / MOVING).unlink()
        sync_folder(copy)


def some(keys: Sequence[Key], most: int = 20) -> str:
    """Partitions for the log, cut where the list gets long."""
    named = ", ".join(f"{name}-{index}" for name, index in keys[:most])
    return named + (f" and {len(keys) - most} more" if len(keys) > most else "")


def _is_partition(entry: Path) -> bool:
    """Whether a folder with a partition's name is one, and not a broker's log folder."""
    return entry.is_dir() and not (entry / META).exists() and not (entry / STORE).exists()


def _let_go(log_dir: LogDir) -> None:
    """Unlock a folder that was only read."""
    if log_dir.folder is not None:
        log_dir.folder.close(clean=log_dir.was_clean)


def _tell_lost(log_dir: LogDir, held: int, there: Mapping[Path, int], identity: str = "") -> None:
    """there: folders that may be this one under another path or id, and how many partitions each holds."""
    if not there:
        _log.error(
            "log_dir=%s is offline: %s. Its %d partitions answer KAFKA_STORAGE_ERROR. Bring the folder back and start again; "
            "if it is lost, start once with `--forget-log-dir %s`: they begin again, empty",
            log_dir.path, log_dir.error, held, quoted(log_dir.path),
        )  # fmt: skip
        return
    named = ", ".join(f"`{one}` ({count})" for one, count in there.items())
    _log.error(
        "log_dir=%s is offline: %s. Its %d partitions answer KAFKA_STORAGE_ERROR. Partitions lie in %s: if that is the same "
        "folder, put `directory.id=%s` into its %s and start again. Or start once with `--forget-log-dir %s`: those that lie "
        "there go on with their records, others begin again, empty",
        log_dir.path, log_dir.error, held, named, identity or log_dir.id, META, quoted(log_dir.path),
    )  # fmt: skip


def _copied_from(log_dir: LogDir, key: Key) -> str:
    """The id of the folder that a move was copying this partition from when it was cut short; "" = it is no such copy."""
    try:
        return (log_dir.holds(key) / MOVING).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _source(key: Key, copies: Sequence[LogDir]) -> LogDir | None:
    """The folder that the other one's copy was made of, if a move was cut short."""
    made_of = {_copied_from(log_dir, key) for log_dir in copies} - {""}
    return next((log_dir for log_dir in copies if log_dir.id in made_of), None)


def _later(key: Key) -> Callable[[LogDir, LogDir], LogDir]:
    """Of two copies that the store doesn't know, the one whose log ends later; of those alike, the one with more bytes.

    Sizes alone say nothing: old segments go, and a file may have room ahead.
    """

    def later(first: LogDir, second: LogDir) -> LogDir:
        try:
            return first if _log_end(first.holds(key)) > _log_end(second.holds(key)) else second
        except OSError as error:
            raise FolderError(
                f"`{key[0]}-{key[1]}` lies in `{first.path}` and `{second.path}`, and which of them is newer can't be "
                f"seen: {error}; mend that disk, or move one of the two away"
            ) from None

    return later


def _is_new(path: Path) -> bool:
    """Whether a folder is absent or was never a broker's."""
    try:
        return not (path / META).exists()
    except OSError:
        return False  # Opening it will say why it can't be used.


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


def _open(path: Path, node_id: int, cluster_id: str | None, ballast: Ballast, flushes: Flushes) -> LogDir:
    try:
        folder = DataFolder.open(path, node_id, cluster_id, flushes=flushes)
    except FolderUnusableError as error:
        _log.error("log_dir=%s is offline: %s", path, error)
        return LogDir(path, None, ballast, str(error))
    try:
        ballast.release_left()
        for entry in path.iterdir():
            if is_remnant(entry.name) and entry.name.endswith(FUTURE) and entry.is_dir() and not foreign(entry):
                remove_folder(entry)  # A move that was cut short.
        held = {key for entry in path.iterdir() if (key := partition_of(entry.name)) and _is_partition(entry)}
    except OSError as error:
        folder.close(clean=False)
        _log.error("log_dir=%s is offline: %s", path, error)
        return LogDir(path, None, ballast, str(error))
    if folder.is_unknown and held and not folder.was_clean:
        _log.warning(
            "log_dir=%s: its `.lock` is lost, so that whether the power was cut since its last run isn't known: damage to its "
            "logs isn't taken for what a power cut leaves", path,
        )  # fmt: skip
    return LogDir(path, folder, ballast, partitions=held, id=folder.directory_id)
