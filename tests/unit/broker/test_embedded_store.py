"""The embedded store across restarts, kills and formats, and its sessions; what holds for every store: test_store.py."""

import asyncio
import contextlib
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.broker.endpoint import Endpoint
from penstock.broker.listeners import single
from penstock.broker.server import ServerError, _register
from penstock.broker.store import sound
from penstock.broker.store.base import (
    CorruptStoreError,
    Event,
    SessionLostError,
    StoreError,
    paths,
)
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.store.sharedtree import SharedTree

Scenario = Callable[[EmbeddedStore], Awaitable[None]]


def check(path: Path, scenario: Scenario) -> None:
    """Run a scenario against a store in that file, opened again."""

    async def run() -> None:
        store = await EmbeddedStore.open(path / "metadata.db")
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_ephemeral_nodes_end_with_their_session(tmp_path: Path) -> None:
    async def make(store: EmbeddedStore) -> None:
        await store.create("/live", ephemeral=True)
        await store.create("/kept")
        with pytest.raises(StoreError):
            await store.create("/live/child")

    async def look(store: EmbeddedStore) -> None:
        assert await store.children("/") == ["kept"]

    check(tmp_path, make)
    check(tmp_path, look)


def test_zxids_grow_over_a_restart(tmp_path: Path) -> None:
    last = 0

    async def scenario(store: EmbeddedStore) -> None:
        nonlocal last
        await store.create(f"/live-{last}", ephemeral=True)
        stat = await store.exists(f"/live-{last}")
        assert stat is not None and stat.created_zxid > last
        last = stat.created_zxid

    for _ in range(3):
        check(tmp_path, scenario)


def test_sessions_of_several_loops_share_a_tree(tmp_path: Path) -> None:
    """Brokers in one process have a loop each; one whose loop is closed in mid-session holds up nobody."""
    shared = asyncio.run(SharedTree.open(tmp_path / "metadata.db"))
    heard: queue.Queue[tuple[str, Event]] = queue.Queue()

    async def abandon() -> int:
        store = await EmbeddedStore.begin(shared)
        await store.create("/abandoned", ephemeral=True)
        await store.children("/", lambda path, event: heard.put((path, event)))
        return store.session

    async def work(name: str) -> None:
        store = await EmbeddedStore.begin(shared)
        for number in range(100):
            await store.create(f"/{name}-{number}")
        await store.create(f"/{name}", ephemeral=True)
        await store.close()

    session = asyncio.run(abandon())
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(asyncio.run, work(name)) for name in ("a", "b", "c")]:
            done.result()
    assert heard.empty()

    async def look() -> None:
        store = await EmbeddedStore.begin(shared)
        names = await store.children("/")
        assert len(names) == 301 and "abandoned" in names
        stat = await store.exists("/abandoned")
        assert stat is not None and stat.ephemeral_session == session != store.session
        await store.close()
        await shared.close()

    asyncio.run(look())


def test_a_session_ends_when_its_loop_is_not_heard_of_for_its_timeout(tmp_path: Path) -> None:
    """As a server's does: one that is asked in time lives on, one that was abandoned doesn't, and its calls change nothing."""

    async def scenario() -> None:
        shared = await SharedTree.open(tmp_path / "metadata.db")
        stores = [await EmbeddedStore.begin(shared, timeout_ms=1_000) for _ in range(2)]
        (alive, abandoned), lasting = stores, await EmbeddedStore.begin(shared)
        for store in stores:
            await store.create(f"/{store.session}", ephemeral=True)
        abandoned.abandon()
        for call in (abandoned.create("/late"), abandoned.get("/")):
            with pytest.raises(SessionLostError):
                await call
        await abandoned.close()
        assert await alive.exists(f"/{abandoned.session}") is not None, "nobody has told the tree of its end"
        began_s = time.monotonic()
        while await lasting.exists(f"/{abandoned.session}") is not None:
            await shared.run("/", lambda: shared.expire_silent(began_s))
            await asyncio.sleep(0.1)
        assert time.monotonic() - began_s >= 1
        assert await alive.exists(f"/{alive.session}") is not None and not alive.lost.is_set()
        assert await lasting.exists("/late") is None
        await shared.run("/", lambda: shared.expire_silent(time.monotonic()))  # Nobody was asked for long: all may go on.
        assert not alive.lost.is_set()
        for store in (alive, lasting):
            await store.close()
        await shared.close()

    asyncio.run(scenario())


GOLDEN = Path(__file__).parents[2] / "golden" / "metadata-format-2.sql"
"""A store of format 2 whose broker was killed, as the last version that wrote the format left it."""


def test_a_store_of_format_2_is_read_on(tmp_path: Path) -> None:
    file = tmp_path / "metadata.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.executescript(GOLDEN.read_text())
    kept = "/config/topics/kept"
    before = sound.check(file)
    assert (before.changes, before.store_id, before.has_topics) == (9, "AAAAAAAAAAAAAAAAAAAAAQ", True)

    async def look(store: EmbeddedStore) -> None:
        data, stat = await store.get(kept)
        assert data == b'{"version":1,"config":{"retention.ms":"7"}}'
        assert (stat.version, stat.created_zxid, stat.modified_zxid) == (1, 0, 0)
        assert await store.exists("/controller") is None
        assert (await store.create("/log_dir_event_notification/n", sequence=True)).endswith("n0000000003")
        await store.set(kept, b"new", 1)
        assert (await store.get(kept))[1].modified_zxid == await store.changes() == 11

    check(tmp_path, look)
    after = sound.check(file, changes=11)
    assert (after.changes, after.store_id, after.has_topics) == (11, before.store_id, True)

    async def damage(store: EmbeddedStore) -> None:
        raise AssertionError("it opened")

    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT value FROM about WHERE name = 'format'").fetchone() == (str(sound.FORMAT),)
        database.execute("UPDATE node SET created_zxid = 5 WHERE path = ?", (kept,))
        database.commit()
    with pytest.raises(CorruptStoreError, match="the checksum of the node `/config/topics/kept` is wrong"):
        check(tmp_path, damage)


def test_a_damaged_store_of_format_2_is_not_given_new_checksums(tmp_path: Path) -> None:
    file = tmp_path / "metadata.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.executescript(GOLDEN.read_text())
        database.execute("UPDATE node SET version = 7 WHERE path = '/brokers'")
        database.commit()
    found = file.read_bytes()

    async def scenario(store: EmbeddedStore) -> None:
        raise AssertionError("it opened")

    with pytest.raises(CorruptStoreError, match="the checksum of the node `/brokers` is wrong"):
        check(tmp_path, scenario)
    assert file.read_bytes() == found


def test_a_killed_process_leaves_what_was_answered(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from penstock.broker.store.embedded import EmbeddedStore\n"
        "async def run():\n"
        "    store = await EmbeddedStore.open(pathlib.Path(sys.argv[1]))\n"
        "    await store.create('/live', ephemeral=True)\n"
        "    await store.create('/n')\n"
        "    for number in range(10**9):\n"
        "        await store.set('/n', b'%d' % number)\n"
        "        print(number, flush=True)\n"
        "asyncio.run(run())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "metadata.db")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(50):
        answered = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    answered = int((process.stdout.read().splitlines() or [str(answered)])[-1])
    process.wait()
    process.stdout.close()

    async def look(store: EmbeddedStore) -> None:
        assert int((await store.get("/n"))[0]) - answered in (0, 1)  # one more may be written, unanswered
        assert await store.exists("/live") is None

    check(tmp_path, look)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database, but long enough to look at" * 100)

    async def scenario(store: EmbeddedStore) -> None:
        raise AssertionError("it opened")

    with pytest.raises(StoreError, match="not a database"):
        check(tmp_path, scenario)


def test_an_id_that_lives_in_the_store_is_not_registered_again(tmp_path: Path) -> None:
    """For a store that brokers share; of two brokers on one folder the second is refused before it opens its store."""

    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path / "store")
        address = Endpoint("127.0.0.1", 1)
        listeners = single(address)
        await _register(store, 1, listeners, 1)
        with pytest.raises(ServerError, match="another broker 1 is running in this cluster"):
            await _register(store, 1, listeners, 2)
        assert (await store.get(paths.CONTROLLER_EPOCH))[0] == b"1"
        await store.close()

    asyncio.run(main())
