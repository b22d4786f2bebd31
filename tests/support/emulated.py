"""One machine that is emulated whole (qemu, no hardware support needed): for what a container can't show - fstab at boot, udev,
kernel settings, control groups, a reboot.

It is a Debian with Debian's kernel, made once and kept; kernel and initial file system are handed to it, so there is no boot
loader. Its network is a tap at the hub of a fleet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.machines import BASE, PACKAGES, STOP_S, Fleet, debian, run, ssh_command, until

KERNEL = "linux-image-cloud-amd64"
DEBIAN = BASE.with_name("emulated")
ROOT_MB = 3000
# A boot takes half a minute on a machine that does nothing else.
BOOT_S = 900
NETWORK_FILE = "[Match]\nName=eth0\n[Network]\nAddress={address}/24\n"


def why_not() -> str:
    """What this machine lacks to emulate another, or nothing."""
    return "" if shutil.which("qemu-system-x86_64") else "qemu-system-x86_64 missing: `make deploy-test` installs it"


class Emulated:
    """The machine, from `start` to `stop`. `disks` are its names for the disks that it has beside that of `/`."""

    def __init__(self, fleet: Fleet, name: str, number: int, disks: int) -> None:
        self.fleet = fleet
        self.name = name
        self.address = fleet.address(number)
        self.folder = fleet.folder / name
        self.folder.mkdir()
        self.console = self.folder / "console"
        self.disks = [f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_EMULATED-{disk}" for disk in range(disks)]
        self._tap = f"t{fleet.tag}"
        self._process: subprocess.Popen[bytes] | None = None
        for disk in range(disks):
            self._file(f"disk{disk}", 400)
        self._make_root()

    def _file(self, name: str, megabytes: int) -> Path:
        path = self.folder / name
        with path.open("wb") as file:
            file.truncate(megabytes << 20)
        return path

    def _make_root(self) -> None:
        image, mounted = self._file("root", ROOT_MB), self.folder / "mounted"
        run(["mkfs.ext4", "-q", "-d", str(debian(DEBIAN, f"{PACKAGES},{KERNEL},initramfs-tools")), str(image)])
        mounted.mkdir()
        run(["mount", "-o", "loop", str(image), str(mounted)])
        try:
            (mounted / "etc/hostname").write_text(f"{self.name}\n")
            (mounted / "etc/hosts").write_text("127.0.0.1 localhost\n")
            (mounted / "etc/apt/sources.list").write_text("")
            (mounted / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
            (mounted / "root/.ssh/authorized_keys").write_text(self.fleet.key.with_suffix(".pub").read_text())
            (mounted / "etc/systemd/network/10-eth0.network").write_text(NETWORK_FILE.format(address=self.address))
            wants = mounted / "etc/systemd/system/multi-user.target.wants"
            (wants / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")
        finally:
            run(["umount", str(mounted)])

    def start(self) -> None:
        """Start it and wait until it is up."""
        hub = self.fleet.hub
        run([*self.fleet.inside, "ip", "tuntap", "add", self._tap, "mode", "tap"])
        run(["ip", "-n", hub, "link", "set", self._tap, "master", "br0", "up"])
        boot = DEBIAN / "boot"
        (kernel,), (initial,) = boot.glob("vmlinuz-*"), boot.glob("initrd.img-*")
        command = [*self.fleet.inside, "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
        command += ["-smp", str(min(4, os.cpu_count() or 1)), "-m", "1536", "-display", "none", "-monitor", "none"]
        command += ["-serial", f"file:{self.console}", "-kernel", str(kernel), "-initrd", str(initial)]
        command += ["-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off"]
        command += ["-drive", f"file={self.folder}/root,format=raw,if=virtio,cache=unsafe"]
        command += ["-netdev", f"tap,id=net,ifname={self._tap},script=no,downscript=no", "-device", "virtio-net-pci,netdev=net"]
        command += ["-device", "virtio-scsi-pci"]
        for disk in range(len(self.disks)):
            command += ["-drive", f"file={self.folder}/disk{disk},format=raw,if=none,id=disk{disk},cache=unsafe"]
            # A disk that turns: the settings are for such.
            command += ["-device", f"scsi-hd,drive=disk{disk},serial=EMULATED-{disk},rotation_rate=7200"]
        with (self.folder / "qemu.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.fleet.undo.append(self.stop)
        self.wait("")

    def wait(self, boot_before: str) -> None:
        """Until it is up, after another start than one that had this boot id."""
        until(lambda: self.boot_id() not in ("", boot_before) and self._is_up(), BOOT_S, f"{self.name} to start")

    def _is_up(self) -> bool:
        return self._asked("systemctl is-system-running").strip() in ("running", "degraded")

    def boot_id(self) -> str:
        """Of the kernel that runs; "" if the machine doesn't answer."""
        return self._asked("cat /proc/sys/kernel/random/boot_id").strip()

    def _asked(self, command: str) -> str:
        assert self._process is not None
        assert self._process.poll() is None, self.console.read_text(errors="replace")[-4000:]
        done = subprocess.run(ssh_command(self.fleet, self.address, command), capture_output=True, text=True, check=False)
        return done.stdout

    def ssh(self, command: str) -> str:
        """What a command prints there."""
        return run(ssh_command(self.fleet, self.address, command))

    def reboot(self) -> None:
        """Start it again, in good order."""
        before = self.boot_id()
        self._asked("systemctl reboot")
        self.wait(before)

    def stop(self) -> None:
        """End it; its disks are of no use to anybody."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_S)
