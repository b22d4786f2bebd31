"""Topics that lie in the log folders though the store knows nothing yet: a folder that Apache Kafka has left.

A partition is a folder `<topic>-<partition>` that has a log in it; its topic's id stands in `partition.metadata`, its last
leader epoch in `leader-epoch-checkpoint`. How many partitions a topic has follows from the highest one that is there; its
configs were in metadata that isn't there: they are the defaults, and as these may be wrong, retention and compaction rest
until somebody confirms them (`penstock.configs.confirmed`). The coordinators' topics get what Kafka gives them, and nothing
rests there. `__cluster_metadata`, KRaft's own log, is left alone.

Only a store without any history adopts. Later an unknown folder is a deleted topic's that a broken disk brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.broker.folder import new_uuid
from penstock.broker.logdirs import Key, LogDirs, topic_id_in

METADATA_LOG = "__cluster_metadata"


def adopted(dirs: LogDirs) -> Mapping[str, tuple[bytes, list[int]]]:
    """By topic: its id, and the last leader epoch of each partition from 0 on. Reads the disk. Raises OSError."""
    highest: dict[str, int] = {}
    for name, index in dirs.found():
        if name != METADATA_LOG and _is_log(dirs, (name, index)):
            highest[name] = max(highest.get(name, 0), index)
    return {name: _topic(dirs, name, highest[name] + 1) for name in sorted(highest)}


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
