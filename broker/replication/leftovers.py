"""What deleted topics have left in the log folders of a broker that was away.

The controller notes in `/penstock/deleted`, by topic id, which brokers didn't say that they have deleted their replicas. Each
of them looks there in each session, and again when something is noted: it removes what has that topic id, then takes itself
out of the note; the last one removes the note.

Logs that no role has opened since the start, of topics that the store doesn't have, has under other ids, or has on other
brokers are set aside, never removed, and a role for such a topic id takes them back. The store is asked for each topic: no
picture that lacks topics makes a broker give up what it holds. Nor does a store that was emptied: it doesn't know this
broker's last run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock import log
from penstock.broker.cluster.messages import Partition
from penstock.broker.replication.reading import StoredTopic, read_noted, read_one_topic
from penstock.broker.replication.replicas import Replicas
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    Delete,
    NoNodeError,
    Set,
    Store,
    paths,
    setting,
)
from penstock.broker.store.values import to_json
from penstock.broker.uuids import uuid_bytes

_log = log.get(__name__)


class Leftovers:
    """Of one session. is_known: the store knows the last run of this broker. settled: called once none may be left."""

    def __init__(
        self, node_id: int, store: Store, replicas: Replicas, *, is_known: bool, settled: Callable[[], Awaitable[None]]
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._replicas = replicas
        self._is_known = is_known
        self._settled = settled
        self._others: set[str] = set()
        """Notes that don't name this broker. A note never gets more brokers, so it isn't read again."""

    async def run(self) -> None:
        """For as long as the session lasts. Raises StoreError."""
        await self._store.sync()
        while True:
            news = asyncio.Event()
            names = await self._store.children(paths.DELETED, setting(news))
            self._others.intersection_update(names)
            for name in names:
                if name not in self._others:
                    await self._take(name)
            if self._is_known:
                for partition in self._replicas.unopened:
                    await self._check(partition)
            await self._settled()
            await news.wait()

    async def _take(self, name: str) -> None:
        """Remove what a topic has left here, by its note."""
        path = f"{paths.DELETED}/{name}"
        try:
            data, stat = await self._store.get(path)
            topic, brokers = read_noted(path, data)
            topic_id = uuid_bytes(name)
        except NoNodeError:
            return
        except (BadValueError, ValueError) as error:
            _log.error("what a deleted topic has left stays: %s", error)
            return
        if self._node_id not in brokers:
            self._others.add(name)
            return
        stored = await read_one_topic(self._store, topic)
        if stored is not None and stored.topic_id == topic_id:
            _log.error("topic=%s is there, and noted as deleted: `%s` doesn't count", topic, path)
            return
        if not await self._replicas.remove(topic, topic_id):
            return  # A disk refuses it: the note stays.
        left = sorted(set(brokers) - {self._node_id})
        operation = (
            Set(path, to_json(version=1, topic=topic, brokers=left), stat.version) if left else Delete(path, stat.version)
        )
        try:
            await self._store.multi([operation])
        except (BadVersionError, NoNodeError):
            await self._take(name)  # Another broker took itself out.

    async def _check(self, partition: Partition) -> None:
        """Set aside a log that nobody here has asked for, if its topic isn't the store's or isn't here."""
        try:
            stored = await read_one_topic(self._store, partition[0])
        except BadValueError as error:
            _log.error("topic=%s partition=%d stays as it is: %s", *partition, error.why)
            return
        held = await self._replicas.topic_id_of(partition)
        if held is not None and not _is_placed(stored, partition, held, self._node_id):
            await self._replicas.set_stray_aside(partition, held)


def _is_placed(stored: StoredTopic | None, partition: Partition, topic_id: bytes, broker: int) -> bool:
    """Whether the store has a replica of this topic on a broker."""
    if stored is None or stored.topic_id != topic_id or partition[1] >= len(stored.replicas):
        return False
    return broker in stored.replicas[partition[1]]
