"""An asyncio loop in a thread of its own, and what the synchronous clients on such a loop have in common."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

from penstock import tasks
from penstock.config import Schema
from penstock.pipeline.clients import properties
from penstock.pipeline.clients.client import Client

T = TypeVar("T")
C = TypeVar("C", bound=Client)


class BackgroundLoop:
    """Starts with its construction, ends with `stop`. A daemon thread: it never keeps a process alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @property
    def inside(self) -> bool:
        """Whether the caller is the loop's own thread (a callback), which must not wait for the loop."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it. Raises TimeoutError (the coroutine is then cancelled)."""
        if self.inside or not self._thread.is_alive():
            work.close()
            raise RuntimeError("a callback of the client, or one that is closed, cannot wait for it")
        future = self.start(work)
        try:
            return future.result(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop without waiting."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, future: concurrent.futures.Future[Any], wait_s: float | None) -> bool:
        """Wait for what `start` began; gives whether it has ended."""
        concurrent.futures.wait([future], None if wait_s is None else min(wait_s, threading.TIMEOUT_MAX))
        return future.done()

    def stop(self) -> None:
        """Cancel what runs, stop the loop, join the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.inside:
            self._thread.join()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await tasks.end(*others)


class UnderWay(Exception):
    """An answer has not come within its time; the next call goes on waiting for it."""


class Question(Generic[T]):
    """A question to the loop that may outlast the call that asked it."""

    def __init__(self, background: BackgroundLoop) -> None:
        self._background = background
        self._future: concurrent.futures.Future[T] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was asked and its answer was not given yet."""
        return self._future is not None

    def answer(self, wait_s: float | None, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer, for which an earlier call may have begun. Raises UnderWay when it doesn't come in time, RuntimeError in a
        callback of the client."""
        if self._background.inside:
            raise RuntimeError("a callback of the client cannot wait for it")
        future = self._future
        if future is None:
            future = self._future = self._background.start(begin())
        if not self._background.wait(future, wait_s):
            raise UnderWay
        self._future = None
        return future.result()

    def drop(self) -> None:
        """Forget it: its answer would be out of date."""
        if self._future is not None:
            self._future.cancel()
            self._future = None


class SyncClient(ABC, Generic[C]):
    """A client whose calls wait: its properties, the asyncio client under it, and the loop that this one lives on."""

    def __init__(self, client_type: type[C], bootstrap: str, schema: Schema, given: Mapping[str, object]) -> None:
        self.config = properties.load(schema, given)
        self._client = client_type.from_config(bootstrap, self.config)
        self._background = BackgroundLoop(f"penstock-{schema.part}")
        self._close_by: float | None = None  # of a client that is being closed: no call waits longer (monotonic seconds)

    def _limit_s(self, timeout_s: float | None) -> float:
        """How long a call may wait whose caller gave this timeout (None: `default.api.timeout.ms`)."""
        limit_s = self.config["default.api.timeout.ms"] / 1000 if timeout_s is None else timeout_s
        return limit_s if self._close_by is None else max(0.0, min(limit_s, self._close_by - time.monotonic()))

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop for at most so long. Raises KafkaError REQUEST_TIMED_OUT."""
        limit_s = self._limit_s(timeout_s)
        try:
            return self._background.call(work, limit_s)
        except TimeoutError:
            raise self._client.no_answer(limit_s * 1000) from None

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Around the rest of a construction: if it fails the loop ends."""
        try:
            yield
        except BaseException:
            self._background.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Finish the work, then `_end`."""

    @abstractmethod
    async def _shut(self) -> None:
        """End what lives on the loop beside the client."""

    def _end(self, timeout_s: float | None = None) -> None:
        """End what lives on the loop; whatever waits for an answer meanwhile waits for at most so long (None: no limit)."""

        async def work() -> None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._shut()
            except TimeoutError:
                pass  # the broker finds out by itself that this client is gone
            finally:
                await self._client.close()

        self._background.call(work())
        self._background.stop()
