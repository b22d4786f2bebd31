"""The broker among others, its log folders, and what its process reads and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from penstock.broker.context import Context
from penstock.broker.metrics.families import (
    BROKER_INFO,
    BROKERS,
    CLOCK_JUMPS,
    CLOCK_SETTLED,
    DISK_READ,
    DISK_WRITTEN,
    FOLDER_FREE,
    FOLDER_FULL,
    FOLDER_OFFLINE,
    FOLDER_SIZE,
    FOLDER_USED,
    FOLDER_WAITS,
    HANGING_TRANSACTIONS,
    OFFLINE_FOLDERS,
)
from penstock.broker.transactionmessages import Fate
from penstock.broker.upkeep.space import FolderSpace
from penstock.metrics import Page, each, one


def write(page: Page, context: Context) -> None:
    """What is one number for the broker."""
    one(page, BROKERS, len(context.brokers_for(context.between_brokers or "")))
    one(page, BROKER_INFO, 1, (str(context.node_id), str(context.advertised)))
    ended = context.coordinators.hanging.ended
    each(page, HANGING_TRANSACTIONS, {fate.name.lower(): ended[fate] for fate in (Fate.ABORT, Fate.COMMIT, Fate.UNKNOWN)})
    one(page, CLOCK_SETTLED, int(context.ages.is_settled))
    one(page, CLOCK_JUMPS, context.ages.jumps)
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/io").read_text().splitlines()
        used = {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}
        one(page, DISK_READ, used["read_bytes"])
        one(page, DISK_WRITTEN, used["write_bytes"])


def write_folders(page: Page, context: Context, space: FolderSpace, folder_bytes: Mapping[str, int]) -> None:
    """Each log folder; a disk that doesn't answer has no figures of its size."""
    dirs = list(context.dirs)
    states = context.log_manager.folder_states()
    one(page, OFFLINE_FOLDERS, sum(log_dir.offline for log_dir in dirs))
    paths = [str(log_dir.path) for log_dir in dirs]
    found = {path: known for path in paths if (known := space.get(path)) is not None}
    for family, figures in (
        (FOLDER_SIZE, {path: known.total_bytes for path, known in found.items()}),
        (FOLDER_FREE, {path: known.free_bytes for path, known in found.items()}),
        (FOLDER_USED, {path: folder_bytes.get(path, 0) for path in paths}),
        (FOLDER_WAITS, {path: space.waits_s(path) for path in paths}),
        (FOLDER_OFFLINE, {str(log_dir.path): int(log_dir.offline) for log_dir in dirs}),
        (FOLDER_FULL, {path: int(path in states and states[path].space != 0) for path in paths}),
    ):
        each(page, family, figures)
