"""ZooKeeper for tests, alone or as an ensemble, on ports of 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient

from penstock.bench import zookeeper
from penstock.bench.zookeeper import VERSION
from penstock.broker.store.base import Store
from penstock.broker.store.zookeeper import ZooKeeperStore
from penstock.ports import hold_ports
from support.class_archive import archived
from support.harness import output
from support.kafka_jars import HEAP, kafka_classpath
from support.patience import until

SESSION_MS = 6000
# Ticks are short, so that sessions may be; only the machine's own end would need what is flushed.
SETTINGS = "tickTime=500\ninitLimit=40\nsyncLimit=20\n"
JVM = [*HEAP, "-Dzookeeper.forceSync=no"]
_roots = itertools.count(1)


class ZooKeeper(zookeeper.ZooKeeper):
    """One server, with short ticks."""

    def __init__(
        self, folder: Path, *, port: int = 0, number: int = 1, ensemble: str = "", jvm: list[str] | None = None
    ) -> None:
        options = [*JVM, *(classes() if jvm is None else jvm)]
        super().__init__(folder, port=port, number=number, settings=SETTINGS + ensemble, jvm=options)


@functools.cache
def classes() -> list[str]:
    """A JVM's options for the archive of ZooKeeper's classes."""
    return archived("zookeeper", kafka_classpath(VERSION), _run_once)


def _run_once(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
        server = ZooKeeper(Path(folder) / "server", jvm=[f"-XX:ArchiveClassesAtExit={archive}"]).start()
        with connected(server.address) as client:
            client.create("/n", b"n", ephemeral=True)
        server.kill(signal.SIGTERM)


@contextlib.contextmanager
def connected(servers: str, client_id: tuple[int, bytes] | None = None) -> Iterator[KazooClient]:
    """A client of its own, in its own session or in the one of that id and password."""
    client = KazooClient(servers, client_id=client_id)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def ensemble(folder: Path) -> Iterator[list[ZooKeeper]]:
    """Three servers that have elected a leader."""
    ports = hold_ports(9)
    lines = "".join(f"server.{n}=127.0.0.1:{ports[3 * n - 3]}:{ports[3 * n - 2]}\n" for n in (1, 2, 3))
    servers = [ZooKeeper(folder / str(n), port=ports[3 * n - 1], number=n, ensemble=lines) for n in (1, 2, 3)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            until(server.serves, "the ensemble's election", server.log_text)
        yield servers
    finally:
        for server in servers:
            server.kill()


def new_root() -> str:
    """A chroot that no other test of this process has."""
    return f"/test-{next(_roots)}/of/kafka"


def tool(*arguments: str, stdin: str = "") -> str:
    """What a Java program of Kafka 3.9's jars printed, by the name of its class."""
    return output(["java", *HEAP, "-cp", kafka_classpath(VERSION), *arguments], stdin=stdin)


class ZooKeeperHome:
    """A chroot in a ZooKeeper; see `store_homes.Home`."""

    def __init__(self, servers: str) -> None:
        self.servers = servers + new_root()
        self._sessions: list[ZooKeeperStore] = []

    async def session(self) -> ZooKeeperStore:
        """See Home."""
        self._sessions.append(await ZooKeeperStore.open(self.servers, session_timeout_ms=SESSION_MS))
        return self._sessions[-1]

    async def expire(self, store: Store) -> None:
        """See Home. The way that ZooKeeper's own tests take: a second connection of the session closes it."""
        assert isinstance(store, ZooKeeperStore)
        await asyncio.get_running_loop().run_in_executor(
            None, self._close_elsewhere, (store._session._client._session_id, store._session._client._session_passwd)
        )

    def _close_elsewhere(self, client_id: tuple[int, bytes]) -> None:
        with connected(self.servers.partition("/")[0], client_id):
            pass

    async def close(self) -> None:
        """See Home."""
        for store in self._sessions:
            await store.close()


CONNECT = 0
"""The code that a proxy notes for the first frame of a connection, which has none."""


class CuttingProxy:
    """Passes TCP connections on to a server, frames of ZooKeeper's protocol whole: a test may hold back answers, cut
    connections, and see which requests were sent on each."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[list[int]] = []
        """Of each connection, the codes of the requests that were sent on it."""
        self._passes = {"requests": True, "answers": True}
        self._accepts = threading.Event()
        self._accepts.set()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, what: str) -> None:
        """From now on pass no `requests`, or no `answers`, until the connections are cut."""
        self._passes[what] = False

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections; refuse: take no new ones until `mend`."""
        if refuse:
            self._accepts.clear()
        with self._lock:
            cut, self._open = self._open, []
        for one in cut:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._passes = dict.fromkeys(self._passes, True)

    def mend(self) -> None:
        """Take connections again."""
        self._accepts.set()

    def close(self) -> None:
        """End."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            if not self._accepts.is_set():
                ours.close()
                continue
            try:
                theirs = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                ours.close()
                continue
            codes: list[int] = []
            self.requests.append(codes)
            with self._lock:
                self._open += [ours, theirs]
            threading.Thread(target=self._pass, args=(ours, theirs, codes), daemon=True).start()
            threading.Thread(target=self._pass, args=(theirs, ours, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, codes: list[int] | None) -> None:
        with contextlib.suppress(OSError), source, target:
            while (head := _exactly(source, 4)) and (frame := _exactly(source, struct.unpack(">i", head)[0])):
                if not self._passes["answers" if codes is None else "requests"]:
                    continue
                if codes is not None:
                    codes.append(struct.unpack_from(">i", frame, 4)[0] if codes else CONNECT)
                target.sendall(head + frame)


def _exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes; b"" at the end."""
    got = b""
    while len(got) < size:
        more = source.recv(size - len(got))
        if not more:
            return b""
        got += more
    return got
