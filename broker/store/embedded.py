"""The store of a single node, or of brokers in one process: a session on an `SharedTree`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.broker.store.base import Operation, Stat, Store, StoreError, Watch, check_path
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
    async def begin(cls, shared: SharedTree, *, owns_tree: bool = False) -> EmbeddedStore:
        """A session on a tree. owns_tree: `close` closes the tree, too."""
        session = Session()
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

        def work() -> None:
            self.shared.end(self._session)
            self._session.tell(self._session.lost.set)

        await self.shared.run("/", work)

    async def close(self) -> None:
        """End the session, and close a tree of its own; nothing can be called afterwards, also when a StoreError is raised."""
        try:
            await self.shared.run("/", lambda: self.shared.end(self._session))
        finally:
            if self._owns_tree:
                await self.shared.close()

    async def _run(self, path: str, work: Callable[[], T]) -> T:
        if path != "/":
            check_path(path)

        def alive() -> T:
            self.shared.check_alive(self._session)
            return work()

        return await self.shared.run(path, alive)
