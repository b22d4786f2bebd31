"""`penstock broker --check`: whether a start could work, without a change to anything.

It may run beside a broker that uses the same folders, which is to be restarted with these properties: nothing is written, and
that broker may have the ports.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import LISTEN, Listener, refused
from penstock.broker.logs.folder import DIRECTORY_ID, HAS_STORE, META, STORE, FolderError, member_of, read_meta
from penstock.broker.logs.lock import LOCK
from penstock.broker.logs.logdirs import NOT_LISTED, ids_of, not_there
from penstock.broker.logs.overlap import overlap
from penstock.broker.metadata import not_alone
from penstock.broker.store import sound
from penstock.broker.store.base import StoreError, paths
from penstock.broker.store.values import Fields


def faults(
    node_id: int,
    folders: Sequence[Path],
    listeners: Sequence[Listener],
    forget: Path | None = None,
    http: tuple[str, int] | None = None,
    *,
    in_cluster: bool = False,
) -> list[str]:
    """What would keep a broker from a start, or a folder from being used: sentences. forget: a log folder to give up. http:
    where figures and health are to be served. in_cluster: `zookeeper.connect` is given."""
    found = [fault for listener in listeners for fault in _address(listener.bind, folders)]
    if http is not None:
        found += _address(Endpoint(*http), folders, "penstock.http.listen")
    if forget is not None:
        found += _forgettable(node_id, folders[0] / STORE, forget)
    if wrong := overlap(folders):
        found.append(wrong)
    clusters: dict[str, Path] = {}
    for number, folder in enumerate(folders):
        found += _access(folder)
        meta = folder / META
        try:
            if not meta.is_file():
                continue
            owner, values = read_meta(meta, node_id)
        except (FolderError, OSError) as error:
            found.append(str(error))
            continue
        if owner != node_id:
            found.append(f"the data folder `{folder}` belongs to broker {owner}, not to {node_id}; set `broker.id={owner}`")
        clusters.setdefault(values["cluster.id"], folder)
        place = member_of(values)
        if place and not in_cluster:
            found.append(not_alone(folder, place))
        if number == 0 and not place and HAS_STORE in values and not (folder / STORE).is_file():
            found.append(
                f"the metadata store `{folder / STORE}` is missing, though there was one: "
                "the broker would refuse to start without `--restore-metadata`"
            )
    if len(clusters) > 1:
        said = ", ".join(f"`{folder}` to {cluster}" for cluster, folder in clusters.items())
        found.append(f"the data folders belong to several clusters: {said}")
    return found


def offline(node_id: int, folders: Sequence[Path], forget: Path | None = None) -> list[str]:
    """The log folders that the metadata store knows, places partitions in, and that a start would not find: sentences. Such a
    start works, without them. forget: a log folder to give up."""
    store = folders[0] / STORE
    try:
        known = _known(node_id, store)
        if not known:
            return []
        held = Counter(
            Fields.read(path, state).text_of_one("directories")
            for path, state in sound.below(store, paths.TOPICS).items()
            if path.endswith("/state")
        )
        metas = [folder / META for folder in folders if (folder / META).is_file()]
        there = {read_meta(meta, node_id)[1].get(DIRECTORY_ID, "") for meta in metas}
        given_up = set() if forget is None else ids_of(forget, known)
    except (FolderError, OSError, StoreError):
        return []  # What is wrong with a folder `faults` says; whether the store is sound, only the start.
    lost = {one: Path(path) for one, path in known.items() if held[one] and one not in there | given_up}
    return [
        f"the log folder `{path}` {_absence(path, folders)}: its {held[one]} partitions would answer KAFKA_STORAGE_ERROR"
        for one, path in lost.items()
    ]


def _absence(path: Path, folders: Sequence[Path]) -> str:
    if path not in [folder.absolute() for folder in folders]:
        return NOT_LISTED
    return "was there before and is another folder now" if (path / META).is_file() else not_there(path)


def _forgettable(node_id: int, store: Path, forget: Path) -> list[str]:
    """Whether the store knows a log folder that is to be forgotten."""
    try:
        ids_of(forget, _known(node_id, store))
    except (FolderError, StoreError) as error:
        return [str(error)]
    return []


def _known(node_id: int, store: Path) -> Mapping[str, str]:
    """The log folders that the store knows, path by id. Raises StoreError."""
    name = paths.log_dirs(node_id)
    data = sound.node(store, name) if store.is_file() else None
    return {} if data is None else Fields.read(name, data).texts("dirs")


def _access(folder: Path) -> list[str]:
    """Whether this user may use the folder, or make it where it isn't there."""
    if folder.exists() and not folder.is_dir():
        return [f"the data folder `{folder}` is a file"]
    nearest = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return []
    if nearest == folder:
        return [f"this user (uid {os.geteuid()}) can't write to the data folder `{folder}`, or its disk is mounted read-only"]
    return [
        f"the data folder `{folder}` isn't there, and this user (uid {os.geteuid()}) can't make it in `{nearest}`: "
        "is its disk mounted?"
    ]


def _address(bind: Endpoint, folders: Sequence[Path], given_by: str = LISTEN) -> list[str]:
    """Whether the address can be bound, as the start does it. A broker that is to be restarted may have it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        return [f"the listen address `{bind}` can't be resolved: {error}"]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and any(_is_held(folder) for folder in folders):
                return []
            if error.errno == errno.EADDRNOTAVAIL:
                return [f"the listen address `{bind}` is no address of this machine"]
            return [refused(bind, error, given_by)]
    return []


def _is_held(folder: Path) -> bool:
    """Whether a broker runs on the folder. Asked only where a port is taken, so that no start meets this lock."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
