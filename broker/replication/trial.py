"""`penstock broker --check` of a broker that is to join a cluster: whether its ZooKeeper lets it. Nothing is written there.

It may run next to the broker that is to be restarted, which is registered then: it is told from others by its log folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.logs.folder import DIRECTORY_ID, META, STORE, FolderError, member_of, read_meta
from penstock.broker.logs.logdirs import ids_of, partition_of
from penstock.broker.replication.brokerid import machine_id, read_endpoints
from penstock.broker.replication.homes import strange_folders
from penstock.broker.replication.session import read_claim, refuse_others
from penstock.broker.store.base import BadValueError, NoNodeError, Store, StoreError, paths
from penstock.broker.store.values import Fields
from penstock.broker.store.zookeeper import ZooKeeperStore
from penstock.broker.topics.marks import Marks

WAIT_S = 10.0
"""How long a server may take to answer, at most."""


async def faults(node_id: int, config: BrokerConfig, folders: Sequence[Path], forget: Path | None) -> list[str]:
    """What keeps a broker from its cluster: sentences. forget: a log folder that is given up."""
    servers: str = config["zookeeper.connect"]
    wait_s = min(WAIT_S, config["zookeeper.connection.timeout.ms"] / 1000)
    try:
        store = await ZooKeeperStore.open(
            servers, session_timeout_ms=config["zookeeper.session.timeout.ms"], wait_s=wait_s, makes_root=False
        )
    except StoreError as error:
        host, _, port = servers.partition("/")[0].partition(",")[0].rpartition(":")
        return [f"{error}\nhint: `echo srvr | nc {host} {port}` asks whether a ZooKeeper serves there"]
    try:
        return await _look(store, node_id, servers, _metas(node_id, folders), folders, forget)
    except StoreError as error:
        return [str(error)]
    finally:
        await store.close()


async def _look(
    store: ZooKeeperStore,
    node_id: int,
    servers: str,
    metas: Mapping[Path, Mapping[str, str]],
    folders: Sequence[Path],
    forget: Path | None,
) -> list[str]:
    if fault := await store.root_fault():
        return [fault]
    await refuse_others(store, servers)
    found = await _of_cluster(store, servers, metas)
    if (other := await _other(store, node_id, metas)) is not None:
        found.append(other)
    known = await Marks(node_id, store).log_dirs()
    if forget is not None:
        try:
            ids_of(forget, known)
        except FolderError as error:
            found.append(str(error))
    elif not any(map(_has_logs, folders)):
        ids = {path: metas.get(path, {}).get(DIRECTORY_ID, "") for path in folders}
        if (strange := await strange_folders(store, node_id, known, ids)) is not None:
            found.append(strange)
    return found


async def _of_cluster(store: Store, servers: str, metas: Mapping[Path, Mapping[str, str]]) -> list[str]:
    """Whether the folders are of the cluster that the store has."""
    claim = await read_claim(store)
    try:
        cluster_id = Fields.read(paths.CLUSTER_ID, (await store.get(paths.CLUSTER_ID))[0]).text("id")
    except NoNodeError:
        cluster_id = None
    found = []
    if claim is not None and claim.growing:
        found.append(
            f"broker {claim.growing.get('broker')}, which was a single node, is being copied to `{servers}`: start it first"
        )
    for path, meta in metas.items():
        if not member_of(meta) and (path / STORE).exists():
            continue  # A single node, which grows into a cluster.
        if cluster_id is None and member_of(meta):
            found.append(
                f"`{servers}` knows no cluster, and `{path}` is of {meta['cluster.id']}: is `zookeeper.connect` right?"
            )
        elif cluster_id is not None and cluster_id != meta["cluster.id"]:
            found.append(f"`{servers}` has the cluster {cluster_id}, and `{path}` is of {meta['cluster.id']}")
    return found


async def _other(store: Store, node_id: int, metas: Mapping[Path, Mapping[str, str]]) -> str | None:
    """Another broker that lives under the id."""
    path = paths.broker(node_id)
    try:
        data, _ = await store.get(path)
    except NoNodeError:
        return None
    try:
        at = ", ".join(map(str, read_endpoints(node_id, data).values()))
        home = Fields.read(path, data).table("penstock") if b'"penstock"' in data else {}
    except BadValueError as error:
        return str(error)
    theirs = {one.get("id") for one in home.get("folders", ()) if isinstance(one, dict)}
    ours = {meta[DIRECTORY_ID] for meta in metas.values() if DIRECTORY_ID in meta}
    if theirs and theirs <= ours and home.get("machine") == machine_id():
        return None
    return f"another broker has the id {node_id}: it is at {at}\nhint: stop that one, or give this one its own `--id`"


def _metas(node_id: int, folders: Sequence[Path]) -> dict[Path, Mapping[str, str]]:
    """What the folders say of themselves; what is wrong with one `check.faults` says."""
    found: dict[Path, Mapping[str, str]] = {}
    for folder in folders:
        try:
            found[folder] = read_meta(folder / META, node_id)[1]
        except (FolderError, OSError):
            continue
    return found


def _has_logs(folder: Path) -> bool:
    return folder.is_dir() and any(partition_of(one.name) is not None for one in folder.iterdir())
