"""Machines of a test's own: Debian in systemd-nspawn, each with loop disks, in network namespaces that nobody else sees.

A machine's root is an overlay over one debootstrapped Debian, which is made once and kept. What a container can't show -
fstab at boot, udev, kernel settings, limits of control groups - is tried in an emulated one (emulated.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

BASE = Path(os.environ.get("PENSTOCK_DEPLOY_CACHE", "/var/cache/penstock-deploy")) / "base"
SUITE = "bookworm"
PACKAGES = (
    "systemd,systemd-sysv,dbus,openssh-server,python3,python3-apt,iproute2,libpam-systemd,ca-certificates,util-linux,udev,"
    "kmod,procps,iputils-ping"
)
NETWORK = "10.77.0"
CALLBACKS = Path(__file__).parent / "callbacks"
BOOT_S = 120
STOP_S = 90
# Stands in for udev, which a container doesn't have: device files of partitions that come.
NODES = """\
#!/bin/sh
while :; do
    for disk in /dev/loop[0-9]*; do
        name=${disk##*/}
        for part in /sys/block/$name/${name}p*; do
            [ -e "$part/dev" ] || continue
            numbers=$(tr : ' ' < "$part/dev")
            [ -e "/dev/${part##*/}" ] || mknod "/dev/${part##*/}" b $numbers
        done
    done
    sleep 0.2
done
"""
NODES_UNIT = "[Service]\nExecStart=/usr/local/sbin/nodes\n[Install]\nWantedBy=multi-user.target\n"


def why_not() -> str:
    """What this machine lacks to start others, or nothing."""
    if os.geteuid() != 0:
        return "machines are started by root only"
    lacking = [one for one in ("systemd-nspawn", "debootstrap", "mkfs.xfs", "ip", "losetup", "ssh") if not shutil.which(one)]
    return f"{', '.join(lacking)} missing: `make deploy-test` installs them" if lacking else ""


def base() -> Path:
    """The Debian that all machines share; made the first time, from where debootstrap finds Debian."""
    return debian(BASE, PACKAGES)


def debian(folder: Path, packages: str, suite: str = SUITE) -> Path:
    """A folder with a Debian and these packages (names with commas between them); made if it isn't there."""
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(part)])
        part.rename(folder)
    return folder


def run(command: Sequence[str], **options: object) -> str:
    """What a command prints; a failure shows all of it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


class Machine:
    """One machine, from `start` to `remove`."""

    def __init__(self, fleet: Fleet, name: str, number: int, disks: int, disk_mb: int) -> None:
        self.fleet = fleet
        self.name = name
        self.address = fleet.address(number)
        self.folder = fleet.folder / name
        self.root = self.folder / "root"
        self.namespace = f"{fleet.tag}{number}"
        self.disks: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True)
        layers = f"lowerdir={base()},upperdir={self.folder}/upper,workdir={self.folder}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.root)])
        fleet.undo.append(lambda: run(["umount", "--lazy", str(self.root)]))
        for disk in range(disks):
            self._add_disk(disk, disk_mb)
        self._plug_in()
        self._set_up()

    def _add_disk(self, number: int, megabytes: int) -> None:
        image = self.folder / f"disk{number}.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        device = run(["losetup", "--show", "--find", "--partscan", str(image)]).strip()
        self.fleet.undo.append(lambda: run(["losetup", "--detach", device]))
        self.disks.append(device)

    def _plug_in(self) -> None:
        fleet, inside, outside = self.fleet, self.namespace, f"v{self.namespace}"
        run(["ip", "netns", "add", inside])
        fleet.undo.append(lambda: run(["ip", "netns", "delete", inside]))
        run(["ip", "-n", fleet.hub, "link", "add", outside, "type", "veth", "peer", "name", "host0", "netns", inside])
        run(["ip", "-n", fleet.hub, "link", "set", outside, "master", "br0", "up"])
        for command in (["addr", "add", f"{self.address}/24", "dev", "host0"], ["link", "set", "host0", "up"]):
            run(["ip", "-n", inside, *command])
        run(["ip", "-n", inside, "link", "set", "lo", "up"])

    def _set_up(self) -> None:
        self.write("etc/hostname", f"{self.name}\n")
        self.write("etc/hosts", "127.0.0.1 localhost\n")  # as Debian's installer writes it; debootstrap writes none
        self.write("root/.ssh/authorized_keys", self.fleet.key.with_suffix(".pub").read_text())
        # No source of packages: whatever is installed comes out of a bundle.
        self.write("etc/apt/sources.list", "")
        self.write("usr/local/sbin/nodes", NODES, 0o755)
        self.write("etc/systemd/system/nodes.service", NODES_UNIT)
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        (wants / "nodes.service").symlink_to("/etc/systemd/system/nodes.service")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the machine that doesn't run yet."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def start(self) -> None:
        """Start it and wait until it is up."""
        command = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe"]
        command += [f"--machine={self.name}", f"--network-namespace-path=/run/netns/{self.namespace}"]
        command += [f"--directory={self.root}", *(f"--bind={disk}" for disk in self.disks)]
        # nspawn's own filter of system calls would hide newer ones from the services, whose filters are to be tried.
        environment = {**os.environ, "SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
        with (self.folder / "console").open("ab") as console:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment)
        self.fleet.undo.append(self.stop)
        until(lambda: self._state() in ("running", "degraded"), BOOT_S, f"{self.name} to start")
        assert self._state() == "running", self.ssh("systemctl --failed --no-legend")

    def _state(self) -> str:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "console").read_text(errors="replace")[-4000:]
        command = ssh_command(self.fleet, self.address, "systemctl is-system-running")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def stop(self) -> None:
        """Power it off."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ssh(self, command: str) -> str:
        """What a command prints there."""
        return run(ssh_command(self.fleet, self.address, command))


def ssh_command(fleet: Fleet, address: str, command: str) -> list[str]:
    """How a command is run on a machine of a fleet."""
    return [*fleet.inside, "ssh", *SSH_OPTIONS, "-i", str(fleet.key), f"root@{address}", command]


SSH_OPTIONS = (
    "-q", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5",
    "-o", "BatchMode=yes",
)  # fmt: skip


class Fleet:
    """Machines around a hub: a namespace with a bridge, in which Ansible and the clients run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tag = f"pd{os.getpid()}m"
        self.hub = f"pd{os.getpid()}hub"
        self.key = folder / "key"
        self.undo: list[Callable[[], object]] = []
        self.machines: dict[str, Machine] = {}

    def address(self, number: int) -> str:
        """Of the machine with a number, from 1 on."""
        return f"{NETWORK}.{10 + number}"

    @property
    def inside(self) -> list[str]:
        """What goes in front of a command that is to run in the hub."""
        return ["ip", "netns", "exec", self.hub]

    def open(self) -> None:
        """Make the hub."""
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)])
        run(["ip", "netns", "add", self.hub])
        self.undo.append(lambda: run(["ip", "netns", "delete", self.hub]))
        run(["ip", "-n", self.hub, "link", "add", "br0", "type", "bridge"])
        run(["ip", "-n", self.hub, "addr", "add", f"{NETWORK}.1/24", "dev", "br0"])
        for link in ("br0", "lo"):
            run(["ip", "-n", self.hub, "link", "set", link, "up"])

    def add(self, name: str, disks: int = 2, disk_mb: int = 400) -> Machine:
        """One more machine, started."""
        machine = Machine(self, name, len(self.machines) + 1, disks, disk_mb)
        self.machines[name] = machine
        machine.start()
        return machine

    def penstock(self, *arguments: str, text: str | None = None) -> str:
        """What our own command prints, run in the hub."""
        return run([*self.inside, sys.executable, "-m", "penstock", *arguments], input=text)

    def close(self) -> None:
        """Stop and remove everything; says what didn't go."""
        failures = []
        for step in reversed(self.undo):
            try:
                step()
            except (AssertionError, OSError) as error:
                failures.append(str(error))
        for machine in self.machines.values():
            shutil.rmtree(machine.folder, ignore_errors=True)
        assert failures == []


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """A fleet, closed whatever happens."""
    made = Fleet(folder)
    try:
        made.open()
        yield made
    finally:
        made.close()


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something. It fails after a time in which it must have come on any machine."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.3)


class Plays:
    """Ansible against a fleet: an inventory of its machines, and what a play said."""

    def __init__(self, collection: Path, fleet: Fleet, inventory: Path, variables: Mapping[str, object]) -> None:
        self._collection = collection
        self._fleet = fleet
        self._inventory = inventory
        self.variables = dict(variables)
        self.log = fleet.folder / "ansible.log"

    def run(self, playbook: str, *options: str, check: bool = True) -> Play:
        """Run one of the collection's playbooks."""
        play = self._run(playbook, options, {})
        assert not check or play.code == 0, play.text[-12_000:]
        return play

    def run_killed(self, playbook: str, task: int, *options: str) -> str:
        """Run a playbook and kill it as it has begun a task, counted from 1: that one's name; "" if it ended before."""
        file = self._fleet.folder / "killed"
        file.unlink(missing_ok=True)
        environment = {"ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS), "ANSIBLE_CALLBACKS_ENABLED": "kill_at"}
        environment |= {"PENSTOCK_KILL_AT": str(task), "PENSTOCK_KILL_FILE": str(file)}
        play = self._run(playbook, options, environment)
        assert play.code in (0, -signal.SIGKILL), play.text[-12_000:]
        return file.read_text() if play.code else ""

    def _run(self, playbook: str, options: Sequence[str], more: Mapping[str, str]) -> Play:
        extra = json.dumps(self.variables)
        command = [*self._fleet.inside, str(Path(sys.executable).with_name("ansible-playbook"))]
        command += ["-i", str(self._inventory), f"penstock.appliance.{playbook}", "--extra-vars", extra, *options]
        ssh = " ".join([*SSH_OPTIONS, "-i", str(self._fleet.key), "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"])
        environment = {**os.environ, "ANSIBLE_SSH_ARGS": ssh, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
        environment["ANSIBLE_HOME"] = str(self._fleet.folder / "ansible")
        # Two fleets at a time have the same addresses: a connection that was kept would lead to the other's machine.
        environment |= {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._fleet.folder / "cp")}
        # Into a file: what a killed one had started holds its output, and isn't waited for.
        output = self._fleet.folder / "play.log"
        with output.open("w") as out:
            done = subprocess.run(
                command, cwd=self._collection, env={**environment, **more}, stdout=out, stderr=subprocess.STDOUT, check=False
            )
        play = Play(done.returncode, output.read_text())
        with self.log.open("a") as log:
            log.write(play.text)
        return play


class Play:
    """What Ansible said."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text

    def recap(self) -> dict[str, dict[str, int]]:
        """The last lines: by host the numbers of ok, changed, failed, ..."""
        lines = self.text.partition("PLAY RECAP")[2].splitlines()[1:]
        found = {}
        for line in lines:
            host, colon, counts = line.partition(":")
            if colon and "ok=" in counts:
                pairs = (word.split("=") for word in counts.split())
                found[host.strip()] = {name: int(value) for name, value in pairs}
        return found

    @property
    def changed(self) -> int:
        """Changes on all hosts."""
        return sum(counts["changed"] for counts in self.recap().values())
