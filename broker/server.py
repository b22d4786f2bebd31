"""One broker: what is started in which order, and stopped in the reverse.

Start: log folders (lock, identity) -> listener bound (a port in use is found before any work) -> HTTP, if it is on -> store,
and all that it says (what refuses a start is found here, before anything is changed) -> topics read, log folders held against
those that there were -> broker registration and controller election -> topics loaded (deleted ones' logs removed,
every partition announced, the coordinators' logs opened) -> coordinators (their logs loaded) -> deletions finished ->
network threads -> the other logs, those with the least to recover first; each serves as soon as it is open, the
others answer what clients try again. It says that it serves when all are open, or after OPEN_FIRST_S when recovery
takes longer.

Stop: what HTTP shows -> network (no new requests, what is served is finished) -> moves (given up) -> handlers -> cleaner ->
coordinators -> periodic upkeep -> disks -> pending upkeep -> logs (flushed, closed, checkpoints) -> store (the registration
vanishes) -> HTTP -> clean-shutdown mark -> lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import log, notify
from penstock.broker import descriptors, tasks
from penstock.broker.backups import Backups
from penstock.broker.configs.brokerconfig import BrokerConfig, http_address
from penstock.broker.configs.flushes import Flushes
from penstock.broker.context import Context
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.dispatch import Dispatch, serve_brokers
from penstock.broker.endpoint import Endpoint
from penstock.broker.epochs import SINCE_MS, STEPS, next_epoch
from penstock.broker.faults import Faults
from penstock.broker.listeners import PLAINTEXT, Limits, Listener, ListenError, between_brokers, bind, refused
from penstock.broker.logs.folder import META, DataFolder
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.metadata import Way, check_alone, name_store, open_store
from penstock.broker.store.base import NodeExistsError, NoNodeError, Store, paths
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.values import INT_MAX, Fields, whole_number
from penstock.broker.topics.changes import Topics
from penstock.broker.topics.restoring import Restoring
from penstock.broker.upkeep.disks import Disks
from penstock.broker.upkeep.logcleaner import LogCleaner
from penstock.broker.upkeep.pending import PendingUpkeep
from penstock.broker.upkeep.periodic import PeriodicUpkeep
from penstock.broker.upkeep.pulse import Beats
from penstock.broker.upkeep.slowrequests import SlowRequests
from penstock.broker.upkeep.watch import PlaneWatch
from penstock.errors import KafkaError
from penstock.pyx.linux.descriptors import counters as process_counters
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.net.border import DataPlane

if TYPE_CHECKING:
    from penstock.broker.metrics.service import Watched
    from penstock.broker.neighbours import Neighbours
    from penstock.broker.replication.joining import Joining
    from penstock.broker.replication.membership import Membership

OPEN_FIRST_S = 5.0
"""How long a start waits for logs that must be recovered."""
CLOCK_STEP_S = 3600
"""By so much a clock may be behind the last start without words."""
CLOSE_AT_ONCE = 64
"""Logs that one thread closes one after the other at a stop."""

_log = log.get(__name__)


class ServerError(Exception):
    """The broker can't start; the text is one sentence for the user."""


class Server:
    """A broker in this process. `await start()`, then `await stop()` once; both on one loop."""

    def __init__(
        self,
        config: BrokerConfig,
        data: Path,
        listeners: Sequence[Listener],
        faults: Faults | None = None,
        way: Way = Way.REFUSE,
        forget: Path | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._neighbours = neighbours  # of a broker in a cluster inside this process
        self._forget = forget  # a log folder that is lost: its partitions begin again, empty
        self._way = way  # what to do when the metadata store is damaged or missing
        self._faults = faults  # asked of a broker inside a test's process; None in a service
        self.config = config
        self.node_id: int = config["broker.id"]
        self._data = data
        self._listeners = list(listeners)
        self._logs = LogManager()
        self._data_plane: DataPlane | None = None
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self._clean = False
        self._opening: asyncio.Task[None] | None = None
        self._cluster: Membership | None = None
        self._store: EmbeddedStore | None = None  # a single node's
        self._severed = False
        self._beats: Beats | None = None
        self._watched: Watched | None = None
        self.http: Endpoint | None = None
        """Where figures and health are served (`penstock.http.listen`), since before logs are opened."""
        self.left_behind = False
        """After the stop: a thread hangs in a disk, which would keep the process from its end."""
        self.failed = asyncio.Event()
        """Set when the broker can't go on: its starter stops it."""

    async def start(self) -> Endpoint:
        """Start; returns the bound address once it serves.

        Raises ServerError, FolderError, StoreError, OSError; everything that was started is stopped then.
        """
        try:
            return await self._start()
        except BaseException:
            await self._unwind()
            raise

    async def opened(self) -> None:
        """Wait, after the start, until every log is open or offline."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    async def stop(self) -> None:
        """Stop cleanly: all that was answered is flushed. Raises OSError if a disk refuses."""
        self._clean = True
        await self._unwind()

    def sever(self) -> None:
        """Cut this broker off from its clients, the other brokers, its store and its disks. Whatever it still does has no
        effect, as if its process had been killed. Safe twice."""
        self._severed, self._clean = True, False
        if self._data_plane is not None:
            self._data_plane.abort()
        if self._cluster is not None:
            self._cluster.abandon()
        if self._neighbours is not None:
            self._neighbours.sessions.abandon()
        if self._store is not None:
            self._store.abandon()
        self._logs.abandon()

    async def kill(self) -> None:
        """End as `kill -9` ends a process: nothing is flushed, answered or handed over, and the session lives on until its
        timeout. What it holds in this process is freed."""
        self.sever()
        with contextlib.suppress(Exception):  # Its parts find that nothing works any more, and `_unwind` has logged it.
            await self._unwind()

    def pause(self, paused: threading.Event, until: threading.Event) -> None:
        """Stand still, the loop on which this is called too, as SIGSTOP has a process: from `paused` until `until`."""
        assert self._data_plane is not None
        self._data_plane.pause()
        if self._cluster is not None:
            self._cluster.pause()
        paused.set()
        until.wait()

    def go_on(self) -> None:
        """End what `pause` has begun."""
        assert self._data_plane is not None
        self._data_plane.go_on()
        if self._cluster is not None:
            self._cluster.go_on()

    async def until_live(self, brokers: Set[int]) -> None:
        """Wait until this broker has heard from a controller that all of these live; at once on a single node."""
        if self._cluster is not None:
            await self._cluster.until_live(brokers)

    def counters(self) -> dict[str, int]:
        """What the network threads count (`DataPlane.counters`), and the process for descriptors; empty before the start."""
        return {} if self._data_plane is None else {**self._data_plane.counters(), **process_counters()}

    def is_alive(self) -> bool:
        """Whether no network thread is caught in a loop; one that waits for a disk lives."""
        return self._beats is None or self._beats.are_alive()

    async def _unwind(self) -> None:
        failure: BaseException | None = None
        while self._undo:
            step = self._undo.pop()
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other parts must still be stopped; raised below
                _log.log(logging.DEBUG if self._severed else logging.ERROR, "while stopping: %s", error)
                failure = failure or error
                self._clean = False  # What failed may not be flushed: the next start must check.
        if failure is not None:
            raise failure

    async def _start(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        ballast_bytes = self.config["penstock.ballast.bytes"]
        folders = log_dirs(self._data, self.config["log.dirs"] or self.config["log.dir"])
        joining = await self._begin_session(folders[0])
        # In a cluster what a power cut takes is on other brokers.
        flushes = Flushes.of(self.config["penstock.transaction.flush"]) if joining is None else Flushes.NONE
        cluster_id = None if joining is None else joining.store.cluster_id
        dirs = await loop.run_in_executor(None, LogDirs.open, folders, self.node_id, ballast_bytes, flushes, cluster_id)
        self._undo.append(lambda: self._close_folders(dirs))
        data_plane = self._data_plane = self._bind(len(folders))
        self._undo.append(lambda: self._stop_data_plane(data_plane))
        await self._start_http()
        self._limits = Limits(data_plane, self.config)
        # Until logs are opened, a start that is refused leaves the folders as clean as they were.
        self._clean = all(log_dir.was_clean for log_dir in dirs.online)
        store: Store
        if joining is None:
            check_alone(dirs)
            store = self._store = await open_store(dirs, self._way, self.config["max.partitions.per.topic"])
            self._undo.append(store.close)
            await _check_cluster(store, dirs.first)
        else:
            store = joining.store  # The folders were held against its cluster id already.
            await joining.grow(dirs, self.config["max.partitions.per.topic"])
        threads = self.config["num.recovery.threads.per.data.dir"] * len(list(dirs))
        executor, opening = ThreadPoolExecutor(threads, "logs"), ThreadPoolExecutor(threads, "opening")
        self._undo.append(lambda: self._close_logs((executor, opening), dirs))
        self.config.record("log.dirs", ",".join(str(log_dir.path) for log_dir in dirs))
        self.config.record("listeners", ",".join(f"{one.name}://{one.bind}" for one in self._listeners))
        self.config.record("advertised.listeners", ",".join(f"{one.name}://{one.client_endpoint()}" for one in self._listeners))
        await self._load_altered(store)
        make = Topics if joining is None else joining.topics
        topics = make(self.node_id, self.config, store, dirs, self._logs, executor, opening)
        if self._watched is not None:
            self._watched.health.opening = topics.logs
        self._undo.append(lambda: self._stop_opening(topics))
        context = Context(
            node_id=self.node_id,
            config=self.config,
            store=store,
            topics=topics,
            log_manager=self._logs,
            advertised=self._listeners[0].client_endpoint(),
            advertised_listeners={one.name: one.client_endpoint() for one in self._listeners},
            cluster_id=dirs.first.cluster_id,
            dirs=dirs,
            between_brokers=between_brokers(self.config, [one.name for one in self._listeners]),
        )
        data_plane.set_addresses(context.addresses())
        context.commits.start()
        self._undo.append(context.commits.stop)
        restoring: Restoring | None = None
        if joining is None:
            assert isinstance(store, EmbeddedStore)
            restoring = await self._begin_alone(context, store, executor)
        else:
            await context.load()
            await joining.admit(context, self._forget)
            self._clean = False
        most = self.config["max.connections"]
        descriptors.say(topics.partition_count(), None if most == INT_MAX else most)
        pending = PendingUpkeep(self._logs, len(list(dirs)))
        self._undo.append(pending.stop)
        disks = Disks(dirs, self._logs, topics, pending, self.failed.set)
        self._undo.append(disks.stop)  # Before the pending upkeep, which it gives work.
        await disks.start()
        periodic = PeriodicUpkeep(context)
        periodic.start()
        self._undo.append(periodic.stop)
        if restoring is None:
            context.coordinators.start_in_cluster()
            self._undo.append(context.coordinators.stop)
        else:
            await self._start_coordinators(context, restoring, flushes)
        cleaner = LogCleaner(context)
        cleaner.start()
        self._undo.append(cleaner.stop)
        dispatch = Dispatch(context, data_plane)
        self._undo.append(dispatch.stop)
        take = dispatch.take if self._faults is None else self._faults.before(dispatch.take, data_plane)
        self._undo.append(topics.logs.moving.stop)  # Before all else: a copy takes the disk from what else stops.
        loop.add_reader(data_plane.request_fd, lambda: take(data_plane.take_requests()))
        self._undo.append(lambda: self._stop_serving(data_plane))
        data_plane.start()
        if joining is not None:
            await self._join(joining, context, executor, data_plane)
        watch = PlaneWatch(data_plane)
        watch.start()
        self._undo.append(watch.stop)
        if self.config["penstock.slow.request.ms"]:
            slow = SlowRequests(data_plane)
            slow.start()
            self._undo.append(slow.stop)
        self._beats = Beats(data_plane)
        if self._watched is not None:
            self._watched.serve(context, data_plane, self._beats)
            self._undo.append(self._watched.stopping)
        if restoring is not None:
            self._opening = tasks.start(self._open_rest(topics, context.coordinators), "opening")
            await asyncio.wait([self._opening], timeout=OPEN_FIRST_S)
        elif self._watched is not None:
            self._watched.health.is_open = True
        return self._listeners[0].bind

    async def _begin_session(self, first: Path) -> Joining | None:
        """A session with the cluster's ZooKeeper; None: this is one node, which loads nothing of what a cluster needs. Raises
        StoreError, FolderError."""
        if self.config["zookeeper.connect"] is None:
            return None
        from penstock.broker.replication.joining import Joining

        serve_brokers()
        joining = Joining(self.node_id, self.config, self._neighbours)
        self._undo.append(joining.store.close)
        await joining.begin(first)
        return joining

    async def _begin_alone(self, context: Context, store: EmbeddedStore, executor: ThreadPoolExecutor) -> Restoring:
        """One node: read what the store says, hold it against the log folders, be the controller of all."""
        topics, dirs = context.topics, context.dirs
        restoring = Restoring(topics, self.node_id, self.config, store, dirs, executor)
        # All that a start can be refused for is read before anything is changed.
        controller_epoch = await _next_controller_epoch(store, context.now_ms())
        try:
            descriptors.check()
        except descriptors.DescriptorsError as error:
            raise ServerError(str(error)) from None
        await context.load()
        await restoring.read(self._forget)
        await _register(store, self.node_id, self._listeners, controller_epoch, self.config["broker.rack"])
        self._clean = False
        await restoring.load(controller_epoch)
        await self._keep_store(store, dirs)
        return restoring

    async def _start_coordinators(self, context: Context, restoring: Restoring, flushes: Flushes) -> None:
        self._undo.append(context.coordinators.stop)
        cut = [one for one in context.dirs.online if one.partitions and one.may_be_cut and not one.was_clean]
        await context.coordinators.start(bool(cut), min((one.was_flushed for one in cut), default=Flushes.ALL))
        if flushes is not Flushes.ALL:
            whose = "" if flushes is Flushes.NONE else " except those of mirror and dedupe"
            _log.info(
                "transactions%s are not flushed: a power cut may take records whose commit, and whose consumer's position, "
                "survives (penstock.transaction.flush=true prevents it)", whose,
            )  # fmt: skip
        await restoring.finish_deletions(context.coordinators.topic_deleted)

    async def _join(self, joining: Joining, context: Context, executor: ThreadPoolExecutor, data_plane: DataPlane) -> None:
        """Register, and take roles from then on. Raises StoreError."""
        self._cluster = joining.membership(context, self._listeners, self._logs, executor, data_plane)
        context.cluster = self._cluster.member
        self._cluster.outlived = self.failed.set
        joining.hear(context, lambda: data_plane.set_addresses(context.addresses()))
        self._undo.append(self._cluster.leave)
        await self._cluster.join()
        context.coordinators.joined()

    async def _open_rest(self, topics: Topics, coordinators: Coordinators) -> None:
        await topics.logs.open_rest()
        if topics.logs.all_open:
            try:
                await coordinators.after_power_cut()
            except Exception:  # noqa: BLE001 - no transactional producer could be served: whoever started the broker hears of it
                _log.exception("what a power cut has left of transactions can't be dealt with: the broker stops")
                self.failed.set()
                return
            await topics.logs.note_opened()
        if self._watched is not None:
            self._watched.health.is_open = True

    async def _start_http(self) -> None:
        """Listen for scrapes and probes, if they are asked for: what that takes isn't loaded without. Raises ServerError."""
        if (address := http_address(self.config)) is None:
            return
        from penstock.broker.metrics.service import Watched

        self._watched = Watched(self.config)
        try:
            self.http = await self._watched.start()
        except OSError as error:
            raise ServerError(refused(Endpoint(*address), error, "penstock.http.listen")) from None
        self._undo.append(self._watched.stop)

    def _bind(self, folders: int) -> DataPlane:
        config = self.config
        data_plane = DataPlane(
            network_threads=config["num.network.threads"],
            node_id=self.node_id,
            max_request_bytes=config["socket.request.max.bytes"],
            max_idle_ms=config["connections.max.idle.ms"],
            queued_bytes_max=config["queued.max.request.bytes"],
            fetch_max_bytes=config["fetch.max.bytes"],
            logs=self._logs,
            folders=folders,
            fetch_sessions=config["max.incremental.fetch.session.cache.slots"],
            fetch_sessions_bytes=config["penstock.fetch.session.cache.bytes"],
            frame_ms=config["penstock.request.arrival.timeout.ms"],
            take_ms=config["penstock.answer.taking.timeout.ms"],
            memory_patience_ms=config["penstock.request.memory.patience.ms"],
            slow_request_ms=config["penstock.slow.request.ms"],
        )
        try:
            self._listeners = bind(data_plane, self._listeners, config)
        except BaseException as error:
            data_plane.stop()
            if isinstance(error, ListenError):
                raise ServerError(str(error)) from None
            raise
        return data_plane

    async def _keep_store(self, store: EmbeddedStore, dirs: LogDirs) -> None:
        """The store is read and right: say in every folder that there is one, and keep backups of it."""
        await asyncio.get_running_loop().run_in_executor(None, name_store, dirs, store.shared.id)
        backups = Backups(store, [log_dir.path for log_dir in dirs.online[:2]])
        backups.start()
        self._undo.append(backups.stop)

    async def _load_altered(self, store: Store) -> None:
        for path, default in ((paths.default_broker_config(), True), (paths.broker_config(self.node_id), False)):
            if await store.exists(path) is None:
                continue
            node = Fields.read(path, (await store.get(path))[0])
            try:
                said = self.config.restore(node.texts("config"), default=default)
            except KafkaError as error:
                raise node.wrong(error.what) from None
            for sentence in said:
                _log.warning("the config that was altered for %s: %s", "all brokers" if default else "this broker", sentence)

    async def _stop_serving(self, data_plane: DataPlane) -> None:
        # The loop goes on answering while the network threads finish what they serve.
        loop = asyncio.get_running_loop()
        request_fd = data_plane.request_fd
        await loop.run_in_executor(None, data_plane.stop)
        loop.remove_reader(request_fd)

    async def _stop_data_plane(self, data_plane: DataPlane) -> None:
        data_plane.stop()

    async def _stop_opening(self, topics: Topics) -> None:
        await topics.logs.stop()
        self.left_behind = topics.logs.left_behind
        if self._opening is not None:
            await self._opening
        if not topics.logs.all_open:
            self._clean = False  # Some logs weren't checked: the next start must.

    async def _close_logs(self, executors: Sequence[ThreadPoolExecutor], dirs: LogDirs) -> None:
        loop, logs = asyncio.get_running_loop(), self._logs
        for executor in executors:  # What they were given last is done, then no log is opened any more.
            await loop.run_in_executor(None, executor.shutdown)
        states = logs.folder_states()
        offline = {path for path, state in states.items() if state.failed}
        failures: list[Exception] = []

        led = logs.partitions()
        closed = 0

        def close(keys: Sequence[tuple[str, int]]) -> None:
            for key in keys:
                broken = logs.folder_of(*key) in offline
                try:
                    logs.stop(*key)
                except (OSError, KafkaError) as error:
                    if not broken:
                        failures.append(error)

        async def close_some(keys: Sequence[tuple[str, int]]) -> None:
            nonlocal closed
            await loop.run_in_executor(None, close, keys)
            closed += len(keys)
            notify.progress(f"stopping: {closed} of {len(led)} logs are closed")

        # Each step may take its time on a slow disk; one that takes longer than systemd is told to wait hangs.
        notify.progress(f"stopping: {len(led)} logs are flushed")
        await loop.run_in_executor(None, logs.sync_all, lambda path: notify.progress(f"stopping: `{path}` is flushed"))
        await asyncio.gather(*(close_some(led[at : at + CLOSE_AT_ONCE]) for at in range(0, len(led), CLOSE_AT_ONCE)))
        await loop.run_in_executor(None, logs.write_checkpoints)
        for log_dir in dirs:
            if str(log_dir.path) in offline and not log_dir.offline:
                log_dir.error = "it failed"
        if failures:
            raise failures[0]

    async def _close_folders(self, dirs: LogDirs) -> None:
        # Before a controller has dealt with what a power cut took, the next start has to find the same as this one.
        dirs.close(clean=self._clean and (self._cluster is None or self._cluster.member.is_noted))


def log_dirs(data: Path, given: str | None) -> list[Path]:
    """The log folders in their order: `--data`, then those of the property `log.dirs` (commas between them)."""
    return [data, *(Path(word.strip()) for word in (given or "").split(",") if word.strip())]


async def _check_cluster(store: Store, folder: DataFolder) -> None:
    """Compare the cluster id in `meta.properties`, which has no checksum, with that in the store."""
    if await store.exists(paths.CLUSTER_ID) is None:
        content = json.dumps({"version": "1", "id": folder.cluster_id}).encode()
        await store.create(paths.CLUSTER_ID, content, parents=True)
    known = Fields.read(paths.CLUSTER_ID, (await store.get(paths.CLUSTER_ID))[0]).text("id")
    if known != folder.cluster_id:
        raise ServerError(
            f"`{folder.path / META}` says cluster.id={folder.cluster_id}, the metadata store says {known}: the file is damaged "
            f"or another cluster's; put `cluster.id={known}` into it if this store is the right one"
        )


async def _next_controller_epoch(store: Store, now_ms: int) -> int:
    """The epoch of the controller that this broker becomes. Raises BadValueError."""
    last = 0
    with contextlib.suppress(NoNodeError):
        # A plain number in the source documents, not JSON.
        last = whole_number(paths.CONTROLLER_EPOCH, (await store.get(paths.CONTROLLER_EPOCH))[0], 0, INT_MAX - 1)
    epoch = next_epoch(last, now_ms)
    if (ahead_s := epoch - (now_ms - SINCE_MS) // 1000) > CLOCK_STEP_S:
        _log.warning(
            "epoch %d of this start is %d s ahead of the wall clock, which is wrong now or was wrong at an earlier start. As "
            "long as it is behind, a folder restored from a copy may repeat an epoch: at each start in one of %d cases",
            epoch, ahead_s, STEPS,
        )  # fmt: skip
    return epoch


async def _register(
    store: Store, node_id: int, listeners: Sequence[Listener], controller_epoch: int, rack: str | None = None
) -> None:
    """Say in the store that this broker lives and is the controller."""
    first = listeners[0].client_endpoint()
    broker = {
        "version": 4,
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "endpoints": [f"{one.name}://{one.client_endpoint()}" for one in listeners],
        "listener_security_protocol_map": {one.name: PLAINTEXT for one in listeners},
        "rack": rack,
    }
    try:
        await store.create(paths.broker(node_id), json.dumps(broker).encode(), ephemeral=True, parents=True)
    except NodeExistsError:
        raise ServerError(
            f"another broker {node_id} is running in this cluster; stop it, or give this one its own `broker.id`"
        ) from None
    controller = json.dumps({"version": 1, "brokerid": node_id}).encode()
    await store.create(paths.CONTROLLER, controller, ephemeral=True, parents=True)
    epoch = str(controller_epoch).encode()
    if await store.exists(paths.CONTROLLER_EPOCH) is None:
        await store.create(paths.CONTROLLER_EPOCH, epoch)
    else:
        await store.set(paths.CONTROLLER_EPOCH, epoch)
