"""What the controller tells every broker: who lives, and how all partitions stand (UpdateMetadata).

For each broker there is one picture that is still to be sent, not a queue: newer states replace older ones. A broker that
registered again gets the whole. A topic that is deleted may be gone here before a broker can be told: its id is kept for that
broker until it has answered.

Each picture bears a number, which grows within the term: a broker refuses one that newer ones have overtaken.

New leaders hear first: that a broker leads a partition is told once it has taken the role, or HOLD_S later. A client that came
before would hear that it doesn't. A partition's first leader, whom no client waits for yet, has until its answer, or until the
request has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import planning
from penstock.broker.cluster.controller import Controller
from penstock.broker.cluster.leaderandisr import NOT_CREATED
from penstock.broker.cluster.messages import (
    BEING_DELETED,
    BrokerEndpoint,
    LeaderAndIsrRequest,
    LiveBroker,
    Partition,
    PartitionMetadata,
    UpdateMetadata,
)
from penstock.broker.endpoint import Endpoint
from penstock.errors import ErrorCode

PARTITIONS_AT_A_TIME = 2_500  # no piece may hold the loop of the one that gets it

HOLD_S = 0.1
"""How long a broker that is told to lead has for its answer before all hear that it leads."""

GONE = replace(NOT_CREATED, leader=BEING_DELETED)
"""The state that is told of a deleted topic."""

Send = Callable[[UpdateMetadata], Awaitable[int]]
"""Sends a picture to the broker that it is for; answers its error code. Raises OSError."""

_log = log.get(__name__)


@dataclass(slots=True)
class _Viewer:
    """A broker, and what it hasn't been told yet."""

    epoch: int  # its registration's
    pending: set[Partition] = field(default_factory=set)
    deleted: dict[str, bytes] = field(default_factory=dict)  # by name the ids of topics that are being deleted, or were
    brokers_pending: bool = True
    is_sending: bool = False

    @property
    def has_news(self) -> bool:
        return bool(self.pending or self.deleted or self.brokers_pending)


@dataclass(slots=True)
class _Asked:
    """What a broker is being told to lead, and what is held back until it has answered."""

    request: LeaderAndIsrRequest
    led: set[Partition]
    held: set[Partition] = field(default_factory=set)
    is_late: bool = False  # it has had HOLD_S


class Pictures:
    """The pictures of one controller's term. On the loop."""

    def __init__(self, controller: Controller, send: Send, running: tasks.Group) -> None:
        self._controller = controller
        self._send = send
        self._running = running
        self._viewers: dict[int, _Viewer] = {}
        self._sent = 0  # the number of the latest picture
        self._asked: dict[int, _Asked] = {}
        self._released: set[Partition] = set()
        self._endpoints: Mapping[int, Mapping[str, Endpoint]] = {}
        self._racks: Mapping[int, str] = {}

    def on_brokers(self, endpoints: Mapping[int, Mapping[str, Endpoint]], racks: Mapping[int, str]) -> None:
        """The registrations are others: everybody hears of them, and new ones of everything."""
        controller = self._controller
        self._endpoints, self._racks = endpoints, racks
        for broker, registration in controller.registrations.items():
            viewer = self._viewers.get(broker)
            if viewer is None or viewer.epoch != registration.epoch:
                self._viewers[broker] = _Viewer(registration.epoch, set(controller.partitions), self._being_deleted())
            else:
                viewer.brokers_pending = True
        for broker in self._viewers.keys() - controller.registrations.keys():
            del self._viewers[broker]

    def on_states(self, partitions: Iterable[Partition]) -> None:
        """The states of these partitions are others."""
        there = self._controller.partitions
        shown = {partition for partition in partitions if partition in there and not self._hold(partition)}
        for viewer in self._viewers.values():
            viewer.pending |= shown

    def on_deleted(self, topics: Mapping[str, bytes]) -> None:
        """These topics, by name their ids, are being deleted, or are gone already: everybody hears of that."""
        for viewer in self._viewers.values():
            viewer.deleted.update(topics)

    def _being_deleted(self) -> dict[str, bytes]:
        images = self._controller.partitions
        return {one[0]: images[one].topic_id for one in self._controller.deleting if one in images}

    def _hold(self, partition: Partition) -> bool:
        """Whether a partition's leader is being told of it, or is next to be; then it is held back."""
        image = self._controller.partitions[partition]
        asked, peer = self._asked.get(image.state.leader), self._controller.peers.get(image.state.leader)
        if asked is None or not (partition in asked.led or (peer is not None and partition in peer.pending)):
            return False
        if asked.is_late and not self._is_first(partition):
            asked.held.discard(partition)
            return False
        asked.held.add(partition)
        return True

    def _is_first(self, partition: Partition) -> bool:
        """Whether a partition is new: its leader is the first one."""
        image = self._controller.partitions.get(partition)
        return image is not None and image.state.partition_epoch == 0

    def on_roles(self, request: LeaderAndIsrRequest) -> None:
        """A broker is being told its roles. It has HOLD_S for its answer, and longer for partitions that it leads first."""
        led = {role.partition for role in request.roles if role.state.leader == request.broker}
        self._asked[request.broker] = _Asked(request, led)
        self._running.start(self._hold_no_longer(request))

    def on_answered(self, request: LeaderAndIsrRequest) -> None:
        """It has answered, or won't. What was held back goes out with the next `send`."""
        asked = self._asked.get(request.broker)
        if asked is not None and asked.request is request:
            del self._asked[request.broker]
            self._released |= asked.held

    async def _hold_no_longer(self, request: LeaderAndIsrRequest) -> None:
        await asyncio.sleep(HOLD_S)
        asked = self._asked.get(request.broker)
        if asked is not None and asked.request is request:
            asked.is_late = True
            late = {partition for partition in asked.held if not self._is_first(partition)}
            asked.held -= late
            self._released |= late
            self.send()

    def send(self) -> None:
        """Tell whoever has something to hear, and isn't being told just now."""
        if self._released:
            released, self._released = self._released, set()
            self.on_states(released)
        for broker, viewer in self._viewers.items():
            if viewer.has_news and not viewer.is_sending:
                viewer.is_sending = True
                self._running.start(self._tell(broker, viewer))

    async def _tell(self, broker: int, viewer: _Viewer) -> None:
        """Until there is nothing more, or the broker can't be reached: `send` is called again some moments later."""
        try:
            while self._viewers.get(broker) is viewer and viewer.has_news:
                deleted = dict(islice(viewer.deleted.items(), PARTITIONS_AT_A_TIME))
                some = set(islice(viewer.pending, PARTITIONS_AT_A_TIME - len(deleted)))
                viewer.deleted = {name: viewer.deleted[name] for name in viewer.deleted.keys() - deleted.keys()}
                viewer.pending -= some
                viewer.brokers_pending = False
                try:
                    error = await self._send(self._picture(broker, viewer, sorted(some), deleted))
                except OSError as failure:
                    error = ErrorCode.NETWORK_EXCEPTION
                    _log.debug("broker %d can't be told of %d partitions: %s", broker, len(some) + len(deleted), failure)
                if error:
                    viewer.pending |= some
                    viewer.deleted = {**deleted, **viewer.deleted}  # The latest deletion of a name is the one that counts.
                    viewer.brokers_pending = True
                    return
        finally:
            viewer.is_sending = False

    def _picture(
        self, to: int, viewer: _Viewer, partitions: Iterable[Partition], deleted: Mapping[str, bytes]
    ) -> UpdateMetadata:
        controller = self._controller
        # One partition of a topic hides all of it. A name that was used again since is told with its new id.
        shown = [
            PartitionMetadata((name, 0), topic_id, (), GONE)
            for name, topic_id in deleted.items()
            if (name, 0) not in controller.partitions or (name, 0) in controller.deleting
        ]
        for partition in partitions:
            image = controller.partitions.get(partition)
            if image is None or not image.state.is_created or partition in controller.deleting:
                continue
            offline = planning.offline(image, controller.registrations)
            shown.append(PartitionMetadata(partition, image.topic_id, image.replicas, image.state, offline))
        brokers = tuple(
            LiveBroker(
                broker,
                tuple(BrokerEndpoint(name, at.host, at.port) for name, at in places.items()),
                self._racks.get(broker),
            )
            for broker, places in self._endpoints.items()
            if broker in controller.registrations
        )
        is_whole = not (viewer.pending or viewer.deleted)
        self._sent += 1
        return UpdateMetadata(
            controller.broker, controller.epoch, to, viewer.epoch, brokers, tuple(shown), is_whole, self._sent
        )
