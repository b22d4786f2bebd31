"""Questions to other brokers, many in a request: those that come while one is under way to a broker go in the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from penstock.broker import tasks

Q = TypeVar("Q")
A = TypeVar("A")


class Queues(Generic[Q, A]):
    """One queue a broker, until `stop`. On the loop.

    send: asks a broker, and gives an answer to each question, in their order; raises ConnectionError. size: how much of a
    request a question takes, of `most`; one that takes more goes alone.
    """

    def __init__(
        self, send: Callable[[int, Sequence[Q]], Awaitable[Sequence[A]]], size: Callable[[Q], int], most: int, name: str
    ) -> None:
        self._send = send
        self._size = size
        self._most = most
        self._waiting: dict[int, deque[tuple[Q, asyncio.Future[A]]]] = {}
        self._sending = tasks.Group(name)
        self._stopped = False

    async def ask(self, broker: int, question: Q) -> A:
        """Ask a broker. Raises ConnectionError: whether the question was read is not known."""
        if self._stopped:
            raise ConnectionError("this broker stops")
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        queue = self._waiting.get(broker)
        if queue is None:
            queue = self._waiting[broker] = deque()
            self._sending.start(self._send_all(broker, queue))
        queue.append((question, answer))
        return await answer

    async def stop(self) -> None:
        """Ask nothing more; who waits gets a ConnectionError."""
        self._stopped = True
        await self._sending.stop()

    async def _send_all(self, broker: int, queue: deque[tuple[Q, asyncio.Future[A]]]) -> None:
        taken: list[tuple[Q, asyncio.Future[A]]] = []
        try:
            while queue:
                taken = self._take(queue)
                try:
                    answers = await self._send(broker, [question for question, _ in taken])
                except ConnectionError as error:
                    _fail(taken, error)
                    continue
                for (_, answer), given in zip(taken, answers, strict=True):
                    if not answer.done():  # Who asked may have gone.
                        answer.set_result(given)
        finally:
            del self._waiting[broker]
            _fail([*taken, *queue], ConnectionError("this broker stops"))

    def _take(self, queue: deque[tuple[Q, asyncio.Future[A]]]) -> list[tuple[Q, asyncio.Future[A]]]:
        taken = [queue.popleft()]
        size = self._size(taken[0][0])
        while queue and (size := size + self._size(queue[0][0])) <= self._most:
            taken.append(queue.popleft())
        return taken


def _fail(asked: Sequence[tuple[Q, asyncio.Future[A]]], error: ConnectionError) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
