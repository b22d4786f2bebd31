"""Tests that are coroutines: each runs on a loop of its own, whose clock may be the test's."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


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
