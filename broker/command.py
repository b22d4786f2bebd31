"""`penstock broker`: start one broker in the foreground and stop it by SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import os
import stat
import sys
from pathlib import Path

import click

from penstock import failpoints, interrupts, log, notify, tasks
from penstock.broker import check, descriptors, kernelfeatures
from penstock.broker.configs.brokerconfig import BrokerConfig, http_address, load
from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import DEFAULT_LISTEN, Listener, plan
from penstock.broker.logs.folder import FolderError
from penstock.broker.metadata import Way
from penstock.broker.server import Server, ServerError, log_dirs
from penstock.broker.store.base import BadValueError, StoreError
from penstock.config import ConfigError
from penstock.durable import PRIVATE_UMASK
from penstock.errors import KafkaError
from penstock.hints import quoted

_log = log.get(__name__)
# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 4 << 20  # from here on a block is mapped by itself, and goes back when it is freed
FREE_BYTES_KEPT = 8 << 20


@click.command("broker")
@click.option("--listen", metavar="HOST:PORT", help=f"Address to serve on, port 0 = any. [{DEFAULT_LISTEN}]")
@click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help="Data folder, before those of `log.dirs`.")
@click.option("--config", "config_path", metavar="FILE", type=click.Path(path_type=Path), help="Properties.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="A property, over the file's.")
@click.option("--advertised", metavar="HOST:PORT", help="The address that clients get, if it differs.")
@click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="Join the cluster of this ZooKeeper: `zookeeper.connect`.")
@click.option("--id", "broker_id", metavar="NUMBER", help="The number of this broker: `broker.id`.")
@click.option(
    Way.RESTORE.value,
    "restore",
    is_flag=True,
    help="Once, when the metadata store is damaged or missing: take its newest backup; what is there is set aside.",
)
@click.option(
    Way.ADOPT.value, "adopt", is_flag=True,
    help="Once, when it is lost: begin a new one with the topics in the log folders. Their retention and compaction are paused "
    "until `penstock topics confirm`.",
)  # fmt: skip
@click.option(
    "--forget-log-dir", "forget", metavar="PATH", type=click.Path(path_type=Path),
    help="Once, when a log folder is lost for good: its partitions that lie nowhere any more begin again, empty.",
)  # fmt: skip
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
@click.option(
    "--check", "only_check", is_flag=True,
    help="Say whether a start could work - properties, addresses, folders, ZooKeeper - and start nothing. Nothing is written.",
)  # fmt: skip
def command(
    listen: str | None,
    data: Path | None,
    config_path: Path | None,
    overrides: tuple[str, ...],
    advertised: str | None,
    zookeeper: str | None,
    broker_id: str | None,
    restore: bool,
    adopt: bool,
    forget: Path | None,
    log_level: str,
    only_check: bool,
) -> None:
    """Run a broker that any Kafka client can use.

    It prints one line, `penstock broker ID started on HOST:PORT`, when it serves, with `, http on HOST:PORT` behind it where
    `penstock.http.listen` is set; everything else goes to standard error.

    Example: penstock broker --listen 127.0.0.1:9092 --data /var/lib/penstock

    Example, one of a cluster's brokers:
    penstock broker --id 2 --zookeeper zk1:2181,zk2:2181/penstock --listen 10.0.0.2:9092 --data /var/lib/penstock

    Example, after it has said that its metadata store is damaged:
    penstock broker --data /var/lib/penstock --restore-metadata

    Example, when the disk of a log folder is lost and an empty one is mounted there instead:
    penstock broker --config server.properties --forget-log-dir /mnt/disk2
    """
    if restore and adopt:
        raise ConfigError(
            f"`{Way.RESTORE.value}` takes the metadata store's backup, `{Way.ADOPT.value}` begins a new store: give one of them"
        )
    way = Way.RESTORE if restore else Way.ADOPT if adopt else Way.REFUSE
    named = {"zookeeper.connect": zookeeper, "broker.id": broker_id}
    config = load(config_path, [*overrides, *(f"{key}={text}" for key, text in named.items() if text is not None)])
    if way is not Way.REFUSE and config["zookeeper.connect"] is not None:
        raise ConfigError(f"`{way.value}` is about a single node's metadata store, and a cluster has a ZooKeeper: leave it out")
    folder = _data_folder(config, data)
    listeners = plan(config, listen, advertised)
    log.setup(log_level, config["penstock.log.format"], f"broker-{config['broker.id']}")
    folders = log_dirs(folder, config["log.dirs"] or config["log.dir"])
    if only_check:
        _check(config, folders, listeners, forget)
        return
    os.umask(PRIVATE_UMASK)
    server = Server(config, folder, listeners, way=way, forget=forget)
    descriptors.raise_limit()
    _give_memory_back()
    if config["zookeeper.connect"] is not None:
        importlib.import_module("penstock.broker.replication.joining")  # It declares failpoints; one node doesn't load it.
    failpoints.arm_from_environment()
    try:
        asyncio.run(_serve(server, folders))
    except (ServerError, FolderError, StoreError, KafkaError, OSError) as error:
        way_on = f"\n{error.way_on(config['zookeeper.connect'])}" if isinstance(error, BadValueError) else ""
        click.echo(f"penstock: {error}{way_on}", err=True)
        _end(server, 1)
    _end(server, 0)


def _end(server: Server, code: int) -> None:
    """End the process, whose interpreter would wait for a thread that hangs."""
    if server.left_behind:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _give_memory_back() -> None:
    """Fix malloc's thresholds. Left alone, glibc raises them with the largest block that was freed, and a broker that
    was once sent a few large requests keeps some 60 MiB for good.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, FREE_BYTES_KEPT)


def _data_folder(config: BrokerConfig, data: Path | None) -> Path:
    if data is not None:
        return data
    given = config["log.dirs"] or config["log.dir"]
    first = (given or "").split(",")[0].strip()
    if not first:
        raise ConfigError("the broker lacks its data folder: give `--data DIR` or the property `log.dirs`")
    return Path(first)


def _check(config: BrokerConfig, folders: list[Path], listeners: list[Listener], forget: Path | None) -> None:
    """Say what would go wrong, one sentence a line, or that nothing would."""
    node_id = config["broker.id"]
    in_cluster = config["zookeeper.connect"] is not None
    unique = list(dict.fromkeys(folders))
    # In a cluster it is ZooKeeper that knows the log folder to be forgotten.
    given_up = None if in_cluster else forget
    found = check.faults(node_id, unique, listeners, given_up, http_address(config), in_cluster=in_cluster)
    if in_cluster:
        trial = importlib.import_module("penstock.broker.replication.trial")
        found += asyncio.run(trial.faults(node_id, config, [folder.absolute() for folder in unique], forget))
    for fault in found:
        click.echo(f"penstock: {fault}", err=True)
    if found:
        sys.exit(1)
    lost = check.offline(node_id, folders, forget)
    for one in lost:
        click.echo(f"penstock: {one}", err=True)
    so_far = f", but {len(lost)} log folders would be offline" if lost else ""
    print(
        f"penstock broker {node_id} could start: properties, addresses and {len(set(folders))} data folders are right{so_far}"
    )


async def _serve(server: Server, folders: list[Path]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    interrupts.hear(ended, _log.warning)
    starting = asyncio.create_task(server.start())
    ending = asyncio.create_task(ended.wait())
    # A signal while logs are recovered stops the start instead of waiting for its end.
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await tasks.end(starting)
        return
    bound: Endpoint = await starting
    await loop.run_in_executor(None, lambda: kernelfeatures.say(kernelfeatures.find(folders)))
    _say_open_folders(folders)
    seen = "" if server.http is None else f", http on {server.http}"
    print(f"penstock broker {server.node_id} started on {bound}{seen}", flush=True)
    telling = asyncio.create_task(_tell_ready(server, bound))
    failing = asyncio.create_task(server.failed.wait())
    await asyncio.wait({ending, failing}, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    notify.stopping()
    await server.stop()
    if server.failed.is_set():
        raise ServerError("no log folder works any more")


def _say_open_folders(folders: list[Path]) -> None:
    """Warn of log folders that the broker didn't make and that others can read; their mode stays as it is."""
    for folder in folders:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(folder.stat().st_mode)
            if mode & PRIVATE_UMASK:
                _log.warning(
                    "other users of this machine can read `%s` (mode %04o): `chmod 700 %s`",
                    folder, mode, quoted(folder),
                )  # fmt: skip


async def _tell_ready(server: Server, bound: Endpoint) -> None:
    """Tell systemd that the broker is ready once every log is open: whoever waits for that may then go on to the next one."""
    await server.opened()
    notify.ready(f"serving on {bound}")
    await notify.keep_watchdog(server.is_alive)
