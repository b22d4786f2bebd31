"""`penstock broker --check`: whether a start could work, without a change to anything.

It may run beside a broker that uses the same folders: nothing is locked, bound to its port or written.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from penstock.broker.context import Endpoint
from penstock.broker.listeners import Listener
from penstock.broker.logs.folder import HAS_STORE, META, STORE, FolderError, read_meta


def faults(node_id: int, folders: Sequence[Path], listeners: Sequence[Listener]) -> list[str]:
    """What would keep a broker from a start, or a folder from being used: sentences."""
    found = [fault for listener in listeners for fault in _address(listener.bind)]
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
            found.append(
                f"the data folder `{folder}` belongs to broker {owner}, not to {node_id}; set `broker.id={owner}`"
            )
        clusters.setdefault(values["cluster.id"], folder)
        if number == 0 and HAS_STORE in values and not (folder / STORE).is_file():
            found.append(
                f"the metadata store `{folder / STORE}` is missing, though there was one: "
                "the broker would refuse to start without `--restore-metadata`"
            )
    if len(clusters) > 1:
        said = ", ".join(f"`{folder}` to {cluster}" for cluster, folder in clusters.items())
        found.append(f"the data folders belong to several clusters: {said}")
    return found


def _access(folder: Path) -> list[str]:
    """Whether this user may use the folder, or make it where it isn't there."""
    if folder.exists() and not folder.is_dir():
        return [f"the data folder `{folder}` is a file"]
    nearest = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return []
    if nearest == folder:
        return [
            f"this user (uid {os.geteuid()}) can't write to the data folder `{folder}`, or its disk is mounted read-only"
        ]
    return [
        f"the data folder `{folder}` isn't there, and this user (uid {os.geteuid()}) can't make it in `{nearest}`: "
        "is its disk mounted?"
    ]


def _address(bind: Endpoint) -> list[str]:
    """Whether the address is one of this machine's. The port isn't tried: a broker that is to be restarted has it."""
    try:
        found = socket.getaddrinfo(bind.host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return [f"the listen address `{bind}` can't be resolved: {error}"]
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return []
    return [f"the listen address `{bind}` is no address of this machine"]
