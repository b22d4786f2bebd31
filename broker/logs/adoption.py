"""Topics that lie in the log folders though the store knows nothing yet: a folder that Apache Kafka has left.

A partition is a folder `<topic>-<partition>` that has a log in it; its topic's id stands in `partition.metadata`, its last
leader epoch in `leader-epoch-checkpoint`. How many partitions a topic has follows from the highest one that is there; its
configs were in metadata that isn't there: they are the defaults, and as these may be wrong, retention and compaction are
paused until an operator confirms them (`penstock.configs.confirmed`). The coordinators' topics get what Kafka gives them,
and nothing is paused there. `__cluster_metadata`, KRaft's own log, is left alone.

What is ambiguous is refused before anything is stored: two names with one topic id (one is a copy of the other), and
log folders of which one can't be seen, since what lies there would be unknown from then on. A folder whose number no
topic may have (`orders-20260501`, a dated copy) is left alone.

Only a store without any history adopts. Later an unknown folder is a deleted topic's that a broken disk brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import log
from penstock.broker.logs.folder import FolderError
from penstock.broker.logs.logdirs import NEW, Key, LogDirs, topic_id_in
from penstock.broker.uuids import new_uuid

METADATA_LOG = "__cluster_metadata"

_log = log.get(__name__)


def adopted(dirs: LogDirs, most: int) -> Mapping[str, tuple[bytes, list[int]]]:
    """By topic: its id, and the last leader epoch of each partition from 0 on. most: partitions that a topic may have.
    Reads the disk. Raises OSError, FolderError."""
    highest, left_alone = _partitions(dirs, most)
    for folder in left_alone:
        _log.warning("%s isn't adopted: no topic may have more than %d partitions (max.partitions.per.topic)", folder, most)
    return {name: _topic(dirs, name, highest[name] + 1) for name in sorted(highest)}


def check_adoptable(dirs: LogDirs, most: int) -> None:
    """Raise what `adopted` would, before anything is written. Reads the disk."""
    _partitions(dirs, most)


def _partitions(dirs: LogDirs, most: int) -> tuple[dict[str, int], list[Path]]:
    """The highest partition of each topic, and the folders whose number no topic may have."""
    _check_all_seen(dirs)
    highest: dict[str, int] = {}
    left_alone: list[Path] = []
    folders: dict[bytes, tuple[str, Path]] = {}
    for key in sorted(dirs.found()):
        name, index = key
        log_dir = dirs.of(key)
        if log_dir is None or name == METADATA_LOG or not _is_log(dirs, key):
            continue
        folder = log_dir.holds(key)
        if index >= most:
            left_alone.append(folder)
            continue
        topic_id = topic_id_in(folder)
        other, its_folder = folders.setdefault(topic_id, (name, folder)) if topic_id else (name, folder)
        if other != name:
            raise FolderError(
                f"`{its_folder}` and `{folder}` have the same topic id and different names: one is a copy of the other. Move "
                "the copy out of the log folder and start again"
            )
        highest[name] = max(highest.get(name, 0), index)
    return highest, left_alone


def _check_all_seen(dirs: LogDirs) -> None:
    """Raises FolderError if a log folder can't be seen."""
    away = next((log_dir for log_dir in dirs if log_dir.offline and log_dir.error != NEW), None)
    if away is not None:
        raise FolderError(
            f"without a metadata store the topics are those that lie in the log folders, and `{away.path}` can't be seen: "
            f"{away.error}. Mend it and start again; or, if it is lost for good, take it out of `log.dirs`"
        )


def strangers(dirs: LogDirs, known: set[Key]) -> list[Path]:
    """Partition folders of no topic that the store knows."""
    found = (key for key in dirs.found() if key not in known and key[0] != METADATA_LOG)
    return sorted(log_dir.holds(key) for key in found if (log_dir := dirs.of(key)) is not None)


def _is_log(dirs: LogDirs, key: Key) -> bool:
    """Whether a folder is a partition's, and not one that is only called like it (`backup-20260501`)."""
    log_dir = dirs.of(key)
    folder = log_dir.holds(key) if log_dir is not None else None
    return folder is not None and ((folder / "partition.metadata").is_file() or any(folder.glob("*.log")))


def _topic(dirs: LogDirs, name: str, count: int) -> tuple[bytes, list[int]]:
    keys = [(name, index) for index in range(count)]
    folders = [log_dir.holds(key) for key in keys if (log_dir := dirs.of(key)) is not None]
    ids = (topic_id_in(folder) for folder in folders)
    return next((one for one in ids if one), None) or new_uuid(), last_epochs(dirs, keys)


def last_epochs(dirs: LogDirs, keys: Sequence[Key]) -> list[int]:
    """The last leader epoch of each of these partitions, 0 of one that lies nowhere. Reads the disk."""
    places = [(dirs.of(key), key) for key in keys]
    return [_last_epoch(log_dir.holds(key)) if log_dir is not None else 0 for log_dir, key in places]


def _last_epoch(folder: Path) -> int:
    """The last entry of `leader-epoch-checkpoint`; 0 if there is none."""
    try:
        lines: list[Any] = (folder / "leader-epoch-checkpoint").read_text(encoding="ascii").splitlines()
        return max(0, *(int(line.split(" ")[0]) for line in lines[2:])) if len(lines) > 2 else 0
    except (OSError, ValueError):
        return 0
