"""Configs that another broker has altered: nodes below `/config/changes` say whose (Kafka 3.9's way).

Each broker reads the nodes that came since it looked last, and the configs that they are about. The broker that reads removes
nodes that are older than 15 minutes, as Kafka's do. Whoever missed some - its session was lost - reads all configs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock import log
from penstock.broker.replication.topics import ClusterTopics
from penstock.broker.store.base import BadValueError, NoNodeError, Store, paths, setting
from penstock.broker.store.values import Fields

KEPT_MS = 15 * 60 * 1000
_TOPIC = "topics/"

_log = log.get(__name__)


class ConfigChanges:
    """Of one session. changed: gets a topic's name and its configs."""

    def __init__(self, store: Store, topics: ClusterTopics, changed: Callable[[str, dict[str, str]], Awaitable[None]]) -> None:
        self._store = store
        self._topics = topics
        self._changed = changed
        self._seen: set[str] = set()

    async def run(self) -> None:
        """For as long as the session lasts. Raises StoreError."""
        news = asyncio.Event()
        self._seen = set(await self._store.children(paths.CHANGES, setting(news)))
        for topic in self._topics.all():
            await self._read(topic.name)
        while True:
            await news.wait()
            news.clear()
            nodes = await self._store.children(paths.CHANGES, setting(news))
            for name in nodes:
                if name not in self._seen:
                    await self._take(name)
            self._seen = set(nodes)

    async def _take(self, node: str) -> None:
        path = f"{paths.CHANGES}/{node}"
        try:
            data, stat = await self._store.get(path)
            entity = Fields.read(path, data).text("entity_path")
        except NoNodeError:
            return
        except BadValueError as error:
            _log.error("a change of configs can't be read: %s", error)
            return
        if entity.startswith(_TOPIC):
            await self._read(entity.removeprefix(_TOPIC))
        for old in sorted(self._seen):
            # Sequence numbers grow with time: the first that is young enough ends the walk.
            try:
                _, before = await self._store.get(f"{paths.CHANGES}/{old}")
            except NoNodeError:
                continue
            if stat.created_ms - before.created_ms < KEPT_MS:
                break
            await self._remove(f"{paths.CHANGES}/{old}")

    async def _remove(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            return  # Another broker was quicker.

    async def _read(self, name: str) -> None:
        if self._topics.get(name) is not None:
            await self._changed(name, await self._topics.read_configs(name))
