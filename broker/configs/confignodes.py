"""Nodes of configs in the store, below `/config`, and the nodes by which brokers of a cluster hear that one has changed.

A node is `{"version":1,"config":{...}}`. A broker that alters one has read it first, and writes it by the version that it has
read. So an alteration is refused when another broker, or a tool, was quicker: it is made again on what is there then.

A cluster's broker writes a node below `/config/changes` in the same step, `{"version":2,"entity_path":"users/a/clients/b"}` as
Kafka 3.9 does, and every broker reads the node that this names (`broker/replication/configchanges.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    Create,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Store,
    paths,
)
from penstock.broker.store.values import Fields, to_json

OVERTAKEN = BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
"""What the store raises where a node is no longer as it was read."""
TRIES = 100
"""How often an alteration is tried. Of several brokers that alter one node at once, one succeeds each time."""


class ConfigNode(NamedTuple):
    """A node of configs as it was read; version None: there is no such node. guards: what has to be so still when it is
    written, where a version alone can come again."""

    path: str
    texts: Mapping[str, str]
    version: int | None
    guards: tuple[Operation, ...] = ()

    def written(self, texts: Mapping[str, str]) -> Operation:
        """The change that makes these its texts, if nobody has changed it since."""
        data = config_json(texts)
        return Create(self.path, data, parents=True) if self.version is None else Set(self.path, data, self.version)


Instead = Callable[[BadValueError], Mapping[str, str]]
"""What counts where a node's content can't be."""


async def read_node(store: Store, path: str, instead: Instead | None = None) -> ConfigNode:
    """A node of configs. instead: one whose content can't be has these texts, and can so be altered. Raises StoreError, which
    is BadValueError without `instead`."""
    try:
        data, stat = await store.get(path)
    except NoNodeError:
        return ConfigNode(path, {}, None)
    try:
        # A node without bytes is only there for those below it.
        return ConfigNode(path, Fields.read(path, data).texts("config") if data else {}, stat.version)
    except BadValueError as error:
        if instead is None:
            raise
        return ConfigNode(path, instead(error), stat.version)


def config_json(texts: Mapping[str, str]) -> bytes:
    """The content of a node of configs."""
    return to_json(version=1, config=dict(texts))


def notification(path: str) -> Create:
    """The change that has every broker of a cluster read a node of configs."""
    told = to_json(version=2, entity_path=path.removeprefix(f"{paths.CONFIGS}/"))
    return Create(f"{paths.CHANGES}/config_change_", told, sequence=True)
