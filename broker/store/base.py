"""What the control plane knows of its metadata store: ZooKeeper's semantics, nothing of any product.

A store is a tree of nodes. A node has bytes, a version that grows by one with each `set` (0 after `create`)
and children. It may be ephemeral (it vanishes with the session that made it) or sequential (its name ends in
a ten-digit number that its parent hands out). A watch is one-shot: it fires at most once, on the loop.
A watch (an equal one) of a node that is set again before it has fired is still one watch, as with ZooKeeper's own clients.

Paths and JSON are those of Kafka with ZooKeeper: `paths` has them in one place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from urllib.parse import quote, unquote

from penstock import hints

ANY_VERSION = -1  # As an expected version: whatever is there.
MULTI_OPERATIONS, MULTI_BYTES = 400, 512 << 10
"""What a ZooKeeper surely takes in one multi: its servers drop connections that send more than 1 MiB at once."""
TRIES = 10
"""How often a call is made again that was overtaken, or lost its connection."""


class StoreError(Exception):
    """A store operation was refused; `path` is the node that it was about."""

    def __init__(self, path: str, why: str = "") -> None:
        super().__init__(f"{path}: {why}" if why else path)
        self.path = path


class NoNodeError(StoreError):
    """The node (or the parent of a node to be created) does not exist."""


class NodeExistsError(StoreError):
    """A node of that path is there already."""


class BadVersionError(StoreError):
    """The node's version is not the expected one."""


class SessionLostError(StoreError):
    """The session has ended, and its ephemeral nodes with it. No call can be made in it any more: begin a new one."""


class UnknownOutcomeError(StoreError):
    """The connection broke before the answer came, and the nodes don't tell whether the change was made. It is settled: a read
    shows what there is, and nothing of this call comes later."""


class TooLargeError(StoreError):
    """More than the store takes at once, and it must not be cut."""


class NotEmptyError(StoreError):
    """The node has children and can't be deleted."""


class BadValueError(StoreError):
    """A node holds what no broker can have written; the file itself is sound. `way_on` says what an operator does then, of a
    store in a file and of a ZooKeeper."""

    def __init__(self, path: str, why: str) -> None:
        self.why = f"`{path}`: {why}"
        super().__init__(path, f"what the metadata store holds there can't be: {why}")

    def way_on(self, place: str | None) -> str:
        """place: the servers and the chroot of the ZooKeeper; None: the store is a file of this broker's own."""
        if place is None:
            return "hint: to take the store's backup, move `metadata.db` away and start once with `--restore-metadata`"
        servers, _, chroot = place.partition("/")
        node = hints.quoted(f"/{chroot.strip('/')}{self.path}" if chroot else self.path)
        return (
            f"hint: `zkCli.sh -server {hints.quoted(servers)} get {node}` shows it, and `set {node} TEXT` corrects it; no "
            "backup of a broker holds it"
        )


class CorruptStoreError(StoreError):
    """The store's file is not what was written to it."""


class NewerStoreError(StoreError):
    """A newer Penstock has written the store's file: what it holds there may mean something else."""


class StoreDiskError(StoreError):
    """The disk below the store's file refuses to read or to write it."""


@dataclass(frozen=True)
class Stat:
    """What a store knows about a node besides its bytes.

    A zxid is the number of a change. Each change has a higher one than all before it, so a node that was deleted and made again
    has another `created_zxid`, though its version is 0 again. A store that was restored from a backup may give a number again.
    """

    version: int
    ephemeral_session: int  # 0 = not ephemeral
    created_ms: int
    modified_ms: int
    created_zxid: int  # 0 = the root, or a node that was made before the store counted
    modified_zxid: int  # of the last change of its bytes; that of a child is none


class Event(Enum):
    """What a watch brings."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    MISSED = "missed"  # The connection was away, the session is alive: anything may have changed, look again at everything.


Watch = Callable[[str, Event], None]


@dataclass(frozen=True)
class setting:
    """A watch that sets an event. All of one event are equal: they are one watch."""

    event: asyncio.Event

    def __call__(self, _: str, __: Event) -> None:
        """It fires."""
        self.event.set()


@dataclass(frozen=True)
class Create:
    """An operation of `multi`: make a node. `parents` makes missing parents too (empty bytes)."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    parents: bool = False


@dataclass(frozen=True)
class Set:
    """An operation of `multi`: replace a node's bytes if its version is the expected one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True)
class Delete:
    """An operation of `multi`: remove a node; `recursive` takes its children with it."""

    path: str
    version: int = ANY_VERSION
    recursive: bool = False


@dataclass(frozen=True)
class Check:
    """An operation of `multi`: only check whether a node has the expected version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check


class Store(Protocol):
    """One session with a tree of versioned nodes. What a method has returned from is durable.

    All methods run on the asyncio loop; they raise the StoreErrors above. Calls are carried out in the order in which they are
    made. A watch fires before any read shows what it is about.
    """

    session: int
    """The session's number: the owner of its ephemeral nodes (`Stat.ephemeral_session`)."""
    lost: asyncio.Event
    """Set once the session has ended without `close`: every call raises SessionLostError, and no watch fires any more."""

    @property
    def session_timeout_ms(self) -> int:
        """For how long the session lives on when nothing is heard of it; 0: it needs nobody to be heard."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        """Make a node and return its path (which differs from the given one for a sequence node)."""
        made = (await self.multi([Create(path, data, ephemeral, sequence, parents)]))[0]
        assert isinstance(made, str)
        return made

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """A node's bytes and stat; the watch fires when it is changed or deleted."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """A node's stat, or None; the watch fires when it is created, changed or deleted."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace a node's bytes if its version is the expected one; returns the new version."""
        new_version = (await self.multi([Set(path, data, version)]))[0]
        assert isinstance(new_version, int)
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        """Remove a node. A tree that is too large for one multi goes in several, the node itself last."""
        for _ in range(TRIES):
            try:
                await self.multi([Delete(path, version, recursive)])
            except TooLargeError:
                await self.empty(path)
            else:
                return
        raise StoreError(path, "others make nodes below it as quickly as they are deleted")

    def give_up(self) -> None:
        """End the session as if it had expired: `lost` is set. From any thread, also while the loop stands still; may wait for
        the store."""
        ...

    async def empty(self, path: str, guard: Sequence[Operation] = ()) -> None:
        """Delete what is below a node, in as many multis as it takes; each begins with `guard`. What others change or take
        meanwhile is left to them."""
        try:
            names = await self.tree(path)
        except NoNodeError:
            return
        deepest_first = sorted(names, key=lambda name: (-name.count("/"), name))
        for piece in pieces(([Delete(f"{path}/{name}")] for name in deepest_first), guard):
            try:
                await self.multi(piece)
            except (NoNodeError, NotEmptyError) as error:
                if error.path in {one.path for one in guard}:
                    raise

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names (not paths) of a node's children, sorted; the watch fires when one comes or goes, or the node does."""
        ...

    async def tree(self, path: str) -> dict[str, bytes]:
        """The bytes of every node below a node, by path relative to it: one read for all that a start needs.

        In ZooKeeper the nodes are read one by one: they need not have been so at one moment."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All or nothing, in order; per operation the created path, the new version, or None.

        A ZooKeeper refuses what is too large (TooLargeError, see `pieces`), and may not know what became of it
        (UnknownOutcomeError).
        """
        ...

    async def sync(self) -> None:
        """Wait until this session sees all that was answered to anybody before the call."""
        ...

    async def changes(self) -> int:
        """The zxid of the newest change (a call of `multi` or the like)."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes vanish."""
        ...


class Sessions(Protocol):
    """The tree of a cluster, as one of its brokers reaches it: sessions are begun here, one after the other."""

    place: str
    """Where the tree is: its servers, or its file."""

    async def begin(self) -> Store:
        """A new session, on the loop that will use it. Raises StoreError."""
        ...


async def putting(store: Store, path: str, data: bytes) -> Operation:
    """The change that makes this a node's content, whether the node is there or not."""
    there = await store.exists(path) is not None
    return Set(path, data) if there else Create(path, data, parents=True)


def size_of(operation: Operation) -> int:
    """About how many bytes an operation takes in a multi."""
    return 64 + len(operation.path.encode()) + len(getattr(operation, "data", b""))


def check_size(operations: Sequence[Operation], count: int, nbytes: int) -> None:
    """Raises TooLargeError for a multi of so many operations and bytes, with those for parents and trees."""
    if count > MULTI_OPERATIONS or nbytes > MULTI_BYTES:
        raise TooLargeError(
            operations[0].path,
            f"{count} operations of {nbytes} bytes are more than ZooKeeper takes in one step "
            f"({MULTI_OPERATIONS} and {MULTI_BYTES}), and they must not be done in several",
        )


def pieces(groups: Iterable[Sequence[Operation]], guard: Sequence[Operation] = ()) -> Iterator[list[Operation]]:
    """Multis that are small enough for every store, of groups that stay whole and in order, even if all parents are missing. A
    group that is too large by itself is a multi of its own, for the store to refuse. guard: what each multi begins with."""
    around = sum(map(size_of, guard))
    piece, nbytes = list(guard), around
    parents: set[str] = set()
    for group in groups:
        above = {parent for one in group if isinstance(one, Create) and one.parents for parent in parents_of(one.path)}
        more = sum(map(size_of, [*group, *map(Create, above)]))
        is_full = len(piece) + len(group) + len(parents | above) > MULTI_OPERATIONS or nbytes + more > MULTI_BYTES
        if len(piece) > len(guard) and is_full:
            yield piece
            piece, parents, nbytes = list(guard), set(), around
        piece += group
        parents |= above
        nbytes += more
    if len(piece) > len(guard):
        yield piece


class paths:
    """Where things stand in the tree: the paths of Kafka with ZooKeeper."""

    BROKER_IDS = "/brokers/ids"
    TOPICS = "/brokers/topics"
    CONFIGS = "/config"
    TOPIC_CONFIGS = "/config/topics"
    BROKER_CONFIGS = "/config/brokers"
    CONTROLLER = "/controller"
    CONTROLLER_EPOCH = "/controller_epoch"
    DELETE_TOPICS = "/admin/delete_topics"
    PREFERRED_ELECTION = "/admin/preferred_replica_election"
    REASSIGNMENT = "/admin/reassign_partitions"
    LOG_DIR_EVENTS = "/log_dir_event_notification"
    CLUSTER_ID = "/cluster/id"
    PRODUCER_IDS = "/latest_producer_id_block"
    FEATURES = "/feature"
    USER_CONFIGS = "/config/users"
    CLIENT_CONFIGS = "/config/clients"
    IP_CONFIGS = "/config/ips"
    GROUP_CONFIGS = "/config/groups"
    RESTORED = "/penstock/restored"
    MAKING = "/penstock/making"
    CLUSTER = "/penstock/cluster"
    CHANGES = "/config/changes"
    INCARNATIONS = "/penstock/incarnations"
    ALIVE = "/penstock/alive"
    MOVED = "/penstock/moved"
    DELETED = "/penstock/deleted"
    DEFAULT_ENTITY = "<default>"

    @staticmethod
    def broker(node_id: int) -> str:
        """A live broker's registration (ephemeral)."""
        return f"/brokers/ids/{node_id}"

    @staticmethod
    def incarnation(node_id: int) -> str:
        """A broker's last incarnation; the node stays when the broker is gone."""
        return f"{paths.INCARNATIONS}/{node_id}"

    @staticmethod
    def alive(node_id: int) -> str:
        """What a broker writes to again and again, to learn that its session lives (ephemeral)."""
        return f"{paths.ALIVE}/{node_id}"

    @staticmethod
    def moved(node_id: int) -> str:
        """What the controller writes to whenever another broker is elected in place of one that lives; the node stays."""
        return f"{paths.MOVED}/{node_id}"

    @staticmethod
    def deleted_topic(name: str) -> str:
        """That a topic is to be deleted."""
        return f"{paths.DELETE_TOPICS}/{name}"

    @staticmethod
    def log_dirs(node_id: int) -> str:
        """The log folders that a broker has, by their ids."""
        return f"/penstock/log_dirs/{node_id}"

    @staticmethod
    def topic(name: str) -> str:
        """A topic's assignment: partitions to replica lists, and its id."""
        return f"/brokers/topics/{name}"

    @staticmethod
    def partition_state(name: str, partition: int) -> str:
        """A partition's leader, epochs and in-sync replicas."""
        return f"/brokers/topics/{name}/partitions/{partition}/state"

    @staticmethod
    def topic_config(name: str) -> str:
        """A topic's own configs."""
        return f"/config/topics/{name}"

    @staticmethod
    def broker_config(node_id: int) -> str:
        """Configs of a broker that were altered at run time."""
        return f"/config/brokers/{node_id}"

    @staticmethod
    def default_broker_config() -> str:
        """Configs of all brokers that were altered at run time."""
        return f"{paths.BROKER_CONFIGS}/{paths.DEFAULT_ENTITY}"

    @staticmethod
    def entity_config(user: str | None, client_id: str | None, ip: str | None, group: str | None) -> str:
        """Configs of a user, a client id, both, an address, or a group.

        A name is as it stands in the tree: `quoted`, or DEFAULT_ENTITY; None is not part of the entity.
        """
        if group is not None:
            return f"{paths.GROUP_CONFIGS}/{group}"
        if ip is not None:
            return f"{paths.IP_CONFIGS}/{ip}"
        if user is None:
            return f"{paths.CLIENT_CONFIGS}/{client_id}"
        return f"{paths.USER_CONFIGS}/{user}" + ("" if client_id is None else f"/clients/{client_id}")


_NAMELESS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""What ZooKeeper takes in no name of a node."""


def check_path(path: str) -> None:
    """Raises StoreError if no node below `/` can have this path."""
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise StoreError(path, "is not a path below `/`")
    if _NAMELESS.search(path):
        raise StoreError(ascii(path), "has a character that no node's name may have")


def parent_of(path: str) -> str:
    """The path of a node's parent."""
    return path.rpartition("/")[0] or "/"


def parents_of(path: str) -> list[str]:
    """The paths of all nodes above a node but the root, the highest first."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[:at]) for at in range(1, len(names) + 1)]


def quoted(name: str) -> str:
    """A user's own word as the name of a node: what isn't a letter, digit, `.`, `-` or `_` is percent-encoded."""
    return quote(name, safe="").replace("~", "%7E")


def unquoted(name: str) -> str:
    """The word that `quoted` made this name of."""
    return unquote(name)
