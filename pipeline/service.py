"""The life of a service process: start, say so, run, and stop cleanly on SIGTERM or SIGINT, watched meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import click

from penstock import interrupts, log, notify
from penstock.config import Config
from penstock.errors import os_error_text
from penstock.hints import quoted
from penstock.http import HttpServer
from penstock.metrics import Health, Process, Source, routes

GARBAGE_THRESHOLD = 10_000
"""New objects until Python looks for garbage in cycles: a turn of small batches makes thousands, all free without that."""


class Replaced(click.ClickException):
    """Another process does this one's work: an exit code of its own, so that no unit starts it again."""

    exit_code = 4


@contextlib.asynccontextmanager
async def serving(config: Config, part: str, sources: Sequence[Source], health: Health) -> AsyncIterator[None]:
    """While the body runs, serve figures and health of a part (mirror, dedupe, etl) at its `penstock.PART.http.listen`, if that
    is given. The loop of the process answers. Raises ConfigError, and ClickException for an address that can't be had."""
    key = f"penstock.{part}.http.listen"
    if not config[key]:
        yield
        return
    server = HttpServer(config[key], routes([Process(part), *sources], health), public=config["penstock.http.public"], key=key)
    try:
        host, port = await server.start()
    except OSError as error:
        raise click.ClickException(
            f"`{key}={config[key]}` can't be listened at: {os_error_text(error)}\n"
            f"hint: `ss -ltnp` names who has the port; another one: `--set {quoted(f'{key}=127.0.0.1:0')}`"
        ) from None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.get(__name__).info("figures are at http://%s/metrics, health is at /health/live and /health/ready", address)
    try:
        yield
    finally:
        await server.stop()


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first_cause(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def _supervise(
    name: str,
    start: Callable[[], Awaitable[Any]],
    run: Callable[[], Awaitable[Any]],
    close: Callable[[], Awaitable[Any]],
    served: AbstractAsyncContextManager[None],
) -> None:
    stop = asyncio.Event()
    interrupts.hear(stop, log.get(__name__).warning)

    async def work() -> None:
        notify.status("starting")
        await start()
        gc.freeze()
        print(f"penstock {name} started", flush=True)
        notify.ready("running")
        await run()

    async with served:
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
    served: AbstractAsyncContextManager[None] | None = None,
) -> None:
    """Run a service on an asyncio loop of its own; `served` surrounds all of it (see `serving`).

    Prints `penstock NAME started` once `start` has returned. SIGTERM and SIGINT cancel what runs, then
    `close` is awaited and this returns. What `start` or `run` raises comes out as it is (of a group, its first
    cause).
    """
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
    try:
        asyncio.run(_supervise(name, start, run, close, served or contextlib.nullcontext()))
    except BaseExceptionGroup as group:
        raise _first_cause(group) from None
