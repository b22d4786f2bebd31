"""Connections to other hosts, made on the loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable


async def connect(host: str, port: int, prepare: Callable[[socket.socket], None] = lambda sock: None) -> socket.socket:
    """Connect to one of a host's addresses. prepare: given each socket before it is connected. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"no address for `{host}`")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            prepare(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
