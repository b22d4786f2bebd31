"""A single node becomes the first broker of a cluster: its metadata store is copied into an empty tree.

    claimed    `/penstock/cluster` names the log folder whose store is being copied: every other broker is refused
    copied     all nodes but those of a session, in multis; then the tree is read and compared with the store
    marked     the log folders say that their broker is a member: from here on a start without the cluster is refused
    finished   one multi gives the cluster its id, and takes the claim away
    aside      the store's file has another name

A start after a kill goes on, by what it finds. Up to `marked` the single node may also be started alone again: what it changes
then is copied by the next attempt. *A cluster and a single node would both give epochs and offsets under the same topic ids.*

Topics keep ids, configs, records and their one replica; groups' and transactions' topics are topics like others. The states of
partitions keep their epochs: the first controller raises them, since the broker registers for the first time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from penstock import log
from penstock.broker.cluster.registration import Incarnation, incarnation_json
from penstock.broker.logs.folder import FolderError
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.metadata import Way, open_store, set_store_aside
from penstock.broker.replication.session import ROOTS, SessionStore, claim_json, read_claim
from penstock.broker.store.base import (
    Create,
    Delete,
    NodeExistsError,
    Operation,
    Set,
    Store,
    StoreError,
    parents_of,
    paths,
    pieces,
    putting,
)
from penstock.broker.store.values import to_json
from penstock.broker.topics.marks import Marks
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.failpoints import declare, failpoint

CLAIMED = declare("growth.claimed", "the tree names the single node that is copied into it, and holds nothing of it yet")
PIECE = declare("growth.piece", "a part of the single node's metadata is in the tree")
COPIED = declare("growth.copied", "all of it is, and the log folders still say that their broker is a single node")
MARKED = declare("growth.marked", "the log folders say that their broker is a member, and the cluster has no id yet")
FINISHED = declare("growth.finished", "the cluster has its id, the single node's store is still in its place")

LEFT_OUT = (paths.BROKER_IDS, paths.CONTROLLER, paths.CLUSTER_ID, paths.CLUSTER, paths.MAKING, "/zookeeper")
"""What isn't copied or compared: nodes of sessions, those that are made last, and ZooKeeper's own."""

_log = log.get(__name__)


async def grow(store: SessionStore, node_id: int, dirs: LogDirs, most: int) -> None:
    """Make the tree of a single node's cluster, or go on with it. most: partitions that a topic may have. Raises StoreError,
    FolderError, OSError."""
    folder = dirs.first
    if not await _claim(store, node_id, dirs):
        failpoint(FINISHED)
        await _set_aside(dirs)
        return
    failpoint(CLAIMED)
    single = await open_store(dirs, Way.REFUSE, most)
    try:
        await _check_settled(single)
        marks = Marks(node_id, single)
        await marks.read_making()
        wanted = _wanted(await single.tree("/"), marks.making)
        topics = len(await single.children(paths.TOPICS))
    finally:
        await single.close()
    await _copy(store, wanted)
    failpoint(COPIED)
    incarnation = uuid_text(new_uuid())
    await asyncio.get_running_loop().run_in_executor(None, _mark, dirs, store.place, incarnation)
    failpoint(MARKED)
    finishing: list[Operation] = [
        Set(paths.CLUSTER, claim_json(folder.cluster_id)),
        Create(paths.CLUSTER_ID, to_json(version="1", id=folder.cluster_id), parents=True),
        await putting(store, paths.incarnation(node_id), incarnation_json(Incarnation(incarnation))),
    ]
    await store.multi(finishing)
    failpoint(FINISHED)
    await _set_aside(dirs)
    _log.warning(
        "this broker was a single node, and is the first broker of the cluster %s now. Its %d topics keep one replica each, on "
        "this broker: while it is away they are, too. New topics get `default.replication.factor` replicas. A topic that is to "
        "have more is made again under another name, and copied there", folder.cluster_id, topics,
    )  # fmt: skip


async def _claim(store: SessionStore, node_id: int, dirs: LogDirs) -> bool:
    """Whether this node's store is to be copied into the tree; False: it was. Raises StoreError, FolderError."""
    folder = dirs.first
    while True:
        found = await read_claim(store)
        if found is None:
            if folder.member_of:
                raise FolderError(
                    f"`{folder.path}` was being copied into the cluster at `{folder.member_of}`, and there is none at "
                    f"`{store.place}`: give the broker that `zookeeper.connect` again"
                )
            await _check_empty(store)
            claim = claim_json(folder.cluster_id, broker=node_id, folder=folder.directory_id)
            try:
                await store.create(paths.CLUSTER, claim, parents=True)
            except NodeExistsError:
                continue  # Another broker was quicker.
            return True
        cluster_id, growing = found
        if growing.get("folder") == folder.directory_id:
            return True
        if growing:
            raise StoreError(store.place, f"broker {growing.get('broker')} is being copied there: give this one another chroot")
        if cluster_id == folder.cluster_id and folder.member_of:
            return False
        raise StoreError(
            store.place,
            f"holds the cluster {cluster_id}, and `{folder.path}` is a single node with topics of its own: give it an empty "
            "chroot, or join with an empty log folder",
        )


async def _check_empty(store: SessionStore) -> None:
    """Raises StoreError if the tree has more than what every start makes."""
    tree = await store.tree("/")
    others = sorted(path for name in tree if (path := f"/{name}") not in _made_by_starts() and not _is_left_out(path))
    if others or await store.children(paths.BROKER_IDS) or await store.exists(paths.CLUSTER_ID) is not None:
        found = others[0] if others else paths.BROKER_IDS
        raise StoreError(
            store.place, f"holds `{found}`, and perhaps another cluster: a single node grows into an empty chroot only"
        )


def _made_by_starts() -> set[str]:
    roots = (*ROOTS, paths.CONTROLLER_EPOCH)
    return {*roots, *(parent for root in roots for parent in parents_of(root))}


async def _check_settled(single: Store) -> None:
    """Raises FolderError if the single node's store is one that only its own start can deal with."""
    if await single.exists(paths.TOPICS) is None:
        why = "it has no topics yet, and those in its log folders are adopted by a start of its own"
    elif await single.exists(paths.RESTORED) is not None:
        why = "it was restored from a backup, which a start of its own deals with"
    else:
        return
    raise FolderError(
        f"the single node's metadata store can't be copied yet: {why}. Start this broker once without `zookeeper.connect`, "
        "stop it, and start it again with it"
    )


def _wanted(tree: Mapping[str, bytes], making: Mapping[str, list[int]]) -> dict[str, bytes]:
    """The nodes of the cluster's tree, by path. A partition whose log isn't made yet gets its state by the controller."""
    unmade = {paths.partition_state(name, index) for name, indices in making.items() for index in indices}
    wanted = {path: b"" for path in sorted(_made_by_starts()) if not _is_left_out(path)} | {paths.CONTROLLER_EPOCH: b"0"}
    for name, data in tree.items():
        path = f"/{name}"
        if _is_left_out(path) or path in unmade:
            continue
        wanted[path] = _state(data) if path.startswith(f"{paths.TOPICS}/") and path.endswith("/state") else data
    return wanted


def _state(data: bytes) -> bytes:
    """A partition's state without what only a single node needs. Members find logs by their topics' ids."""
    content = json.loads(data)
    content.pop("directories", None)
    return to_json(**content)


def _is_left_out(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in LEFT_OUT)


async def _copy(store: SessionStore, wanted: Mapping[str, bytes]) -> None:
    """Make the tree this one. Raises StoreError, also if it reads otherwise in the end."""
    for piece in pieces([one] for one in _changes(await _there(store), wanted)):
        await store.multi(piece)
        failpoint(PIECE)
    await store.sync()
    if left := _changes(await _there(store), wanted):
        raise StoreError(left[0].path, "others change the tree while the single node is copied into it")


async def _there(store: SessionStore) -> dict[str, bytes]:
    return {path: data for name, data in (await store.tree("/")).items() if not _is_left_out(path := f"/{name}")}


def _changes(there: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[Operation]:
    gone = sorted(there.keys() - wanted.keys() - {parent for path in wanted for parent in parents_of(path)}, reverse=True)
    kept = {parent for path in LEFT_OUT for parent in parents_of(path)}
    made = [Create(path, wanted[path]) for path in sorted(wanted.keys() - there.keys())]
    changed = [Set(path, data) for path, data in wanted.items() if path in there and there[path] != data]
    return [*(Delete(path) for path in gone if path not in kept), *made, *changed]


def _mark(dirs: LogDirs, place: str, incarnation: str) -> None:
    """In a thread. Raises OSError."""
    for log_dir in dirs.online:
        assert log_dir.folder is not None
        log_dir.folder.begin_incarnation(incarnation, "", is_known=True)
        log_dir.folder.join(place)


async def _set_aside(dirs: LogDirs) -> None:
    await asyncio.get_running_loop().run_in_executor(None, set_store_aside, dirs)
