"""Topics that somebody wants to be deleted, by a node below `/admin/delete_topics`.

The controller tells everybody, has the live replicas deleted, and removes the nodes: those of the partitions in as many multis
as it takes, the topic's own in the last one. A controller that is elected in between knows from the start that the topic is
being deleted, and goes on. Which brokers were away, and still hold the topic, is noted in `/penstock/deleted` (`leftovers.py`),
up to a bound. The version of that node counts all deletions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence

from penstock import log
from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import Out
from penstock.broker.cluster.messages import Partition, StoppedReplica, StopReplica
from penstock.broker.replication.pictures import Pictures
from penstock.broker.replication.reading import StoredTopic, read_deleted, read_one_topic
from penstock.broker.replication.sender import ControllerSender
from penstock.broker.replication.storedtopics import StoredTopics, partitions_of
from penstock.broker.replication.termevents import TermEvents
from penstock.broker.store.base import (
    TRIES,
    BadValueError,
    BadVersionError,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionLostError,
    Set,
    Stat,
    Store,
    StoreError,
    UnknownOutcomeError,
    paths,
)
from penstock.broker.store.values import to_json
from penstock.broker.uuids import uuid_text
from penstock.errors import ErrorCode
from penstock.failpoints import declare, failpoint

NOTED_MAX = 10_000
"""So many deletions are noted that some broker has missed: their names have to fit into one answer of ZooKeeper's."""
LOOK_S = 0.02
"""How often it looks whether writes that are out are over."""
UNDELETED_S = 60
"""How long a topic waits whose deletion the store has refused. It ends no term: all else goes on."""

EMPTIED = declare("controller.emptied", "the states of a topic that is deleted are gone, its own node and the mark are there")

_log = log.get(__name__)


class TopicDeletions:
    """Of one term."""

    def __init__(
        self, events: TermEvents, store: Store, sender: ControllerSender, pictures: Pictures, topics: StoredTopics
    ) -> None:
        self._events = events
        self._controller = events.controller
        self._store = store
        self._sender = sender
        self._pictures = pictures
        self._topics = topics

    def look(self, _: str = "", __: Event = Event.CHANGED) -> None:
        """Read which topics are to be deleted, and delete them."""
        self._events.look_again("deletions", self._read)

    async def begun(self) -> list[Partition]:
        """The partitions of topics of which a former controller may have removed a part."""
        data, _ = await self._store.get(paths.DELETE_TOPICS)
        names = read_deleted(await self._store.children(paths.DELETE_TOPICS), data)
        topics = [self._topics.by_name[name] for name in names if name in self._topics.by_name]
        return list(partitions_of([one for one in topics if await self._deleted_id(one.name) in ("", uuid_text(one.topic_id))]))

    async def _read(self) -> None:
        names = await self._store.children(paths.DELETE_TOPICS, self.look)
        data, stat = await self._store.get(paths.DELETE_TOPICS, self.look)
        for name in read_deleted(names, data):
            try:
                await self._delete(name, await self._deleted_id(name))
            except StoreError as error:
                if isinstance(error, (SessionLostError, UnknownOutcomeError)) or error.path == paths.CONTROLLER_EPOCH:
                    raise
                # The next controller would fail by the same, and decide nothing else either.
                _log.error("topic=%s can't be deleted, and is tried again in %d s: %s", name, UNDELETED_S, error)
                self._events.running.start(self._delete_later())
        if data and read_deleted([], data):
            with contextlib.suppress(BadVersionError):  # Somebody has listed others, which are looked at again.
                await self._store.set(paths.DELETE_TOPICS, to_json(version=1, topics=[]), stat.version)

    async def _delete_later(self) -> None:
        await asyncio.sleep(UNDELETED_S)
        self.look()

    async def _deleted_id(self, name: str) -> str:
        """The id of the topic that a mark is about; "": whichever has the name, as it is with Kafka's tools."""
        try:
            data, _ = await self._store.get(paths.deleted_topic(name))
        except NoNodeError:
            return ""
        return data.decode("ascii", "replace")

    async def _delete(self, name: str, topic_id: str) -> None:
        """Delete a topic everywhere; if another id than its own is given, only the mark goes. What a controller that ended has
        left of it is done again. Raises StoreError."""
        for _ in range(TRIES):
            stat = await self._store.exists(paths.topic(name))
            topic = None if stat is None else await self._stored_topic(name)
            if topic is not None and topic_id not in ("", uuid_text(topic.topic_id)):
                _log.info("topic=%s isn't deleted: it was made after the one that somebody wanted to be deleted", name)
                await self._store.multi([*machine.guard(self._controller), Delete(paths.deleted_topic(name))])
                return
            partitions = [] if topic is None else partitions_of([topic])
            await self._begin_deletion(topic, partitions)
            away = [] if topic is None else await self._stop_replicas(topic)
            try:
                deletions = await self._remove_nodes(name, stat, topic, away)
                break
            except (BadVersionError, NotEmptyError, NodeExistsError, NoNodeError) as error:
                if error.path == paths.CONTROLLER_EPOCH:
                    raise
                _log.info("topic=%s has changed while it was deleted: it is looked at again", name)
        else:
            raise StoreError(paths.topic(name), "others change it as quickly as it is deleted")
        self._topics.forget(name, topic)
        self._events.put(lambda: machine.on_deleted(self._controller, partitions, self._events.clock()))
        self._events.put(lambda: machine.on_deletions(self._controller, deletions, self._events.clock()))
        _log.info("deleted topic=%s%s", name, f"; brokers {sorted(away)} still hold it" if away else "")

    async def _begin_deletion(self, topic: StoredTopic | None, partitions: Sequence[Partition]) -> None:
        """Have everybody told that these go; no write of their states is out then, or follows."""
        done = asyncio.Event()

        def begin() -> Out:
            if topic is not None:
                self._pictures.on_deleted({topic.name: topic.topic_id})
            out = machine.on_deleting(self._controller, partitions, self._events.clock())
            done.set()
            return out

        self._events.put(begin)
        await done.wait()
        while not machine.is_settled(self._controller, partitions):  # noqa: ASYNC110 - writes that are out end by themselves
            await asyncio.sleep(LOOK_S)

    async def _remove_nodes(self, name: str, stat: Stat | None, topic: StoredTopic | None, away: Collection[int]) -> int:
        """Remove a topic's nodes, its own by the version that was read: it may have grown since. Answers how many topics were
        deleted so far. Raises StoreError."""
        _, deletions = await self._store.get(paths.DELETED)
        # Its version counts deletions: what was read before this one is written no more (`ClusterTopics`), and no state that
        # was planned before comes to a later topic of the name.
        last = [*machine.guard(self._controller), Set(paths.DELETED, b"", deletions.version)]
        if topic is not None and away:
            noted, own = await self._store.children(paths.DELETED), uuid_text(topic.topic_id)
            if own not in noted and len(noted) < NOTED_MAX:
                note = to_json(version=1, topic=name, brokers=sorted(away))
                last.append(Create(f"{paths.DELETED}/{own}", note, parents=True))
            elif own not in noted:
                _log.warning(
                    "topic=%s: brokers %s don't say that they have deleted it, and %d such deletions are noted, which is the "
                    "most: these brokers will set its logs aside, as `-stray` folders, instead of removing them; notes go once "
                    "the brokers that they name, below `%s`, are started", name, sorted(away), NOTED_MAX, paths.DELETED,
                )  # fmt: skip
        if stat is not None:
            await self._store.empty(paths.topic(name), machine.guard(self._controller))
            failpoint(EMPTIED)
            last.append(Delete(paths.topic(name), stat.version))
        else:  # Refused if somebody has made it meanwhile, whose configs these would be.
            last += [Create(paths.topic(name)), Delete(paths.topic(name))]
        for path in (paths.topic_config(name), paths.deleted_topic(name)):
            if await self._store.exists(path) is not None:
                last.append(Delete(path, recursive=True))
        await self._store.multi(last)
        return deletions.version + 1

    async def _stored_topic(self, name: str) -> StoredTopic | None:
        """A topic as the store has it, since the look that shows it may still be under way; if it can't be read, as it was
        known."""
        try:
            return await read_one_topic(self._store, name)
        except BadValueError as error:
            _log.error("topic=%s is deleted as this controller knew it: %s", name, error.why)
            return self._topics.by_name.get(name)

    async def _stop_replicas(self, topic: StoredTopic) -> set[int]:
        """Have all replicas of a topic deleted. Answers the brokers that didn't say that they did."""
        holders: dict[int, list[StoppedReplica]] = {}
        for index, replicas in enumerate(topic.replicas):
            for broker in replicas:
                holders.setdefault(broker, []).append(StoppedReplica((topic.name, index), topic.topic_id, delete=True))
        done = await asyncio.gather(*(self._stop_on(broker, tuple(held)) for broker, held in holders.items()))
        return {broker for broker, is_done in zip(holders, done, strict=True) if not is_done}

    async def _stop_on(self, broker: int, held: tuple[StoppedReplica, ...]) -> bool:
        registration = self._controller.registrations.get(broker)
        if registration is None:
            return False
        request = StopReplica(self._controller.broker, self._controller.epoch, broker, registration.epoch, held)
        try:
            answer = await self._sender.send_stop(request)
        except OSError:
            return False
        return answer.error == ErrorCode.NONE and not any(answer.errors.values())
