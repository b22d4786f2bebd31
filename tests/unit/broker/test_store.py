"""What holds for every metadata store: the rules of ZooKeeper, in whichever home the tree is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.broker.store.base import (
    ANY_VERSION,
    MULTI_BYTES,
    MULTI_OPERATIONS,
    BadVersionError,
    Check,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionLostError,
    Set,
    Store,
    StoreError,
    TooLargeError,
    pieces,
    setting,
)
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.zookeeper import ZooKeeperStore
from support.store_homes import WAIT_S, EmbeddedHome, Home, Scenario, Seen, play
from support.zookeeper import ZooKeeper, ZooKeeperHome

Run = Callable[[Scenario], None]


@pytest.fixture(params=["embedded", pytest.param("ZooKeeper", marks=pytest.mark.kafka)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A function that plays a scenario in the home of this parameter."""
    if request.param == "embedded":
        return lambda scenario: play(EmbeddedHome(tmp_path / "metadata.db"), scenario)
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return lambda scenario: play(ZooKeeperHome(server.address), scenario)


def test_nodes_have_versions_and_parents(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        with pytest.raises(NoNodeError) as missing:
            await store.create("/a/b", b"x")
        assert missing.value.path == "/a"
        assert await store.create("/a/b", b"x", parents=True) == "/a/b"
        with pytest.raises(NodeExistsError) as there:
            await store.create("/a/b", parents=True)
        assert there.value.path == "/a/b"
        data, stat = await store.get("/a/b")
        assert (data, stat.version, stat.ephemeral_session) == (b"x", 0, 0)
        assert await store.set("/a/b", b"y", 0) == 1
        assert await store.set("/a/b", b"", ANY_VERSION) == 2
        with pytest.raises(BadVersionError):
            await store.set("/a/b", b"z", 0)
        assert (await store.get("/a/b"))[0] == b""
        with pytest.raises(NotEmptyError):
            await store.delete("/a")
        with pytest.raises(BadVersionError):
            await store.delete("/a/b", 0)
        await store.delete("/a/b", 2)
        assert await store.exists("/a/b") is None
        for call in (
            store.get("/a/b"),
            store.set("/a/b", b""),
            store.delete("/a/b"),
            store.children("/a/b"),
            store.tree("/a/b"),
        ):
            with pytest.raises(NoNodeError):
                await call

    run(scenario)


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "/a//b", "/a\0b", "/a\x1f", "/\ud800", "/\ufff0", "/\U0001f600"])
def test_a_name_that_no_node_can_have_is_refused(run: Run, path: str) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        for call in (store.create(path, parents=True), store.delete(path)):
            with pytest.raises(StoreError):
                await call
        if path != "/":
            reads = store.get(path), store.exists(path), store.children(path), store.tree(path)
            for read in (*reads, store.set(path, b"")):
                with pytest.raises(StoreError):
                    await read
        await store.create("/é-%2F <default>", b"good")
        assert (await store.get("/é-%2F <default>"))[0] == b"good"

    run(scenario)


def test_calls_are_carried_out_in_the_order_in_which_they_are_made(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        await store.create("/n")
        calls = [asyncio.ensure_future(store.set("/n", b"%d" % number, number)) for number in range(300)]
        read = asyncio.ensure_future(store.get("/n"))
        assert await asyncio.gather(*calls) == list(range(1, 301))
        data, stat = await read
        assert (data, stat.version) == (b"299", 300)

    run(scenario)


def test_numbers_of_sequence_nodes_are_given_once(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        await store.create("/q")
        first = await store.create("/q/n-", sequence=True)
        assert first.removeprefix("/q/n-").isdigit() and len(first) == len("/q/n-") + 10
        await store.delete(first)
        made = await asyncio.gather(*(each.create("/q/n-", sequence=True) for each in (store, other) * 5))
        assert len(set(made)) == 10 and min(made) > first
        (in_multi,) = await store.multi([Create("/q/n-", sequence=True, ephemeral=True)])
        assert isinstance(in_multi, str) and in_multi > max(made)
        assert sorted(await store.children("/q")) == sorted(path.removeprefix("/q/") for path in [*made, in_multi])

    run(scenario)


def test_zxids_grow_and_tell_a_node_from_its_successor(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        await store.create("/a", b"1")
        made = (await store.get("/a"))[1]
        assert made.created_zxid == made.modified_zxid == await store.changes()
        await store.multi([Set("/a", b"2"), Create("/b"), Create("/c/d", parents=True)])
        changed, zxid = (await store.get("/a"))[1], await store.changes()
        assert zxid > made.created_zxid
        assert (changed.created_zxid, changed.modified_zxid) == (made.created_zxid, zxid)
        for path in ("/b", "/c", "/c/d"):
            assert (await store.get(path))[1].created_zxid == zxid, "all of a multi is one change"
        await store.delete("/a")
        await store.create("/a", b"1")
        again = (await store.get("/a"))[1]
        assert again.version == made.version and again.created_zxid > zxid
        child = (await store.get("/c"))[1]
        await store.create("/c/e")
        assert (await store.get("/c"))[1] == child, "a child changes nothing of its parent's"

    run(scenario)


def test_multi_is_all_or_nothing(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        await store.create("/a", b"1")
        refused: list[tuple[list[Operation], type[StoreError], str]] = [
            ([Set("/a", b"2"), Create("/b"), Check("/a", 7)], BadVersionError, "/a"),
            ([Set("/a", b"2"), Create("/x/b")], NoNodeError, "/x"),
            ([Set("/a", b"2"), Create("/b"), Create("/b", parents=True)], NodeExistsError, "/b"),
            ([Create("/b/c", parents=True), Delete("/b")], NotEmptyError, "/b"),
            ([Create("/b"), Delete("/nothing", recursive=True)], NoNodeError, "/nothing"),
            ([Create("/b"), Check("/nothing")], NoNodeError, "/nothing"),
        ]
        for operations, error, path in refused:
            with pytest.raises(error) as raised:
                await store.multi(operations)
            assert raised.value.path == path
            assert (await store.get("/a"))[0] == b"1"
            assert await store.exists("/b") is None
        done = await store.multi(
            [Check("/a", 0), Set("/a", b"2"), Create("/b"), Delete("/b"), Create("/p/q/r", b"3", parents=True)]
        )
        assert done == [None, 1, "/b", None, "/p/q/r"]
        assert (await store.get("/p/q/r"))[0] == b"3"
        assert await store.multi([]) == []

    run(scenario)


def test_a_multi_makes_parents_and_takes_trees(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        made = await store.multi(
            [Create("/t/p/0/state", b"0", parents=True), Create("/t/p/1/state", b"1", parents=True), Set("/t", b"t")]
        )
        assert made == ["/t/p/0/state", "/t/p/1/state", 1]
        # A tree that is made again in the same multi, and a version that has to be right.
        with pytest.raises(BadVersionError):
            await store.multi([Delete("/t", 0, recursive=True)])
        await store.multi([Delete("/t", 1, recursive=True), Create("/t/p/2", parents=True)])
        assert await store.tree("/t") == {"p": b"", "p/2": b""}

    run(scenario)


def test_a_watch_fires_once_and_only_for_its_kind(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        seen = Seen()
        await store.create("/w")
        assert await store.exists("/w/a", seen) is None
        await store.children("/w", seen)
        await other.create("/w/a")
        await other.create("/w/b")
        await other.set("/w/a", b"1")
        assert sorted(await seen.wait(2), key=str) == sorted([("/w/a", Event.CREATED), ("/w", Event.CHILDREN)], key=str)
        await store.get("/w/a", seen)
        with pytest.raises(BadVersionError):
            await other.set("/w/a", b"2", 9)
        await other.set("/w/a", b"2")
        assert (await seen.wait(3))[2:] == [("/w/a", Event.CHANGED)]
        await store.exists("/w/a", seen)
        await store.children("/w/a", seen)
        await other.delete("/w/a")
        assert (await seen.wait(5))[3:] == [("/w/a", Event.DELETED)] * 2, "whoever watches the children of a node hears its end"
        with pytest.raises(NoNodeError):
            await store.get("/w/a", seen)
        with pytest.raises(NoNodeError):
            await store.children("/w/a", seen)
        await other.create("/w/a")
        await store.sync()
        await store.get("/w/a")
        assert len(seen.events) == 5

    run(scenario)


def test_each_watch_of_a_node_fires_once(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        watches = [Seen(), Seen(), Seen()]
        await store.create("/n")
        for _ in range(3):
            for seen in watches:
                await store.get("/n", seen)
                await store.exists("/n", seen)
                await other.get("/n", seen)
        await store.set("/n", b"1")
        for seen in watches:
            assert await seen.wait(2) == [("/n", Event.CHANGED)] * 2, "one in each session"
        await store.children("/n", watches[0])
        await store.exists("/n", watches[0])
        await store.sync()
        await store.delete("/n")
        assert (await watches[0].wait(4))[2:] == [("/n", Event.DELETED)] * 2, "its children are another thing to watch"
        await store.create("/n")
        await other.sync()
        await asyncio.sleep(0.1)
        assert [len(seen.events) for seen in watches] == [4, 2, 2]

    run(scenario)


def test_looks_that_are_repeated_leave_one_watch_a_node(run: Run) -> None:
    """As a controller looks at its topics: one of them changes, and all are looked at."""

    async def scenario(home: Home) -> None:
        store = await home.session()
        paths = [f"/t/{number}" for number in range(20)]
        for path in paths:
            await store.create(path, parents=True)
        controller, news, seen = Looker(), asyncio.Event(), Seen()
        for number in range(50):
            await store.children("/t", controller.hear)
            await store.children("/t", setting(news))
            await asyncio.gather(*(store.get(path, controller.hear) for path in paths))
            await asyncio.gather(*(store.exists(path, setting(news)) for path in paths))
            await store.exists(paths[0], seen)
            await store.set(paths[0], b"%d" % number)
            await seen.wait(number + 1)
        assert controller.heard == [(paths[0], Event.CHANGED)] * 50
        assert watches_out(store) == 2 * len(paths), "two of each node that hasn't changed since, and two of the list"

    run(scenario)


class Looker:
    """One that looks again and again, and hears of changes by a method of its own."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Event]] = []

    def hear(self, path: str, event: Event) -> None:
        """A watch."""
        self.heard.append((path, event))


def watches_out(store: Store) -> int:
    """How many watches of callers are out; in kazoo there is one a node, and one of its children."""
    if isinstance(store, EmbeddedStore):
        return sum(map(len, [*store.shared._node_watches.values(), *store.shared._child_watches.values()]))
    assert isinstance(store, ZooKeeperStore)
    session = store._session
    kept = [*session._client._data_watchers.values(), *session._client._child_watchers.values()]
    assert [len(one) for one in kept if one] == [1] * len(session._watches)
    return sum(map(len, session._watches.values()))


def test_a_watch_comes_before_any_read_that_shows_its_cause(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        await store.create("/n", b"0")
        for number in range(1, 100):
            seen = Seen()
            await store.get("/n", seen)
            writing = asyncio.ensure_future(other.set("/n", b"%d" % number))
            while (await store.get("/n"))[0] != b"%d" % number:
                pass
            assert seen.events == [("/n", Event.CHANGED)]
            await writing

    run(scenario)


def test_ephemeral_nodes_end_with_their_session(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        assert store.session != other.session
        seen = Seen()
        await store.create("/live", ephemeral=True)
        await store.create("/kept")
        await other.create("/theirs", ephemeral=True)
        with pytest.raises(StoreError, match="ephemeral"):
            await store.create("/live/child")
        stat = await other.exists("/live", seen)
        assert stat is not None and stat.ephemeral_session == store.session
        await other.children("/", seen)
        await store.close()
        assert sorted(await seen.wait(2), key=str) == sorted([("/live", Event.DELETED), ("/", Event.CHILDREN)], key=str)
        assert await other.exists("/live") is None and await other.exists("/kept") is not None
        assert await other.exists("/theirs") is not None

    run(scenario)


def test_a_session_that_expires_says_so_and_does_nothing_any_more(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        seen, others = Seen(), Seen()
        await store.create("/live", ephemeral=True)
        await store.create("/n", b"0")
        await store.get("/n", seen)
        await other.exists("/live", others)
        assert not store.lost.is_set()
        await home.expire(store)
        assert await others.wait(1) == [("/live", Event.DELETED)]
        async with asyncio.timeout(WAIT_S):
            await store.lost.wait()
        await other.set("/n", b"1")
        for call in (store.create("/late"), store.set("/n", b"2"), store.get("/n"), store.sync(), store.tree("/")):
            with pytest.raises(SessionLostError):
                await call
        assert await other.exists("/late") is None and (await other.get("/n"))[0] == b"1"
        assert seen.events == [], "a watch of a session that is over"
        assert not other.lost.is_set()
        again = await home.session()
        await again.create("/live", ephemeral=True)
        stat = await other.exists("/live")
        assert stat is not None and stat.ephemeral_session == again.session != store.session

    run(scenario)


def test_a_registration_is_replaced_in_one_multi_and_its_successor_is_never_hit(run: Run) -> None:
    """What brokers register by: the node that stays grows, the ephemeral one is the new session's, with a later creation."""

    async def scenario(home: Home) -> None:
        first, second, third = [await home.session() for _ in range(3)]
        await first.multi([Create("/incarnation"), Create("/id", b"1", ephemeral=True)])
        before, seen = await first.exists("/id"), Seen()
        await third.get("/id", seen)
        replacing: list[Operation] = [Set("/incarnation", b"2"), Delete("/id"), Create("/id", b"2", ephemeral=True)]
        assert await second.multi(replacing) == [1, None, "/id"]
        data, after = await third.get("/id")
        assert before is not None and data == b"2" and after.version == before.version == 0
        assert after.ephemeral_session == second.session and after.created_zxid > before.created_zxid
        assert seen.events[:1] == [("/id", Event.DELETED)]
        await home.expire(first)
        async with asyncio.timeout(WAIT_S):
            await first.lost.wait()
        await third.sync()
        assert await third.exists("/id") == after, "the end of the session that made the former one"
        with pytest.raises(BadVersionError):
            await third.multi([Check("/incarnation", 0), Delete("/id")])
        assert await third.exists("/id") == after
        await third.multi([Check("/incarnation", 1), Delete("/id")])
        assert await third.exists("/id") is None and (await third.get("/incarnation"))[1].version == 1

    run(scenario)


def test_what_one_session_was_answered_another_sees_after_a_sync(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store, other = await home.session(), await home.session()
        await store.create("/n", b"0")
        for number in range(50):
            await store.set("/n", b"%d" % number)
            await other.sync()
            assert (await other.get("/n"))[0] == b"%d" % number

    run(scenario)


def test_the_children_of_a_node_are_sorted_names(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        names = [f"n{number}" for number in range(30)]
        random.Random(7).shuffle(names)
        await store.create("/p")
        for name in names:
            await store.create(f"/p/{name}/deep", parents=True)
        assert await store.children("/p") == sorted(names)
        assert await store.children("/p/n1/deep") == []

    run(scenario)


def test_a_multi_that_is_too_large_is_refused_in_words_and_cut_where_it_may_be(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        many = [Create(f"/{number:04}") for number in range(3 * MULTI_OPERATIONS)]
        large = [Create("/large", bytes(MULTI_BYTES))]
        await store.create("/a", bytes(MULTI_BYTES - 1000))
        one_more: list[Operation] = [*many[: MULTI_OPERATIONS - 1], Check("/a"), Delete("/a")]
        too_large: list[Sequence[Operation]] = [many, large, [Set("/a", bytes(MULTI_BYTES))], one_more]
        for operations in too_large:
            with pytest.raises(TooLargeError, match="more than ZooKeeper takes in one step"):
                await store.multi(operations)
        with pytest.raises(TooLargeError):
            await store.multi([Create(f"/deep/{number}/n", parents=True) for number in range(MULTI_OPERATIONS - 1)])
        assert await store.children("/") == ["a"]
        groups = [many[at : at + 7] for at in range(0, len(many), 7)]
        guard = [Check("/a"), Check("/a", 0)]
        cut = list(pieces(groups, guard))
        assert [one for piece in cut for one in piece[2:]] == many and all(len(piece) <= MULTI_OPERATIONS for piece in cut)
        assert all(piece[:2] == guard for piece in cut), "a piece without the guard"
        assert all((len(piece) - 2) % 7 == 0 for piece in cut[:-1]), "a group is torn"
        for piece in cut:
            await store.multi(piece)
        assert len(await store.children("/")) == len(many) + 1

    run(scenario)


def test_a_tree_that_is_too_large_for_a_multi_is_deleted_only_under_its_guard(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        await store.create("/guard")
        for piece in pieces([Create(f"/t/{number}/n", parents=True)] for number in range(MULTI_OPERATIONS)):
            await store.multi(piece)
        with pytest.raises(TooLargeError):
            await store.multi([Delete("/t", recursive=True)])
        with pytest.raises(BadVersionError):
            await store.empty("/t", [Check("/guard", 1)])
        assert len(await store.children("/t")) == MULTI_OPERATIONS
        await store.empty("/t", [Check("/guard", 0)])
        assert await store.tree("/t") == {} and await store.exists("/t") is not None
        await store.empty("/nothing", [Check("/guard", 0)])

    run(scenario)


def test_a_big_tree_is_read_and_deleted_whole(run: Run) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        wanted = {"p": b""}
        await store.create("/big/p", parents=True)
        for at in range(0, 900, 100):
            pieces: list[Operation] = []
            for number in range(at, at + 100):
                pieces.append(Create(f"/big/p/{number}/state", b"%d" % number, parents=True))
                wanted |= {f"p/{number}": b"", f"p/{number}/state": b"%d" % number}
            await store.multi(pieces)
        assert await store.tree("/big") == wanted
        assert len(await store.children("/big/p")) == 900
        await store.delete("/big", recursive=True)
        assert await store.exists("/big") is None

    run(scenario)


def test_of_two_that_set_one_version_one_is_refused(run: Run) -> None:
    async def scenario(home: Home) -> None:
        stores = [await home.session() for _ in range(3)]
        await stores[0].create("/n")
        for version in range(20):
            done = await asyncio.gather(*(_set(store, version) for store in stores))
            assert sorted(done) == [False, False, True]

    async def _set(store: Store, version: int) -> bool:
        try:
            return await store.set("/n", b"mine", version) == version + 1
        except BadVersionError:
            return False

    run(scenario)
