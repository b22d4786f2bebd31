"""The end of tasks that run beside the one that began them."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, of which some may never have begun (None), and wait until each has ended, however it did."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
