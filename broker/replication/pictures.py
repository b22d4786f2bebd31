"""What the controller tells every broker: who lives, and how all partitions stand (UpdateMetadata).

For each broker there is one picture that is still to be sent, not a queue: newer states replace older ones. A broker that
registered again gets the whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster.controller import Controller
from penstock.broker.cluster.messages import (
    BEING_DELETED,
    BrokerEndpoint,
    LiveBroker,
    Partition,
    PartitionMetadata,
    UpdateMetadata,
)
from penstock.broker.context import Endpoint
from penstock.errors import ErrorCode

PARTITIONS_AT_A_TIME = 2_500  # no piece may hold the loop of the one that gets it

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


class Pictures:
    """The pictures of one controller's term. On the loop."""

    def __init__(self, controller: Controller, send: Send, running: tasks.Group) -> None:
        self._controller = controller
        self._send = send
        self._running = running
        self._viewers: dict[int, _Viewer] = {}
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
        changed = set(partitions)
        for viewer in self._viewers.values():
            viewer.pending |= changed

    def send(self) -> None:
        """Tell whoever has something to hear, and isn't being told just now."""
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
            if image is None or image.state.partition_epoch < 0:
                continue
            state = replace(image.state, leader=BEING_DELETED) if partition in controller.deleting else image.state
            offline = tuple(one for one in image.replicas if one not in controller.registrations)
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
