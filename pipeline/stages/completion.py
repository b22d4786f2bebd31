"""What a stop lets come to its end: an open transaction would hold up others until the broker's timeout ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from penstock import tasks

LAST_TURN_S = 10.0
"""How long a stop waits for the turns and the commits under way."""


async def to_its_end(work: Awaitable[None]) -> None:
    """Await work; if this is cancelled, the work has some time to finish, so that a clean stop leaves no transaction open."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=LAST_TURN_S)
        await tasks.end(task)
        raise
    finally:
        del task  # or it and its exception hold each other, and all that was fetched, until garbage is collected
