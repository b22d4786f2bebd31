"""Requests that took long, in the log with their phases: at most ten lines a second, the others counted.

The network threads note them in rings; the time in which a request waited for records or for its group's members is not
counted as slowness. Names and ids in a line are a client's own: they are written as Python writes strings, so that none can
begin a line of its own.
"""

from __future__ import annotations

import asyncio

from penstock import log
from penstock.broker import tasks
from penstock.pyx.net.border import DataPlane, SlowRequest

EVERY_S = 1.0
LINES_MAX = 10
LOST = "slow_requests_lost"

_log = log.get(__name__)


class SlowRequests(tasks.Background):
    """Of one data plane, from `start` to `stop`. On the loop."""

    NAME = "slow requests"

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._lost = 0

    async def stop(self) -> None:
        """End; what wasn't said yet is said."""
        await super().stop()
        self._say()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._say()

    def _say(self) -> None:
        found = sorted(self._data_plane.slow_requests(), key=_took_ns, reverse=True)
        for one in found[:LINES_MAX]:
            _log.warning(
                "slow request api=%s took %d ms: queue %d, work %d, sending %d; waited %d ms besides; %d bytes, client_id=%r"
                " peer=%s topic=%r",
                one.request, _took_ns(one) // 1_000_000, one.queue_ns // 1_000_000, one.local_ns // 1_000_000,
                one.send_ns // 1_000_000, one.waiting_ns // 1_000_000, one.bytes, one.client_id, one.peer, one.topic,
            )  # fmt: skip
        lost = self._data_plane.counters()[LOST]
        if more := max(0, len(found) - LINES_MAX) + lost - self._lost:
            _log.warning("%d more requests were slow; `penstock_slow_requests_total` of /metrics counts all of them", more)
        self._lost = lost


def _took_ns(one: SlowRequest) -> int:
    return one.queue_ns + one.local_ns + one.send_ns
