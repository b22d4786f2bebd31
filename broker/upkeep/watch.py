"""What the network threads had to do and an operator should know: said in the log, at most once a minute a kind.

The threads count what they do, and note whose connections they closed; they never wait for a log. A task reads that
each second, so the first time is said at once, and what comes within the minute after it is said together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from penstock import log
from penstock.broker import tasks
from penstock.pyx.linux import descriptors
from penstock.pyx.net.border import Closed, DataPlane

CHECK_S = 1.0
SAY_AGAIN_S = 60.0
NAMED_MAX = 5
"""Addresses in a line."""

SENTENCES = {
    "closed_memory_short": (
        "memory for requests was short: closed %d connections that held it and brought too little (see"
        " `queued.max.request.bytes` and `penstock.request.memory.patience.ms`)"
    ),
    "closed_slow_request": (
        "closed %d connections whose request did not come whole in time (`penstock.request.arrival.timeout.ms`)"
    ),
    "closed_slow_reader": ("closed %d connections that took nothing of their answers (`penstock.answer.taking.timeout.ms`)"),
    "closed_tls": (
        "closed %d connections that look like a TLS handshake: the listener speaks plaintext (clients need"
        " `security.protocol=PLAINTEXT`)"
    ),
    "closed_http": "closed %d connections that look like HTTP: the listener speaks Kafka's protocol",
    "closed_request_size": (
        "closed %d connections that announced a request of a size that none may have (`socket.request.max.bytes`)"
    ),
    "closed_malformed": "closed %d connections whose request could not be read: it is damaged, or no client of Kafka sent it",
    "closed_unsupported": "closed %d connections that asked for an API, or a version of it, that is not served",
    "closed_unacknowledged": ("closed %d connections whose produce with acks=0 failed: nothing else can tell these producers"),
    "closed_fault": "closed %d connections that could not be served: memory was short, or a segment could not be read",
    "closed_address_limit": "closed %d new connections of addresses that have too many (`max.connections.per.ip`)",
    "accepts_delayed": ("new connections had to wait %d times: there are as many as `max.connections` or their rate allows"),
    "accepts_without_descriptor": (
        "new connections had to wait %d times: the process has too few file descriptors (`ulimit -n`)"
    ),
    "opens_without_descriptor": (
        "%d files could not be opened: the process, or the system, has no file descriptor left (`ulimit -n`)"
    ),
    "log_files_closed_early": (
        "%d files of logs were closed to have their descriptors for others: there are few (`ulimit -n`)"
    ),
}
"""Counter -> what is said of its growth."""

_log = log.get(__name__)


class PlaneWatch(tasks.Background):
    """Watches one data plane from `start` to `stop`. On the loop."""

    NAME = "watch"

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        # Of each counter, what was said of it. Descriptors are the process's, which may have been there before.
        self._said: dict[str, int] = dict(descriptors.counters())
        self._said_s: dict[str, float] = {}
        self._addresses: dict[str, Counter[str]] = {name: Counter() for name in SENTENCES}
        self._held_bytes: Counter[str] = Counter()
        self._last: dict[str, Closed] = {}

    async def stop(self) -> None:
        """End; what wasn't said yet is said."""
        await super().stop()
        self._look(float("inf"))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            self._look(loop.time())

    def _look(self, now_s: float) -> None:
        self._note(self._data_plane.closures())
        counted = {**self._data_plane.counters(), **descriptors.counters()}
        for name in SENTENCES:
            if counted[name] > self._said.get(name, 0) and now_s - self._said_s.get(name, -SAY_AGAIN_S) >= SAY_AGAIN_S:
                self._say(name, counted)
                self._said_s[name] = now_s

    def _note(self, closures: list[Closed]) -> None:
        for one in closures:
            self._addresses[one.reason][one.peer.rpartition(":")[0]] += 1
            self._held_bytes[one.reason] += one.held_bytes
            self._last[one.reason] = one

    def _say(self, name: str, counted: Mapping[str, int]) -> None:
        line = SENTENCES[name] % (counted[name] - self._said.get(name, 0))
        self._said[name] = counted[name]
        if held_bytes := self._held_bytes.pop(name, 0):
            line += f"; they held {held_bytes} bytes"
        if name == "opens_without_descriptor":
            line += f"; the last one: {descriptors.last_refused()}"
        if last := self._last.pop(name, None):
            line += f"; the last one: {last.peer} at the listener {last.listener}" + f", {last.detail}" * bool(last.detail)
        addresses = self._addresses[name]
        if addresses:
            named = ", ".join(f"{address} ({n})" for address, n in addresses.most_common(NAMED_MAX))
            more = len(addresses) - NAMED_MAX
            line += f"; addresses: {named}" + (f" and {more} more" if more > 0 else "")
            addresses.clear()
        _log.warning("%s", line)
