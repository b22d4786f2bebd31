"""A broker inside this process: for tests and for tools that want one without a service.

    from penstock.broker import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

It is the broker of `penstock broker`, with its own asyncio loop in a thread; any number of them may run at once. Without a
folder of its own it keeps its data in a temporary one, which goes when it is closed or the process ends. A process that ends
without `close` ends the broker as `kill -9` would, and so does `kill`: what was acknowledged is there at the next start.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from penstock.broker.configs.brokerconfig import load
from penstock.broker.endpoint import Endpoint
from penstock.broker.faults import Faults
from penstock.broker.listeners import single
from penstock.broker.neighbours import Neighbours
from penstock.broker.server import Server
from penstock.ports import HeldPort

T = TypeVar("T")


class Broker:
    """One broker, started by `with` or `start()`.

    data: its folder; None = a temporary one. port: on 127.0.0.1; 0 = any free one, which a restart keeps.
    properties: as in a broker's properties file, by Kafka's names; values may be numbers and booleans. neighbours: given by a
    `Cluster`, asked at each start.

    `faults` plants faults (`penstock.broker.faults.Faults`): they outlive a restart.

    Raises ConfigError for properties, on `start` ServerError, FolderError, StoreError or OSError.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        port: int = 0,
        properties: Mapping[str, object] | None = None,
        neighbours: Callable[[], Neighbours] | None = None,
    ) -> None:
        self.faults = Faults()
        self._neighbours = neighbours
        # Tests run many brokers at once, often in memory: none of them keeps a ballast unless a test asks for it.
        given = {"penstock.ballast.bytes": 0, **(properties or {})}
        self._given = [f"{name}={_text(value)}" for name, value in given.items()]
        load(overrides=self._given)  # A wrong property is said here, not at the start.
        self._port = port
        self._held: HeldPort | None = None
        self._own_folder = data is None
        self._data = Path(tempfile.mkdtemp(prefix="penstock-") if data is None else data)
        if self._own_folder:
            atexit.register(self._remove_folder)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._ended: asyncio.Event | None = None
        self._serving = threading.Event()
        self._killed = False
        self._going_on = threading.Event()
        self._going_on.set()
        self._failure: BaseException | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients' `bootstrap.servers`. Raises RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the broker was not started yet: it has no port")
        return f"127.0.0.1:{self._port}"

    @property
    def http(self) -> str:
        """`host:port` of its figures and health (`penstock.http.listen`). Raises RuntimeError if there are none."""
        if self._server is None or self._server.http is None:
            raise RuntimeError("the broker doesn't run, or lacks the property `penstock.http.listen`")
        return str(self._server.http)

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._data

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    def counters(self) -> dict[str, int]:
        """What its network threads count, by name (`penstock.pyx.net.border.DataPlane.counters`); empty while it is stopped."""
        server = self._server
        return {} if server is None else server.counters()

    def start(self) -> Broker:
        """Start it; returns when it serves. Nothing happens if it runs already."""
        self.launch()
        self._serving.wait()
        if self._failure is not None and self._thread is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    def launch(self) -> None:
        """Begin to start it; `start` waits, and raises what is wrong."""
        if self._thread is not None:
            return
        if not self._port:
            self._held = HeldPort()
            self._port = self._held.number
        self._failure, self._killed = None, False
        self._serving.clear()
        self._thread = threading.Thread(target=self._run, name="penstock-broker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it cleanly; its data stays. Nothing happens if it doesn't run. Raises OSError if a disk refuses."""
        self._end()

    def kill(self) -> None:
        """End it as `kill -9` ends a process: connections are reset, nothing is flushed, nothing more is answered. Its data
        stays, as it is in this moment. Nothing happens if it doesn't run."""
        self._killed = True
        self._end()

    def pause(self) -> None:
        """Have it stand still as SIGSTOP does: connections stay, and nothing is answered. Raises RuntimeError if it doesn't
        run."""
        server, paused = self._server, threading.Event()
        if server is None or self._loop is None:
            raise RuntimeError("the broker doesn't run")
        if not self._going_on.is_set():
            return
        self._going_on.clear()
        self._loop.call_soon_threadsafe(self._stand_still, server, paused)
        paused.wait()

    def resume(self) -> None:
        """Let a paused one go on."""
        self._going_on.set()

    def call(self, work: Callable[[Server], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """What `work` gives on the broker's loop. Raises TimeoutError, and RuntimeError if it doesn't run."""
        if self._server is None or self._loop is None:
            raise RuntimeError("the broker doesn't run")
        asked = asyncio.run_coroutine_threadsafe(work(self._server), self._loop)
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            raise

    def restart(self) -> None:
        """Stop and start again, with the same port, data and faults."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop; a temporary data folder is removed, and the port is anybody's again."""
        self.stop()
        self._held = None
        if self._own_folder:
            self._remove_folder()
            atexit.unregister(self._remove_folder)

    def _end(self) -> None:
        self.resume()
        if self._thread is None:
            return
        self._serving.wait()
        if self._loop is not None and self._ended is not None:
            with contextlib.suppress(RuntimeError):  # The loop may have ended by itself.
                self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def _stand_still(self, server: Server, paused: threading.Event) -> None:
        server.pause(paused, self._going_on)
        if self._killed:
            server.sever()
        else:
            server.go_on()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the thread that starts or stops the broker raises it
            self._failure = error
        finally:
            self._server = None
            self._serving.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        where = Endpoint("127.0.0.1", self._port)
        neighbours = None if self._neighbours is None else self._neighbours()
        server = Server(load(overrides=self._given), self._data, single(where), faults=self.faults, neighbours=neighbours)
        self._port = (await server.start()).port
        self._server = server
        self._serving.set()
        await self._ended.wait()
        await (server.kill() if self._killed else server.stop())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
