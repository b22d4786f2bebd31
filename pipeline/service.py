"""The life of a service process: start, say so, run, and stop cleanly on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import click

from penstock import notify

GARBAGE_THRESHOLD = 10_000
"""New objects until Python looks for garbage in cycles: a turn of small batches makes thousands, all free without that."""


class Replaced(click.ClickException):
    """Another process does this one's work: an exit code of its own, so that no unit starts it again."""

    exit_code = 4


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_cause(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def _supervise(
    name: str,
    start: Callable[[], Awaitable[Any]],
    run: Callable[[], Awaitable[Any]],
    close: Callable[[], Awaitable[Any]],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def work() -> None:
        notify.status("starting")
        await start()
        gc.freeze()
        print(f"penstock {name} started", flush=True)
        notify.ready("running")
        await run()

    watchdog = asyncio.ensure_future(notify.keep_watchdog())
    stopping = asyncio.ensure_future(stop.wait())
    working = asyncio.ensure_future(work())
    try:
        await asyncio.wait([stopping, working], return_when=asyncio.FIRST_COMPLETED)
        notify.stopping()
        if not working.done():
            working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
    finally:
        stopping.cancel()
        await close()
        watchdog.cancel()


def run_until_stopped(
    name: str,
    start: Callable[[], Awaitable[Any]],
    run: Callable[[], Awaitable[Any]],
    close: Callable[[], Awaitable[Any]],
) -> None:
    """Run a service on an asyncio loop of its own.

    Prints `penstock NAME started` once `start` has returned. SIGTERM and SIGINT cancel what runs, then
    `close` is awaited and this returns. What `start` or `run` raises comes out as it is (of a group, its first
    cause).
    """
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
    try:
        asyncio.run(_supervise(name, start, run, close))
    except BaseExceptionGroup as group:
        raise _first_cause(group) from None
