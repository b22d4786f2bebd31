"""Configs that somebody has altered: nodes below `/config/changes` say whose (Kafka 3.9's way).

Brokers write these nodes, and so do tools of Kafka 3 that work on ZooKeeper. Each broker reads the nodes that came since it
looked last, and the configs that they are about. A broker that has read new ones removes those that are older than 15 minutes,
as Kafka's do. A broker that may have missed some, because its session was lost, reads all configs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from penstock import log
from penstock.broker.configs.entities import Entity, entity_at
from penstock.broker.store.base import BadValueError, NoNodeError, Store, StoreError, check_path, paths, setting
from penstock.broker.store.values import Fields

KEPT_MS = 15 * 60 * 1000
SHOWN = 200
"""Characters of what a stranger has written that a sentence shows."""

_log = log.get(__name__)


class ConfigChanges:
    """Of one session. topic, broker: called with the name of one whose configs are others; entity: with another entity and the
    path of its node; everything: to read all configs."""

    def __init__(
        self,
        store: Store,
        *,
        topic: Callable[[str], Awaitable[None]],
        broker: Callable[[str], Awaitable[None]],
        entity: Callable[[Entity, str], Awaitable[None]],
        everything: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._topic = topic
        self._broker = broker
        self._entity = entity
        self._everything = everything

    async def run(self) -> None:
        """For as long as the session lasts. Raises StoreError."""
        news = asyncio.Event()
        seen = set(await self._store.children(paths.CHANGES, setting(news)))
        await self._everything()
        while True:
            await news.wait()
            news.clear()
            nodes = await self._store.children(paths.CHANGES, setting(news))
            new = [name for name in nodes if name not in seen]
            newest_ms = max([await self._take(name) for name in new], default=0)
            if newest_ms:
                await self._remove_old(nodes, newest_ms - KEPT_MS)
            seen = set(nodes)

    async def _take(self, name: str) -> int:
        """Have the configs read that a node is about; answers when it was made, 0: nobody knows."""
        path = f"{paths.CHANGES}/{name}"
        try:
            data, stat = await self._store.get(path)
        except NoNodeError:
            return 0
        try:
            await self._follow(read_change(path, data))
        except BadValueError as error:
            _log.error("a change of configs isn't taken over: %s", error.why)
        return stat.created_ms

    async def _follow(self, entity_path: str) -> None:
        kind, _, name = entity_path.partition("/")
        entity = entity_at(entity_path)
        if kind == "topics" and name:
            await self._topic(name)
        elif kind == "brokers" and name:
            await self._broker(name)
        elif entity is not None:
            await self._entity(entity, f"{paths.CONFIGS}/{entity_path}")
        else:
            shown = entity_path[:SHOWN]
            _log.warning("somebody has altered the configs of `%s`, which no broker of this version has", shown)

    async def _remove_old(self, names: Iterable[str], until_ms: int) -> None:
        # Sequence numbers grow with time: the first that is young enough ends the walk.
        for name in names:
            path = f"{paths.CHANGES}/{name}"
            try:
                _, stat = await self._store.get(path)
                if stat.created_ms > until_ms:
                    return
                await self._store.delete(path)
            except NoNodeError:
                continue  # Another broker was quicker.


def read_change(path: str, data: bytes) -> str:
    """The path below `/config` that a node is about: of version 2, or of Kafka 0.9's version 1. Raises BadValueError, also if
    no node can have that path."""
    node = Fields.read(path, data)
    if node.number("version", 1, 2) == 2:
        entity_path = node.text("entity_path")
    else:
        entity_path = f"{node.text('entity_type')}/{node.text('entity_name')}"
    try:
        check_path(f"{paths.CONFIGS}/{entity_path}")
        can_be = not {".", ".."} & set(entity_path.split("/"))
    except StoreError:
        can_be = False
    if not can_be:
        raise node.wrong(f"no entity has the path {entity_path[:SHOWN]!a}")
    return entity_path
