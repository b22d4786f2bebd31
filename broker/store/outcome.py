"""What became of a change whose answer was lost with the connection, as far as the nodes tell: pure, without a ZooKeeper.

The nodes were read after a `sync` on the next connection, so nothing of the lost request comes later. A change of nodes is one
zxid, and higher than `before`, the newest that the session had seen when it asked; so one node may tell for all of a `multi`.

    create     a node of before is there still                       it was refused (the node exists)
               no node, and no child came or went where it would be  it didn't arrive, or was refused
               ephemeral: a new node, its owner is this session      done  (KAFKA-7165, KAFKA-1387)
               lasting: a new node with the same bytes               done: who races writes his name in the bytes
    set        no change of the node since, or no node, as above     it didn't arrive, or was refused
               the next version, the same bytes                      done  (KAFKA-2729: BadVersion from one's own write)
               the next version, other bytes                         it was refused
               no version above the expected one                     it didn't arrive: versions only grow
               any version, the same bytes, and no other change      as good as done
    delete     the node of before is there                           it didn't arrive, or was refused
               no node, as above                                     it didn't arrive, or was refused
               no node, and nothing but deletions in the `multi`     as good as done
    else       unknown

Empty bytes are no sign of anybody. Nodes that one `multi` changes twice tell only whether nothing has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.broker.store.base import ANY_VERSION, Check, Create, Delete, Operation, Set, Stat, parents_of


class LostOutcome(Enum):
    """What became of it."""

    DONE = "done"
    NOT_DONE = "not done"  # It didn't arrive or was refused: asked again, it is as if for the first time.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Seen:
    """A node as it was read. children_zxid: of the last change of its list of children."""

    data: bytes
    stat: Stat
    children_zxid: int


Nodes = Mapping[str, Seen | None]


def looked_at(operations: Sequence[Operation]) -> list[str]:
    """The nodes that tell what became of these, and all above. Those of a sequence can't be named: see `sequence_nodes`."""
    changes = [one for one in operations if not isinstance(one, Check)]
    named = {one.path for one in changes if not (isinstance(one, Create) and one.sequence)}
    return sorted({"/", *named, *(parent for one in changes for parent in parents_of(one.path))})


def sequence_nodes(operations: Sequence[Operation]) -> list[Create]:
    """The creations whose names the parents choose."""
    return [one for one in operations if isinstance(one, Create) and one.sequence]


def outcome(
    operations: Sequence[Operation], nodes: Nodes, before: int, session: int
) -> tuple[LostOutcome, list[str | int | None]]:
    """What became of a `multi`; if it is done, what it would have answered.

    nodes: those that `looked_at` names, and of sequences all children that may be one. before: the newest zxid of when it was
    asked. session: whose it was.
    """
    changes = [one for one in operations if not isinstance(one, Check)]
    twice = {path for path, count in Counter(one.path for one in changes).items() if count > 1}
    alone = len(changes) == 1
    said = [(one, _tells(one, nodes, before, session, twice=one.path in twice, alone=alone)) for one in changes]
    if any(word is LostOutcome.NOT_DONE for _, word in said):
        return LostOutcome.NOT_DONE, []
    done = [one for one, word in said if word is LostOutcome.DONE]
    if not done:
        gone = changes and all(isinstance(one, Delete) and nodes.get(one.path) is None for one in changes)
        return (LostOutcome.DONE, [None] * len(operations)) if gone else (LostOutcome.UNKNOWN, [])
    zxid = max(_zxid(one, nodes, before, session) for one in done)
    answers = [_answer(one, nodes, zxid, session, twice=one.path in twice) for one in operations]
    if any(answer is None and isinstance(one, (Create, Set)) for one, answer in zip(operations, answers, strict=True)):
        return LostOutcome.UNKNOWN, []  # It is done, but a name or a version that the caller needs has gone since.
    return LostOutcome.DONE, answers


def _tells(one: Operation, nodes: Nodes, before: int, session: int, *, twice: bool, alone: bool) -> LostOutcome:
    node = nodes.get(one.path)
    above = [found for path in ("/", *parents_of(one.path)) if (found := nodes.get(path)) is not None]
    quiet = bool(above) and above[-1].children_zxid <= before
    if isinstance(one, Create) and one.sequence:
        if quiet:
            return LostOutcome.NOT_DONE
        return LostOutcome.DONE if one.ephemeral and _made(one, nodes, before, session) else LostOutcome.UNKNOWN
    if node is None:
        return LostOutcome.NOT_DONE if quiet else LostOutcome.UNKNOWN
    was_there = node.stat.created_zxid <= before
    match one:
        case Create(_, data, ephemeral):
            if was_there:
                return LostOutcome.UNKNOWN if twice else LostOutcome.NOT_DONE
            mine = node.stat.ephemeral_session == session if ephemeral else node.stat.version == 0 and node.data == data != b""
            return LostOutcome.DONE if mine and not twice else LostOutcome.UNKNOWN
        case Set(_, data, version):
            if node.stat.modified_zxid <= before or (was_there and node.stat.version <= version):
                return LostOutcome.NOT_DONE
            if twice or not was_there or version not in (ANY_VERSION, node.stat.version - 1):
                return LostOutcome.UNKNOWN
            if node.data == data:
                return LostOutcome.UNKNOWN if version == ANY_VERSION and not alone else LostOutcome.DONE
            return LostOutcome.UNKNOWN if version == ANY_VERSION else LostOutcome.NOT_DONE
        case _:
            return LostOutcome.NOT_DONE if was_there else LostOutcome.UNKNOWN


def _zxid(one: Operation, nodes: Nodes, before: int, session: int) -> int:
    """Of the change, by a node that tells that it is done."""
    if isinstance(one, Create) and one.sequence:
        return max(node.stat.created_zxid for node in _made(one, nodes, before, session).values())
    node = nodes[one.path]
    assert node is not None
    return node.stat.created_zxid if isinstance(one, Create) else node.stat.modified_zxid


def _made(one: Create, nodes: Nodes, before: int, session: int) -> dict[str, Seen]:
    """The nodes that may be this one of a sequence."""
    owner = session if one.ephemeral else 0
    return {
        path: node
        for path, node in nodes.items()
        if node is not None
        and path[:-10] == one.path
        and path[-10:].isdigit()
        and (node.stat.created_zxid > before, node.stat.ephemeral_session, node.data) == (True, owner, one.data)
    }


def _answer(one: Operation, nodes: Nodes, zxid: int, session: int, *, twice: bool) -> str | int | None:
    match one:
        case Create(path, sequence=True):
            names = [path for path, node in _made(one, nodes, zxid - 1, session).items() if node.stat.created_zxid == zxid]
            return names[0] if len(names) == 1 else None
        case Create(path):
            return path
        case Set(path, _, version):
            node = nodes.get(path)
            if version != ANY_VERSION:
                return version + 1
            return node.stat.version if node is not None and node.stat.modified_zxid == zxid and not twice else None
        case _:
            return None
