"""Tasks that run for as long as the broker does: one that fails says so, since no caller waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock import log

_log = log.get(__name__)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task on the running loop; what it raises is logged when it ends."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_say)
    return task


def _say(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("the task `%s` has failed", task.get_name(), exc_info=error)
