"""What became of a change whose answer was lost: any changes before, beside and after it, and the nodes never lie about it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.broker.store.base import ANY_VERSION, Check, Create, Delete, Operation, Set, Stat, parent_of
from penstock.broker.store.outcome import LostOutcome, Seen, looked_at, outcome, sequence_nodes

ME, OTHER = 7, 8


class RefusedError(Exception):
    """An operation can't be carried out."""


@dataclass
class Tree:
    """ZooKeeper's rules, as far as an outcome depends on them."""

    nodes: dict[str, Seen] = field(default_factory=lambda: {"/": Seen(b"", Stat(0, 0, 0, 0, 0, 0), 0)})
    zxid: int = 0
    given: int = 0

    def multi(self, operations: list[Operation], session: int) -> list[str | int | None]:
        """All or nothing. Raises RefusedError; a refused one takes a zxid, too."""
        self.zxid += 1
        before = copy.copy(self.nodes)
        try:
            return [self._apply(one, session) for one in operations]
        except RefusedError:
            self.nodes = before
            raise

    def _apply(self, one: Operation, session: int) -> str | int | None:
        node = self.nodes.get(one.path)
        if isinstance(one, Create):
            path, parent = one.path, self.nodes.get(parent_of(one.path))
            if one.sequence:
                path, self.given = f"{path}{self.given:010}", self.given + 1
            if path in self.nodes or parent is None or parent.stat.ephemeral_session:
                raise RefusedError
            owner = session if one.ephemeral else 0
            self.nodes[path] = Seen(one.data, Stat(0, owner, 0, 0, self.zxid, self.zxid), self.zxid)
            self.nodes[parent_of(path)] = replace(parent, children_zxid=self.zxid)
            return path
        if node is None or getattr(one, "version", ANY_VERSION) not in (ANY_VERSION, node.stat.version):
            raise RefusedError
        if isinstance(one, Set):
            stat = replace(node.stat, version=node.stat.version + 1, modified_zxid=self.zxid)
            self.nodes[one.path] = Seen(one.data, stat, node.children_zxid)
            return stat.version
        if isinstance(one, Delete):
            if any(parent_of(path) == one.path for path in self.nodes):
                raise RefusedError
            del self.nodes[one.path]
            self.nodes[parent_of(one.path)] = replace(self.nodes[parent_of(one.path)], children_zxid=self.zxid)
        return None


PATHS = st.sampled_from(["/a", "/b", "/a/c", "/a/d"])
VERSIONS = st.sampled_from([ANY_VERSION, 0, 1, 2])


def changes(author: bytes) -> st.SearchStrategy[list[Operation]]:
    """Some multi of one who writes his name in all bytes."""
    one = st.one_of(
        st.builds(Create, PATHS, st.just(author), st.booleans()),
        st.builds(Create, st.sampled_from(["/s-", "/a/s-"]), st.just(author), st.booleans(), st.just(True)),
        st.builds(Set, PATHS, st.just(author), VERSIONS),
        st.builds(Delete, PATHS, VERSIONS),
        st.builds(Check, PATHS, VERSIONS),
    )
    return st.lists(one, min_size=1, max_size=3)


def tried(tree: Tree, operations: list[Operation], session: int) -> list[str | int | None] | None:
    try:
        return tree.multi(operations, session)
    except RefusedError:
        return None


@settings(max_examples=300)
@given(
    earlier=st.lists(changes(b"other"), max_size=4),
    mine=changes(b"mine"),
    between=st.lists(changes(b"other"), max_size=2),
    later=st.lists(changes(b"other"), max_size=3),
    arrives=st.booleans(),
)
@example([], [Set("/a", b"mine", 0)], [], [[Set("/a", b"other")]], True)
@example([], [Set("/a", b"mine")], [], [[Set("/a", b"other")]], True)
@example([], [Create("/b", b"mine")], [], [[Delete("/b")], [Create("/b", b"other")]], True)
@example([], [Create("/b", b"mine", True), Set("/a", b"mine", 0)], [], [[Delete("/b")]], True)
def test_the_nodes_never_lie_about_a_lost_change(
    earlier: list[list[Operation]],
    mine: list[Operation],
    between: list[list[Operation]],
    later: list[list[Operation]],
    arrives: bool,
) -> None:
    tree = Tree()
    tree.multi([Create("/a", b"first")], OTHER)
    for operations in earlier:
        tried(tree, operations, OTHER)
    before = tree.zxid
    for operations in between:
        tried(tree, operations, OTHER)
    answers = tried(tree, mine, ME) if arrives else None
    for operations in later:
        tried(tree, operations, OTHER)
    nodes = {path: tree.nodes.get(path) for path in looked_at(mine)}
    for one in sequence_nodes(mine):
        nodes |= {path: node for path, node in tree.nodes.items() if path.startswith(one.path)}
    became, found = outcome(mine, nodes, before, ME)
    gone = all(isinstance(one, (Check, Delete)) and (isinstance(one, Check) or nodes[one.path] is None) for one in mine)
    if became is LostOutcome.DONE:
        assert (found == answers) or (gone and answers is None and found == [None] * len(mine))
    if became is LostOutcome.NOT_DONE:
        assert answers is None or all(isinstance(one, Check) for one in mine)
    paths = [one.path for one in mine]
    tells = [one for one in mine if isinstance(one, (Create, Set)) and not (isinstance(one, Create) and one.sequence)]
    if tells and not between and not later and len(set(paths)) == len(paths):
        assert became is not LostOutcome.UNKNOWN or answers is not None, "nobody else did anything, so it didn't arrive"
