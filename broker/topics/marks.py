"""What the store notes of changes that are under way, so that the next start finishes what a crash cut short.

`/penstock/making`: the partitions whose logs are to be made; `/admin/delete_topics`: the topics whose deletion has begun, both
`{"version":1,"topics":...}`; `/penstock/log_dirs/N`: the log folders that broker N has, path by id, and in a cluster those that
failed while it ran, by id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping

from penstock import log
from penstock.broker.logs.logdirs import Key
from penstock.broker.store.base import (
    BadVersionError,
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Store,
    StoreError,
    paths,
    putting,
)
from penstock.broker.store.values import Fields, to_json
from penstock.broker.topic import by_topic

LOG_DIR_FAILURE = 1
"""Kafka's number of what happened to a log folder."""

_log = log.get(__name__)


class Marks:
    """The marks of one broker's store. `making` is what the store has: by topic, the partitions whose logs are being made."""

    def __init__(self, node_id: int, store: Store) -> None:
        self._node_id = node_id
        self._store = store
        self.making: dict[str, list[int]] = {}

    def set_making(self, keys: Iterable[Key]) -> None:
        """Say of which partitions the logs are to be made; `making_node` stores it."""
        self.making = by_topic(sorted(keys))

    async def making_node(self) -> Operation:
        """The change of the store that says which logs are to be made."""
        return await putting(self._store, paths.MAKING, to_json(version=1, topics=self.making))

    async def made(self, name: str) -> None:
        """Take the mark back. If the store refuses that now, the next creation does it, or the next start finds the logs."""
        try:
            await self._store.multi([await self.making_node()])
        except StoreError as error:
            _log.warning("topic=%s: it can't be stored that its logs are made: %s", name, error)

    async def read_making(self) -> None:
        """Take over what the store says. Raises StoreError."""
        if await self._store.exists(paths.MAKING) is None:
            return
        node = Fields.read(paths.MAKING, (await self._store.get(paths.MAKING))[0])
        making = dict(node.table("topics"))
        if not all(isinstance(one, list) and all(isinstance(index, int) for index in one) for one in making.values()):
            raise node.wrong("`topics` should hold lists of partitions")
        self.making = making

    async def log_dirs(self) -> dict[str, str]:
        """The log folders that there were, path by id; none at the first start, and at that of an earlier version's store."""
        return (await self._read_log_dirs())[0]

    async def failed_log_dirs(self) -> list[str]:
        """The ids of log folders that failed in a run that no controller has dealt with yet."""
        return (await self._read_log_dirs())[1]

    async def _read_log_dirs(self) -> tuple[dict[str, str], list[str], int | None]:
        """Path by id, the ids of those that failed, and the version of the node; None: there is none."""
        path = paths.log_dirs(self._node_id)
        try:
            data, stat = await self._store.get(path)
        except NoNodeError:
            return {}, [], None
        return Fields.read(path, data).texts("dirs"), [str(one) for one in json.loads(data).get("failed", [])], stat.version

    async def log_dirs_node(self, log_dirs: Mapping[str, str], failed: Collection[str] = ()) -> Operation:
        """The change of the store that says which log folders there are, and which of them failed."""
        return await putting(self._store, paths.log_dirs(self._node_id), _log_dirs_json(log_dirs, failed))

    async def note_failure(self, log_dir: str) -> None:
        """Store that a log folder has failed, by its id, and tell the controller. Raises StoreError."""
        told = to_json(version=1, broker=self._node_id, event=LOG_DIR_FAILURE)
        event = Create(f"{paths.LOG_DIR_EVENTS}/log_dir_event_", told, sequence=True)
        await self._alter_failed(lambda failed: {*failed, log_dir}, event)

    async def forget_failures(self, has_failed: Callable[[str], bool]) -> None:
        """A controller has dealt with failures: forget them, but for folders that still have failed, by their ids. Raises
        StoreError."""
        await self._alter_failed(lambda failed: set(filter(has_failed, failed)))

    async def _alter_failed(self, alter: Callable[[set[str]], set[str]], *more: Operation) -> None:
        """Store other folders as failed, and do `more` in the same step. Several folders may fail at once: where the node is
        no longer as it was read, that is altered which is there then (*a failure that another one's note has taken back*)."""
        path = paths.log_dirs(self._node_id)
        while True:
            log_dirs, noted, version = await self._read_log_dirs()
            failed = alter(set(noted))
            if failed == set(noted) and not more:
                return
            data = _log_dirs_json(log_dirs, failed)
            write = Create(path, data, parents=True) if version is None else Set(path, data, version)
            try:
                await self._store.multi([write, *more])
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                if error.path != path:
                    raise
            else:
                return

    async def mark_deleted(self, name: str) -> None:
        """Store that the deletion of a topic has begun. Raises StoreError."""
        marked = await self.deleted()
        await self._store.set(paths.DELETE_TOPICS, to_json(version=1, topics=sorted({*marked, name})))

    async def deleted(self) -> list[str]:
        """Names whose deletion has begun; makes the node if it isn't there."""
        if await self._store.exists(paths.DELETE_TOPICS) is None:
            await self._store.create(paths.DELETE_TOPICS, to_json(version=1, topics=[]), parents=True)
        node = Fields.read(paths.DELETE_TOPICS, (await self._store.get(paths.DELETE_TOPICS))[0])
        marked = node.several("topics")
        if not all(isinstance(name, str) for name in marked):
            raise node.wrong("`topics` should hold names")
        return marked


def _log_dirs_json(log_dirs: Mapping[str, str], failed: Collection[str]) -> bytes:
    more = {"failed": sorted(failed)} if failed else {}
    return to_json(version=1, dirs=dict(log_dirs), **more)
