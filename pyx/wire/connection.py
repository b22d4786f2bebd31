"""A blocking connection that speaks single requests: for what no client library can be made to send, and for figures
that are of the broker alone. Stages and commands use `penstock.pipeline.clients.connection`, which waits for many answers
at once.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from penstock.pyx.wire.header import RESPONSES, decode_response, encode_request
from penstock.pyx.wire.message import Message


class WireConnection:
    """Answers come decoded from `ask`; a caller that sends frames of its own also reads the answers."""

    def __init__(self, bootstrap: str, timeout_s: float = 30.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> WireConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and return its decoded answer."""
        self._correlation_id += 1
        self.send(encode_request(request, version, self._correlation_id, "test"))
        correlation_id, response = decode_response(RESPONSES[request.API_KEY], self.receive(), version)
        assert correlation_id == self._correlation_id
        return response

    def send(self, frame: bytes) -> None:
        """Send a frame with its size in front."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame without its size; EOFError when the broker closed the connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the broker closed the connection")
            data += piece
        return bytes(data)
