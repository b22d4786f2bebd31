"""The store in a ZooKeeper while connections, sessions and servers fail: a real one, behind a proxy that cuts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import single
from penstock.broker.server import ServerError, _register
from penstock.broker.store.base import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    Event,
    NodeExistsError,
    Operation,
    SessionLostError,
    Set,
    StoreError,
    UnknownOutcomeError,
    paths,
    pieces,
)
from penstock.broker.store.zookeeper import ZooKeeperStore
from penstock.broker.store.zookeepersession import WINDOW
from support.patience import until
from support.store_homes import WAIT_S, Seen, play
from support.zookeeper import CONNECT, SESSION_MS, CuttingProxy, ZooKeeper, ZooKeeperHome, ensemble, tool

pytestmark = pytest.mark.kafka

SYNC, GET = 9, 4


class World(ZooKeeperHome):
    """A chroot with a session through the proxy, `store`, and one straight to the server, `other`."""

    store: ZooKeeperStore
    other: ZooKeeperStore

    def __init__(self, server: ZooKeeper, proxy: CuttingProxy) -> None:
        super().__init__(server.address)
        self.proxy = proxy

    async def begin(self) -> None:
        """Open both sessions."""
        self.other = await self.session()
        straight = self.servers
        self.servers = self.proxy.address + straight[straight.index("/") :]
        self.store = await self.session()
        self.servers = straight


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def proxy(zookeeper: ZooKeeper) -> Iterator[CuttingProxy]:
    """A proxy before the ZooKeeper that tests share."""
    made = CuttingProxy(zookeeper.port)
    yield made
    made.close()


@pytest.fixture
def world(zookeeper: ZooKeeper, proxy: CuttingProxy) -> Play:
    """A function that plays a scenario in a world of its own."""

    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        made = World(zookeeper, proxy)

        async def all_of_it(home: object) -> None:
            await made.begin()
            async with asyncio.timeout(WAIT_S):
                await scenario(made)

        play(made, all_of_it)

    return run


async def become(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until this is so, which nothing can tell but asking."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.01)


async def away(store: ZooKeeperStore) -> bool:
    """Whether the store knows that its connection is lost."""
    return not store._session.ready.is_set()


async def done(waited: list[Any]) -> bool:
    """Whether all of these have come."""
    return all(one.done() for one in waited)


async def sent(store: ZooKeeperStore, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A call that kazoo has been given."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    assert store._session._sent
    return task


WRITES: dict[str, tuple[list[Operation], list[str | int | None]]] = {
    "create": ([Create("/new", b"mine")], ["/new"]),
    "ephemeral": ([Create("/new", ephemeral=True)], ["/new"]),
    "ephemeral sequence": ([Create("/n-", ephemeral=True, sequence=True)], ["/n-0000000001"]),
    "set a version": ([Set("/n", b"mine", 0)], [1]),
    "set any version": ([Set("/n", b"mine")], [1]),
    "delete": ([Delete("/n", 0)], [None]),
    "register": ([Check("/n", 0), Set("/n", b"mine"), Create("/new", b"me", ephemeral=True)], [None, 1, "/new"]),
    "notify": ([Set("/n", b"mine", 0), Create("/n-", b"it", sequence=True)], [1, "/n-0000000001"]),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("lost", ["answers", "requests"])
def test_a_change_whose_connection_breaks_is_made_once_and_answered(world: Play, what: str, lost: str) -> None:
    operations, answer = WRITES[what]

    async def scenario(home: World) -> None:
        await home.store.create("/n")
        await home.store.sync()
        before = await home.other.changes()
        home.proxy.lose(lost)
        writing = await sent(home.store, home.store.multi(operations))
        if lost == "answers":
            await become(lambda: _changed(home, before))
        else:
            await asyncio.sleep(0.2)
            assert not await _changed(home, before)
        home.proxy.cut()
        assert await writing == answer
        # Once: versions, owners and numbers are those of one change.
        await home.other.sync()
        names = await home.other.children("/")
        made = {path.removeprefix("/") for path in answer if isinstance(path, str)}
        assert set(names) == made | (set() if what == "delete" else {"n"})
        if "n" in names:
            stat = await home.other.exists("/n")
            assert stat is not None and stat.version == (1 if any(isinstance(one, Set) for one in operations) else 0)
        if "new" in names:
            stat = await home.other.exists("/new")
            assert stat is not None and stat.ephemeral_session == (0 if what == "create" else home.store.session)

    async def _changed(home: World, before: int) -> bool:
        names = await home.other.children("/")
        stat = await home.other.exists("/n")
        return names != ["n"] or stat is None or stat.modified_zxid > before

    world(scenario)


def test_a_change_that_was_refused_while_the_connection_was_away_is_refused(world: Play) -> None:
    async def scenario(home: World) -> None:
        await home.store.create("/n")
        home.proxy.lose("requests")
        setting = await sent(home.store, home.store.set("/n", b"mine", 0))
        making = await sent(home.store, home.store.create("/live", b"mine", ephemeral=True))
        await home.other.set("/n", b"theirs", 0)
        home.proxy.cut()
        with pytest.raises(BadVersionError):
            await setting
        assert await making == "/live"
        home.proxy.lose("answers")
        again = await sent(home.store, home.store.create("/live", b"mine", ephemeral=True))
        await asyncio.sleep(0.2)
        home.proxy.cut()
        with pytest.raises(NodeExistsError):
            await again

    world(scenario)


def test_changes_of_one_node_that_never_arrived_are_all_made_in_their_order(world: Play) -> None:
    """What is sent again for the first doesn't hide what became of the next ones."""

    async def scenario(home: World) -> None:
        for name, versions in (("/n", range(3)), ("/m", [ANY_VERSION] * 3)):
            await home.store.create(name)
            await home.store.sync()
            home.proxy.lose("requests")
            setting = [await sent(home.store, home.store.set(name, b"%d" % n, at)) for n, at in enumerate(versions)]
            home.proxy.cut()
            assert await asyncio.gather(*setting) == [1, 2, 3]
            assert (await home.store.get(name))[0] == b"2"

    world(scenario)


def test_a_change_that_another_may_have_covered_is_called_unknown(world: Play) -> None:
    """It is settled, too: nothing of it comes later."""

    async def scenario(home: World) -> None:
        await home.store.create("/n")
        for lost in ("answers", "requests"):
            home.proxy.lose(lost)
            setting = await sent(home.store, home.store.set("/n", b"mine"))
            making = await sent(home.store, home.store.create("/new", b"mine"))
            if lost == "answers":
                await become(lambda: _is(home, b"mine"))
                await become(lambda: _there(home))
                await home.other.delete("/new")
            else:
                await home.other.create("/else")
            await home.other.set("/n", b"theirs")
            home.proxy.cut()
            for call in (setting, making):
                with pytest.raises(UnknownOutcomeError):
                    await call
            assert await home.store.exists("/new") is None
            assert (await home.store.get("/n"))[0] == b"theirs"

    async def _is(home: World, data: bytes) -> bool:
        return (await home.other.get("/n"))[0] == data

    async def _there(home: World) -> bool:
        return await home.other.exists("/new") is not None

    world(scenario)


def test_watches_of_a_lost_connection_say_that_they_may_have_missed_something(world: Play) -> None:
    async def scenario(home: World) -> None:
        seen = Seen()
        await home.store.create("/gone")
        await home.store.get("/gone", seen)
        await home.store.children("/", seen)
        await home.store.exists("/never", seen)
        home.proxy.cut(refuse=True)
        await home.other.delete("/gone")
        await become(lambda: away(home.store))
        await asyncio.sleep(0.1)
        assert seen.events == [], "whoever looked now would see what was before the connection was lost"
        home.proxy.mend()
        asked = asyncio.ensure_future(home.store.exists("/gone"))
        events = await seen.wait(3)
        assert sorted(events) == sorted([(path, Event.MISSED) for path in ("/gone", "/", "/never")], key=str)
        assert await home.store.exists("/gone", seen) is None and await asked is None
        assert not home.store.lost.is_set()
        # Each watch is gone with that, and new ones hold.
        await home.other.create("/gone")
        assert (await seen.wait(4))[3:] == [("/gone", Event.CREATED)]
        await home.store.sync()
        assert len(seen.events) == 4

    world(scenario)


def test_a_session_that_expires_while_its_connection_is_away_ends_every_call(world: Play) -> None:
    async def scenario(home: World) -> None:
        await home.store.create("/live", ephemeral=True)
        home.proxy.lose("requests")
        calls = [await sent(home.store, home.store.create("/late", ephemeral=True))]
        calls.append(await sent(home.store, home.store.get("/live")))
        home.proxy.cut(refuse=True)
        await become(lambda: away(home.store))
        calls += [asyncio.ensure_future(home.store.create(f"/later-{n}")) for n in range(2 * WINDOW)]
        await home.expire(home.store)
        assert not home.store.lost.is_set(), "only a server can say so"
        home.proxy.mend()
        await home.store.lost.wait()
        for call in calls:
            with pytest.raises(SessionLostError):
                await call
        await home.other.sync()
        assert await home.other.children("/") == []

    world(scenario)


def test_nothing_is_done_in_a_session_that_kazoo_would_begin_by_itself(world: Play) -> None:
    """The loop is busy while kazoo's thread learns of the expiry, and calls the store before it hears of it."""

    async def scenario(home: World) -> None:
        first = home.store._session._client.client_id
        await home.expire(home.store)
        until(
            lambda: home.store._session._handler.over or home.store._session._client.client_id not in (None, first),
            "the end of the session",
        )
        time.sleep(1.0)  # noqa: ASYNC251 - another session would be there by now.
        late = home.store.create("/late", b"yesterday's", ephemeral=True)
        late.send(None)  # As far as a task comes in one step, before any callback of the loop.
        await home.store.lost.wait()
        await asyncio.sleep(1.0)
        await home.store.close()
        late.close()
        await home.other.sync()
        assert (await home.other.children("/")) == []
        seen = [codes for codes in home.proxy.requests if len(codes) > 1]
        assert len(seen) == 1, "a second session was begun"

    world(scenario)


def test_each_connection_is_synced_before_it_is_read_from(world: Play) -> None:
    """A read that kazoo sends on a connection of which the loop hasn't heard yet is asked for again."""

    async def scenario(home: World) -> None:
        await home.store.create("/n", b"0")
        first = len(home.proxy.requests)
        home.proxy.cut()
        until(lambda: len(home.proxy.requests) > first and home.store._session._client.connected, "kazoo's next connection")
        reading = home.store.get("/n")
        waited = reading.send(None)  # The loop hasn't heard that the connection was lost.
        await become(lambda: done([waited]))
        reading.close()
        assert waited.result()[0] == b"0"
        home.proxy.cut(refuse=True)
        await become(lambda: away(home.store))
        home.proxy.mend()
        assert (await home.store.get("/n"))[0] == b"0"
        assert home.proxy.requests[first] == [CONNECT, GET, SYNC, GET], "the answer that counts comes after the sync"
        assert home.proxy.requests[-1] == [CONNECT, SYNC, GET]

    world(scenario)


def test_calls_on_a_connection_that_has_just_broken_do_not_block_the_loop(world: Play) -> None:
    """kazoo is woken by a byte for each, and takes none of them while it connects."""

    async def scenario(home: World) -> None:
        await home.store.create("/n", b"0")
        home.proxy.cut(refuse=True)
        until(lambda: not home.store._session._client.connected, "kazoo's notice of the cut")
        reading = [home.store.get("/n") for _ in range(5 * WINDOW)]
        answers = [one.send(None) for one in reading]
        home.proxy.mend()
        await become(lambda: done(answers))
        assert {one.result()[0] for one in answers} == {b"0"}
        for one in reading:
            one.close()

    world(scenario)


def test_connections_that_are_cut_all_the_time_lose_and_double_nothing(world: Play) -> None:
    async def scenario(home: World) -> None:
        await home.store.create("/n", b"0")
        finished = asyncio.Event()
        written = 0

        async def cut() -> None:
            seen = 0
            while not finished.is_set():
                await asyncio.sleep(0.15)
                if written > seen:  # Where a new connection takes longer than that, none would get a write through.
                    seen = written
                    home.proxy.cut()

        cutting = asyncio.ensure_future(cut())
        for number in range(60):
            assert await home.store.set("/n", b"%d" % number, number) == number + 1
            await home.store.create(f"/{number}", b"%d" % number)
            written = number + 1
            await asyncio.sleep(0.02)
        finished.set()
        await cutting
        data, stat = await home.other.get("/n")
        assert (data, stat.version) == (b"59", 60)
        assert await home.other.children("/") == sorted(["n", *map(str, range(60))])
        assert len(home.proxy.requests) > 3

    world(scenario)


def test_a_name_that_zookeeper_does_not_take_is_refused(world: Play) -> None:
    async def scenario(home: World) -> None:
        with pytest.raises(StoreError, match=r"`\.`"):
            await home.store.create("/a/.", parents=True)

    world(scenario)


def test_a_tree_that_others_change_is_deleted_all_the_same(world: Play) -> None:
    async def scenario(home: World) -> None:
        for piece in pieces([Create(f"/t/{number}/n", parents=True)] for number in range(300)):
            await home.store.multi(piece)
        stop = asyncio.Event()

        async def disturb() -> None:
            number = 0
            while not stop.is_set() and number < 40:
                with contextlib.suppress(StoreError):
                    await home.other.create(f"/t/{number}/more-{number}")
                    await home.other.set(f"/t/{299 - number}/n", b"changed")
                number += 1

        disturbing = asyncio.ensure_future(disturb())
        await home.store.delete("/t", recursive=True)
        stop.set()
        await disturbing
        assert await home.store.exists("/t") is None
        await home.store.create("/u/a/b", parents=True)
        await asyncio.gather(
            *(each.create(f"/u/c/{n}/d", parents=True) for n, each in enumerate((home.store, home.other) * 20))
        )
        assert len(await home.store.tree("/u/c")) == 80

    world(scenario)


def test_a_server_that_is_killed_and_comes_back_finds_the_session_waiting(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path / "server").start()

    async def scenario(home: object) -> None:
        store, seen = await made.session(), Seen()
        await store.create("/live", ephemeral=True)
        await store.create("/n", b"0")
        await store.get("/n", seen)
        server.kill()
        calls: list[asyncio.Future[object]] = [
            asyncio.ensure_future(store.set("/n", b"%d" % number, number)) for number in range(3)
        ]
        calls.append(asyncio.ensure_future(store.create("/after", ephemeral=True)))
        await asyncio.get_running_loop().run_in_executor(None, server.start)
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        if store.lost.is_set():  # The machine took longer than the session lasts.
            assert all(isinstance(one, SessionLostError) for one in answers)
            return
        assert answers == [1, 2, 3, "/after"]
        assert await seen.wait(1) == [("/n", Event.MISSED)]
        for path in ("/live", "/after"):
            stat = await store.exists(path)
            assert stat is not None and stat.ephemeral_session == store.session
        assert store.session_timeout_ms == SESSION_MS

    made = ZooKeeperHome(server.address)
    try:
        play(made, scenario)
    finally:
        server.kill()


def test_without_a_server_the_start_says_so_in_one_sentence() -> None:
    async def run() -> None:
        with pytest.raises(StoreError, match=r"`127\.0\.0\.1:1/kafka`: no server of these has answered in 0\.5 s"):
            await ZooKeeperStore.open("127.0.0.1:1/kafka", wait_s=0.5)

    asyncio.run(run())


def test_an_ensemble_loses_members_and_nothing_else(tmp_path: Path) -> None:
    """A member that lags, one that is killed, the leader: what was answered is there, and seen after a sync."""
    with ensemble(tmp_path) as servers:
        leader = next(one for one in servers if one.mode() == "leader")
        lagging, third = (one for one in servers if one is not leader)
        home = ZooKeeperHome(",".join(one.address for one in servers))
        behind = ZooKeeperHome(lagging.address)
        behind.servers = lagging.address + home.servers[home.servers.index("/") :]

        async def scenario(_: object) -> None:
            store, reader = await home.session(), await behind.session()
            home.servers = f"{leader.address},{third.address}" + home.servers[home.servers.index("/") :]
            writer = await home.session()
            await writer.create("/n", b"0")
            assert lagging.process is not None
            for number in range(1, 4):
                lagging.process.send_signal(19)
                for step in range(50):
                    await writer.set("/n", b"%d %d" % (number, step))
                lagging.process.send_signal(18)
                await reader.sync()
                assert (await reader.get("/n"))[0] == b"%d 49" % number
            await store.create("/live", ephemeral=True)
            leader.kill()
            async with asyncio.timeout(WAIT_S):
                await writer.set("/n", b"without the leader")
                await reader.sync()
                assert (await reader.get("/n"))[0] == b"without the leader"
            for each in (store, writer, reader):
                assert not each.lost.is_set()
            stat = await reader.exists("/live")
            assert stat is not None and stat.ephemeral_session == store.session
            await behind.close()

        play(home, scenario)


def test_stock_tools_read_what_a_broker_writes(zookeeper: ZooKeeper) -> None:
    home = ZooKeeperHome(zookeeper.address)

    async def scenario(_: object) -> None:
        store = await home.session()
        await _register(store, 1, single(Endpoint("127.0.0.1", 9092)), 7)
        with pytest.raises(ServerError, match="another broker 1 is running in this cluster"):
            await _register(await home.session(), 1, single(Endpoint("127.0.0.1", 9092)), 8)
        config = json.dumps({"version": 1, "config": {"log.cleaner.threads": "2"}}).encode()
        await store.create(paths.broker_config(2), config, parents=True)
        loop = asyncio.get_running_loop()
        root = home.servers[home.servers.index("/") :]
        asked = f"get {root}/brokers/ids/1\nget {root}/controller_epoch\nquit\n"
        shell = partial(tool, "org.apache.zookeeper.ZooKeeperMain", "-server", zookeeper.address, stdin=asked)
        said = await loop.run_in_executor(None, shell)
        assert '"endpoints": ["PLAINTEXT://127.0.0.1:9092"]' in said and "\n7\n" in said
        asked_tool = "kafka.admin.ConfigCommand", "--zookeeper", home.servers, "--describe", "--entity-type", "brokers"
        with pytest.raises(AssertionError, match="broker 1 is running"):  # Says Kafka's tool, by the registration.
            await loop.run_in_executor(None, partial(tool, *asked_tool, "--entity-name", "1"))
        described = await loop.run_in_executor(None, partial(tool, *asked_tool, "--entity-name", "2"))
        assert "log.cleaner.threads=2" in described

    play(home, scenario)
