"""One broker: what is started in which order, and stopped in the reverse.

Start: data folder (lock, identity) -> listener bound (a port in use is found before any work) -> store ->
broker registration and controller election -> topics (deletions finished, logs recovered and led) ->
coordinators (their logs loaded) -> network threads. Only then does it serve, and say so.

Stop: network (no new requests, what is served is finished) -> handlers -> coordinators -> housekeeping ->
logs (flushed, closed, checkpoints) -> store (the registration vanishes) -> clean-shutdown mark -> lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock import log
from penstock.broker.config import BrokerConfig
from penstock.broker.context import Context, Endpoint
from penstock.broker.coordinator import Coordinators
from penstock.broker.dispatch import Dispatch
from penstock.broker.folder import STORE, DataFolder
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.store.base import Store, paths
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.topics import Topics
from penstock.config import ConfigError
from penstock.pyx.border import DataPlane
from penstock.pyx.logs import Logs

LISTENER = "PLAINTEXT"

_log = log.get("broker.server")


class ServerError(Exception):
    """The broker can't start; the text is one sentence for the user."""


class Server:
    """A broker in this process. `await start()`, then `await stop()` once; both on one loop."""

    def __init__(
        self, config: BrokerConfig, data: Path, listen: Endpoint, advertised: Endpoint | None
    ) -> None:
        self.config = config
        self.node_id: int = config["broker.id"]
        self._data = data
        self._listen = listen
        self._advertised = advertised
        self._logs = Logs()
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self._clean = False

    async def start(self) -> Endpoint:
        """Start; returns the bound address once it serves.

        Raises ServerError, FolderError, StoreError, OSError; everything that was started is stopped then.
        """
        try:
            return await self._start()
        except BaseException:
            await self._unwind()
            raise

    async def stop(self) -> None:
        """Stop cleanly: all that was answered is flushed. Raises OSError if a disk refuses."""
        self._clean = True
        await self._unwind()

    async def _unwind(self) -> None:
        failure: BaseException | None = None
        while self._undo:
            step = self._undo.pop()
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other parts must still be stopped; raised below
                _log.error("while stopping: %s", error)
                failure = failure or error
                self._clean = False  # What failed may not be flushed: the next start must look.
        if failure is not None:
            raise failure

    async def _start(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        folder = await loop.run_in_executor(None, DataFolder.open, self._data, self.node_id)
        self._undo.append(lambda: self._close_folder(folder))
        bound, data_plane = self._bind()
        self._undo.append(lambda: self._stop_data_plane(data_plane))
        store = await EmbeddedStore.open(folder.path / STORE)
        self._undo.append(store.close)
        executor = ThreadPoolExecutor(self.config["num.recovery.threads.per.data.dir"], "logs")
        self._undo.append(lambda: self._close_logs(executor))
        advertised = self._advertised or bound
        advertised = advertised._replace(port=advertised.port or bound.port)
        self.config.settle("log.dirs", str(folder.path))
        self.config.settle("listeners", f"{LISTENER}://{bound}")
        self.config.settle("advertised.listeners", f"{LISTENER}://{advertised}")
        controller_epoch = await _register(store, self.node_id, advertised)
        await self._load_altered(store)
        topics = Topics(self.node_id, self.config, store, folder, self._logs, executor)
        await topics.load(controller_epoch)
        coordinators = Coordinators()
        context = Context(
            node_id=self.node_id,
            config=self.config,
            store=store,
            topics=topics,
            partitions=self._logs,
            coordinators=coordinators,
            advertised=advertised,
            cluster_id=folder.cluster_id,
            data_folder=folder.path,
        )
        housekeeping = Housekeeping(context)
        housekeeping.start()
        self._undo.append(housekeeping.stop)
        await coordinators.start(context)
        self._undo.append(coordinators.stop)
        dispatch = Dispatch(context, data_plane)
        self._undo.append(dispatch.stop)
        loop.add_reader(data_plane.request_fd, lambda: dispatch.take(data_plane.take_requests()))
        self._undo.append(lambda: self._stop_serving(data_plane))
        data_plane.start()
        return bound

    def _bind(self) -> tuple[Endpoint, DataPlane]:
        config = self.config
        data_plane = DataPlane(
            network_threads=config["num.network.threads"],
            node_id=self.node_id,
            max_request_bytes=config["socket.request.max.bytes"],
            max_idle_ms=config["connections.max.idle.ms"],
            queued_bytes_max=config["queued.max.request.bytes"],
            fetch_max_bytes=config["fetch.max.bytes"],
            logs=self._logs,
        )
        try:
            port = data_plane.listen(self._listen.host, self._listen.port, LISTENER)
        except OSError as error:
            data_plane.stop()
            raise ServerError(
                f"cannot listen on {self._listen}: {error.strerror or error}; choose another `--listen`"
            ) from None
        return Endpoint(self._listen.host, port), data_plane

    async def _load_altered(self, store: Store) -> None:
        path = paths.broker_config(self.node_id)
        if await store.exists(path) is not None:
            self.config.alter(json.loads((await store.get(path))[0])["config"])

    async def _stop_serving(self, data_plane: DataPlane) -> None:
        # The loop goes on answering while the network threads finish what they serve.
        loop = asyncio.get_running_loop()
        request_fd = data_plane.request_fd
        await loop.run_in_executor(None, data_plane.stop)
        loop.remove_reader(request_fd)

    async def _stop_data_plane(self, data_plane: DataPlane) -> None:
        data_plane.stop()

    async def _close_logs(self, executor: ThreadPoolExecutor) -> None:
        loop, logs = asyncio.get_running_loop(), self._logs
        closing = [
            loop.run_in_executor(executor, logs.stop, name, index) for name, index in logs.partitions()
        ]
        results = await asyncio.gather(*closing, return_exceptions=True)
        executor.shutdown()
        await loop.run_in_executor(None, logs.write_checkpoints)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _close_folder(self, folder: DataFolder) -> None:
        folder.close(clean=self._clean)


async def _register(store: Store, node_id: int, advertised: Endpoint) -> int:
    """Say in the store that this broker lives and is the controller; returns the controller's epoch."""
    endpoint = f"{LISTENER}://{advertised}"
    broker = {
        "version": 4,
        "host": advertised.host,
        "port": advertised.port,
        "jmx_port": -1,
        "endpoints": [endpoint],
        "listener_security_protocol_map": {LISTENER: "PLAINTEXT"},
        "rack": None,
    }
    await store.create(paths.broker(node_id), json.dumps(broker).encode(), ephemeral=True, parents=True)
    controller = json.dumps({"version": 1, "brokerid": node_id}).encode()
    await store.create(paths.CONTROLLER, controller, ephemeral=True, parents=True)
    if await store.exists(paths.CONTROLLER_EPOCH) is None:
        await store.create(paths.CONTROLLER_EPOCH, b"0")
    # The epoch is a plain number in the source documents, not JSON.
    epoch = int((await store.get(paths.CONTROLLER_EPOCH))[0]) + 1
    await store.set(paths.CONTROLLER_EPOCH, str(epoch).encode())
    return epoch


def parse_endpoint(text: str, what: str) -> Endpoint:
    """`host:port`, `[v6]:port`, or `PLAINTEXT://host:port`. Raises ConfigError."""
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme != LISTENER:
        raise ConfigError(f"{what} `{text}`: only `{LISTENER}://` is supported")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{what} `{text}` is not of the form host:port")
    return Endpoint(host.strip("[]") or "127.0.0.1", int(port))
