"""What a broker inside this process has from the cluster around it, in place of a ZooKeeper and a network of its own."""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.broker.store.embedded import EmbeddedSessions

IN_PROCESS = "in-process"
"""The `zookeeper.connect` of such a broker."""


class Neighbours(Protocol):
    """From one start of a broker to its end."""

    sessions: EmbeddedSessions

    def prepare(self, broker: int, sock: socket.socket) -> None:
        """Given each socket before it is connected to another broker. Raises OSError."""
        ...
