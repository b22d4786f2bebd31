"""The homes of a metadata store, for tests that hold for both: a SQLite file, and a ZooKeeper.

A home gives sessions on one tree, each a `Store`, and lets one expire as a server does that hasn't heard from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from penstock.broker.store.base import Event, Store
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sharedtree import SharedTree

Scenario = Callable[["Home"], Awaitable[None]]
WAIT_S = 60.0


class Home(Protocol):
    """Sessions on one tree. On the loop."""

    async def session(self) -> Store:
        """One more session; closed with the home."""
        ...

    async def expire(self, store: Store) -> None:
        """Let a session expire."""
        ...

    async def close(self) -> None:
        """Close the sessions, and the tree."""
        ...


class EmbeddedHome:
    """A SQLite file, shared as brokers of one process share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tree: SharedTree | None = None
        self._sessions: list[EmbeddedStore] = []

    async def session(self) -> EmbeddedStore:
        """See Home."""
        if self._tree is None:
            self._tree = await SharedTree.open(self._path)
        self._sessions.append(await EmbeddedStore.begin(self._tree, is_bounded=True))
        return self._sessions[-1]

    async def expire(self, store: Store) -> None:
        """See Home."""
        assert isinstance(store, EmbeddedStore)
        await store.expire()

    async def close(self) -> None:
        """See Home."""
        for store in self._sessions:
            await store.close()
        if self._tree is not None:
            await self._tree.close()


class Seen:
    """What watches have brought, in order; an instance is a watch."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []
        self._came = asyncio.Event()

    def __call__(self, path: str, event: Event) -> None:
        self.events.append((path, event))
        self._came.set()

    async def wait(self, count: int) -> list[tuple[str, Event]]:
        """All, once there are so many."""
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < count:
                self._came.clear()
                await self._came.wait()
        return self.events


def play(home: Home, scenario: Scenario) -> None:
    """Run a scenario in a home, which is closed at its end."""

    async def run() -> None:
        try:
            await scenario(home)
        finally:
            await home.close()

    asyncio.run(run())
