"""What the store notes of log folders that have failed: none of several notes at once takes another one back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from penstock.broker.store.base import Store, paths
from penstock.broker.topics.marks import Marks
from support.store_homes import EmbeddedHome, Home, play

IDS = [f"folder-{number}" for number in range(5)]


async def begun(home: Home) -> tuple[Marks, Store]:
    """The marks of a broker that has noted its folders."""
    store = await home.session()
    for path in (paths.LOG_DIR_EVENTS, paths.log_dirs(1)):
        await store.create(path, parents=True)
    marks = Marks(1, store)
    await store.multi([await marks.log_dirs_node(dict.fromkeys(IDS, "/path"))])
    return marks, store


def test_folders_that_fail_together_are_all_noted(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        marks, store = await begun(home)
        await asyncio.gather(*map(marks.note_failure, IDS))
        assert sorted(await marks.failed_log_dirs()) == IDS
        assert await marks.log_dirs() == dict.fromkeys(IDS, "/path")
        events = await store.children(paths.LOG_DIR_EVENTS)
        assert len(events) == len(IDS)
        told = json.loads((await store.get(f"{paths.LOG_DIR_EVENTS}/{events[0]}"))[0])
        assert told == {"version": 1, "broker": 1, "event": 1}

    play(EmbeddedHome(tmp_path / "store"), scenario)


def test_a_folder_that_fails_while_others_are_forgotten_stays_noted(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        marks, _ = await begun(home)
        dealt_with, stays, *new = IDS
        for one in (dealt_with, stays):
            await marks.note_failure(one)
        await asyncio.gather(
            *map(marks.note_failure, new[:2]), marks.forget_failures(lambda one: one != dealt_with), marks.note_failure(new[2])
        )
        assert sorted(await marks.failed_log_dirs()) == [stays, *new]

    play(EmbeddedHome(tmp_path / "store"), scenario)


def test_a_failure_is_noted_where_no_folder_was_noted_before(tmp_path: Path) -> None:
    async def scenario(home: Home) -> None:
        store = await home.session()
        await store.create(paths.LOG_DIR_EVENTS, parents=True)
        marks = Marks(1, store)
        await asyncio.gather(*map(marks.note_failure, IDS[:2]))
        assert sorted(await marks.failed_log_dirs()) == IDS[:2]

    play(EmbeddedHome(tmp_path / "store"), scenario)
