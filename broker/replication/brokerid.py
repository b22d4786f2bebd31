"""Registering under this broker's id, and who else may have it.

The registration says by which log folders, on which machine and in which start of it the broker lives. A starting broker that
finds one of its own id there

- takes its place at once, if it names the same folders on the same machine: this process holds their locks, so it is dead;
- else waits for as long as a session lasts: the other one's may be over. If it is still there, the start is refused, with both
  addresses (*a copied folder on another machine throws the first broker out*).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import log
from penstock.broker.cluster import registration
from penstock.broker.cluster.registration import OwnRegistration
from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import PLAINTEXT, Listener
from penstock.broker.logs.lock import LOCK
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Stat,
    Store,
    StoreError,
    paths,
    setting,
)
from penstock.broker.store.values import INT_MAX, Fields
from penstock.durable import boot_id

_MACHINE_ID = Path("/etc/machine-id")

_log = log.get(__name__)


class IdTakenError(StoreError):
    """Another broker lives under this id; the text is one sentence for the user."""


class OutlivedError(StoreError):
    """Another run has lived under this id since this one registered; the text is one sentence for the user."""


def address_of(listeners: Sequence[Listener], rack: str | None, now_ms: int) -> dict[str, Any]:
    """Where this broker is reached and stands, as Kafka's brokers say it."""
    first = listeners[0].client_endpoint()
    return {
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [f"{one.name}://{one.client_endpoint()}" for one in listeners],
        "listener_security_protocol_map": {one.name: PLAINTEXT for one in listeners},
        "rack": rack,
        "features": {},
    }


def home_of(dirs: LogDirs) -> dict[str, Any]:
    """By what this broker can be told from another one with its id."""
    folders = []
    for log_dir in dirs.online:
        lock = (log_dir.path / LOCK).stat()
        folders.append({"id": log_dir.id, "dev": lock.st_dev, "ino": lock.st_ino})
    return {"folders": folders, "machine": machine_id(), "boot": boot_id()}


def machine_id() -> str:
    """Of this machine; "": it has none."""
    return _MACHINE_ID.read_text(encoding="ascii").strip() if _MACHINE_ID.exists() else ""


def read_endpoints(broker: int, data: bytes) -> dict[str, Endpoint]:
    """Where a registered broker is reached, by the listener's name. Raises BadValueError."""
    fields = Fields.read(paths.broker(broker), data)
    found: dict[str, Endpoint] = {}
    for one in fields.several("endpoints"):
        name, _, place = str(one).partition("://")
        host, _, port = place.rpartition(":")
        if not name or not port.isascii() or not port.isdigit() or int(port) > INT_MAX:
            raise fields.wrong("`endpoints` should hold texts like `PLAINTEXT://host:9092`")
        found[name] = Endpoint(host.removeprefix("[").removesuffix("]"), int(port))
    return found


def read_rack(broker: int, data: bytes) -> str | None:
    """Where a registered broker stands; None: it doesn't say. Raises BadValueError."""
    rack = json.loads(data).get("rack")
    if rack is not None and not isinstance(rack, str):
        raise BadValueError(paths.broker(broker), "`rack` should be a text")
    return rack


async def await_id(store: Store, broker: int, place: str, home: Mapping[str, Any]) -> bool:
    """Wait until no other broker lives under this id. Answers whether the former run of these folders is registered still.

    place: where this one would be reached. Raises IdTakenError, StoreError.
    """
    path = paths.broker(broker)
    patience_s, began_s = store.session_timeout_ms * 1.5 / 1000, time.monotonic()
    while (other := await _other(store, path)) is not None:
        if _is_same_home(other[0], home):
            return True
        left_s = patience_s - (time.monotonic() - began_s)
        if left_s <= 0:
            raise IdTakenError(
                path,
                f"another broker has the id {broker}: it is at {_address(broker, other[1])}, this one would "
                f"be at {place}; stop that one, or give this one its own `broker.id`",
            )
        _log.info("broker %d is registered already, at %s: waiting for its session to end", broker, _address(broker, other[1]))
        await _wait_until_gone(store, path, left_s)
    return False


async def register(
    store: Store,
    own: OwnRegistration,
    address: Mapping[str, Any],
    home: Mapping[str, Any],
    begin: Callable[[str], Awaitable[bool]] | None = None,
    note: Callable[[], Awaitable[Operation]] | None = None,
    former: int | None = None,
) -> None:
    """Register in this session; `own` knows its broker epoch then.

    begin: of this process's first registration: given the store's newest incarnation of this id ("": it has none), it says in
    the log folders that another one begins, and answers whether they all are of that one. note: of the first one, too: a change
    of the store that is made in the same step, or not at all. former: of a later one, the
    broker epoch of the one before it: an incarnation that the store has got since then is of a run that may have answered for
    records that these log folders lack. Where the store was put back from a copy its node is younger than that epoch, or has
    not changed since. Raises IdTakenError, OutlivedError, StoreError.
    """
    path = paths.broker(own.broker)
    while True:
        replaces = await await_id(store, own.broker, f"{address['host']}:{address['port']}", home)
        newest, stat = await _newest(store, own.broker)
        version = -1 if stat is None else stat.version
        is_changed = former is not None and stat is not None and stat.created_zxid <= former < stat.modified_zxid
        if is_changed and newest != own.incarnation:
            raise OutlivedError(
                path,
                f"while this process stood still another one ran under the id {own.broker}, and may have answered for "
                "records that this one lacks: it stops, and is no broker of the ISR when it is started again",
            )
        if begin is not None and newest != own.incarnation and not await begin(newest):
            own.clean = False
        if await store.exists(paths.moved(own.broker)) is None:
            with contextlib.suppress(NodeExistsError):
                await store.create(paths.moved(own.broker), parents=True)
        operations = registration.register(
            own.broker, own.incarnation, own.clean, is_first=version < 0, replaces=replaces,
            version=version, address=address, home=home,
        )  # fmt: skip
        if note is not None:
            operations.append(await note())
        try:
            await store.multi(operations)
        except (NodeExistsError, NoNodeError, BadVersionError):
            continue  # It came or went between the look and the write.
        made = await store.exists(path)
        if made is not None and made.ephemeral_session == store.session:
            registration.on_registered(own, made.created_zxid)
            return


async def _newest(store: Store, broker: int) -> tuple[str, Stat | None]:
    """The last incarnation of a broker id, and what the store says of its node; "" and None: there is none."""
    path = paths.incarnation(broker)
    try:
        data, stat = await store.get(path)
    except NoNodeError:
        return "", None
    return registration.read_incarnation(broker, data, stat.version).incarnation, stat


async def watch(store: Store, own: OwnRegistration, gone: Callable[[], None]) -> None:
    """Call `gone` once the registration isn't this session's any more, though the session lives: somebody has removed it."""
    changed, epoch = asyncio.Event(), own.epoch
    while True:
        changed.clear()
        stat = await store.exists(paths.broker(own.broker), setting(changed))
        if stat is None or stat.created_zxid != epoch:
            _log.error("somebody has removed the registration of broker %d", own.broker)
            gone()
            return
        await changed.wait()


async def _other(store: Store, path: str) -> tuple[Mapping[str, Any], bytes] | None:
    """What is registered there by another session: the part that is ours, and all of it."""
    try:
        data, stat = await store.get(path)
    except NoNodeError:
        return None
    if stat.ephemeral_session == store.session:  # Of this very session: an answer that got lost.
        await store.delete(path)
        return None
    fields = Fields.read(path, data)
    return (fields.table("penstock") if b'"penstock"' in data else {}), data


def _is_same_home(ours: Mapping[str, Any], home: Mapping[str, Any]) -> bool:
    """Whether a registration names just these folders, on this machine since it was started: a clone of a machine has the same
    folders, and its own boot id."""
    return bool(home["folders"]) and all(ours.get(part) == home[part] for part in ("folders", "machine", "boot"))


def _address(broker: int, data: bytes) -> str:
    return ", ".join(str(one) for one in read_endpoints(broker, data).values())


async def _wait_until_gone(store: Store, path: str, wait_s: float) -> None:
    changed = asyncio.Event()
    if await store.exists(path, setting(changed)) is None:
        return
    try:
        await asyncio.wait_for(changed.wait(), wait_s)
    except TimeoutError:
        return
