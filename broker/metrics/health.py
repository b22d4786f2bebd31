"""What a broker says to whoever probes it: whether it lives, whether it serves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from penstock.broker import tasks
from penstock.broker.logs.topiclogs import TopicLogs
from penstock.broker.store.base import Store, StoreError, paths
from penstock.broker.upkeep.pulse import CAUGHT, HELD, Beats

STORE_S = 5.0
STORE_OLD_S = 15.0
"""A metadata store that hasn't answered for so long can't be reached."""
STARTING, RECOVERING, SERVING, STOPPING = "starting", "recovering", "serving", "stopping"


class BrokerHealth:
    """Of one broker; its server says what state it is in. A loop that stands still doesn't answer at all."""

    def __init__(self) -> None:
        self.is_open = False  # every log is open or offline
        self.is_stopping = False
        self.opening: TopicLogs | None = None  # knows how far that is, once there is one
        self._beats: Beats | None = None
        self._store_s: float | None = None  # when the store has answered last, monotonic
        self._asking: asyncio.Task[None] | None = None

    def watch(self, store: Store, beats: Beats) -> None:
        """The parts are there."""
        self._beats, self._store_s = beats, time.monotonic()
        self._asking = tasks.start(self._ask(store), "ask the store")

    async def stop(self) -> None:
        """Ask nobody any more."""
        await tasks.end(self._asking)

    async def _ask(self, store: Store) -> None:
        while True:
            try:
                await store.exists(paths.CLUSTER_ID)
                self._store_s = time.monotonic()
            except StoreError:
                pass  # It grows old.
            await asyncio.sleep(STORE_S)

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether every network thread moves, or waits for a disk; the loop moves, as it answers."""
        if self._beats is None or self.is_stopping:
            return True, {"live": True, "state": self.state}
        states = self._beats.states
        said = {"live": CAUGHT not in states.values(), "state": self.state}
        for state in (HELD, CAUGHT):
            if threads := sorted(name for name, found in states.items() if found == state):
                said[state] = threads
        return bool(said["live"]), said

    @property
    def recovering(self) -> tuple[int, int]:
        """Of the logs that the start has to open, how many are open or offline, and how many there are."""
        return (0, 0) if self.opening is None else self.opening.opened

    @property
    def state(self) -> str:
        """What the broker does: STARTING, RECOVERING, SERVING or STOPPING."""
        if self.is_stopping:
            return STOPPING
        opened, logs = self.recovering
        return RECOVERING if opened < logs else SERVING if self.is_open and self._beats is not None else STARTING

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it serves: all logs are open or offline, the metadata store answers, and it doesn't stop."""
        said: dict[str, Any] = {"ready": False, "state": self.state}
        if said["state"] == RECOVERING:
            said["recovering"] = list(self.recovering)
        if self._store_s is not None and time.monotonic() - self._store_s >= STORE_OLD_S:
            said["store"] = "does not answer"
        said["ready"] = said["state"] == SERVING and "store" not in said
        return said["ready"], said
