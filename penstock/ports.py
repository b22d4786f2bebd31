"""Ports of 127.0.0.1 for servers that start later, or again.

Another process may take a port that was only looked at, before its server listens on it, and again while that server is
down. Here a socket that never listens stays bound to the port. Until that socket is closed, Linux gives the port to nobody
who asks for any free port, be it to listen or to connect. Servers that set SO_REUSEADDR may listen on the port, and nearly
all set it: ours, Java's, Go's and Python's.
"""

from __future__ import annotations

import socket
import weakref

ADDRESS = "127.0.0.1"


class HeldPort:
    """A free port, and only its holder's until the object is gone. Raises OSError if there is none."""

    def __init__(self) -> None:
        holder = socket.socket()
        weakref.finalize(self, holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((ADDRESS, 0))
        self.number: int = holder.getsockname()[1]


_held: list[HeldPort] = []


def hold_ports(count: int) -> list[int]:
    """Free ports, all different, which are this process's until its end. Raises OSError if there are too few."""
    made = [HeldPort() for _ in range(count)]
    _held.extend(made)
    return [one.number for one in made]
