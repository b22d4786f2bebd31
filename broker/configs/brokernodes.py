"""What was altered at run time for this broker and for all brokers: in the store, and in force.

Nodes as Kafka's ZooKeeper had them: `/config/brokers/<id>`, and `/config/brokers/<default>` for all brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock import log
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.confignodes import ConfigNode, notification, read_node
from penstock.broker.store.base import BadValueError, Store, paths
from penstock.errors import KafkaError

_log = log.get(__name__)


class BrokerNodes:
    """Of one broker. is_shared: other brokers have to hear of what is altered. changed: called when other values may be in
    force; `replace` answers what it gives."""

    def __init__(
        self, node_id: int, config: BrokerConfig, store: Store, *, is_shared: bool, changed: Callable[[], list[tuple[str, int]]]
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._store = store
        self._is_shared = is_shared
        self._changed = changed
        self._taking = asyncio.Lock()

    def _path(self, default: bool) -> str:
        return paths.default_broker_config() if default else paths.broker_config(self._node_id)

    def _in_force(self, default: bool) -> Mapping[str, str]:
        return self._config.dynamic_default if default else self._config.dynamic

    async def own(self, *, default: bool) -> ConfigNode:
        """What the store has for this broker, or (default) for all brokers, as far as this version can use it: that is in force
        when it returns. Raises StoreError."""
        await self._store.sync()
        return (await self._take(default, is_altered=False))[0]

    async def replace(self, texts: Mapping[str, str], own: ConfigNode, *, default: bool) -> list[tuple[str, int]]:
        """Make these, which are checked, all that was altered where it was `own`: durable when it returns, and in force here.
        Raises StoreError, one of OVERTAKEN if others have altered it meanwhile."""
        told = [notification(own.path)] if self._is_shared else []
        await self._store.multi([own.written(texts), *told])
        return await self.take(default=default)

    async def take_named(self, name: str) -> None:
        """Take what somebody has altered for a broker, by the name of its node; another broker's is left to that one. Raises
        StoreError."""
        if name in (paths.DEFAULT_ENTITY, str(self._node_id)):
            await self.take(default=name == paths.DEFAULT_ENTITY)

    async def take(self, *, default: bool) -> list[tuple[str, int]]:
        """Put in force what the store has; what can't be is said, and what was in force stays. Raises StoreError."""
        return (await self._take(default, is_altered=True))[1]

    async def _take(self, default: bool, *, is_altered: bool) -> tuple[ConfigNode, list[tuple[str, int]]]:
        whose = "all brokers" if default else "this broker"

        def instead(error: BadValueError) -> Mapping[str, str]:
            _log.error("the configs that were altered for %s stay as they were: %s", whose, error.why)
            return self._in_force(default)

        async with self._taking:
            node = await read_node(self._store, self._path(default), instead)
            if node.texts == self._in_force(default):
                return node, self._changed() if is_altered else []
            try:
                said = self._config.restore(node.texts, default=default)
            except KafkaError as error:
                _log.error("the configs that were altered for %s stay as they were: %s", whose, error.what)
                return node._replace(texts=self._in_force(default)), []
            for sentence in said:
                _log.warning("the config that was altered for %s: %s", whose, sentence)
            return node._replace(texts=self._in_force(default)), self._changed()
