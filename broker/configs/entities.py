"""Configs of users, client ids, addresses and groups: quotas, SCRAM credentials, groups' own configs.

Nodes as Kafka's ZooKeeper had them, `{"version":1,"config":{...}}` each: `/config/users/<user>`,
`/config/clients/<client id>`, `/config/users/<user>/clients/<client id>`, `/config/ips/<address>`, and
`/config/groups/<group>`, names percent-encoded, the default entity called `<default>`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from penstock.broker.store.base import (
    Create,
    Delete,
    NoNodeError,
    Operation,
    Set,
    Store,
    paths,
    quoted,
    unquoted,
)
from penstock.broker.store.values import Fields

USER, CLIENT_ID, IP = "user", "client-id", "ip"


class Default:
    """The entity that stands for all of its type that have no configs of their own."""

    def __repr__(self) -> str:
        return paths.DEFAULT_ENTITY


DEFAULT = Default()
Name = str | Default | None  # None: that type is no part of the entity.


class Entity(NamedTuple):
    """A user, a client id, both, an address, or a group."""

    user: Name = None
    client_id: Name = None
    ip: Name = None
    group: Name = None

    def parts(self) -> Iterator[tuple[str, str | None]]:
        """(type, name) of a quota's entity as on the wire, where a null name is the default entity."""
        for kind, name in ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip)):
            if name is not None:
                yield kind, None if isinstance(name, Default) else name

    @property
    def path(self) -> str:
        """The node of its configs."""
        return paths.entity_config(*(None if name is None else _node(name) for name in self))


Change = Callable[[Mapping[str, str]], Mapping[str, str]]


class Entities:
    """The configs of every entity, in memory and in the store. Changes are durable when they return."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = asyncio.Lock()
        self._configs: dict[Entity, dict[str, str]] = {}
        self._users: set[Name] = set()  # Those that have a node, be it only for their client ids.

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, str]]]:
        return iter(sorted(self._configs.items(), key=lambda item: item[0].path))

    def get(self, entity: Entity) -> Mapping[str, str]:
        """The configs of one entity."""
        return self._configs.get(entity, {})

    async def load(self) -> None:
        """Read all of them; called once at start. What their texts mean is checked by `Context.load`."""
        for user in await self._children(paths.USER_CONFIGS):
            self._users.add(_name(user))
            await self._read(Entity(user=_name(user)))
            for client in await self._children(f"{paths.USER_CONFIGS}/{user}/clients"):
                await self._read(Entity(user=_name(user), client_id=_name(client)))
        for client in await self._children(paths.CLIENT_CONFIGS):
            await self._read(Entity(client_id=_name(client)))
        for ip in await self._children(paths.IP_CONFIGS):
            await self._read(Entity(ip=_name(ip)))
        for group in await self._children(paths.GROUP_CONFIGS):
            await self._read(Entity(group=_name(group)))

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    async def _read(self, entity: Entity) -> None:
        data, _ = await self._store.get(entity.path)
        # A user's node without bytes is only there for its client ids.
        configs = Fields.read(entity.path, data).texts("config") if data else {}
        if configs:
            self._configs[entity] = configs

    async def alter(self, changes: Mapping[Entity, Mapping[str, str | None]]) -> None:
        """Set texts (None = take away), for all of the entities or for none of them."""
        async with self._changes:
            after: dict[Entity, dict[str, str]] = {}
            for entity, texts in changes.items():
                whole = {**self._configs.get(entity, {}), **texts}
                after[entity] = {key: text for key, text in whole.items() if text is not None}
            operations, users = self._steps(after)
            if operations:
                await self._store.multi(operations)
            self._users = users
            self._configs.update(after)
            for entity in [entity for entity, configs in after.items() if not configs]:
                del self._configs[entity]

    def _steps(self, after: Mapping[Entity, Mapping[str, str]]) -> tuple[list[Operation], set[Name]]:
        """What makes these the entities' configs in the store, and the users that have a node then."""
        final = [entity for entity, configs in {**self._configs, **after}.items() if configs]
        users = set(self._users)
        leaving = users & {entity.user for entity in after} - {entity.user for entity in final}
        operations: list[Operation] = []
        # A user with a client id first: it brings the user's own node with it.
        for entity, configs in sorted(after.items(), key=lambda item: item[0].client_id is None):
            data = json.dumps({"version": 1, "config": dict(configs)}).encode()
            is_user = entity.user is not None and entity.client_id is None
            there = entity.user in users if is_user else entity in self._configs
            if configs:
                operations.append(Set(entity.path, data) if there else Create(entity.path, data, parents=True))
                users |= {entity.user} - {None}
            elif there and entity.user not in leaving:
                operations.append(Set(entity.path, data) if is_user else Delete(entity.path))
        operations += [Delete(Entity(user=user).path, recursive=True) for user in leaving]
        return operations, users - leaving


def _node(name: str | Default) -> str:
    return paths.DEFAULT_ENTITY if isinstance(name, Default) else quoted(name)


def _name(node: str) -> str | Default:
    return DEFAULT if node == paths.DEFAULT_ENTITY else unquoted(node)
