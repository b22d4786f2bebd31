"""The metadata store of a broker in a cluster: one session with its tree after the other, behind one `Store`.

The tree is in a ZooKeeper, or, of brokers in one process, in a file that they share: `Sessions` is one broker's door to it. A
broker's registration, its watches and the lead as controller end with a session. `membership.py` begins them again.
Whoever only reads and writes nodes has this object: between two sessions its calls raise SessionLostError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
from penstock.broker.store.values import Fields, to_json
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
    paths.LOG_DIR_EVENTS,
)
"""Nodes that hold others: they are there before anything is read or watched."""


class Claim(NamedTuple):
    """What `/penstock/cluster` says. growing: the single node that is still being copied into the tree; {}: none is."""

    cluster_id: str
    growing: Mapping[str, Any]


def claim_json(cluster_id: str, **growing: object) -> bytes:
    """The content of `/penstock/cluster`."""
    return to_json(version=1, id=cluster_id, **({"growing": growing} if growing else {}))


async def read_claim(store: Store) -> Claim | None:
    """What `/penstock/cluster` says; None: it isn't there. Raises StoreError."""
    try:
        data, _ = await store.get(paths.CLUSTER)
    except NoNodeError:
        return None
    fields = Fields.read(paths.CLUSTER, data)
    return Claim(fields.text("id"), fields.table("growing") if b'"growing"' in data else {})


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

    async def agree_on_cluster(self, own: str | None, *, is_member: bool) -> None:
        """Read the cluster's id; the first broker of all gives it: its own, or a new one. is_member: this broker was in a
        cluster before. Raises StoreError."""
        while True:
            claim = await read_claim(self)
            if claim is not None and claim.growing:
                raise StoreError(
                    self.place,
                    f"broker {claim.growing.get('broker')}, which was a single node, is being copied there: start it first, "
                    "and this one once that is done",
                )
            try:
                data, _ = await self.get(paths.CLUSTER_ID)
            except NoNodeError:
                if is_member:
                    raise StoreError(
                        self.place, f"knows no cluster, and this broker is a member of {own}: is `zookeeper.connect` right?"
                    ) from None
                made = own or uuid_text(new_uuid())
                named = Create(paths.CLUSTER_ID, to_json(version="1", id=made), parents=True)
                with contextlib.suppress(NodeExistsError):  # Of two that begin at once one is the first.
                    await self.multi([Create(paths.CLUSTER, claim_json(made)), named])
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
            await _make_roots(store, self.place)
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
                _log.error("no session with the metadata store at `%s`: %s", self.place, error)
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

    def give_up(self) -> None:
        """See `Store.give_up`. Without a session nothing is to be ended."""
        store = self._store
        if store is not None:
            store.give_up()

    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish. May be called again."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()


async def refuse_others(store: Store, place: str) -> None:
    """Raise StoreError where Apache's brokers are."""
    if await store.exists("/penstock") is None and await store.exists(paths.CLUSTER_ID) is not None:
        raise StoreError(place, "holds the cluster of brokers that aren't Penstock's: give another chroot")


async def _make_roots(store: Store, place: str) -> None:
    """The nodes that hold others, and the first controller epoch. Raises StoreError, also where Apache's brokers are."""
    await refuse_others(store, place)
    for path, data in (*((root, b"") for root in ROOTS), (paths.CONTROLLER_EPOCH, b"0")):
        if await store.exists(path) is None:
            try:
                await store.multi([Create(path, data, parents=True)])
            except NodeExistsError:
                continue  # Another broker was quicker.
