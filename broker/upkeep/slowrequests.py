"""Requests that took long, in the log with their phases: at most ten lines a second, the others counted. Those that are alike -
the same API, client id and topic - have one line a minute: a partition below its min.insync.replicas makes each one slow.

The network threads note them in rings; the time in which a request waited for records or for its group's members is not
counted as slowness. Names and ids in a line are a client's own: they are written as Python writes strings, so that none can
begin a line of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock import log
from penstock.broker import tasks
from penstock.pyx.net.border import DataPlane, SlowRequest

EVERY_S = 1.0
LINES_MAX = 10
SAY_AGAIN_S = 60.0
"""From a line on those that are like it are counted for so long."""
LOST = "slow_requests_lost"

Kind = tuple[str, str, str]  # API, client id, topic

_log = log.get(__name__)


class SlowRequests(tasks.Background):
    """Of one data plane, from `start` to `stop`. On the loop."""

    NAME = "slow requests"

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._lost = 0
        self._said_s: dict[Kind, float] = {}
        self._alike: Counter[Kind] = Counter()

    async def stop(self) -> None:
        """End; what wasn't said yet is said."""
        await super().stop()
        self._say(float("inf"))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EVERY_S)
            self._say(loop.time())

    def _say(self, now_s: float) -> None:
        found = sorted(self._data_plane.slow_requests(), key=_took_ns, reverse=True)
        fresh = []
        for one in found:
            if _kind(one) in self._said_s:
                self._alike[_kind(one)] += 1
            else:
                fresh.append(one)
                self._said_s[_kind(one)] = now_s
        for one in fresh[:LINES_MAX]:
            _log.warning(
                "slow request api=%s took %d ms: queue %d, work %d, sending %d; waited %d ms besides; %d bytes, client_id=%r"
                " peer=%s topic=%r",
                one.request, _took_ns(one) // 1_000_000, one.queue_ns // 1_000_000, one.local_ns // 1_000_000,
                one.send_ns // 1_000_000, one.waiting_ns // 1_000_000, one.bytes, one.client_id, one.peer, one.topic,
            )  # fmt: skip
        lost = self._data_plane.counters()[LOST]
        if more := max(0, len(fresh) - LINES_MAX) + lost - self._lost:
            _log.warning("%d more requests were slow; `penstock_slow_requests_total` of /metrics counts all of them", more)
        self._lost = lost
        self._say_alike(now_s)

    def _say_alike(self, now_s: float) -> None:
        """Count those that are like one that was said a minute ago."""
        for kind in [kind for kind, said_s in self._said_s.items() if now_s >= said_s + SAY_AGAIN_S]:
            del self._said_s[kind]
            if count := self._alike.pop(kind, 0):
                request, client_id, topic = kind
                _log.warning("%d more slow requests api=%s client_id=%r topic=%r", count, request, client_id, topic)


def _kind(one: SlowRequest) -> Kind:
    return one.request, one.client_id, one.topic


def _took_ns(one: SlowRequest) -> int:
    return one.queue_ns + one.local_ns + one.send_ns
