"""The events of a controller's term: one queue, from which the machine is fed, and the work that puts them there.

Work reads or writes the store, or waits for brokers, in a task of its own. What the store refuses to it ends the term: the next
one reads everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster.controller import Controller, Out
from penstock.broker.store.base import StoreError, paths

_log = log.get(__name__)


class TermEvents:
    """Of one term, on the loop. clock: monotonic milliseconds."""

    def __init__(self, controller: Controller, clock: Callable[[], int]) -> None:
        self.controller = controller
        self.clock = clock
        self.running = tasks.Group("controller")
        self.is_over = False
        self._queue: asyncio.Queue[Callable[[], Out] | None] = asyncio.Queue()
        self._looking: set[str] = set()  # what is being read: brokers, topics, deletions
        self._dirty: set[str] = set()  # what a watch has said something of since
        self._failed: BaseException | None = None
        self._moved = asyncio.Event()  # set when something may have changed, then another one

    @property
    def queued(self) -> int:
        """Events that wait for the machine."""
        return self._queue.qsize()

    def put(self, event: Callable[[], Out]) -> None:
        """Have the machine deal with an event; what it decides is carried out."""
        self._queue.put_nowait(event)

    def end(self, failure: BaseException | None = None) -> None:
        """End the term after the events that wait."""
        self._failed = self._failed or failure
        self._queue.put_nowait(None)

    async def next(self) -> Callable[[], Out] | None:
        """The next event; None: the term ends. Raises what it has failed with."""
        event = await self._queue.get()
        if event is None and self._failed is not None:
            raise self._failed
        return event

    def tell_moved(self) -> None:
        """Wake those who wait until something may have changed."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def stop(self) -> None:
        """The term is over: end all work; who waits gets a ConnectionError."""
        self.is_over = True
        self._moved.set()
        await self.running.stop()

    @property
    def next_move(self) -> asyncio.Event:
        """Set once the next event was dealt with; for `until_moved`."""
        return self._moved

    async def until_moved(self, moved: asyncio.Event | None = None) -> None:
        """Until an event was dealt with, since now or since this was the one to wait for. Raises ConnectionError."""
        await (moved or self._moved).wait()
        if self.is_over:
            raise ConnectionError("another controller has been elected")

    async def settle(self) -> None:
        """Until what is in the queue now has been dealt with, and its writes are over, too; a second is the most that these are
        waited for, as others' writes may follow without an end. Raises ConnectionError: this term is over."""
        done = asyncio.Event()

        def mark() -> Out:
            done.set()
            return []

        self.put(mark)
        while not done.is_set():
            await self.until_moved()
        for _ in range(50):
            if not self.controller.writes:
                return
            await asyncio.sleep(0.02)

    def work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin some work. What the store refuses ends the term."""
        self.running.start(self._ending(work))

    async def _ending(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StoreError as error:
            self.end(error)
        except Exception as error:  # noqa: BLE001 - a controller that has lost an event decides nothing right any more
            _log.exception("the controller of epoch %d has failed", self.controller.epoch)
            self.end(StoreError(paths.CONTROLLER, str(error)))

    def look_again(self, about: str, read: Callable[[], Awaitable[None]]) -> None:
        """Read something of the store. One look at a time; a watch that fires meanwhile asks for one more."""
        if about in self._looking:
            self._dirty.add(about)
        else:
            self._looking.add(about)
            self.work(partial(self._look, about, read))

    async def _look(self, about: str, read: Callable[[], Awaitable[None]]) -> None:
        await read()
        while about in self._dirty:
            self._dirty.discard(about)
            await read()
        self._looking.discard(about)

    def begin_look(self, about: str) -> None:
        """The caller looks; a watch that fires meanwhile asks for one more, after `end_look`."""
        self._looking.add(about)

    def end_look(self, about: str, read: Callable[[], Awaitable[None]]) -> None:
        """The caller's look is over."""
        self._looking.discard(about)
        if about in self._dirty:
            self._dirty.discard(about)
            self.look_again(about, read)
