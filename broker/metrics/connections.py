"""Connections and the control plane's loop, on a page."""

from __future__ import annotations

from penstock.broker.metrics.families import CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_CLOSED, LOOP_BUSY, LOOP_DELAY
from penstock.broker.upkeep.pulse import DELAY_BOUNDS_S, Pulse
from penstock.metrics import Page, one
from penstock.pyx.net.border import DataPlane

PEER = "peer"


def write(page: Page, data_plane: DataPlane, pulse: Pulse) -> None:
    """All families of connections and of the loop."""
    counters = data_plane.counters()
    one(page, CONNECTIONS, counters["connections"])
    one(page, CONNECTIONS_ACCEPTED, counters["connections_accepted"])
    page.family(CONNECTIONS_CLOSED)
    for_reasons = {name.removeprefix("closed_"): count for name, count in counters.items() if name.startswith("closed_")}
    for_reasons[PEER] = max(0, counters["connections_closed"] - sum(for_reasons.values()))
    for reason, count in for_reasons.items():
        page.sample((reason,), count)
    one(page, LOOP_BUSY, pulse.busy_s())
    page.family(LOOP_DELAY)
    page.histogram((), DELAY_BOUNDS_S, pulse.delays, pulse.delay_s)
