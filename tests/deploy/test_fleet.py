"""From bare boxes to a loaded night, on machines without any network but their own: three datacenters and an aggregate.

The tests of this file are one story and run in order on the same machines.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import faultio
from support.fleet_world import DISKS_USED, HIDDEN, Release, World
from support.machines import fleet, until
from support.packages import ROOT

pytestmark = [pytest.mark.machines, pytest.mark.timeout(3600), pytest.mark.xdist_group("machines")]

DATACENTERS = ("ewr", "jfk", "lga", "aggregate")
FEATURES = {"cachestat", "direct_io", "time_slice", "nice", "boot_id"}
BROKER = "/opt/penstock/current/bin/penstock"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[World]:
    with fleet(tmp_path_factory.mktemp("fleet")) as machines:
        yield World(machines, release, DATACENTERS)


def test_a_check_of_bare_boxes_changes_nothing(world: World) -> None:
    world.plays.run("site", "--check")
    for datacenter in DATACENTERS:
        there = world.machine(datacenter).ssh("ls -d /opt/penstock /etc/penstock /srv/penstock /var/lib/penstock* || true")
        assert there == ""
        for disk in world.machine(datacenter).disks:
            with Path(disk).open("rb") as file:
                assert not any(file.read(1 << 20)), disk


def test_from_nothing_to_a_running_pipeline(world: World) -> None:
    world.machine("lga").ssh("dpkg --remove python3-apt")  # as on a small Debian; Ansible wants it
    world.plays.run("site")
    for datacenter in DATACENTERS:
        machine = world.machine(datacenter)
        assert machine.ssh("systemctl is-active penstock-broker").strip() == "active"
        said = machine.ssh("journalctl --quiet --output cat -u penstock-broker")
        (there,) = [line for line in said.splitlines() if "kernel features: " in line]
        # The sandbox of the unit takes nothing away that the data plane wants.
        assert set(there.partition("kernel features: ")[2].split()) == FEATURES
        mounted = machine.ssh("findmnt --noheadings --types xfs --output OPTIONS").splitlines()
        assert ["noatime" in options for options in mounted] == [True] * DISKS_USED
    services = world.machine("aggregate").ssh("systemctl is-active penstock-mirror penstock-dedupe penstock-etl.timer")
    assert services.split() == ["active"] * 3


def test_a_second_run_changes_nothing(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    play = world.plays.run("site")
    assert play.changed == 0, play.text[-6000:]
    assert {one: world.main_pid(one) for one in DATACENTERS} == before


def test_a_check_of_a_running_pipeline_changes_nothing(world: World, next_release: Release) -> None:
    files = "find /etc /opt/penstock /run/systemd/system /var/lib/penstock-bundles -maxdepth 3 -printf '%p %i %T@ %l\\n'"
    units = "systemctl show --property MainPID,ActiveState,UnitFileState 'penstock-*'"
    look = f"{files} | sort; cat /proc/self/mounts; md5sum /var/lib/dpkg/status; {units}"

    def seen() -> dict[str, list[str]]:
        return {one: world.machine(one).ssh(look).splitlines() for one in DATACENTERS}

    before = seen()
    assert world.plays.run("site", "--check").changed == 0
    other = json.dumps({"broker_properties": {"log.retention.hours": 99}, "host_huge_pages": "never", "etl_calendar": "hourly"})
    assert world.plays.run("site", "--check", "--extra-vars", other).changed > len(DATACENTERS)
    world.plays.run("roll", "--check")
    world.plays.run("upgrade", "--check", "--extra-vars", json.dumps(next_release.variables))
    old = world.log_folders("jfk")[1].split("/")[3]
    world.describe(jfk=[0, 2])
    try:
        world.plays.run("swap_disk", "--check", "--extra-vars", f"swap_host=jfk-1 swap_id={old} swap_confirm={old}")
    finally:
        world.describe(jfk=[0, 1])
    assert seen() == before


def test_a_narrower_sandbox_is_said(world: World) -> None:
    """A list of what is allowed, as systemd's own units have it: it is older than cachestat, and loses the time slices."""
    machine = world.machine("ewr")
    drop_in = "/etc/systemd/system/penstock-broker.service.d"
    allowed = "[Service]\\nSystemCallFilter=\\nSystemCallFilter=@system-service\\nSystemCallFilter=~@resources\\n"
    machine.ssh(f"mkdir -p {drop_in}; printf '{allowed}' > {drop_in}/narrow.conf")
    try:
        machine.ssh("systemctl daemon-reload && systemctl restart penstock-broker")
        said = machine.ssh("journalctl --quiet --output cat -u penstock-broker")
        missing = dict(re.findall(r"kernel feature missing: (\w+) \((.*?)\): \w", said))
        assert missing == dict.fromkeys(("cachestat", "time_slice", "nice"), "Operation not permitted: a sandbox refuses it")
        there = re.findall(r"kernel features: (.*)", said)
        assert set(there[-1].split()) == FEATURES - missing.keys()
        world.fleet.penstock("topics", "list", "-b", world.address("ewr"))
    finally:
        machine.ssh(f"rm -r {drop_in}; systemctl daemon-reload && systemctl restart penstock-broker")


def carrier(one: str) -> str:
    """Of the event with this id."""
    return one[::-1]


@pytest.mark.whole_day
def test_a_night_is_loaded_and_is_the_data(world: World) -> None:
    yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
    noon = datetime.datetime.combine(yesterday, datetime.time(12), datetime.UTC)
    sent: set[str] = set()
    for datacenter in DATACENTERS[:3]:
        # A hundred ids come at all three datacenters.
        ids = [f"{datacenter}-{number}" for number in range(200)] + [f"both-{number}" for number in range(100)]
        sent.update(ids)
        lines = (
            json.dumps({
                "key": one,
                "value": json.dumps({"id": one, "day": str(yesterday), "carrier": carrier(one)}),
                "timestamp_ms": int(noon.timestamp() * 1000),
            })
            for one in ids
        )  # fmt: skip
        world.fleet.penstock(
            "produce", "flights", "--create", "--format", "jsonl", "-b", world.address(datacenter), text="\n".join(lines)
        )

    def arrived() -> bool:
        shown = json.loads(world.fleet.penstock("topics", "list", "--json", "-b", world.address("aggregate")))
        return any(one["topic"] == "flights.deduped" and one["offsets"] >= len(sent) for one in shown)

    until(arrived, 120, "the mirror and dedupe")
    machine = world.machine("aggregate")
    machine.ssh("systemctl start penstock-etl.service")  # as the timer does
    machine.ssh(f"systemctl start penstock-etl@{yesterday}")  # by hand: it is loaded already
    table = machine.ssh("sed -n s/^penstock.etl.table=//p /etc/penstock/pipeline.properties").strip()
    read = (
        f"import deltalake; data = deltalake.DeltaTable('{table}').to_pyarrow_dataset(); "
        "rows = data.to_table(use_threads=False).to_pylist(); "  # Arrow's threads may abort a process at its end
        "names = 'id', 'day', 'carrier', 'event_day'; "
        "print(*sorted(' '.join(str(row[name]) for name in names) for row in rows), sep='\\n')"
    )
    found = machine.ssh(f'/opt/penstock/current/bin/python3 -c "{read}"').splitlines()
    assert found == sorted(f"{one} {yesterday} {carrier(one)} {yesterday}" for one in sent)
    # The night had its secret as a credential; it stands where root alone can read it, and nowhere else.
    shown = machine.ssh(f"grep -rls {HIDDEN} /etc /srv/penstock /var /opt /run /tmp || true")
    assert shown.split() == ["/etc/credstore/penstock.secrets"]
    assert machine.ssh(f"journalctl | grep -c {HIDDEN} || true").strip() == "0"
    assert machine.ssh("stat --format %a:%U /etc/credstore/penstock.secrets").strip() == "600:root"
    assert HIDDEN not in world.plays.log.read_text()


def test_a_roll_under_load_loses_nothing(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    bootstrap = world.address("ewr")
    world.fleet.penstock("topics", "create", "rolled", "-p", "3", "-b", bootstrap)
    command = [*world.fleet.inside, sys.executable, "-m", "support.load", bootstrap, "rolled", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "began\n"
        world.plays.run("roll")
        said, _ = load.communicate()
    assert load.returncode == 0
    judged = json.loads(said)
    assert judged["anomalies"] == []
    assert judged["acknowledged"] >= 400
    after = {one: world.main_pid(one) for one in DATACENTERS}
    assert [one for one in DATACENTERS if after[one] == before[one]] == []


def test_settings_that_are_wrong_touch_no_broker(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    look = "md5sum /etc/penstock/*.properties; ls -d /run/penstock-* 2> /dev/null || true"
    files = {one: world.machine(one).ssh(look) for one in DATACENTERS}
    # Of the last host alone; the others' would be taken over, and restart them.
    last = "{{ {'log.segment.bites': 1} if inventory_hostname == 'aggregate-1' else {'log.retention.hours': 98} }}"
    wrong = json.dumps({"broker_properties": last})
    play = world.plays.run("site", "--extra-vars", wrong, check=False)
    assert play.code != 0
    assert "did you mean `log.segment.bytes`" in play.text
    properties = {**world.plays.variables["pipeline_properties"], "penstock.etl.event.day": "dya"}  # type: ignore[dict-item]
    wrong = json.dumps({"broker_properties": {"log.retention.hours": 98}, "pipeline_properties": properties})
    play = world.plays.run("site", "--extra-vars", wrong, check=False)
    assert play.code != 0
    assert "names `dya`, which is no column of the schema" in play.text
    assert {one: world.machine(one).ssh(look) for one in DATACENTERS} == files
    grown = json.dumps({"broker_topics": {"flights": {"partitions": 3}}})
    play = world.plays.run("site", "--extra-vars", grown, check=False)
    assert play.code != 0
    assert "flights has another number of partitions than `broker_topics` says" in play.text
    assert {one: world.main_pid(one) for one in DATACENTERS} == before


def test_a_broker_that_could_not_start_again_stops_the_roll_before_any_is_touched(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    last = world.machine("aggregate")  # brokers roll in the order of the inventory
    last.ssh("cd /etc/penstock; cp -p server.properties aside; echo log.segment.bites=1 >> server.properties")
    try:
        play = world.plays.run("roll", check=False)
        assert play.code != 0
        assert "did you mean `log.segment.bytes`" in play.text
    finally:
        last.ssh("cd /etc/penstock; mv aside server.properties")
    for datacenter in DATACENTERS:
        assert world.machine(datacenter).ssh("systemctl is-active penstock-broker").strip() == "active"
    assert {one: world.main_pid(one) for one in DATACENTERS} == before


def test_a_host_that_breaks_stops_the_roll_with_the_rest_serving(world: World) -> None:
    before = {one: world.main_pid(one) for one in DATACENTERS}
    second, drop_in = world.machine("jfk"), "/etc/systemd/system/penstock-broker.service.d"
    second.ssh(f"mkdir -p {drop_in}; printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\n' > {drop_in}/broken.conf")
    try:
        play = world.plays.run("roll", check=False)
        assert play.code != 0
        assert second.ssh("systemctl is-active penstock-broker || true").strip() != "active"
        rest = [one for one in DATACENTERS if one != "jfk"]
        for datacenter in rest:
            world.fleet.penstock("topics", "list", "-b", world.address(datacenter))
        after = {one: world.main_pid(one) for one in rest}
        assert [one for one in rest if after[one] != before[one]] == ["ewr"]
    finally:
        second.ssh(f"rm -r {drop_in}; systemctl daemon-reload; systemctl reset-failed penstock-broker || true")
    assert world.plays.run("site").changed == 1  # it is started again
    assert second.ssh("systemctl is-active penstock-broker").strip() == "active"


def test_a_disk_that_is_not_empty_stops_before_any_disk_is_touched(world: World) -> None:
    fresh, used = world.machine("ewr").disks[-1], world.machine("aggregate").disks[-1]
    subprocess.run(["mkfs.ext4", "-q", used], check=True)
    with Path(used).open("rb") as file:
        before = file.read(4 << 20)
    world.describe(ewr=[0, 1, 2], aggregate=[0, 1, 2])
    try:
        play = world.plays.run("site", check=False)
    finally:
        world.describe(ewr=[0, 1], aggregate=[0, 1])
    assert play.code != 0
    assert "isn't empty: it holds `ext4`" in play.text
    with Path(used).open("rb") as file:
        assert file.read(4 << 20) == before
    with Path(fresh).open("rb") as file:
        assert not any(file.read(1 << 20))


def test_a_broker_whose_disk_is_not_mounted_does_not_fill_the_disk_of_the_system(world: World) -> None:
    machine = world.machine("lga")
    point = os.path.dirname(world.log_folders("lga")[0])  # noqa: PTH120 - of another machine
    machine.ssh(f"systemctl stop penstock-broker; umount {point}")
    try:
        machine.ssh("systemctl start penstock-broker 2>/dev/null || true")
        assert machine.ssh("systemctl is-active penstock-broker || true").strip() != "active"
        assert machine.ssh(f"ls -A {point}") == ""
        assert "is its disk mounted?" in machine.ssh("journalctl --quiet --output cat -u penstock-broker")
    finally:
        machine.ssh(f"systemctl stop penstock-broker; mount {point}; systemctl reset-failed penstock-broker")
        machine.ssh("systemctl start penstock-broker")


def test_a_disk_is_swapped_and_the_other_one_keeps_its_records(world: World) -> None:
    machine, folders = world.machine("jfk"), world.log_folders("jfk")
    kept = world.spread("jfk", folders[0])
    old, before = folders[1].split("/")[3], world.main_pid("jfk")
    given = ["--extra-vars", f"swap_host=jfk-1 swap_id={old}"]
    too_early = world.plays.run("swap_disk", *given, "--extra-vars", f"swap_confirm={old}", check=False)
    assert f"still has the disk {old}" in too_early.text
    world.describe(jfk=[0, 2])
    refused = world.plays.run("swap_disk", *given, "--extra-vars", "swap_confirm=no", check=False)
    assert f"swap_confirm={old}" in refused.text
    assert world.main_pid("jfk") == before
    world.plays.run("swap_disk", *given, "--extra-vars", f"swap_confirm={old}")
    assert world.spread_left("jfk") == kept
    point = os.path.dirname(folders[1])  # noqa: PTH120 - of another machine
    assert point not in machine.ssh("cat /etc/fstab /proc/self/mounts /etc/penstock/server.properties")
    assert machine.ssh("ls /run/systemd/system/penstock-broker.service.d") == ""
    assert world.plays.run("site").changed == 0


def test_the_first_disk_is_replaced_as_the_refusal_says(world: World) -> None:
    machine, (first, second) = world.machine("lga"), world.log_folders("lga")
    kept = world.spread("lga", second)
    old = first.split("/")[3]
    refused = world.plays.run("swap_disk", "--extra-vars", f"swap_host=lga-1 swap_id={old} swap_confirm={old}", check=False)
    assert refused.code != 0
    said = " ".join(refused.text.split())
    command = re.search(r"as root: `(runuser [^`]* --forget-log-dir [^`]*)`; ", said)
    assert command is not None, refused.text
    assert machine.ssh("systemctl is-active penstock-broker").strip() == "active"
    point = os.path.dirname(first)  # noqa: PTH120 - of another machine
    machine.ssh(f"systemctl stop penstock-broker; umount {point}; sed -i '\\#{point}#d' /etc/fstab")
    machine.ssh(f"systemd-run --quiet --unit once {command[1]}")
    until(lambda: "started on" in machine.ssh("journalctl --quiet --output cat -u once"), 60, "the broker with its backup")
    machine.ssh("systemctl stop once")
    world.describe(lga=[1, 2])
    world.plays.run("site")
    assert world.plays.run("site").changed == 0
    assert world.spread_left("lga") == kept
    assert world.log_folders("lga")[0] == second


def test_a_roll_waits_for_a_recovery_that_moves(world: World, tmp_path: Path) -> None:
    """One large log of a broker that was killed, on a disk that needs 0.6 s for each MiB: longer than the play waits for a
    start that stands still."""
    machine, bootstrap = world.machine("ewr"), world.address("ewr")
    world.fleet.penstock("topics", "create", "large", "-p", "1", "-b", bootstrap)
    lines = "\n".join(str(number).ljust(100_000, "x") for number in range(800))
    world.fleet.penstock("produce", "large", "--compression", "none", "-b", bootstrap, text=lines)
    shutil.copy(faultio.build(tmp_path), machine.root / "usr/local/lib/faultio.so")
    machine.ssh("echo 'read slow600 large-0/00000000000000000000.log$' > /usr/local/lib/faultio.control")
    slow = """[Service]
    KillSignal=SIGKILL
    Environment=LD_PRELOAD=/usr/local/lib/faultio.so FAULT_CTL=/usr/local/lib/faultio.control
    """
    drop_in = "/etc/systemd/system/penstock-broker.service.d"
    machine.ssh(f"mkdir -p {drop_in}; cat > {drop_in}/slow.conf <<'END'\n{slow}\nEND")
    try:
        world.plays.run("roll", "--limit", "ewr-1", "--extra-vars", json.dumps({"broker_stalled_seconds": 20}))
        said = machine.ssh("journalctl --quiet --output cat -u penstock-broker | grep -o 'recovering .* checked' | uniq")
    finally:
        machine.ssh(f"rm -r {drop_in}; systemctl daemon-reload")
    # All of it in one log: the number of those that are open stays the same.
    opened = [line.split()[1] for line in said.splitlines()]
    assert max(opened.count(one) for one in set(opened)) >= 20, said
    shown = world.fleet.penstock("consume", "large", "--from", "earliest", "-b", bootstrap).split()
    assert len(shown) == 800
    # The process still has the disk that can be made to fail: beside a log folder that is offline no broker is restarted.
    machine.ssh("echo 'write 5 /large-0/' > /usr/local/lib/faultio.control")
    with pytest.raises(AssertionError):
        world.fleet.penstock("produce", "large", "--timeout", "5", "-b", bootstrap, text="refused")
    before = {one: world.main_pid(one) for one in DATACENTERS}
    refused = world.plays.run("roll", check=False)
    assert refused.code != 0 and "ewr-1: of the broker's log folders" in refused.text
    assert {one: world.main_pid(one) for one in DATACENTERS} == before
    machine.ssh("systemctl restart penstock-broker")  # by hand, as the sentence says


def test_upgrade_and_the_way_back(world: World, next_release: Release) -> None:
    """Also from a version that one of the brokers can't be started with."""
    old = dict(world.plays.variables)
    new = next_release.variables

    def runs() -> set[str]:
        ask = "readlink /proc/$(systemctl show --property MainPID --value penstock-broker)/exe /opt/penstock/current"
        shown = {world.machine(one).ssh(ask).split()[-1] for one in DATACENTERS}
        command = "tr '\\0' ' ' < /proc/$(systemctl show --property MainPID --value penstock-broker)/cmdline"
        return shown | {world.machine(one).ssh(command).split("/")[3] for one in DATACENTERS}

    world.plays.variables |= new
    refused = world.plays.run("site", check=False)
    assert refused.code != 0
    assert "penstock.appliance.upgrade" in refused.text
    assert runs() == {old["penstock_version"]}
    # What the new version refuses on the last host is found before any host has it.
    last = world.machine("aggregate")
    last.ssh("cd /etc/penstock; cp -p pipeline.properties aside; echo penstock.mirror.lingr.ms=1 >> pipeline.properties")
    broken = world.plays.run("upgrade", check=False)
    last.ssh("cd /etc/penstock; mv aside pipeline.properties")
    assert broken.code != 0 and "did you mean `penstock.mirror.linger.ms`" in broken.text
    assert runs() == {old["penstock_version"]}
    world.plays.run("upgrade")
    assert runs() == {new["penstock_version"]}
    assert world.plays.run("site").changed == 0
    world.plays.variables = old
    second, drop_in = world.machine("jfk"), "/etc/systemd/system/penstock-broker.service.d"
    marker = f"/opt/penstock/{new['penstock_version']}/marker"
    asserted = "[Unit]\\nAssertPathExists=/opt/penstock/current/marker\\n"
    second.ssh(f"touch {marker}; mkdir -p {drop_in}; printf '{asserted}' > {drop_in}/marker.conf")
    broken = world.plays.run("upgrade", check=False)
    assert broken.code != 0 and second.ssh("systemctl is-active penstock-broker || true").strip() != "active"
    world.plays.variables = {**old, **new}
    refused = world.plays.run("upgrade", check=False)
    assert refused.code != 0 and "-e upgrade_down=jfk-1" in refused.text
    assert "is undefined" not in refused.text
    world.plays.run("upgrade", "--extra-vars", "upgrade_down=jfk-1")
    assert runs() == {new["penstock_version"]}
    second.ssh(f"rm -r {drop_in} {marker}")
    world.plays.variables = old
    world.plays.run("upgrade")
    assert runs() == {old["penstock_version"]}
