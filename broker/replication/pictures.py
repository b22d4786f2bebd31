"""What the controller tells every broker: who lives, and how all partitions stand (UpdateMetadata).

For each broker there is one picture that is still to be sent, not a queue: newer states replace older ones. A broker that
registered again gets the whole.

New leaders hear first: that a broker leads a partition is told once it has taken the role, or HOLD_S later. A client that came
before would hear that it doesn't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import planning
from penstock.broker.cluster.controller import Controller
from penstock.broker.cluster.messages import (
    BEING_DELETED,
    BrokerEndpoint,
    LeaderAndIsrRequest,
    LiveBroker,
    Partition,
    PartitionMetadata,
    UpdateMetadata,
)
from penstock.broker.context import Endpoint
from penstock.errors import ErrorCode

PARTITIONS_AT_A_TIME = 2_500  # no piece may hold the loop of the one that gets it

HOLD_S = 0.1
"""How long a broker that is told to lead has for its answer before all hear that it leads."""

Send = Callable[[UpdateMetadata], Awaitable[int]]
"""Sends a picture to the broker that it is for; answers its error code. Raises OSError."""

_log = log.get(__name__)


@dataclass(slots=True)
class _Viewer:
    """A broker, and what it hasn't been told yet."""

    epoch: int  # its registration's
    pending: set[Partition] = field(default_factory=set)
    brokers_pending: bool = True
    is_sending: bool = False


@dataclass(slots=True)
class _Asked:
    """What a broker is being told to lead, and what is held back until it has answered."""

    request: LeaderAndIsrRequest
    led: set[Partition]
    held: set[Partition] = field(default_factory=set)


class Pictures:
    """The pictures of one controller's term. On the loop."""

    def __init__(self, controller: Controller, send: Send, running: tasks.Group) -> None:
        self._controller = controller
        self._send = send
        self._running = running
        self._viewers: dict[int, _Viewer] = {}
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
                self._viewers[broker] = _Viewer(registration.epoch, set(controller.partitions))
            else:
                viewer.brokers_pending = True
        for broker in self._viewers.keys() - controller.registrations.keys():
            del self._viewers[broker]

    def on_states(self, partitions: Iterable[Partition]) -> None:
        """The states of these partitions are others."""
        shown = {partition for partition in partitions if not self._hold(partition)}
        for viewer in self._viewers.values():
            viewer.pending |= shown

    def _hold(self, partition: Partition) -> bool:
        """Whether a partition's leader is being told of it, or is next to be; then it is held back."""
        image = self._controller.partitions.get(partition)
        if image is None:
            return False
        asked, peer = self._asked.get(image.state.leader), self._controller.peers.get(image.state.leader)
        if asked is None or not (partition in asked.led or (peer is not None and partition in peer.pending)):
            return False
        asked.held.add(partition)
        return True

    def on_roles(self, request: LeaderAndIsrRequest) -> None:
        """A broker is being told its roles. It has HOLD_S for its answer."""
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
        self.on_answered(request)
        self.send()

    def send(self) -> None:
        """Tell whoever has something to hear, and isn't being told just now."""
        if self._released:
            released, self._released = self._released, set()
            self.on_states(released)
        for broker, viewer in self._viewers.items():
            if (viewer.pending or viewer.brokers_pending) and not viewer.is_sending:
                viewer.is_sending = True
                self._running.start(self._tell(broker, viewer))

    async def _tell(self, broker: int, viewer: _Viewer) -> None:
        """Until there is nothing more, or the broker can't be reached: `send` is called again some moments later."""
        try:
            while self._viewers.get(broker) is viewer and (viewer.pending or viewer.brokers_pending):
                some = [viewer.pending.pop() for _ in range(min(len(viewer.pending), PARTITIONS_AT_A_TIME))]
                viewer.brokers_pending = False
                try:
                    error = await self._send(self._picture(broker, viewer, some))
                except OSError as failure:
                    error = ErrorCode.NETWORK_EXCEPTION
                    _log.debug("broker %d can't be told of %d partitions: %s", broker, len(some), failure)
                if error:
                    viewer.pending.update(some)
                    viewer.brokers_pending = True
                    return
        finally:
            viewer.is_sending = False

    def _picture(self, to: int, viewer: _Viewer, partitions: Iterable[Partition]) -> UpdateMetadata:
        controller = self._controller
        shown = []
        for partition in partitions:
            image = controller.partitions.get(partition)
            # Of a topic that is being deleted the states may be gone already: it is hidden all the same.
            if image is None or not (image.state.is_created or partition in controller.deleting):
                continue
            state = replace(image.state, leader=BEING_DELETED) if partition in controller.deleting else image.state
            offline = planning.offline(image, controller.registrations)
            shown.append(PartitionMetadata(partition, image.topic_id, image.replicas, state, offline))
        brokers = tuple(
            LiveBroker(
                broker,
                tuple(BrokerEndpoint(name, at.host, at.port) for name, at in places.items()),
                self._racks.get(broker),
            )
            for broker, places in self._endpoints.items()
            if broker in controller.registrations
        )
        is_whole = not viewer.pending
        return UpdateMetadata(controller.broker, controller.epoch, to, viewer.epoch, brokers, tuple(shown), is_whole)
