"""Configs of users, client ids, addresses and groups: quotas, SCRAM credentials, groups' own configs.

Nodes as Kafka's ZooKeeper had them, `{"version":1,"config":{...}}` each: `/config/users/<user>`,
`/config/clients/<client id>`, `/config/users/<user>/clients/<client id>`, `/config/ips/<address>`, and
`/config/groups/<group>`, names percent-encoded, the default entity called `<default>`.

In memory each entity has its node as it was read or written last. On one node that is what the store has. In a cluster other
brokers and tools write, too: so a broker reads a node before it alters it, and whenever it is told of a change (`take`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from penstock import log
from penstock.broker.configs.confignodes import OVERTAKEN, TRIES, ConfigNode, notification, read_node
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    Create,
    Delete,
    NoNodeError,
    Operation,
    Store,
    StoreError,
    paths,
    quoted,
    unquoted,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
AT_ONCE = 64
"""Entities of a cluster that are altered in one step: a step is as large as a ZooKeeper surely takes."""

_log = log.get(__name__)


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


Check = Callable[[Entity, str, str], None]
"""Raises BadValueError for a config (name, text) that no such entity can have."""


def entity_at(path: str) -> Entity | None:
    """The entity whose configs stand at a path below `/config`; None: no entity's do."""
    match path.split("/"):
        case ["users", user] if user:
            return Entity(user=_name(user))
        case ["users", user, "clients", client] if user and client:
            return Entity(user=_name(user), client_id=_name(client))
        case ["clients", client] if client:
            return Entity(client_id=_name(client))
        case ["ips", ip] if ip:
            return Entity(ip=_name(ip))
        case ["groups", group] if group:
            return Entity(group=_name(group))
        case _:
            return None


class Entities:
    """The configs of every entity, in memory and in the store. Changes are durable when they return.

    is_shared: other brokers alter them, too. check: is asked about what the store has.
    """

    def __init__(self, store: Store, *, is_shared: bool = False, check: Check = lambda *_: None) -> None:
        self._store = store
        self._is_shared = is_shared
        self._check = check
        self._changes = asyncio.Lock()
        self._nodes: dict[Entity, ConfigNode] = {}
        self._clients: dict[Name, set[Name]] = {}
        """Of each user whose node has a node for its client ids below it: these client ids."""

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, str]]]:
        found = ((entity, node.texts) for entity, node in self._nodes.items() if node.texts)
        return iter(sorted(found, key=lambda item: item[0].path))

    def get(self, entity: Entity) -> Mapping[str, str]:
        """The configs of one entity."""
        node = self._nodes.get(entity)
        return {} if node is None else node.texts

    async def load(self) -> None:
        """Read all of them, at the start. Raises StoreError, which is BadValueError for what can't be."""
        async with self._changes:
            await self._read_all(is_start=True)

    async def take_all(self) -> None:
        """Read all of them again: changes may have been missed. Raises StoreError."""
        async with self._changes:
            await self._read_all(is_start=False)

    async def take(self, entity: Entity, path: str) -> None:
        """Read an entity's configs, which somebody has altered; path: of the node that was named. Raises StoreError."""
        async with self._changes:
            await self._read([entity], {entity: path})

    async def own(self, entity: Entity) -> ConfigNode:
        """The configs of one entity as the store has them, for `replace`. Raises StoreError."""
        async with self._changes:
            await self._follow([entity])
            return self._nodes.get(entity) or ConfigNode(entity.path, {}, None)

    async def replace(self, entity: Entity, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Make these all configs of an entity that had `own`. Raises StoreError, one of OVERTAKEN if others have altered it."""
        async with self._changes:
            version = self._nodes[entity].version if entity in self._nodes else None
            if version != own.version:
                raise BadVersionError(own.path, "was altered meanwhile")
            try:
                await self._write({entity: texts})
            except OVERTAKEN:
                await self._read([entity], {})
                raise

    async def alter(self, changes: Mapping[Entity, Mapping[str, str | None]]) -> None:
        """Set texts (None = take away), for all of the entities or for none of them; in a cluster, AT_ONCE of them in a step.
        Raises StoreError."""
        changed = list(changes)
        size = AT_ONCE if self._is_shared else max(len(changed), 1)
        async with self._changes:
            for at in range(0, len(changed), size):
                await self._alter({entity: changes[entity] for entity in changed[at : at + size]})

    async def _alter(self, changes: Mapping[Entity, Mapping[str, str | None]]) -> None:
        await self._follow(changes)
        for _ in range(TRIES):
            after = {}
            for entity, texts in changes.items():
                whole = {**self.get(entity), **texts}
                after[entity] = {key: text for key, text in whole.items() if text is not None}
            try:
                return await self._write(after)
            except OVERTAKEN as error:
                _log.debug("others have altered %s meanwhile", error.path)
                await self._read(changes, {})
        raise StoreError(next(iter(changes)).path, f"others have altered it meanwhile, {TRIES} times")

    async def _write(self, after: Mapping[Entity, Mapping[str, str]]) -> None:
        """Make these the configs of entities, all or none. Raises StoreError, one of OVERTAKEN if they were altered."""
        step = _Step(self._nodes, self._clients)
        for entity, texts in sorted(after.items(), key=lambda item: item[0].client_id is not None):
            step.put(entity, texts)
        for user in dict.fromkeys(entity.user for entity in after if entity.user is not None):
            step.tidy(user, after.get(Entity(user=user)))
        operations = step.operations
        if self._is_shared:
            operations = [*operations, *map(notification, step.altered)]
        if operations:
            await self._store.multi(operations)
        self._nodes, self._clients = step.nodes, step.clients

    # What the store has

    async def _follow(self, entities: Iterable[Entity]) -> None:
        """In a cluster: know the nodes as they are."""
        if self._is_shared:
            await self._store.sync()
            await self._read(entities, {})

    async def _read(self, entities: Iterable[Entity], named: Mapping[Entity, str]) -> None:
        """Read the nodes of these, and of their users. named: paths where nodes may be that no broker of ours has made."""
        users = list(dict.fromkeys(entity.user for entity in entities if entity.user is not None))
        wanted = list(dict.fromkeys([*entities, *(Entity(user=user) for user in users)]))
        found = await asyncio.gather(*(self._node_of(entity, named.get(entity)) for entity in wanted))
        lists = await asyncio.gather(*(self._children(f"{Entity(user=user).path}/clients") for user in users))
        self._nodes.update(zip(wanted, found, strict=True))
        for entity in [entity for entity, node in zip(wanted, found, strict=True) if node.version is None]:
            del self._nodes[entity]
        for user, names in zip(users, lists, strict=True):
            if names is None:
                self._clients.pop(user, None)
            else:
                self._clients[user] = set(map(_name, names))

    async def _read_all(self, *, is_start: bool) -> None:
        named: dict[Entity, str] = {}
        clients: dict[Name, set[Name]] = {}
        for root in (paths.USER_CONFIGS, paths.CLIENT_CONFIGS, paths.IP_CONFIGS, paths.GROUP_CONFIGS):
            await self._list(root, named)
        users = {entity: path for entity, path in named.items() if entity.user is not None}
        lists = await asyncio.gather(*(self._list(f"{path}/clients", named) for path in users.values()))
        clients = {user.user: set(names) for user, names in zip(users, lists, strict=True) if names is not None}
        found = await asyncio.gather(*(self._node_of(entity, path, is_start=is_start) for entity, path in named.items()))
        self._nodes = {entity: node for entity, node in zip(named, found, strict=True) if node.version is not None}
        self._clients = clients

    async def _list(self, path: str, named: dict[Entity, str]) -> list[Name] | None:
        """Note the entities below a node, and where their nodes are; answers their names, None: there is no such node."""
        names = await self._children(path)
        for name in names or ():
            entity = entity_at(f"{path}/{name}".removeprefix(f"{paths.CONFIGS}/"))
            if entity is not None:
                named[entity] = f"{path}/{name}"
        return None if names is None else [_name(name) for name in names]

    async def _children(self, path: str) -> list[str] | None:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return None

    async def _node_of(self, entity: Entity, named: str | None, *, is_start: bool = False) -> ConfigNode:
        """An entity's node. Tools may have made it under another path than ours would be: an IPv6 address as it is."""
        instead = None if is_start else partial(self._instead, entity)
        node = await read_node(self._store, entity.path, instead)
        known = self._nodes.get(entity)
        for other in (named, known and known.path):
            if node.version is None and other is not None and other != entity.path:
                node = await read_node(self._store, other, instead)
        return node._replace(texts=self._usable(entity, node.texts, is_start))

    def _instead(self, entity: Entity, error: BadValueError) -> Mapping[str, str]:
        _log.error("an entity keeps the configs that it had: %s", error.why)
        return self.get(entity)

    def _usable(self, entity: Entity, texts: Mapping[str, str], is_start: bool) -> Mapping[str, str]:
        usable = dict(texts)
        for key, text in texts.items():
            try:
                self._check(entity, key, text)
            except BadValueError as error:
                if is_start:
                    raise
                _log.error("a config that can't be isn't in force: %s", error.why)
                del usable[key]
        return usable


class _Step:
    """One change of nodes: its operations, and what is known of the nodes once it is made."""

    def __init__(self, nodes: Mapping[Entity, ConfigNode], clients: Mapping[Name, set[Name]]) -> None:
        self.nodes = dict(nodes)
        self.clients = dict(clients)
        self.operations: list[Operation] = []
        self.altered: list[str] = []
        """The nodes of entities whose configs are others."""

    def put(self, entity: Entity, texts: Mapping[str, str]) -> None:
        """Make these the configs of an entity. A user's own node may have to stay: `tidy` sees to that."""
        node = self.nodes.get(entity)
        if texts:
            if entity.client_id is not None and entity.user is not None:
                self._make_room(entity.user)
                self.clients[entity.user] = {*self.clients.get(entity.user, ()), entity.client_id}
            self._set(entity, node or ConfigNode(entity.path, {}, None), texts)
        elif node is not None and (entity.user is None or entity.client_id is not None):
            if entity.user is not None:
                self.clients[entity.user] = self.clients.get(entity.user, set()) - {entity.client_id}
            self._delete(entity, node)

    def _make_room(self, user: Name) -> None:
        own = Entity(user=user)
        if own not in self.nodes:
            self.operations.append(Create(own.path, parents=True))
            self.nodes[own] = ConfigNode(own.path, {}, 0)

    def tidy(self, user: Name, texts: Mapping[str, str] | None) -> None:
        """Remove a user's node once nothing is left of it. texts: those that it has from now on; None: those that it had."""
        own = Entity(user=user)
        node = self.nodes.get(own)
        if node is None or (node.texts if texts is None else texts):
            return
        if self.clients.get(user):
            if node.texts:
                self._set(own, node, {})
            return
        if user in self.clients:
            self.operations.append(Delete(f"{node.path}/clients"))
            del self.clients[user]
        self._delete(own, node)

    def _set(self, entity: Entity, node: ConfigNode, texts: Mapping[str, str]) -> None:
        self.operations.append(node.written(texts))
        self.altered.append(node.path)
        self.nodes[entity] = ConfigNode(node.path, dict(texts), 0 if node.version is None else node.version + 1)

    def _delete(self, entity: Entity, node: ConfigNode) -> None:
        assert node.version is not None
        self.operations.append(Delete(node.path, node.version))
        self.altered.append(node.path)
        del self.nodes[entity]


def _node(name: str | Default) -> str:
    return paths.DEFAULT_ENTITY if isinstance(name, Default) else quoted(name)


def _name(node: str) -> str | Default:
    return DEFAULT if node == paths.DEFAULT_ENTITY else unquoted(node)
