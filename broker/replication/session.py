"""The metadata store of a broker in a cluster: one session with its tree after the other, behind one `Store`.

The tree is in a ZooKeeper, or, of brokers in one process, in a file that they share: `Sessions` is one broker's door to it. A
broker's registration, its watches and the lead as controller end with a session. Their owner begins them again (`member.py`).
Whoever only reads and writes nodes has this object: between two sessions its calls raise SessionLostError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from penstock import log
from penstock.broker.store.base import (
    ANY_VERSION,
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    SessionLostError,
    Sessions,
    Stat,
    Store,
    StoreError,
    Watch,
    paths,
)
from penstock.broker.store.values import Fields
from penstock.broker.topics.nodes import to_json
from penstock.broker.uuids import new_uuid, uuid_text

AGAIN_S = 1.0
"""How long a broker waits before it asks for a session again."""

_log = log.get(__name__)

ROOTS = (
    paths.BROKER_IDS,
    paths.TOPICS,
    paths.TOPIC_CONFIGS,
    paths.BROKER_CONFIGS,
    paths.CHANGES,
    paths.DELETE_TOPICS,
    paths.INCARNATIONS,
    paths.DELETED,
    paths.ALIVE,
)
"""Nodes that hold others: they are there before anything is read or watched."""


class SessionStore(Store):
    """A `Store` that is the present session's. Raises SessionLostError while there is none."""

    def __init__(self, sessions: Sessions) -> None:
        self.place = sessions.place
        """Where the tree is; for sentences."""
        self._sessions = sessions
        self._store: Store | None = None
        self.session = 0
        self.lost = asyncio.Event()
        self.cluster_id = ""
        """The cluster's id, once `agree_on_cluster` was called."""

    async def agree_on_cluster(self, own: str | None) -> None:
        """Read the cluster's id; the first broker of all gives it: its own, or a new one. Raises StoreError."""
        while True:
            try:
                data, _ = await self.get(paths.CLUSTER_ID)
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    await self.create(paths.CLUSTER_ID, to_json(version="1", id=own or uuid_text(new_uuid())), parents=True)
            else:
                self.cluster_id = Fields.read(paths.CLUSTER_ID, data).text("id")
                return

    @property
    def session_timeout_ms(self) -> int:
        """See `Store.session_timeout_ms`."""
        return self.present.session_timeout_ms

    async def begin(self) -> Store:
        """A new session. Raises StoreError."""
        store = await self._sessions.begin()
        try:
            await _make_roots(store)
        except BaseException:
            await store.close()
            raise
        self._store, self.session, self.lost = store, store.session, store.lost
        return store

    async def begin_again(self) -> Store:
        """A new session, however long it takes to get one."""
        while True:
            try:
                return await self.begin()
            except StoreError as error:
                _log.error("no session with %s: %s", self.place, error)
                await asyncio.sleep(AGAIN_S)

    @property
    def present(self) -> Store:
        """The session that there is. Raises SessionLostError."""
        if self._store is None:
            raise SessionLostError(self.place, "there is no session yet")
        return self._store

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """See `Store.get`."""
        return await self.present.get(path, watch)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """See `Store.exists`."""
        return await self.present.exists(path, watch)

    async def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        """See `Store.delete`."""
        await self.present.delete(path, version, recursive=recursive)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """See `Store.children`."""
        return await self.present.children(path, watch)

    async def tree(self, path: str) -> dict[str, bytes]:
        """See `Store.tree`."""
        return await self.present.tree(path)

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """See `Store.multi`."""
        return await self.present.multi(operations)

    async def sync(self) -> None:
        """See `Store.sync`."""
        await self.present.sync()

    async def changes(self) -> int:
        """See `Store.changes`."""
        return await self.present.changes()

    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish. May be called again."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()


async def _make_roots(store: Store) -> None:
    """The nodes that hold others, and the first controller epoch."""
    for path, data in (*((root, b"") for root in ROOTS), (paths.CONTROLLER_EPOCH, b"0")):
        if await store.exists(path) is None:
            try:
                await store.multi([Create(path, data, parents=True)])
            except NodeExistsError:
                continue  # Another broker was quicker.
