"""The inventory that people copy: what each role writes on each of its hosts, judged by those who will read it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from penstock import javaproperties
from penstock.cli import root
from support.packages import COLLECTION

PROGRAM = Path(sys.executable).with_name("ansible-playbook")
ROLES = COLLECTION / "ansible_collections" / "penstock" / "appliance" / "roles"
TEMPLATES = sorted(ROLES.glob("*/templates/*.j2"))
EXAMPLE = COLLECTION / "inventories" / "example"
ADDRESSES = {"ewr-1": "192.0.2.11", "jfk-1": "192.0.2.21", "lga-1": "192.0.2.31", "aggregate-1": "192.0.2.41"}
# As the role `disks` remembers them.
LOG_DIRS = "{{ disks_devices | map('basename') | map('regex_replace', '^(.*)$', '/srv/penstock/\\1/log') | list }}"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the extra `deploy` isn't installed: `make build`")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By host what each template of the roles makes there, by the file's name."""
    folder = tmp_path_factory.mktemp("rendered")
    for role in ROLES.iterdir():
        made = folder / "roles" / role.name
        (made / "tasks").mkdir(parents=True)
        (made / "meta").mkdir()
        for part in ("defaults", "vars", "templates", "meta/argument_specs.yml"):
            if (role / part).exists():
                (made / part).symlink_to(role / part)
        names = [path.name for path in TEMPLATES if path.parents[1] == role]
        one = "{{ rendered | default({}) | combine({item: lookup('ansible.builtin.template', item)}) }}"
        task = {"ansible.builtin.set_fact": {"rendered": one}, "loop": names}
        (made / "tasks" / "main.yml").write_text(json.dumps([task]))
    tasks = [{"ansible.builtin.include_role": {"name": role.name}} for role in sorted(ROLES.iterdir())]
    copy = {"content": "{{ rendered | to_json }}", "dest": f"{folder}/{{{{ inventory_hostname }}}}.json", "mode": "0600"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [*tasks, {"ansible.builtin.copy": copy}]}
    (folder / "play.yml").write_text(json.dumps([play]))
    own = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "disks_log_dirs": LOG_DIRS}
    command = [str(PROGRAM), "-i", str(EXAMPLE), str(folder / "play.yml"), "--extra-vars", json.dumps(own)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder / "ansible")}
    done = subprocess.run(command, cwd=COLLECTION, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {host: {name.removesuffix(".j2"): text for name, text in files.items()} for host, files in hosts.items()}


def test_every_template_is_rendered_for_every_host(rendered: dict[str, dict[str, str]]) -> None:
    names = sorted(path.stem for path in TEMPLATES)
    assert {host: sorted(files) for host, files in rendered.items()} == dict.fromkeys(ADDRESSES, names)


@pytest.mark.parametrize("host", ADDRESSES)
def test_a_broker_could_start(rendered: dict[str, dict[str, str]], tmp_path: Path, host: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text(rendered[host]["server.properties"])
    letters = {"aggregate-1": "AGG"}.get(host, host.removesuffix("-1").upper())
    folders = [f"/srv/penstock/ata-EXAMPLE-{letters}-{number}/log" for number in (1, 2)]
    said = javaproperties.parse(file.read_text(), str(file))
    listener = f"PLAINTEXT://{ADDRESSES[host]}:9092"
    watched = {"penstock.http.listen": f"{ADDRESSES[host]}:9404", "penstock.http.public": "true"}
    assert said == {"broker.id": "1", "listeners": listener, "log.dirs": ",".join(folders), **watched}
    # The address and the folders are the box's.
    here = ["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={tmp_path}/a,{tmp_path}/b"]
    here += ["--set", "penstock.http.listen=127.0.0.1:0"]
    done = CliRunner().invoke(root, ["broker", "--check", "--config", str(file), *here])
    assert (done.exit_code, done.stderr) == (0, ""), done.output


@pytest.mark.parametrize("host", ADDRESSES)
def test_the_pipeline_is_right_and_has_each_source(rendered: dict[str, dict[str, str]], tmp_path: Path, host: str) -> None:
    file = tmp_path / "pipeline.properties"
    file.write_text(rendered[host]["pipeline.properties"])
    done = CliRunner().invoke(root, ["check", "--config", str(file)])
    assert done.exit_code == 0, done.output
    said = javaproperties.parse(file.read_text(), str(file))
    addresses = {name: text for name, text in said.items() if name.endswith("bootstrap.servers")}
    sources = {f"source.{one.removesuffix('-1').upper()}": ADDRESSES[one] for one in ("ewr-1", "jfk-1", "lga-1")}
    assert addresses == {f"{source}.bootstrap.servers": f"{address}:9092" for source, address in sources.items()} | {
        "bootstrap.servers": "192.0.2.41:9092"
    }
    own = ADDRESSES[host]
    watched = {name: text for name, text in said.items() if re.search(r"[.](http|textfile)", name)}
    assert watched == {
        "penstock.mirror.http.listen": f"{own}:9405",
        "penstock.dedupe.http.listen": f"{own}:9406",
        "penstock.http.public": "true",
        "penstock.etl.textfile": "/var/lib/prometheus/node-exporter/penstock-etl.prom",
    }
    folder = os.path.commonpath([said["penstock.dedupe.data"], said["penstock.etl.table"]])
    assert re.fullmatch(r"/srv/penstock/ata-EXAMPLE-\w+-1", folder)
    assert javaproperties.parse(rendered[host]["secrets"], "secrets") == {}


@pytest.mark.parametrize("host", ADDRESSES)
def test_the_systems_files_can_be_read_by_the_system(rendered: dict[str, dict[str, str]], tmp_path: Path, host: str) -> None:
    files = {name: text for name, text in rendered[host].items() if not name.endswith((".properties", "secrets", ".yml"))}
    lines = {name: [line for line in text.splitlines() if line and line[0] not in "#/"] for name, text in files.items()}
    assert [line for line in lines.pop("sysctl.conf") if not re.fullmatch(r"(vm|net)\.[a-z_.]+ = \d+", line)] == []
    (rule,) = lines.pop("udev.rules")
    assert re.fullmatch(r'((ACTION|SUBSYSTEM|ENV\{\w+\}|ATTR\{[\w/]+\})(==|=)"[\w|-]+"(, |$))+', rule)
    section, reset, calendar = lines.pop("calendar.conf")
    assert (section, reset) == ("[Timer]", "OnCalendar=")
    (source,) = lines.pop("sources.list")
    assert re.fullmatch(r"deb \[trusted=yes\] file:/var/lib/penstock-bundles/[0-9.]+ \./", source)
    assert list(lines) == ["apt.conf"]
    (tmp_path / "apt.conf").write_text(files["apt.conf"])
    for command in (
        ["systemd-analyze", "calendar", calendar.removeprefix("OnCalendar=")],
        ["apt-config", "--config-file", str(tmp_path / "apt.conf"), "dump"],
    ):
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_prometheus_asks_each_part_of_each_host(rendered: dict[str, dict[str, str]], tmp_path: Path) -> None:
    files = {name: rendered["aggregate-1"][name] for name in ("prometheus.yml", "targets.yml", "nights.yml")}
    made = {name: yaml.safe_load(text) for name, text in files.items()}
    asked = {(one["labels"]["part"], one["labels"]["instance"], *one["targets"]) for one in made["targets.yml"]}
    brokers = {("broker", host, f"{address}:9404") for host, address in ADDRESSES.items()}
    ours = ADDRESSES["aggregate-1"]
    assert asked == brokers | {("mirror", "aggregate-1", f"{ours}:9405"), ("dedupe", "aggregate-1", f"{ours}:9406")}
    assert all(one["labels"]["datacenter"] == one["labels"]["instance"].removesuffix("-1") for one in made["targets.yml"])
    labels = {"part": "etl", "datacenter": "aggregate", "instance": "aggregate-1"}
    assert made["nights.yml"] == [{"targets": [f"{ours}:9100"], "labels": labels}]
    if shutil.which("promtool"):
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace("/etc/prometheus/penstock", str(tmp_path)))
        (tmp_path / "rules").mkdir()
        for name in ("broker.yml", "pipeline.yml"):
            shutil.copy(ROLES / "monitoring" / "files" / name, tmp_path / "rules")
        check = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "SUCCESS: 2 rule files found" in done.stdout, done.stdout + done.stderr
