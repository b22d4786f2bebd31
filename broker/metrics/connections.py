"""Connections, the threads that serve them, and the control plane's loop, on a page."""

from __future__ import annotations

from penstock.broker.metrics.bounds import Bounds
from penstock.broker.metrics.families import (
    CLIENTS,
    CONNECTION_COUNT,
    CONNECTIONS,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_CLOSED,
    HANDLER_IDLE,
    LOOP_BUSY,
    LOOP_DELAY,
    NETWORK_IDLE,
    THREAD_BEATS,
    THREAD_BUSY,
    THREAD_STANDS,
)
from penstock.broker.upkeep.pulse import DELAY_BOUNDS_S, NETWORK, Beats, Pulse, Rates
from penstock.metrics import Page, each, one
from penstock.pyx.net.border import DataPlane

WORKER, LOOP = "worker-", "loop"
CLIENTS_BYTES = 30_000
PEER = "peer"


class ConnectionGatherer:
    """Connections and threads of one data plane on a page."""

    def __init__(self, data_plane: DataPlane, pulse: Pulse, beats: Beats) -> None:
        self._data_plane = data_plane
        self._pulse = pulse
        self._beats = beats
        self._busy = Rates(self._busy_s)

    def sample(self) -> None:
        """Note what rates are made of; called now and then."""
        self._busy.sample()

    def _busy_s(self) -> dict[str, float]:
        busy = {thread.name: thread.busy_ns / 1e9 for thread in self._data_plane.threads()}
        return busy | {LOOP: self._pulse.busy_s()}

    def write(self, page: Page, bounds: Bounds) -> None:
        """All families of connections and threads."""
        counters = self._data_plane.counters()
        one(page, CONNECTIONS, counters["connections"])
        one(page, CONNECTIONS_ACCEPTED, counters["connections_accepted"])
        for_reasons = {name.removeprefix("closed_"): count for name, count in counters.items() if name.startswith("closed_")}
        for_reasons[PEER] = max(0, counters["connections_closed"] - sum(for_reasons.values()))
        each(page, CONNECTIONS_CLOSED, for_reasons)
        self._write_threads(page)
        bounds.write_largest(page, CLIENTS, self._data_plane.software().items(), CLIENTS_BYTES)

    def _write_threads(self, page: Page) -> None:
        threads = self._data_plane.threads()
        network = [thread for thread in threads if thread.name.startswith(NETWORK)]
        page.family(CONNECTION_COUNT)
        for thread in network:
            for listener, count in thread.connections.items():
                page.sample((listener, thread.name.removeprefix(NETWORK)), count)
        each(page, THREAD_BUSY, {thread.name: thread.busy_ns / 1e9 for thread in threads})
        each(page, THREAD_BEATS, {thread.name: thread.beats for thread in threads})
        each(page, THREAD_STANDS, self._beats.stands_s)
        busy = self._busy.now()
        one(page, NETWORK_IDLE, _idle([busy[thread.name] for thread in network]))
        workers = [busy[thread.name] for thread in threads if thread.name.startswith(WORKER)]
        one(page, HANDLER_IDLE, _idle([busy[LOOP], *workers]))
        one(page, LOOP_BUSY, self._pulse.busy_s())
        page.family(LOOP_DELAY)
        page.histogram((), DELAY_BOUNDS_S, self._pulse.delays, self._pulse.delay_s)


def _idle(busy: list[float]) -> float:
    """The part of the time that threads waited, on average, of those that were busy for so long a second."""
    return 1.0 if not busy else min(1.0, max(0.0, 1.0 - sum(busy) / len(busy)))
