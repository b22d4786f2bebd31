"""Features of the cluster: which level of each is in force, and how it is changed (KIP-584).

A level is kept in the store under `/feature`, as Kafka keeps it in ZooKeeper:
`{"version":2,"status":1,"features":{"group.version":1,...}}`. The node's version is the epoch that ApiVersions
has, so a client can see which of two answers is the newer one. Without a node each feature is at its newest level;
the node is written at the first start. In a cluster each broker watches the node: a level that one of them stores is in force
on all.

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
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    Stat,
    Store,
    paths,
    setting,
)
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
            self._take(*await store.get(paths.FEATURES))

    async def follow(self, store: Store) -> None:
        """Take over the levels that other brokers store, for as long as the session lasts. Raises StoreError."""
        news = asyncio.Event()
        while True:
            before = self._levels
            try:
                if await store.exists(paths.FEATURES, setting(news)) is not None:
                    self._take(*await store.get(paths.FEATURES))
            except NoNodeError:
                pass  # The watch has fired.
            except BadValueError as error:
                _log.error("the stored features can't be read, those in force stay: %s", error)
            if self._levels != before:
                self._tell()
            await news.wait()
            news.clear()

    def _take(self, data: bytes, stat: Stat) -> None:
        stored = Fields(paths.FEATURES, Fields.read(paths.FEATURES, data).table("features"))
        taken = {}
        for name, levels in SUPPORTED.items():
            level = stored.number(name, 0, LEVEL_MAX, default=levels.max)
            taken[name] = min(max(level, levels.min), levels.max)
        self._levels, self.epoch = taken, stat.version

    def _tell(self) -> None:
        _log.info("features are now %s", " ".join(f"{name}={level}" for name, level in sorted(self._levels.items())))

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
            try:
                while not await self._updated(self._store, levels):
                    pass
            except NoNodeError:
                raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, "the store has lost its features") from None

    async def _updated(self, store: Store, levels: Mapping[str, int]) -> bool:
        """Store these levels beside those that are stored; False: another broker was quicker, and nothing was done."""
        self._take(*await store.get(paths.FEATURES))
        updated = {**self._levels, **levels}
        if updated != self._levels:
            try:
                self.epoch = await store.set(paths.FEATURES, self._content(updated), self.epoch)
            except BadVersionError:
                return False
            self._levels = updated
            self._tell()
        return True

    @staticmethod
    def _content(levels: Mapping[str, int]) -> bytes:
        content = {"version": 2, "status": 1, "features": dict(sorted(levels.items()))}
        return json.dumps(content, separators=(",", ":")).encode()
