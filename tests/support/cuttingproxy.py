"""Ways between processes that a test cuts and heals, as a network does: what is cut loses no connection, and passes no byte.

A proxy listens on loopback in front of a port. Of a connection it knows from whom it comes, as its ZooKeeper proxy is one
broker's own, or as its first request bears the client id of a broker; whoever else connects is never cut.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading

Way = tuple[str, str]
"""From whom, to whom bytes go. Names are free: `1` is broker 1."""
_BROKER = re.compile(rb"broker-(\d+)")
_CLIENT_ID_AT = 12
"""Of a request: size, api key, version and correlation id stand before it."""


class Net:
    """Which ways are cut. Proxies of one net are closed together."""

    def __init__(self) -> None:
        self._cut: set[Way] = set()
        self._changed = threading.Condition()
        self._proxies: list[Proxy] = []
        self._closed = False

    def proxy(self, port: int, target: str, source: str = "") -> Proxy:
        """A proxy in front of a port, of the one that is called `target`; source: from whom all of its connections come."""
        made = Proxy(self, port, target, source)
        self._proxies.append(made)
        return made

    def cut(self, *ways: Way) -> None:
        """From now on pass nothing on these ways."""
        with self._changed:
            self._cut.update(ways)

    def cut_off(self, name: str, *others: str) -> None:
        """Pass nothing between one and these others, either way."""
        self.cut(*((name, other) for other in others), *((other, name) for other in others))

    def heal(self) -> None:
        """Pass everything again, what was held back first."""
        with self._changed:
            self._cut.clear()
            self._changed.notify_all()

    def await_open(self, way: Way) -> bool:
        """Until a way is open; False: all proxies are closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or way not in self._cut)
            return not self._closed

    def close(self) -> None:
        """End."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for proxy in self._proxies:
            proxy.close()


class Proxy:
    """See `Net.proxy`. Its port is the address of what is behind it, for all who may be cut off from that."""

    def __init__(self, net: Net, port: int, target: str, source: str) -> None:
        self._net = net
        self._to = port
        self._target = target
        self._source = source
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End it and its connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections, self._open = self._open, []
        for one in connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        source = self._source or _source_of(ours)
        if not self._net.await_open((source, self._target)):
            return ours.close()
        try:
            theirs = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            return ours.close()
        with self._lock:
            self._open += [ours, theirs]
        back = threading.Thread(target=self._pass, args=(theirs, ours, (self._target, source)), daemon=True)
        back.start()
        self._pass(ours, theirs, (source, self._target))
        back.join()
        with self._lock:
            self._open = [one for one in self._open if one not in (ours, theirs)]
        ours.close()
        theirs.close()

    def _pass(self, source: socket.socket, target: socket.socket, way: Way) -> None:
        """Until one of the two ends, which ends the other. An end is news, too: it waits behind a cut."""
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and self._net.await_open(way):
                target.sendall(data)
        self._net.await_open(way)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _source_of(connection: socket.socket) -> str:
    """The broker whose client id the first request bears; else nobody."""
    with contextlib.suppress(OSError, struct.error):
        begin = _CLIENT_ID_AT + 2
        (size,) = struct.unpack_from(">h", _peek(connection, begin), _CLIENT_ID_AT)
        found = _BROKER.match(_peek(connection, begin + max(size, 0))[begin:])
        return found[1].decode() if found else ""
    return ""


def _peek(connection: socket.socket, size: int) -> bytes:
    return connection.recv(size, socket.MSG_PEEK | socket.MSG_WAITALL)
