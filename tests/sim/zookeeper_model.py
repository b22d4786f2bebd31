"""A model of ZooKeeper: a tree, zxids, sessions, one-shot watches, servers that lag.

A session reads what its server has applied, which may be old; a write goes to all, and its session's server has applied it when
the answer comes. A watch fires once, before its session can read the newer state. What the connection does to requests and
answers is the world's business (`cluster_world.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.broker.store.base import ANY_VERSION, Check, Create, Delete, Operation, Set


@dataclass(frozen=True, slots=True)
class Node:
    """One version of a node."""

    data: bytes
    version: int
    czxid: int
    owner: int = 0


@dataclass(slots=True)
class Session:
    """One client's session, on one server."""

    id: int
    fire: Callable[[str], None]  # a watch of that path
    expires_ms: int
    alive: bool = True
    applied: int = 0  # the zxid up to which the session's server has applied
    watches: set[str] = field(default_factory=set)


class ZooKeeper:
    """The ensemble as its clients see it."""

    def __init__(self, changed: Callable[[Session], None]) -> None:
        self.changed = changed  # a session's server will have to catch up
        self.zxid = 0
        self.nodes: dict[str, Node] = {}
        self.past: dict[str, list[tuple[int, Node | None]]] = {}
        self.changes: list[tuple[int, str]] = []  # zxid and the watched path that it touches
        self.sessions: dict[int, Session] = {}

    def open(self, fire: Callable[[str], None], expires_ms: int) -> Session:
        """A new session; its server is up to date at first."""
        self.zxid += 1
        session = Session(self.zxid, fire, expires_ms, applied=self.zxid)
        self.sessions[session.id] = session
        return session

    def multi(self, session: Session, operations: Sequence[Operation]) -> str | None:
        """All or nothing; the path of the operation that is refused, or None. The session must live."""
        nodes: dict[str, Node | None] = {}
        zxid = self.zxid + 1
        for operation in operations:
            path = operation.path
            node = nodes.get(path) if path in nodes else self.nodes.get(path)
            if isinstance(operation, Create):
                if node is not None:
                    return path
                nodes[path] = Node(operation.data, 0, zxid, session.id if operation.ephemeral else 0)
                continue
            if node is None or operation.version not in (ANY_VERSION, node.version):
                return path
            if isinstance(operation, Set):
                nodes[path] = Node(operation.data, node.version + 1, node.czxid, node.owner)
            elif isinstance(operation, Delete):
                if self._has_children(path, nodes):
                    return path
                nodes[path] = None
            else:
                assert isinstance(operation, Check)
        self._apply(zxid, nodes)
        session.applied = max(session.applied, self._settled(session, zxid))
        return None

    def _has_children(self, path: str, changed: Mapping[str, Node | None]) -> bool:
        below = path + "/"
        return any(one.startswith(below) and changed.get(one, node) is not None for one, node in self.nodes.items()) or any(
            one.startswith(below) and node is not None for one, node in changed.items()
        )

    def expire(self, session: Session) -> None:
        """The session's time is over: its ephemeral nodes vanish."""
        session.alive = False
        del self.sessions[session.id]
        gone: dict[str, Node | None] = {path: None for path, node in self.nodes.items() if node.owner == session.id}
        if gone:
            self._apply(self.zxid + 1, gone)

    def catch_up(self, session: Session) -> None:
        """The session's server applies all that there is (`sync`)."""
        self._settled(session, self.zxid)
        session.applied = self.zxid

    def get(self, session: Session, path: str, *, watch: bool = False) -> Node | None:
        """A node as the session's server has it; a watch is set first, whether it is there or not."""
        if watch:
            session.watches.add(path)
        for zxid, node in reversed(self.past.get(path, [])):
            if zxid <= session.applied:
                return node
        return None

    def children(self, session: Session, path: str) -> list[str]:
        """The names of a node's children; the watch is one of the parent's path."""
        session.watches.add(path)
        start = path + "/"
        names = [one[len(start) :] for one in self.past if one.startswith(start) and "/" not in one[len(start) :]]
        return sorted(name for name in names if self.get(session, start + name) is not None)

    def _apply(self, zxid: int, nodes: dict[str, Node | None]) -> None:
        self.zxid = zxid
        for path, node in nodes.items():
            self.past.setdefault(path, []).append((zxid, node))
            self.changes.append((zxid, path))
            if (node is None) != (path not in self.nodes) or (node is not None and node.czxid == zxid):
                self.changes.append((zxid, path.rpartition("/")[0]))
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node
        for session in list(self.sessions.values()):
            self.changed(session)

    def _settled(self, session: Session, zxid: int) -> int:
        """Fire the watches of what the server applies up to a zxid."""
        at = len(self.changes)
        while at and self.changes[at - 1][0] > session.applied:
            at -= 1
        for changed, path in self.changes[at:]:
            if changed <= zxid and path in session.watches:
                session.watches.discard(path)
                session.fire(path)
        return zxid
