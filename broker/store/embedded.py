"""The store of a single node, or of brokers in one process: a session on an `SharedTree`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.broker.store.base import Operation, SessionLostError, Sessions, Stat, Store, StoreError, Watch, check_path
from penstock.broker.store.sharedtree import Session, SharedTree

T = TypeVar("T")


class EmbeddedStore(Store):
    """A `Store` on a tree. Make it with `await EmbeddedStore.open(path)`, or with `begin` on a tree that others share; on the
    loop that will use it."""

    def __init__(self, shared: SharedTree, session: Session, *, owns_tree: bool) -> None:
        self.shared = shared
        self.session = session.number
        self.lost = session.lost
        self.changed = session.changed
        """Set after each change of the tree, by any session; the task that waits for it clears it."""
        self._session = session
        self._owns_tree = owns_tree
        self._abandoned = False
        self._reachable = asyncio.Event()
        self._reachable.set()

    @property
    def session_timeout_ms(self) -> int:
        """For how long the session lives on while its loop doesn't run; 0: for as long as it isn't ended."""
        return self._session.timeout_ms

    @classmethod
    async def open(cls, path: Path, *, restored: bool = False, checked: bool = False, new_id: str = "") -> EmbeddedStore:
        """A session on a tree of its own: see `SharedTree.open`, whose errors it raises."""
        shared = await SharedTree.open(path, restored=restored, checked=checked, new_id=new_id)
        try:
            return await cls.begin(shared, owns_tree=True)
        except StoreError:
            await shared.close()
            raise

    @classmethod
    async def begin(
        cls, shared: SharedTree, *, owns_tree: bool = False, timeout_ms: int = 0, is_bounded: bool = False
    ) -> EmbeddedStore:
        """A session on a tree. owns_tree: `close` closes the tree, too. timeout_ms: see `session_timeout_ms`. is_bounded: it
        refuses the multis that a ZooKeeper refuses (TooLargeError), as a cluster's may be one; a single node's needs no bound.
        """
        session = Session(timeout_ms, is_bounded=is_bounded)
        await shared.run("/", lambda: shared.begin(session))
        return cls(shared, session, owns_tree=owns_tree)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A node's bytes and stat; see `Store.get`."""

        def work() -> tuple[bytes, Stat]:
            found = self.shared.expect(path)
            self.shared.watch(self._session, path, watch)
            return found.data, found.stat

        return await self._run(path, work)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat or None; see `Store.exists`."""

        def work() -> Stat | None:
            found = self.shared.find(path)
            self.shared.watch(self._session, path, watch)
            return found.stat if found else None

        return await self._run(path, work)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children; see `Store.children`."""

        def work() -> list[str]:
            names = self.shared.children(path)
            self.shared.watch(self._session, path, watch, children=True)
            return names

        return await self._run(path, work)

    async def tree(self, path: str) -> dict[str, bytes]:
        """The bytes of every node below a node; see `Store.tree`."""
        return await self._run(path, lambda: self.shared.below(path))

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing; see `Store.multi`."""
        if not operations:
            return []
        return await self._run(operations[0].path, lambda: self.shared.multi(self._session, operations))

    async def sync(self) -> None:
        """See `Store.sync`. All sessions read one tree, so none is behind."""
        await self._run("/", lambda: None)

    async def changes(self) -> int:
        """The zxid of the newest change; see `Store.changes`."""
        return await self._run("/", self.shared.number)

    async def image(self) -> bytes:
        """The whole tree as the bytes of a file of its own, as it is at one moment; for a backup."""
        return await self._run("/", self.shared.image)

    async def expire(self) -> None:
        """End the session as a server would that hasn't heard from it: it learns it by `lost` and by the next call."""
        await self.shared.run("/", lambda: self.shared.expire(self._session))

    def give_up(self) -> None:
        """See `Store.give_up`."""
        self.shared.hand_over(lambda: self.shared.expire(self._session))

    def abandon(self) -> None:
        """Be heard of no more, as one whose process was killed: every call raises SessionLostError and has no effect, `close`
        too, and the session ends by its timeout."""
        self._abandoned = self._session.is_silent = True
        self._reachable.set()

    async def cut(self) -> None:
        """Cut the session off from the tree, as a network does: calls wait, watches and the end of the session aren't heard of,
        until `heal`. From any loop."""

        def work() -> None:
            self._session.tell(self._reachable.clear)
            self._session.is_cut = True

        await self.shared.run("/", work)

    async def heal(self) -> None:
        """End what `cut` has begun. From any loop."""

        def work() -> None:
            self._session.heal()
            self._session.tell(self._reachable.set)

        await self.shared.run("/", work)

    async def close(self) -> None:
        """End the session, and close a tree of its own; nothing can be called afterwards, also when a StoreError is raised."""
        try:
            if self._session.is_cut:
                self.abandon()
            if not self._abandoned:
                await self.shared.run("/", lambda: self.shared.end(self._session))
        finally:
            if self._owns_tree:
                await self.shared.close()

    async def _run(self, path: str, work: Callable[[], T]) -> T:
        if path != "/":
            check_path(path)

        await self._reachable.wait()

        def alive() -> T:
            if self._abandoned:
                raise SessionLostError(f"session {self.session}", "nobody uses it any more")
            self.shared.check_alive(self._session)
            return work()

        return await self.shared.run(path, alive)


class EmbeddedSessions(Sessions):
    """The sessions of one broker with a tree that brokers of one process share."""

    def __init__(self, shared: SharedTree, timeout_ms: int) -> None:
        self.place = str(shared.path)
        self._shared = shared
        self._timeout_ms = timeout_ms
        self._present: EmbeddedStore | None = None
        self._abandoned = self._is_cut = False

    async def begin(self) -> EmbeddedStore:
        """See `Sessions.begin`."""
        if self._abandoned or self._is_cut:
            raise StoreError(self.place, "it can't be reached")
        self._present = await EmbeddedStore.begin(self._shared, timeout_ms=self._timeout_ms, is_bounded=True)
        return self._present

    def abandon(self) -> None:
        """Begin no more; the present session is abandoned (`EmbeddedStore.abandon`)."""
        self._abandoned = True
        if self._present is not None:
            self._present.abandon()

    async def expire(self) -> None:
        """End the present session as a server would that hasn't heard from it. From any loop."""
        if self._present is not None:
            await self._present.expire()

    async def cut(self) -> None:
        """Cut the present session off from the tree (`EmbeddedStore.cut`), and begin none. From any loop."""
        self._is_cut = True
        if self._present is not None:
            await self._present.cut()

    async def heal(self) -> None:
        """End what `cut` has begun. From any loop."""
        self._is_cut = False
        if self._present is not None:
            await self._present.heal()
