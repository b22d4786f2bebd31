"""The Ansible collection, as far as it can be judged without a machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from support.packages import COLLECTION

APPLIANCE = COLLECTION / "ansible_collections" / "penstock" / "appliance"
ROLES = sorted(path.name for path in (APPLIANCE / "roles").iterdir())
PLAYBOOKS = sorted(path.stem for path in (APPLIANCE / "playbooks").glob("*.yml"))
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ansiblelint") is None, reason="the extra `deploy` isn't installed: `make build`"
)


def said(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}", **more}
    return subprocess.run(command, cwd=COLLECTION, env=environment, capture_output=True, text=True, check=False)


def yaml(path: Path) -> Any:
    import yaml as reader

    return reader.safe_load(path.read_text())


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_playbook_can_be_read_with_the_example(playbook: str) -> None:
    done = said(str(BIN / "ansible-playbook"), "--syntax-check", f"penstock.appliance.{playbook}")
    assert done.returncode == 0, done.stdout + done.stderr


def boxes() -> dict[str, Any]:
    """An inventory that is right, of this machine alone."""
    children: dict[str, Any] = {"west": {"hosts": {"west-1": {}, "west-2": {}}}}
    children |= {group: {"hosts": {"west-1": {}}} for group in ("brokers", "mirrors", "dedupers", "etl")}
    variables = {"penstock_datacenter": "west", "penstock_aggregate": "west", "ansible_connection": "local"}
    return {"all": {"children": children, "vars": variables | {"disks_devices": ["/dev/disk/by-id/not-there"]}}}


SLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "group": (
        {"children": {"mirror": {"hosts": {"west-1": {}}}}},
        "no play reads the group mirror: the plays' groups are brokers",
    ),
    "variable": (
        {"vars": {"broker_propertys": {}}},
        "west-1: no role reads broker_propertys; correct the name in the inventory",
    ),
    "each role": (
        {"vars": {f"{role}_slip": 1 for role in ROLES}},
        f"no role reads {', '.join(f'{role}_slip' for role in ROLES)};",
    ),
    "topic": ({"vars": {"broker_topics": {"flights": {}}}}, "west-1: in `broker_topics` flights lacks `partitions`"),
    "address": (
        {"vars": {"broker_address": ""}},
        "west-1: clients, the mirror and dedupe are told `broker_address`, so it can't be ``",
    ),
    "root of disks": ({"vars": {"disks_root": "/mnt"}}, "no role reads disks_root;"),
    "log folder": ({"vars": {"broker_log_dirs": ["/srv/penstock/../x/log"]}}, "alone, so /srv/x/log can't be a folder of logs"),
    "data": (
        {"vars": {"pipeline_data": "/data", "pipeline_properties": {"penstock.dedupe.data": "/ids"}}},
        "alone, so /data, /ids can't be a folder of logs, ids or tables",
    ),
    "aggregate": (
        {"vars": {"penstock_aggregate": "east"}},
        "`penstock_aggregate` must name a datacenter, a group with one",
    ),
    "datacenter": (
        {"vars": {"penstock_datacenter": "wets"}},
        "west-1: each host needs `penstock_datacenter`, the name of the group",
    ),
    "brokers": (
        {"children": {"brokers": {"hosts": {"west-1": {}, "west-2": {}}}}},
        "west has several hosts among the `brokers`",
    ),
    "part": (
        {"children": {"dedupers": None}, "vars": {"pipeline_properties": {"topics": "t"}}},
        "the inventory has `pipeline_properties`, and no group dedupers: name each",
    ),
    "bundle": ({"vars": {"penstock_bundle": "/nowhere.tar"}}, "`/nowhere.tar` isn't there: `make bundle` makes it"),
}


@pytest.mark.timeout(900)  # a play a slip
def test_slips_in_the_inventory_are_refused_before_a_box_is_looked_at(tmp_path: Path) -> None:
    """One test of them all: they share what Ansible gathers about this machine, which takes half of a play's time."""
    facts = {"ANSIBLE_GATHERING": "smart", "ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path)}
    passed = {}
    for name, (slip, words) in SLIPS.items():
        inventory = boxes()
        for part, value in slip.items():
            inventory["all"][part] |= value
        inventory["all"]["children"] = {one: group for one, group in inventory["all"]["children"].items() if group is not None}
        hosts = tmp_path / "hosts.json"
        hosts.write_text(json.dumps(inventory))
        # Checked alone: a slip that isn't refused may not change the machine that the tests run on.
        done = said(str(BIN / "ansible-playbook"), "--check", "-i", str(hosts), "penstock.appliance.site", **facts)
        if done.returncode != 2 or words not in " ".join(done.stdout.split()):
            passed[name] = done.stdout + done.stderr
    assert passed == {}


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_variables_are_those_of_its_argument_specs(role: str) -> None:
    specs = yaml(APPLIANCE / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    options = specs["main"]["options"]
    defaults = yaml(APPLIANCE / "roles" / role / "defaults" / "main.yml")
    assert set(defaults) <= set(options)
    assert {name for name in options if name not in defaults and not options[name].get("required")} == set()
    said_twice = {name: options[name]["default"] for name in options if "default" in options[name]}
    assert said_twice == {name: defaults[name] for name in said_twice}
    assert [name for name in options if not options[name].get("description")] == []


def test_the_example_is_of_the_version_that_is_built_here() -> None:
    variables = yaml(COLLECTION / "inventories" / "example" / "group_vars" / "all.yml")
    assert variables["penstock_version"] == __version__


def test_the_example_names_sources_once() -> None:
    """pipeline.properties is made from the inventory: no source's address stands anywhere else."""
    done = said(str(BIN / "ansible-inventory"), "--list", "-i", "inventories/example")
    hosts = json.loads(done.stdout)["_meta"]["hostvars"]
    addresses = [one["ansible_host"] for one in hosts.values()]
    text = "".join(path.read_text() for path in (COLLECTION / "inventories" / "example").rglob("*.yml"))
    assert [text.count(address) for address in addresses] == [1] * 4


@pytest.mark.parametrize("path", sorted(APPLIANCE.rglob("*.yml")), ids=lambda path: str(path.relative_to(APPLIANCE)))
def test_no_play_forces_its_way(path: Path) -> None:
    text = path.read_text()
    assert "ignore_errors" not in text
    assert "ansible.builtin.shell" not in text
    assert "force: true" not in text
