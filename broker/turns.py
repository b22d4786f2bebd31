"""Turns: a handler with much to do lets the loop do other work now and then, and ends when its client has gone.

All handlers share the time of one pass over the loop: many of them hold up the others no longer than one does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Self, TypeVar

T = TypeVar("T")

TURN_S = 0.005
"""How long handlers may work in one pass over the loop."""
HALF_CLOSED_S = 1.0
"""A client that has closed its connection can't be told from one that only sends nothing more and still reads. So its request
goes on for this long; an answer that takes longer is given up."""


class ClientGoneError(Exception):
    """The client of a request has gone: nobody takes the answer."""


class TurnOrder:
    """The handlers of one broker that wait for their next turn, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pass_begun_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Whether handlers have used the time of this pass. The first that asks begins it."""
        if self._pass_begun_s is None:
            self._pass_begun_s = now_s
            asyncio.get_running_loop().call_soon(self._next_pass)
        return now_s - self._pass_begun_s >= TURN_S

    async def next_turn(self) -> None:
        """Wait for a later pass, behind those that wait already."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._wake_one)
        await turn

    def _next_pass(self) -> None:
        self._pass_begun_s = None

    def _wake_one(self) -> None:
        while self._waiting and self._waiting[0].done():  # It was cancelled.
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._wake_one)


class Turns:
    """Of one request. `is_sending`: whether its client is connected and has not closed its sending half."""

    def __init__(self, order: TurnOrder | None = None, is_sending: Callable[[], bool] = lambda: True) -> None:
        self._order = order or TurnOrder()
        self._is_sending = is_sending
        self._begun_s: float | None = None  # read at the first turn: a large request is decoded in a thread, without a loop

    async def take(self) -> None:
        """Call between two pieces of work, where it does no harm if the second is never done. Raises ClientGoneError."""
        now_s = asyncio.get_running_loop().time()
        if self._begun_s is None:
            self._begun_s = now_s
        if not self._order.is_over(now_s):
            return
        await self._order.next_turn()
        if now_s - self._begun_s >= HALF_CLOSED_S and not self._is_sending():
            raise ClientGoneError

    def each(self, items: Iterable[T]) -> Walk[T]:
        """The items of a list, before each of which a turn is taken: `async for item in turns.each(items)`."""
        return Walk(self, items)


class Walk(Generic[T]):
    """A walk of a list in turns. An asynchronous generator would have to be closed where a walk is left early."""

    def __init__(self, turns: Turns, items: Iterable[T]) -> None:
        self._turns = turns
        self._left = iter(items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        for item in self._left:
            await self._turns.take()
            return item
        raise StopAsyncIteration
