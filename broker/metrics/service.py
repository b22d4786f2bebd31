"""The HTTP server of one broker: made before its logs are opened, so that it can say how far that is.

The page of a scrape is made in turns with the loop's other work. What it shows is counted where it happens; here it is only
put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import log
from penstock.broker.context import Context
from penstock.broker.coordination.grouplag import GroupLag
from penstock.broker.endpoint import Endpoint
from penstock.broker.logs.folderthreads import FolderThreads
from penstock.broker.metrics import clients, cluster, replication
from penstock.broker.metrics.bounds import Bounds
from penstock.broker.metrics.connections import ConnectionGatherer
from penstock.broker.metrics.families import READY, RECOVERING
from penstock.broker.metrics.groups import GroupGatherer
from penstock.broker.metrics.health import BrokerHealth
from penstock.broker.metrics.partitions import PartitionGatherer
from penstock.broker.metrics.requests import RequestGatherer
from penstock.broker.metrics.topics import TopicGatherer
from penstock.broker.turns import Turns
from penstock.broker.upkeep.pulse import Beats, Pulse
from penstock.broker.upkeep.space import FolderSpace
from penstock.http import TEXT, Answer, HttpServer, Route
from penstock.metrics import Page, Process, one, routes
from penstock.pyx.net.border import DataPlane

_log = log.get(__name__)


class Figures:
    """What a broker that serves has for a page, a `penstock.metrics.Source`. `start` begins what looks at things between two
    scrapes."""

    def __init__(self, context: Context, data_plane: DataPlane, beats: Beats) -> None:
        self._context = context
        self._pulse = Pulse(beats.look, self._sample)
        self._threads = FolderThreads("figures", 1)
        self._space = FolderSpace(context.dirs)
        folder_of = context.topics.logs.folder_of
        self._lag = GroupLag(context.groups, context.log_manager, folder_of, context.now_ms)
        self._topics = TopicGatherer(context)
        self._partitions = PartitionGatherer(context)
        self._groups = GroupGatherer(context, self._lag)
        self._requests = RequestGatherer(data_plane)
        self._connections = ConnectionGatherer(data_plane, self._pulse, beats)

    def start(self) -> None:
        """Begin."""
        self._pulse.start()
        self._space.start()
        self._lag.start()

    async def stop(self) -> None:
        """End."""
        await self._lag.stop()
        await self._space.stop()
        await self._pulse.stop()
        self._threads.leave()

    def _sample(self) -> None:
        self._connections.sample()

    async def metrics(self, page: Page) -> None:
        """See Source."""
        turns, bounds, logs = Turns(), Bounds(), self._context.log_manager
        # Those of 10,000 topics, or partitions, take milliseconds: the loop serves others meanwhile.
        topics, total = await self._threads.run("", logs.topic_figures)
        found = await self._threads.run("", logs.partition_figures)
        cluster.write(page, self._context)
        replication.write(page, self._context.replication)
        self._connections.write(page, bounds)
        await self._requests.write(page, bounds, turns)
        await self._topics.write(page, bounds, topics, total, turns)
        await turns.take()
        extents = {(topic, partition): (size, start, end) for topic, partition, size, start, end in found}
        await turns.take()
        await self._groups.write(page, bounds, extents, turns)
        folder_bytes = await self._partitions.write(page, bounds, extents, turns)
        cluster.write_folders(page, self._context, self._space, folder_bytes)
        bounds.write(page)


class Watched:
    """What shows one broker to others by HTTP, from `start` to `stop`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError for an address that is wrong, or beyond loopback without `penstock.http.public`."""
        self.health = BrokerHealth()
        self._figures: Figures | None = None
        self._data_plane: DataPlane | None = None
        served: dict[str, Route] = {**routes([Process("broker"), self], self.health), "/clients": self._clients}
        self._server = HttpServer(config["penstock.http.listen"], served, public=config["penstock.http.public"])

    async def start(self) -> Endpoint:
        """Listen; the bound address. Raises OSError."""
        where = Endpoint(*await self._server.start())
        _log.info("figures and health are at http://%s/metrics, /health/live, /health/ready, /clients", where)
        return where

    def serve(self, context: Context, data_plane: DataPlane, beats: Beats) -> None:
        """The broker has its parts: show them, until `stopping`."""
        self.health.watch(context.store, beats)
        self._data_plane = data_plane
        self._figures = Figures(context, data_plane, beats)
        self._figures.start()

    async def stopping(self) -> None:
        """The broker begins to stop: its parts are not asked any more."""
        self.health.is_stopping = True
        figures, self._figures, self._data_plane = self._figures, None, None
        await self.health.stop()
        if figures is not None:
            await figures.stop()

    async def stop(self) -> None:
        """Close the listener and all connections."""
        await self._server.stop()

    async def metrics(self, page: Page) -> None:
        """See `penstock.metrics.Source`. Only this is known of a broker that starts or stops."""
        opened, logs = self.health.recovering
        one(page, READY, int(self.health.ready()[0]))
        one(page, RECOVERING, logs - opened)
        if self._figures is not None:
            await self._figures.metrics(page)

    async def _clients(self, headers: Mapping[str, str]) -> Answer:
        if self._data_plane is None:
            return Answer(503, TEXT, b"the broker is starting or stopping\n")
        return await clients.answer(self._data_plane, headers)
