"""A play whose ansible-playbook is killed at any task and that is run again ends as one that wasn't killed.

Each play is killed at its first task, run again and killed at its second, and so on until it comes through: each task is cut
short the first time that it has something to do, and all before it are done again over what was left.
PENSTOCK_DEPLOY_KILLS=3 kills at one of three tasks alone; which ones, PENSTOCK_DEPLOY_SEED says.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator

import pytest

from support.fleet_world import Release, World
from support.machines import fleet, until

pytestmark = [pytest.mark.machines, pytest.mark.timeout(7200), pytest.mark.xdist_group("machines")]

DATACENTERS = ("west", "middle")
STEP = int(os.environ.get("PENSTOCK_DEPLOY_KILLS", "1"))
SEED = os.environ.get("PENSTOCK_DEPLOY_SEED", "1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small_release: Release) -> Iterator[World]:
    with fleet(tmp_path_factory.mktemp("killed")) as machines:
        made = World(machines, small_release, DATACENTERS)
        made.plays.variables["package_etl"] = False
        yield made


def killed_everywhere(world: World, playbook: str, *options: str) -> list[str]:
    """Run a playbook until it comes through; the tasks at which it was killed."""
    dice = random.Random(f"{SEED} {playbook}")
    names: list[str] = []
    while name := world.plays.run_killed(playbook, 1 + STEP * len(names) + dice.randrange(STEP), *options):
        names.append(name)
    print(f"{playbook} was killed at {len(names)} tasks: {'; '.join(names)}")
    assert names
    return names


def deduped(world: World) -> int:
    """Where dedupe's output ends."""
    shown = json.loads(world.fleet.penstock("topics", "list", "--json", "-b", world.address(DATACENTERS[-1])))
    return sum(one["offsets"] for one in shown if one["topic"] == "flights.deduped")


def mirror(world: World, words: str) -> str:
    """What a command of the mirror's prints where the mirror runs; `status` has another exit code while a lane stands still."""
    command = f"runuser -u penstock -- /opt/penstock/current/bin/penstock mirror {words}"
    return world.machine(DATACENTERS[-1]).ssh(f"{command} --config /etc/penstock/pipeline.properties || [ $? = 1 ]")


def stopped(world: World) -> dict[str, str]:
    """Why lanes stand still, by what `mirror begin` calls them."""
    lanes = json.loads(mirror(world, "status --json"))
    return {f"{one['source']} {one['topic']}:{one['partition']}": one["why"] for one in lanes if one["state"] == "stopped"}


def check_that_it_serves(world: World) -> None:
    """All that should run does, and a record comes from the source through to dedupe's output."""
    for datacenter in DATACENTERS:
        assert world.machine(datacenter).ssh("systemctl is-active penstock-broker").strip() == "active"
    units = world.machine(DATACENTERS[-1]).ssh("systemctl is-active penstock-mirror penstock-dedupe penstock-etl.timer")
    assert units.split() == ["active"] * 3
    before = deduped(world)
    record = f"{os.urandom(8).hex()}:x"
    world.fleet.penstock(
        "produce", "flights", "--create", "--key-separator", ":", "-b", world.address(DATACENTERS[0]), text=record
    )
    until(lambda: deduped(world) > before, 120, "the mirror and dedupe")


def test_site_on_bare_boxes(world: World) -> None:
    names = killed_everywhere(world, "site")
    assert len(names) * STEP > 30, names
    assert world.plays.run("site").changed == 0
    check_that_it_serves(world)


def test_site_with_other_settings(world: World) -> None:
    """What must be restarted for a changed file is restarted by the run after, which finds the file changed already."""
    world.plays.variables["broker_properties"] = {"log.retention.hours": 99}
    world.plays.variables["etl_calendar"] = "*-*-* 01:23:00 UTC"
    properties = world.plays.variables["pipeline_properties"]
    assert isinstance(properties, dict)
    properties["penstock.mirror.linger.ms"] = 51
    before = {unit: world.main_pid("middle", unit) for unit in ("penstock-mirror", "penstock-dedupe")}
    names = killed_everywhere(world, "site")
    assert "Write the broker's properties" in "".join(names) or STEP > 1, names
    assert world.plays.run("site").changed == 0
    for datacenter in DATACENTERS:
        shown = world.fleet.penstock("configs", "show", "broker", "1", "--all", "-b", world.address(datacenter))
        assert [line.split()[1] for line in shown.splitlines() if line.startswith("log.retention.hours")] == ["99"]
    assert [unit for unit in before if world.main_pid("middle", unit) == before[unit]] == []
    assert "01:23:00" in world.machine("middle").ssh("systemctl list-timers penstock-etl.timer --no-legend")
    check_that_it_serves(world)


def test_roll(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    killed_everywhere(world, "roll")
    after = {one: world.main_pid(one) for one in DATACENTERS}
    assert [one for one in DATACENTERS if after[one] == before[one]] == []
    assert world.plays.run("site").changed == 0
    check_that_it_serves(world)


def test_swap_disk(world: World) -> None:
    machine, folders = world.machine("west"), world.log_folders("west")
    kept = world.spread("west", folders[0])
    before = deduped(world)
    lines = "\n".join(f"{os.urandom(8).hex()}:x" for _ in range(40))
    world.fleet.penstock("produce", "flights", "--create", "--key-separator", ":", "-b", world.address("west"), text=lines)
    until(lambda: deduped(world) >= before + 40, 120, "the mirror and dedupe")
    lost = {f"WEST {name.replace('-', ':')}" for name in machine.ssh(f"ls {folders[1]}").split() if name.startswith("flights-")}
    assert lost
    old = folders[1].split("/")[3]
    world.describe(west=[0, 2])
    killed_everywhere(world, "swap_disk", "--extra-vars", f"swap_host=west-1 swap_id={old} swap_confirm={old}")
    assert world.spread_left("west") == kept
    assert machine.ssh("ls /run/systemd/system/penstock-broker.service.d") == ""
    assert world.plays.run("site").changed == 0
    # A partition that begins again, empty, isn't the one that the mirror has read: a person says so.
    until(lambda: stopped(world).keys() == lost, 120, "the mirror to stop where the disk was lost")
    for lane, why in stopped(world).items():
        assert re.search(f"`penstock mirror begin {re.escape(lane)} --at (earliest|OFFSET) --because TEXT`", why)
        mirror(world, f"begin {lane} --at earliest --because 'a new disk'")
    check_that_it_serves(world)
    assert stopped(world) == {}


def test_upgrade(world: World, next_small_release: Release) -> None:
    world.plays.variables |= next_small_release.variables
    killed_everywhere(world, "upgrade")
    assert world.plays.run("site").changed == 0
    for datacenter, unit in (("west", "broker"), ("middle", "broker"), ("middle", "mirror"), ("middle", "dedupe")):
        pid = world.main_pid(datacenter, f"penstock-{unit}")
        command = world.machine(datacenter).ssh(f"tr '\\0' ' ' < /proc/{pid}/cmdline")
        assert f"/opt/penstock/{next_small_release.version}/" in command
    check_that_it_serves(world)
