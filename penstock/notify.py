"""What a service tells systemd (Type=notify): that it is ready, what it is doing, that it still lives.

Without `NOTIFY_SOCKET` in the environment nobody listens, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

ENVIRONMENT = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
EXTENSION_S = 300  # what a play waits, too, for a start that stands still (`stalled_seconds`)


def ready(status: str) -> None:
    """The service does its work from now on."""
    _send(f"READY=1\nSTATUS={_line(status)}")


def status(text: str) -> None:
    """One line for `systemctl status`."""
    _send(f"STATUS={_line(text)}")


def progress(text: str) -> None:
    """Like `status`, of a start or stop that moves: it gets more time before systemd gives it up."""
    _send(f"STATUS={_line(text)}\nEXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")


def stopping() -> None:
    """The service ends."""
    _send("STOPPING=1\nSTATUS=stopping")


async def keep_watchdog(is_alive: Callable[[], bool] = lambda: True) -> None:
    """Tell systemd that this loop turns, twice in the time that it allows (`WatchdogSec=`), until cancelled; not while
    `is_alive` says no."""
    try:
        allowed_s = int(os.environ.get(WATCHDOG, "0")) / 1_000_000
    except ValueError:
        return
    while allowed_s > 0:
        if is_alive():
            _send("WATCHDOG=1")
        await asyncio.sleep(allowed_s / 2)


def _line(text: str) -> str:
    return " ".join(text.split())


def _send(message: str) -> None:
    address = os.environ.get(ENVIRONMENT, "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.setblocking(False)
        try:
            out.sendto(message.encode(), address)
        except OSError:
            # A service must not fail for want of somebody who listens; systemd itself sees what it isn't told.
            return
