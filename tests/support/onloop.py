"""Tests that are coroutines: each runs on a loop of its own, whose clock may be the test's, or leap over all waiting."""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test as a function, with the parameters and fixtures of the coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class SetLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still but for what a test adds to `now_s`; sockets are served as ever."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


def on_set_loop(test: Callable[Concatenate[SetLoop, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test as a function; the coroutine gets its loop first."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=SetLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, SetLoop)
            runner.run(test(loop, *args, **kwargs))

    # Without the loop, which pytest would take for a fixture.
    parameters = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions may have one
    return run


class _Leaps(selectors.DefaultSelector):
    """Waits for nothing: the time that it would have waited is over at once."""

    passed_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.passed_s += timeout
            timeout = 0
        return super().select(timeout)


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while it works, and leaps to whatever is due next when there is nothing to do. How long a
    test takes has then no say in what comes first. For tests that wait for timers alone, not for threads or sockets."""

    def __init__(self) -> None:
        self._leaps = _Leaps()
        super().__init__(self._leaps)

    def time(self) -> float:
        return self._leaps.passed_s


def run_leaping(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives on a loop that leaps."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(work)
