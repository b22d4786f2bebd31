"""Thousands of connections that do nothing: each is served, and costs next to nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dataplane import api_versions
from support.harness import BrokerProcess

CONNECTIONS = 2000
BYTES_EACH_MAX = 8 << 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > CONNECTIONS + 100, "this user may not open so many sockets: raise the hard limit of `ulimit -n`"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = BrokerProcess(tmp_path / "data")
    yield made.start()
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rss_bytes(broker: BrokerProcess) -> int:
    (line,) = [one for one in Path(f"/proc/{broker.pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def test_idle_connections_cost_little(broker: BrokerProcess) -> None:
    frame = api_versions(7)
    with contextlib.ExitStack() as opened:

        def connect(count: int) -> list[socket.socket]:
            return [opened.enter_context(socket.create_connection(("127.0.0.1", broker.port), 30)) for _ in range(count)]

        def ask(peers: list[socket.socket]) -> None:
            for peer in peers:
                peer.sendall(struct.pack(">i", len(frame)) + frame)
            for peer in peers:
                (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
                assert peer.recv(size, socket.MSG_WAITALL)[:4] == struct.pack(">i", 7)

        ask(connect(50))
        before = rss_bytes(broker)
        peers = connect(CONNECTIONS)
        ask(peers)
        # Buffers that a busy connection had are given back once it has been idle for a few seconds.
        end = time.monotonic() + 120
        while rss_bytes(broker) - before > CONNECTIONS * BYTES_EACH_MAX:
            assert time.monotonic() < end, "idle connections keep too much memory"
            time.sleep(0.1)
        ask(peers)
