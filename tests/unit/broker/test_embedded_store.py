"""The embedded store keeps ZooKeeper's rules, all or nothing, across restarts and kills."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.context import Endpoint
from penstock.broker.listeners import single
from penstock.broker.server import ServerError, _register
from penstock.broker.store import sound
from penstock.broker.store.base import (
    BadVersionError,
    Check,
    CorruptStoreError,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Set,
    StoreError,
    paths,
)
from penstock.broker.store.embedded import EmbeddedStore

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


def test_nodes_have_versions_and_parents(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        with pytest.raises(NoNodeError):
            await store.create("/a/b", b"x")
        assert await store.create("/a/b", b"x", parents=True) == "/a/b"
        with pytest.raises(NodeExistsError):
            await store.create("/a/b")
        data, stat = await store.get("/a/b")
        assert (data, stat.version) == (b"x", 0)
        assert await store.set("/a/b", b"y", 0) == 1
        with pytest.raises(BadVersionError):
            await store.set("/a/b", b"z", 0)
        assert (await store.get("/a/b"))[0] == b"y"
        with pytest.raises(NotEmptyError):
            await store.delete("/a")
        with pytest.raises(BadVersionError):
            await store.delete("/a/b", 0)
        await store.delete("/a", recursive=True)
        assert await store.exists("/a/b") is None
        with pytest.raises(NoNodeError):
            await store.get("/a")

    check(tmp_path, scenario)


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "/a//b"])
def test_bad_paths_are_refused(tmp_path: Path, path: str) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        with pytest.raises(StoreError):
            await store.create(path, parents=True)

    check(tmp_path, scenario)


def test_children_and_sequence_nodes(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.create("/q")
        first = await store.create("/q/n-", sequence=True)
        await store.delete(first)
        second = await store.create("/q/n-", sequence=True)
        assert first < second  # a number is never handed out twice
        await store.create("/q/a/deep", parents=True)
        assert await store.children("/q") == ["a", second.rpartition("/")[2]]

    check(tmp_path, scenario)


def test_multi_is_all_or_nothing(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        await store.create("/a", b"1")
        with pytest.raises(BadVersionError):
            await store.multi([Set("/a", b"2"), Create("/b"), Check("/a", 7)])
        assert (await store.get("/a"))[0] == b"1"
        assert await store.exists("/b") is None
        done = await store.multi([Check("/a", 0), Set("/a", b"2"), Create("/b"), Delete("/b")])
        assert done == [None, 1, "/b", None]

    check(tmp_path, scenario)


def test_a_watch_fires_once_and_only_for_its_kind(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        seen: list[tuple[str, Event]] = []

        def watch(path: str, event: Event) -> None:
            seen.append((path, event))

        assert await store.exists("/a", watch) is None
        await store.children("/", watch)
        await store.create("/a")
        await store.set("/a", b"1")
        await store.get("/a", watch)
        with pytest.raises(BadVersionError):
            await store.set("/a", b"2", 9)
        await asyncio.sleep(0)
        assert seen == [("/a", Event.CREATED), ("/", Event.CHILDREN)]
        await store.delete("/a")
        await asyncio.sleep(0)
        assert seen[2:] == [("/a", Event.DELETED)]

    check(tmp_path, scenario)


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


def test_zxids_grow_and_tell_a_node_from_its_successor(tmp_path: Path) -> None:
    async def scenario(store: EmbeddedStore) -> None:
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

    check(tmp_path, scenario)

    async def opened_again(store: EmbeddedStore) -> None:
        last = await store.changes()
        await store.create("/a/live", ephemeral=True)
        assert (await store.get("/a/live"))[1].created_zxid > last

    check(tmp_path, opened_again)


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
