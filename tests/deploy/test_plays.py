"""Plays that stop at a doubt, on this machine with an /etc, /opt and /run of its own: as far as no service is asked for.

They begin behind what installs and mounts. Both hosts are this machine, of which none of them may touch anything.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import faultio
from support.harness import BrokerProcess
from support.packages import COLLECTION, LO
from support.patience import until

BIN = Path(sys.executable).parent
END = "ls -A /etc/penstock; ls -d /run/penstock-* || true; readlink /opt/penstock/current"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (BIN / "ansible-playbook").exists(),
    reason="root mounts an /etc of the plays' own, and the extra `deploy` brings Ansible (`make build`)",
)


def inventory(folder: Path, **of_host: Mapping[str, Any]) -> Path:
    """Two datacenters, one broker each; the last one is the aggregate's. Variables of a host over those of all."""
    names = ("east", "west")
    hosts = {
        f"{name}-1": {"broker_address": f"127.0.0.{number + 2}", "disks_log_dirs": [str(folder / name / "log")]}
        for number, name in enumerate(names)
    }
    for name, variables in of_host.items():
        hosts[f"{name}-1"] |= variables
    children: dict[str, Any] = {
        name: {"hosts": {f"{name}-1": hosts[f"{name}-1"]}, "vars": {"penstock_datacenter": name}} for name in names
    }
    children["brokers"] = {"hosts": {name: {} for name in hosts}}
    children |= {group: {"hosts": {"west-1": {}}} for group in ("mirrors", "dedupers", "etl")}
    properties = {"topics": "flights", "penstock.etl.schema": "id STRING NOT NULL, day DATE", "penstock.etl.event.day": "day"}
    properties |= {"spark.hadoop.fs.s3a.secret.key": "${file:penstock.secrets:s3.key}"}
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "penstock_aggregate": "west",
        "penstock_version": "new",
        "penstock_bundle": "not-there.tar",
        "pipeline_properties": properties,
        "pipeline_secrets": {"s3.key": "hidden"},
    }
    path = folder / "hosts.json"
    path.write_text(json.dumps({"all": {"children": children, "vars": variables}}))
    return path


def played(folder: Path, hosts: Path, playbook: str, task: str, *options: str, before: str = "true") -> tuple[str, list[str]]:
    """What a playbook says from a task on, and what is there then. It must fail."""
    work = folder / "own"
    work.mkdir()
    play = f'{BIN}/ansible-playbook -i {hosts} penstock.appliance.{playbook} --start-at-task "{task}" {" ".join(options)}'
    command = ["unshare", "--mount", str(LO / "own.sh"), str(work), str(BIN / "penstock")]
    command += ["sh", "-c", f"{before}; {play}; echo ended with $?; {END}"]
    # The plays share what Ansible gathers about this machine: the roles ask for its distribution and its kind.
    facts = {"ANSIBLE_GATHERING": "smart", "ANSIBLE_CACHE_PLUGIN": "jsonfile"}
    facts["ANSIBLE_CACHE_PLUGIN_CONNECTION"] = str(folder.parent / "facts")
    environment = {**os.environ, **facts, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder / "ansible")}
    done = subprocess.run(command, cwd=COLLECTION, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    text, ended, left = done.stdout.partition("ended with 2\n")
    assert ended, said
    return " ".join(text.split()), left.splitlines()


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ({"broker_properties": {"log.segment.bites": 1}}, "did you mean `log.segment.bytes`"),
        ({"pipeline_secrets": {}}, "`${file:penstock.secrets:s3.key}` stands for nothing"),
    ],
    ids=["broker", "pipeline"],
)
def test_site_takes_over_no_property_beside_a_host_whose_are_wrong(tmp_path: Path, slip: Any, words: str) -> None:
    said, left = played(tmp_path, inventory(tmp_path, west=slip), "site", "Let Penstock look at those of every host")
    assert words in said
    assert "TASK [Take them away]" in said and "PLAY [Brokers]" not in said
    assert left == ["old"]


@pytest.mark.parametrize("folders", ["/elsewhere/log", "/elsewhere/a,/elsewhere/b/"])
def test_site_begins_no_broker_anew_because_its_disks_are_missing_from_the_inventory(tmp_path: Path, folders: str) -> None:
    """`disks_devices` that is commented out gives a folder on the disk of `/`, which is right for a trial alone."""
    before = f"echo log.dirs={folders} > /etc/penstock/server.properties"
    task = "Let Penstock look at those of every host"
    said, left = played(tmp_path, inventory(tmp_path), "site", task, before=before)
    assert f"east-1: the broker has its records in {', '.join(one.rstrip('/') for one in folders.split(','))}, and by" in said
    assert f"it would begin again, empty, in {tmp_path}/east/log." in said
    assert "PLAY [Brokers]" not in said
    assert sorted(left) == ["old", "server.properties"]


def test_site_takes_a_broker_whose_other_log_folder_changes(tmp_path: Path) -> None:
    """Then it goes on to the next doubt."""
    hosts = inventory(tmp_path, east={"pipeline_secrets": {}}, west={"pipeline_secrets": {}})
    kept = ",".join(f"{tmp_path}/{name}/log/" for name in ("east", "west"))
    before = f"echo 'log.dirs = /gone/log,{kept}' | tr -d ' ' > /etc/penstock/server.properties"
    said, _ = played(tmp_path, hosts, "site", "Let Penstock look at those of every host", before=before)
    assert "stands for nothing" in said and "has its records in" not in said


def test_site_leaves_no_ids_and_no_table_behind(tmp_path: Path) -> None:
    """Another order of disks puts both on another disk."""
    folders = {key: tmp_path / key for key in ("penstock.dedupe.data", "penstock.etl.table")}
    for folder in folders.values():
        folder.mkdir()
    lines = [f"{key}={folder}" for key, folder in folders.items()]
    before = f"printf '%s\\n' {' '.join(lines)} > /etc/penstock/pipeline.properties"
    said, left = played(tmp_path, inventory(tmp_path), "site", "Let Penstock look at those of every host", before=before)
    assert f"west-1: by the inventory {', '.join(lines)} would change" in said
    assert "PLAY [Brokers]" not in said
    assert sorted(left) == ["old", "pipeline.properties"]


@pytest.mark.parametrize(
    ("command", "task"),
    [("broker --check", "a start could work"), ("check", "mirror, dedupe and nights could work")],
    ids=["broker", "pipeline"],
)
def test_upgrade_switches_no_host_to_a_version_that_refuses_its_properties(tmp_path: Path, command: str, task: str) -> None:
    """A version that knows another property: it stands for any that came, went or has other values by then."""
    new = tmp_path / "new"
    new.write_text(f'#!/bin/sh\ncase "$*" in "{command} "*) echo no such property >&2; exit 2; esac\n')
    new.chmod(0o755)
    before = f"mkdir -p /opt/penstock/new/bin; cp {new} /opt/penstock/new/bin/penstock"
    before += "; echo penstock:x:4242: >> /etc/group; echo penstock:x:4242:4242::/:/bin/sh >> /etc/passwd"
    said, left = played(tmp_path, inventory(tmp_path), "upgrade", "Look whether it is there", before=before)
    assert f"Ask whether {task}" in said and "no such property" in said
    assert "PLAY [Brokers, one after the other]" not in said
    assert left == ["old"]


@pytest.mark.parametrize("playbook", ["roll", "upgrade"])
def test_no_broker_is_restarted_beside_one_with_a_log_folder_that_is_offline(tmp_path: Path, playbook: str) -> None:
    control, folders = tmp_path / "control", [tmp_path / "first", tmp_path / "second"]
    environment = {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(control)}
    failing = BrokerProcess(folders[0], {"log.dirs": folders[1], "log.flush.interval.ms": 100}, environment=environment)
    with closing(failing), closing(BrokerProcess(tmp_path / "healthy")) as healthy:
        admin = AdminClient({"bootstrap.servers": failing.start().bootstrap})
        admin.create_topics([NewTopic("spread", 2)])["spread"].result()
        control.write_text(f"write {errno.EIO} {folders[1]}/spread\n")
        producer = Producer({"bootstrap.servers": failing.bootstrap, "message.timeout.ms": 2000})
        for partition in range(2):
            producer.produce("spread", b"x", partition=partition)
        producer.flush()
        until(lambda: "is offline until the next start" in failing.log_text(), "the folder to fail", failing.log_text)
        ports = {"east": failing.port, "west": healthy.start().port}
        addresses = {name: {"broker_address": "127.0.0.1", "broker_port": port} for name, port in ports.items()}
        hosts = inventory(tmp_path, **addresses)
        said, left = played(tmp_path, hosts, playbook, "Every broker's log folders are online")
    assert f"east-1: of the broker's log folders {folders[1]} is offline" in said
    assert "west-1: of the broker's" not in said
    assert left == ["old"]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus isn't there: `make monitoring-test` installs it")
def test_site_replaces_no_configuration_of_prometheus_that_somebody_wrote(tmp_path: Path) -> None:
    hosts = inventory(tmp_path)
    made = json.loads(hosts.read_text())
    made["all"]["children"]["monitoring"] = {"hosts": {"west-1": {}}}
    hosts.write_text(json.dumps(made))
    before = "echo '# mine' >> /etc/prometheus/prometheus.yml"
    said, _ = played(tmp_path, hosts, "site", "Look for Prometheus", before=before)
    assert "west-1: somebody wrote /etc/prometheus/prometheus.yml, and this role would replace it." in said
    assert "TASK [penstock.appliance.monitoring : Make the folders]" not in said
