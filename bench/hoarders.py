"""Clients that make a broker hold memory for requests which never come whole."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType
from typing import Self


class Hoarders:
    """Connections that announce a frame, send a part of it and then nothing, or one byte now and then.

    announced: the frame's size, bytes. sent: what each of them would send of it. every_s: the time between two bytes of
    each afterwards; 0 = none. They are connected, and have sent what the broker takes at once, when `with` begins.
    """

    def __init__(self, port: int, count: int, announced: int, sent: int, every_s: float = 0.0) -> None:
        piece = struct.pack(">i", announced) + bytes(sent)
        self._left: dict[socket.socket, memoryview] = {}
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port))
            one.setblocking(False)
            self._left[one] = memoryview(piece)
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._trickle)
        self.closed = 0
        """Of them, by the broker."""
        self._send_all()

    def _send_all(self) -> None:
        """Sends what the broker takes, until it takes nothing for a while."""
        while waiting := [one for one, left in self._left.items() if left]:
            ready = select.select([], waiting, [], 0.5)[1]
            if not ready:
                return
            for one in ready:
                self._send(one, self._left[one])

    def _send(self, one: socket.socket, data: memoryview) -> None:
        try:
            self._left[one] = data[one.send(data) :]
        except BlockingIOError:
            pass
        except OSError:
            self._gone(one)

    def _gone(self, one: socket.socket) -> None:
        if self._left.pop(one, None) is not None:
            self.closed += 1
            one.close()

    def _trickle(self) -> None:
        while not self._ended.wait(self._every_s or 0.2):
            for one in list(self._left):
                if self._left[one]:
                    self._send(one, self._left[one])
                elif self._every_s:
                    self._send(one, memoryview(b"x"))
                    if one in self._left:
                        self._left[one] = memoryview(b"")
                else:
                    with contextlib.suppress(BlockingIOError):
                        try:
                            if one.recv(1) == b"":
                                self._gone(one)
                        except ConnectionResetError:
                            self._gone(one)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._left:
            one.close()
