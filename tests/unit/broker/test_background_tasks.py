"""Work that nobody waits for goes on when a part of it fails, and says so."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import tasks
from penstock.broker.configs.brokerconfig import load as load_config
from penstock.broker.coordination.consumergroups.state import ConsumerGroup
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.timers import Entry, Timers
from penstock.broker.logs.ballast import Ballast
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.store.base import StoreError
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.upkeep import disks as disks_module
from penstock.broker.upkeep import periodic
from penstock.broker.upkeep.disks import FULL, HAS_SPACE, RESERVED, Disks
from penstock.broker.upkeep.logcleaner import LogCleaner
from penstock.broker.upkeep.pending import PendingUpkeep
from penstock.broker.upkeep.periodic import PeriodicUpkeep
from penstock.pyx.log.logtable import FolderState
from support.patience import LIMIT_S


def test_a_task_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("by itself")

    async def run() -> None:
        task = tasks.start(fail(), "example")
        await asyncio.wait([task])

    asyncio.run(run())
    assert "the task `example` has failed" in caplog.text and "by itself" in caplog.text


def test_a_timer_that_fails_lets_the_others_come() -> None:
    came: list[str] = []

    def due(entry: Entry[Any]) -> None:
        came.append(entry.name)
        if entry.name == "first":
            raise RuntimeError("a fault in its machine")

    async def run() -> None:
        timers: Timers[Any] = Timers(lambda: 1000, due)
        for name in ("first", "second"):
            timers.arm(Entry(name, SimpleNamespace(wake_at_ms=900), 0))
        await asyncio.sleep(0.05)
        timers.stop()

    asyncio.run(run())
    assert came == ["first", "second"]


def kept_by(upkeep: Callable[[str, int, int, bool, bool], Any], configs: dict[str, str] | None = None, **given: int) -> Any:
    """The context of a broker with one partition; intervals are a minute unless given (`_` for `.`)."""
    intervals = dict.fromkeys(
        (
            "log.initial.task.delay.ms",
            "log.retention.check.interval.ms",
            "log.flush.scheduler.interval.ms",
            "log.flush.offset.checkpoint.interval.ms",
            "log.flush.interval.ms",
        ),
        60_000,
    )
    topic = SimpleNamespace(name="t", configs=configs or {}, partitions=[SimpleNamespace(index=0)])
    log_dir = SimpleNamespace(path="a")
    noted = tempfile.TemporaryDirectory()  # where the time is noted for the next start
    return SimpleNamespace(
        noted=noted,
        dirs=SimpleNamespace(online=[log_dir], of=lambda key: log_dir, first=SimpleNamespace(path=Path(noted.name))),
        topics=SimpleNamespace(changed=asyncio.Event(), all=lambda: [topic]),
        config=intervals | {name.replace("_", "."): value for name, value in given.items()},
        log_manager=SimpleNamespace(upkeep=upkeep),
        now_ms=lambda: 0,
        age_now_ms=lambda: 0,
        monotonic_ms=lambda: int(time.monotonic() * 1000),
    )


def test_what_is_old_goes_at_its_own_time_however_often_logs_are_flushed() -> None:
    clock_ms = 0
    retained: list[int] = []
    enough = threading.Event()

    def upkeep(name: str, index: int, now_ms: int, retain: bool, remove: bool) -> Any:
        nonlocal clock_ms
        if retain:
            retained.append(clock_ms)
        clock_ms += 100  # A round a flush interval.
        if clock_ms > 2000:
            enough.set()
        return SimpleNamespace(segments_deleted=0)

    async def run() -> None:
        given = {"log_retention_check_interval_ms": 350, "log_initial_task_delay_ms": 700}
        context = kept_by(upkeep, {"flush.ms": "100"}, **given)
        context.monotonic_ms = lambda: clock_ms
        in_rounds = PeriodicUpkeep(context)
        in_rounds.start()
        try:
            assert await asyncio.to_thread(enough.wait, 30)
        finally:
            await in_rounds.stop()

    asyncio.run(run())
    assert retained[:5] == [400, 800, 1200, 1600, 2000]


def test_upkeep_goes_on_after_a_round_that_failed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(periodic, "LONGEST_INTERVAL_MS", 100)
    rounds = threading.Event()
    seen: list[int] = []

    def upkeep(name: str, index: int, now_ms: int, retain: bool, remove: bool) -> Any:
        seen.append(index)
        if len(seen) == 1:
            raise RuntimeError("not expected")
        rounds.set()
        return SimpleNamespace(segments_deleted=0)

    async def run() -> None:
        in_rounds = PeriodicUpkeep(kept_by(upkeep))
        in_rounds.start()
        try:
            assert await asyncio.to_thread(rounds.wait, 20)
        finally:
            await in_rounds.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "a round of upkeep has failed" in caplog.text


def test_a_round_that_takes_very_long_is_said_once_with_its_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(periodic, "LONGEST_INTERVAL_MS", 100)
    monkeypatch.setattr(periodic, "LATE_MIN_MS", 2_000)  # The rounds of the other folder take less on a busy machine, too.
    hangs, said, went_on = threading.Event(), threading.Event(), threading.Event()
    rounds = {"a": 0, "b": 0}

    def upkeep(name: str, index: int, now_ms: int, retain: bool, remove: bool) -> Any:
        folder = "ab"[index]
        rounds[folder] += 1
        if folder == "a" and rounds["a"] == 1:
            assert hangs.wait(30)
        if "does its disk hang?" in caplog.text and folder == "b" and rounds["b"] > 5:
            said.set()
        if "upkeep goes on" in caplog.text:
            went_on.set()
        return SimpleNamespace(segments_deleted=0)

    async def run() -> None:
        context = kept_by(upkeep)
        dirs = [SimpleNamespace(path=path) for path in "ab"]
        context.dirs = SimpleNamespace(online=dirs, of=lambda key: dirs[key[1]], first=context.dirs.first)
        partitions = [SimpleNamespace(index=index) for index in range(2)]
        context.topics.all = lambda: [SimpleNamespace(name="t", configs={}, partitions=partitions)]
        in_rounds = PeriodicUpkeep(context)
        in_rounds.start()
        try:
            assert await asyncio.to_thread(said.wait, 30)
            hangs.set()
            assert await asyncio.to_thread(went_on.wait, 30)
        finally:
            hangs.set()
            await in_rounds.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.text.count("does its disk hang?") == 1 and "log_dir=a: a round of upkeep" in caplog.text


def test_a_disk_that_was_full_before_a_kill_is_the_brokers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ballast that the kill has left was given up for the start, and there is no space to take it again."""
    path = tmp_path / "a"
    path.mkdir()
    (path / ".ballast").write_bytes(b"x")
    monkeypatch.setattr(Ballast, "take", lambda self: False)
    dirs = LogDirs.open([path], 1, 1 << 20)
    assert not (path / ".ballast").exists()
    spaces: list[tuple[str, int]] = []

    async def run() -> None:
        news_fd = os.eventfd(0, os.EFD_NONBLOCK)
        logs: Any = SimpleNamespace(
            news_fd=news_fd, folder_states=dict, set_space=lambda where, space: spaces.append((where, space))
        )
        disks = Disks(dirs, logs, SimpleNamespace(), SimpleNamespace(), lambda: None)  # type: ignore[arg-type]
        await disks.start()
        await disks.stop()
        os.close(news_fd)

    asyncio.run(run())
    dirs.close(clean=True)
    assert spaces == [(str(path), RESERVED)]


def test_a_full_disk_is_looked_at_while_others_have_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks_module, "CHECK_S", 0.2)
    monkeypatch.setattr(Ballast, "has_space", lambda self: True)
    dirs = LogDirs.open([tmp_path / "a"], 1)
    path = str(tmp_path / "a")

    async def run() -> None:
        has_space = asyncio.Event()
        news_fd = os.eventfd(0, os.EFD_NONBLOCK)

        def set_space(_: str, space: int) -> None:
            if space == HAS_SPACE:
                has_space.set()

        logs: Any = SimpleNamespace(
            news_fd=news_fd, folder_states=lambda: {path: FolderState(0, FULL, False, False)}, set_space=set_space
        )
        pending: Any = SimpleNamespace(look=lambda: None)
        disks = Disks(dirs, logs, SimpleNamespace(folder_failed=None), pending, lambda: None)  # type: ignore[arg-type]
        await disks.start()
        async with asyncio.timeout(LIMIT_S):
            while not has_space.is_set():
                os.eventfd_write(news_fd, 1)
                await asyncio.sleep(0.02)
        await disks.stop()
        os.close(news_fd)
        assert has_space.is_set()

    asyncio.run(run())
    dirs.close(clean=True)


def test_a_segment_that_is_rolled_while_checkpoints_are_written_is_flushed_too() -> None:
    """The data plane tells of a folder once: nobody says it again until the segments are flushed."""
    rolled, flushes = [True], []

    async def run() -> None:
        loop, flushed_again = asyncio.get_running_loop(), asyncio.Event()

        def flush_rolled(now_ms: int, most: int, path: str) -> int:
            rolled[0] = False
            flushes.append(most)
            if len(flushes) == 2:
                loop.call_soon_threadsafe(flushed_again.set)
            return 1

        def write_checkpoints(path: str) -> None:
            if len(flushes) == 1:
                rolled[0] = True
                asyncio.run_coroutine_threadsafe(look(), loop).result()

        async def look() -> None:
            pending.look()

        logs: Any = SimpleNamespace(
            folder_states=lambda: {"a": FolderState(0, HAS_SPACE, rolled[0], False)},
            flush_rolled=flush_rolled,
            write_checkpoints=write_checkpoints,
        )
        pending = PendingUpkeep(logs)
        pending.look()
        try:
            await asyncio.wait_for(flushed_again.wait(), 20)
        finally:
            await pending.stop()

    asyncio.run(run())


def test_a_store_that_can_not_end_its_session_is_closed_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "store.db")
        await store._run("/", lambda: store.shared._database.execute("PRAGMA query_only = 1"))
        with pytest.raises(StoreError):
            await store.close()

    asyncio.run(run())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("store")]


def test_a_pattern_that_nobody_understands_does_not_keep_the_others_from_being_matched() -> None:
    """Another broker may have stored it: `penstock.regex` refuses it in a heartbeat."""
    fed: list[Any] = []

    async def run() -> None:
        group = ConsumerGroup.__new__(ConsumerGroup)
        coordinator: Any = GroupCoordinator.__new__(GroupCoordinator)
        coordinator._matched_ms, coordinator.entries = {"g": 1 << 50}, {"g": SimpleNamespace(machine=group)}
        coordinator._environment = SimpleNamespace(catalog=SimpleNamespace(version=3))
        coordinator._parts = SimpleNamespace(
            monotonic_ms=lambda: 5, topics=SimpleNamespace(all=lambda: [SimpleNamespace(name="orders")])
        )
        coordinator._feed = lambda entry, event: fed.append(event)
        await coordinator._match_again("g", ["(?=orders)", "ord.*"])
        assert coordinator._matched_ms == {"g": 5}

    asyncio.run(run())
    (event,) = fed
    assert event.found == {"ord.*": frozenset({"orders"})}


def test_the_cleaners_threads_are_as_many_as_the_property_says() -> None:
    config = load_config()

    class Folders(list[Any]):
        def of(self, key: object) -> None: ...

    folders = Folders(SimpleNamespace(path=Path(name)) for name in ("a", "b"))
    context: Any = SimpleNamespace(config=config, topics=SimpleNamespace(all=list), dirs=folders)

    def running() -> dict[str, asyncio.Task[Any]]:
        named = {task.get_name(): task for task in asyncio.all_tasks()}
        return {name: task for name, task in named.items() if name.startswith("cleaner-")}

    def threads(count: int) -> set[str]:
        return {f"cleaner-{number} of {folder}" for number in range(count) for folder in "ab"}

    async def run() -> None:
        cleaner = LogCleaner(context)
        cleaner.start()
        assert set(running()) == threads(1)
        config.alter({"log.cleaner.threads": "3", "log.cleaner.backoff.ms": "0"}, default=True)
        assert set(running()) == threads(3)
        config.alter({"log.cleaner.threads": "2", "log.cleaner.backoff.ms": "0"}, default=True)
        await asyncio.gather(running()["cleaner-2 of a"], running()["cleaner-2 of b"])
        assert set(running()) == threads(2)
        await cleaner.stop()
        config.alter({"log.cleaner.threads": "2"}, default=True)
        assert not running()

    asyncio.run(asyncio.wait_for(run(), 30))
