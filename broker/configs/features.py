"""Features of the cluster: which level of each is in force, and how it is changed (KIP-584).

A level is kept in the store under `/feature`, as Kafka keeps it in ZooKeeper:
`{"version":2,"status":1,"features":{"group.version":1,...}}`. The node's version is the epoch that ApiVersions
has, so a client can see which of two answers is the newer one. Without a node each feature is at its newest level;
the node is written at the first start.

| feature | levels | what it turns on |
| --- | --- | --- |
| `transaction.version` | 0-2 | 2: clients use transactions v2 (KIP-890); 0 and 1: the protocol before it |
| `group.version` | 0-1 | 1: groups of the consumer protocol (KIP-848) |
| `metadata.version` | 33 | nothing here: tools of Apache Kafka look for it; 33 is what 4.4 says |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from penstock import log
from penstock.broker.store.base import ANY_VERSION, NodeExistsError, NoNodeError, Store, paths
from penstock.broker.store.values import Fields
from penstock.errors import ErrorCode, KafkaError

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
METADATA_VERSION = "metadata.version"
LEVEL_MAX = (1 << 15) - 1

_log = log.get(__name__)


class Levels(NamedTuple):
    """The levels of a feature that this broker supports, both ends included."""

    min: int
    max: int


SUPPORTED: Mapping[str, Levels] = {
    GROUP_VERSION: Levels(0, 1),
    METADATA_VERSION: Levels(33, 33),
    TRANSACTION_VERSION: Levels(0, 2),
}


class UpgradeType(IntEnum):
    """What an update is allowed to do; the numbers are those of UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Features:
    """The levels in force: `context.features`. Until `load` each is the newest, so nothing needs a store to ask."""

    def __init__(self) -> None:
        self._levels = {name: levels.max for name, levels in SUPPORTED.items()}
        self._store: Store | None = None
        self._changes = asyncio.Lock()
        self.epoch = 0

    async def load(self, store: Store) -> None:
        """Read the levels, or store the newest ones. A level that is not supported (any more) becomes the nearest."""
        self._store = store
        try:
            await store.create(paths.FEATURES, self._content(self._levels), parents=True)
        except NodeExistsError:
            data, stat = await store.get(paths.FEATURES)
            self.epoch = stat.version
            stored = Fields(paths.FEATURES, Fields.read(paths.FEATURES, data).table("features"))
            for name, levels in SUPPORTED.items():
                level = stored.number(name, 0, LEVEL_MAX, default=levels.max)
                self._levels[name] = min(max(level, levels.min), levels.max)

    def level(self, name: str) -> int:
        """The level in force of a feature, 0 of one that is not known."""
        return self._levels.get(name, 0)

    def finalized(self) -> dict[str, int]:
        """The level in force of each feature that isn't off (level 0)."""
        return {name: level for name, level in self._levels.items() if level > 0}

    def check(self, name: str, level: int, kind: int) -> None:
        """Whether a feature may be brought to a level (0 takes it away).

        kind: an UpgradeType. Raises KafkaError INVALID_UPDATE_VERSION with a sentence for the user.
        """
        levels = SUPPORTED.get(name)
        refuse = ErrorCode.INVALID_UPDATE_VERSION
        if levels is None:
            raise KafkaError(refuse, f"the feature `{name}` is not known")
        if kind not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
            raise KafkaError(refuse, f"`{kind}` is no kind of upgrade")
        if not levels.min <= level <= levels.max:
            raise KafkaError(refuse, f"`{name}` can be from {levels.min} to {levels.max}, not {level}")
        if level < self._levels[name] and kind == UpgradeType.UPGRADE:
            raise KafkaError(refuse, f"`{name}` is {self._levels[name]}: less takes a downgrade, not an upgrade")
        if level > self._levels[name] and kind != UpgradeType.UPGRADE:
            raise KafkaError(refuse, f"`{name}` is {self._levels[name]}: more takes an upgrade, not a downgrade")

    async def update(self, levels: Mapping[str, int]) -> None:
        """Store levels that `check` has allowed, all together; they are in force when it returns."""
        if self._store is None:
            raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "the broker is still starting")
        async with self._changes:
            updated = {**self._levels, **levels}
            if updated == self._levels:
                return
            try:
                self.epoch = await self._store.set(paths.FEATURES, self._content(updated), ANY_VERSION)
            except NoNodeError:
                raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "the store has lost its features") from None
            self._levels = updated
        _log.info("features are now %s", " ".join(f"{name}={level}" for name, level in sorted(updated.items())))

    @staticmethod
    def _content(levels: Mapping[str, int]) -> bytes:
        content = {"version": 2, "status": 1, "features": dict(sorted(levels.items()))}
        return json.dumps(content, separators=(",", ":")).encode()
