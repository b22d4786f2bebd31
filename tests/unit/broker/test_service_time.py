"""The time of a request's service: its steps are work, its awaits aren't, and nothing of the coroutine is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.broker.servicetime import ServiceTime

NAP_NS = 50_000_000


def nap() -> None:
    time.sleep(NAP_NS / 1e9)


def test_steps_are_work_and_awaits_are_not() -> None:
    async def handler() -> str:
        nap()
        loop, waited = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon(loop.call_later, 4 * NAP_NS / 1e9, waited.set)  # From the end of this step on, however long that takes.
        await waited.wait()
        nap()
        return "done"

    async def main() -> tuple[str, ServiceTime]:
        service = ServiceTime()
        return await service.run(handler()), service

    result, service = asyncio.run(main())
    assert result == "done"
    assert 2 * NAP_NS <= service.local_ns <= time.monotonic_ns() - service.begun_ns - 4 * NAP_NS


def test_work_before_the_beginning_belongs_to_it() -> None:
    service = ServiceTime()
    nap()
    service.work(service.begun_ns)
    made_ns = service.begun_ns
    nap()
    service.begin()
    assert service.local_ns >= NAP_NS
    assert made_ns + NAP_NS <= service.begun_ns <= time.monotonic_ns() - service.local_ns


def test_errors_pass_through() -> None:
    async def handler() -> None:
        await asyncio.sleep(0)
        nap()
        raise ValueError("wrong")

    service = ServiceTime()

    async def main() -> None:
        await service.run(handler())

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(main())
    assert service.local_ns >= NAP_NS


def test_a_cancellation_reaches_the_coroutine_which_may_still_await() -> None:
    seen: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise

    async def serve() -> None:
        await ServiceTime().run(handler())

    async def main() -> None:
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
