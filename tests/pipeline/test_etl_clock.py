"""Nights and wrong clocks: a night is over once the aggregate cluster's clock says so, too."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from penstock.pipeline import job
from penstock.pipeline.etl.cut import Cut, Goals
from penstock.pipeline.etl.night import parse_night
from support.clock import Clock
from support.etl_world import World
from support.harness import BrokerProcess

pytestmark = pytest.mark.whole_day

DAY_S = 86_400
LAST_NIGHT = "2013-01-01"


def hold(folder: Path, night: str) -> None:
    """A table of one night that took nothing."""
    log = folder / "table" / "_delta_log"
    log.mkdir(parents=True)
    entry = json.dumps({"format": 1, "night": night, "run": 1, "ranges": [], "missing": []})
    domain = {"domain": f"penstock.etl.night.{night}", "configuration": entry, "removed": False}
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in (("id", "string"), ("event_day", "date"))]
    metadata = {"schemaString": json.dumps({"type": "struct", "fields": fields})}
    actions = [{"metaData": metadata}, {"domainMetadata": domain}, {"txn": {"appId": "penstock.etl", "version": 1}}]
    (log / f"{0:020d}.json").write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))


@pytest.fixture
def world(shared_broker: BrokerProcess, tmp_path: Path) -> World:
    world = World(shared_broker.bootstrap, tmp_path)
    world.write_config(penstock_etl_clock="wall", penstock_etl_schema="id STRING, day DATE")
    world.arrive()
    return world


def day(days: int) -> str:
    return (datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=days)).isoformat()


@pytest.mark.parametrize("ahead_days", [31, -31])
def test_no_night_is_loaded_while_clocks_are_apart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_days: int
) -> None:
    """Of a quiet cluster, too: nobody has produced anything."""
    clock = Clock(tmp_path)
    clock.set_ahead(ahead_days * DAY_S)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    for how in ("wait", "mark"):
        done = world.etl("--night", "yesterday", "--covering", "--incomplete", how, "--wait-seconds", "60")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"clock shows {day(ahead_days)} " in done.stderr and f"the aggregate cluster {day(0)} " in done.stderr
        assert "hint: " in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "table" / "_penstock").iterdir()] == ["lock"]


def test_a_month_of_nights_is_not_taken_along_where_all_clocks_are_ahead(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine has broker and table: no clock is left that is right."""
    clock = Clock(tmp_path)
    clock.set_ahead(31 * DAY_S)
    broker = make_broker(environment=clock.environment)
    world = World(broker.bootstrap, tmp_path)
    world.write_config(penstock_etl_clock="wall", penstock_etl_schema="id STRING, day DATE")
    hold(tmp_path, day(-2))
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    done = world.etl("--night", "yesterday", "--covering")
    assert done.returncode == 1 and f"night {day(30)} would take 31 nights along" in done.stderr, done.stderr
    assert f"--night {day(30)} --covering-since {day(-1)}" in done.stderr
    done = world.etl("--night", "yesterday", "--covering-since", day(-5))
    assert done.returncode == 1 and f"--covering-since {day(-1)}" in done.stderr, done.stderr


def test_a_clock_that_is_behind_does_not_call_each_night_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(tmp_path, day(-1))
    clock = Clock(tmp_path)
    clock.set_ahead(-31 * DAY_S)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    done = world.etl("--night", "yesterday")
    assert done.returncode == 1 and f"night {day(-1)} (run 1) is in " in done.stderr, done.stderr
    taken_back = world.etl("--take-back")
    assert taken_back.returncode == 1 and "this machine's clock shows" in taken_back.stderr, taken_back.stderr


def look(world: World, change: Callable[[Goals], None]) -> tuple[list[str], bool]:
    """What a night lacks whose goals were changed, and whether it is over."""

    async def ask() -> tuple[list[str], bool]:
        cut = Cut(job.load(world.config), "wall", ZoneInfo("UTC"))
        try:
            goals = cut.goals(parse_night(LAST_NIGHT))
            change(goals)
            return await cut.missing(goals), cut.is_over(goals)
        finally:
            await cut.close()

    return asyncio.run(ask())


def test_a_clock_that_is_minutes_ahead_waits_for_the_aggregates(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time

    def end_in_ten_minutes(goals: Goals) -> None:
        goals.night_end_ms = round((now() + 600) * 1000)

    monkeypatch.setattr("penstock.pipeline.etl.cut.time.time", lambda: now() + 1200)
    (words,), is_over = look(world, end_in_ten_minutes)
    assert words.startswith("the night is not over for another ") and "by the clock of the aggregate cluster" in words
    assert not is_over


def test_a_topic_that_shows_no_clock_is_said(world: World) -> None:
    assert look(world, lambda goals: None) == ([], True)
    world.set_config("penstock.tables", "message.timestamp.type", "CreateTime")
    try:
        done = world.etl("--night", LAST_NIGHT)
        assert done.returncode == 1 and "nobody knows its clock" in done.stderr, done.stderr
        assert "hint: `penstock configs set topic penstock.tables message.timestamp.type=LogAppendTime`" in done.stderr
    finally:
        world.set_config("penstock.tables", "message.timestamp.type", "LogAppendTime")
