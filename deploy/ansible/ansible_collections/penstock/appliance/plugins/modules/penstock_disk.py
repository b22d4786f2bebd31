#!/usr/bin/python
"""Ansible module: one empty disk becomes one XFS file system of Penstock's, mounted by its UUID."""

from __future__ import annotations

DOCUMENTATION = r"""
module: penstock_disk
short_description: Prepare an empty disk for a Penstock broker
description:
  - Makes one GPT partition labelled C(penstock-ID), XFS on it, a line in fstab by UUID, and mounts it.
  - A disk that holds anything is refused; nothing is ever formatted over. So is one that this module made for another box, or
    that was released here, unless there is nothing on it.
  - A run that was cut short is taken up where it ended.
options:
  device:
    description: The whole disk, best by its name in C(/dev/disk/by-id). Not for C(released).
    type: str
  root:
    description: Folder below which disks are mounted.
    type: str
    default: /srv/penstock
  owner:
    description: User and group of the log folder on the disk.
    type: str
    default: penstock
  wipe:
    description:
      - Ids of disks whose old content may go. A disk that is in use is refused even then.
    type: list
    elements: str
    default: []
  state:
    description:
      - C(checked) only says whether it could be done, and fails if not.
      - C(released) unmounts the disk O(id) and takes its line out of fstab; what is on it stays. The disk may be gone already.
    type: str
    choices: [checked, present, released]
    default: present
  id:
    description: Of the disk that is released.
    type: str
author:
  - Penstock maintainers (@penstock)
"""

EXAMPLES = r"""
- name: Prepare a disk
  penstock.appliance.penstock_disk:
    device: /dev/disk/by-id/ata-WDC_WD40-1234
"""

RETURN = r"""
id:
  description: The disk's serial number, or its name where it has none.
  type: str
  returned: always
log_dir:
  description: The folder on it for C(log.dirs).
  type: str
  returned: always
uuid:
  description: Of its file system.
  type: str
  returned: when there is one
"""

import fcntl
import os
import re
import shlex
import stat
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

LOCK = "/run/lock/penstock-disk"
MARKER = ".penstock-disk"
EDGE_BYTES = 1 << 20
NODE_TIMEOUT_S = 30
ID_MAX = 27  # a GPT label has 36 characters
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"


class Refused(Exception):
    """The disk isn't one that may be prepared; the text says why."""


class Disk:
    """A whole disk, as the kernel and blkid see it."""

    def __init__(self, module: AnsibleModule, device: str) -> None:
        self._module = module
        path = Path(device)
        if not path.exists():
            raise Refused(f"`{device}` isn't there")
        self.path = path.resolve()
        if not stat.S_ISBLK(self.path.stat().st_mode):
            raise Refused(f"`{device}` is no block device")
        number = self.path.stat().st_rdev
        self.sys = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        if (self.sys / "partition").exists():
            raise Refused(f"`{device}` is a partition; name the whole disk")
        self.id = self._id(path)

    def _id(self, given: Path) -> str:
        """The serial number; else the name by which it was given."""
        text = ""
        for source in ("device/serial", "serial"):
            file = self.sys / source
            if file.is_file():
                text = file.read_text(errors="replace").strip()
                break
        else:
            shown = self.run(["lsblk", "--nodeps", "--noheadings", "--output", "SERIAL", str(self.path)], (0, 32, 64))
            text = shown.strip()
        return re.sub(r"[^A-Za-z0-9_.-]", "_", text or given.name)[-ID_MAX:]

    @property
    def label(self) -> str:
        """The label of its one partition."""
        return f"penstock-{self.id}"

    def run(self, command: list[str], good: tuple[int, ...] = (0,), data: str | None = None) -> str:
        """What a command prints. Raises Refused."""
        code, out, err = self._module.run_command(command, data=data, environ_update={"LC_ALL": "C"})
        if code not in good:
            raise Refused(f"`{shlex.join(command)}` failed: {(err or out).strip()}")
        return str(out)

    def partitions(self) -> list[Path]:
        """The partitions that the kernel knows, as device files."""
        found = sorted(one for one in self.sys.iterdir() if (one / "partition").is_file())
        return [Path("/dev") / one.name for one in found]

    def tags(self, device: Path) -> dict[str, str]:
        """What blkid finds on a device, by looking at the device itself."""
        shown = self.run(["blkid", "--probe", "--output", "export", str(device)], (0, 2))
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def mine(self) -> Path | None:
        """Its partition, if it is ours: made by this module, whole or cut short."""
        if not self.partitions() and self.tags(self.path).get("PTTYPE") == "gpt":
            self.tell_kernel()
        parts = self.partitions()
        if len(parts) != 1:
            return None
        tags = self.tags(node_of(self))
        return parts[0] if tags.get("PART_ENTRY_NAME") == self.label and not self.is_strange(parts[0], tags) else None

    def is_strange(self, part: Path, tags: dict[str, str]) -> bool:
        """Whether its partition has files that this box doesn't know: those of another one, or of a disk that was released."""
        known = any(f"UUID={tags.get('UUID')}" in line.split() for line in lines_of_fstab())
        if tags.get("TYPE") != "xfs" or known or self.in_use():
            return False
        with tempfile.TemporaryDirectory(prefix="penstock-disk-") as point:
            self.run(["mount", "-t", "xfs", "-o", "ro,norecovery,nouuid", str(part), point])
            try:
                return any(Path(point).iterdir())
            finally:
                self.run(["umount", point])

    def tell_kernel(self) -> None:
        """Make the kernel know the partitions that the table has; nothing on the disk changes."""
        self.run(["partx", "--update", str(self.path)])

    def in_use(self) -> str:
        """What uses it now, or nothing."""
        names = {self.sys.name, *(one.name for one in self.partitions())}
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        swaps = Path("/proc/swaps").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
        for line in mounts:
            source, point = line.split()[:2]
            if source.startswith("/dev/") and Path(source).resolve().name in names:
                return f"it is mounted at {point}"
        for line in swaps:
            if Path(line.split()[0]).name in names:
                return "it is swap"
        for place in (self.sys, *(self.sys / name for name in names if name != self.sys.name)):
            holders = place / "holders"
            if holders.is_dir() and any(holders.iterdir()):
                return f"{', '.join(sorted(one.name for one in holders.iterdir()))} lies on it (md, LVM or the like)"
        return ""

    def content(self) -> str:
        """What it holds, or nothing."""
        parts = self.partitions()
        tags = self.tags(parts[0]) if len(parts) == 1 else {}
        if tags.get("PART_ENTRY_NAME") == self.label:
            return (
                "it was a Penstock's disk before, with files on it, and this box's /etc/fstab doesn't know it (to go on with"
                f" them, put its line there: UUID={tags.get('UUID')})"
            )
        if parts:
            return f"it has partitions: {', '.join(map(str, parts))}"
        tags = self.tags(self.path)
        kind = tags.get("TYPE") or tags.get("PTTYPE")
        if kind:
            return f"it holds `{kind}`"
        if self.run(["wipefs", "--noheadings", "--no-act", str(self.path)]).strip():
            return "wipefs finds signatures on it"
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for position in (0, max(0, size - EDGE_BYTES)):
                file.seek(position)
                if any(file.read(EDGE_BYTES)):
                    return "its first or last MiB isn't all zeros"
        return ""

    def refuse_unless_empty(self, wipe: list[str]) -> bool:
        """Whether old content is to be wiped. Raises Refused."""
        used = self.in_use()
        if used:
            raise Refused(f"the disk `{self.path}` ({self.id}) is in use: {used}")
        held = self.content()
        if held and self.id not in wipe:
            raise Refused(
                f"the disk `{self.path}` ({self.id}) isn't empty: {held}. If nobody needs that any more, "
                f"name `{self.id}` in `disks_wipe`"
            )
        return bool(held)


def node_of(disk: Disk) -> Path:
    """The device file of the one partition; udev makes it a moment after the kernel knows the partition."""
    until = time.monotonic() + NODE_TIMEOUT_S
    while time.monotonic() < until:
        parts = disk.partitions()
        if parts and parts[0].exists():
            return parts[0]
        time.sleep(0.1)
    raise Refused(f"no device file of the new partition of `{disk.path}` has come within {NODE_TIMEOUT_S} s")


def fstab_line(uuid: str, point: Path) -> str:
    """By UUID: names of disks change from start to start. A disk that is missing must not keep the box from starting, and
    the broker alone waits for one that is late."""
    options = "noatime,nofail,x-systemd.device-timeout=180s,x-systemd.before=penstock-broker.service"
    return f"UUID={uuid} {point} xfs {options} 0 2"


def lines_of_fstab() -> list[str]:
    """The lines of fstab; none where there is no file."""
    file = Path("/etc/fstab")
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def write_fstab(lines: list[str]) -> None:
    """Replace it whole: a box whose fstab is half written doesn't start."""
    new = Path("/etc/fstab.penstock-new")
    with new.open("w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
        out.flush()
        os.fsync(out.fileno())
    new.chmod(0o644)
    new.replace("/etc/fstab")


def is_at(line: str, point: Path) -> bool:
    """Whether a line of fstab mounts something there."""
    return line.split("#")[0].split()[1:2] == [str(point)]


def put_in_fstab(line: str, point: Path, *, check: bool) -> bool:
    """Whether it changed: other mounts at that place go, everything else stays as it is."""
    before = lines_of_fstab()
    after = [one for one in before if one == line or not is_at(one, point)]
    if line not in after:
        after.append(line)
    if after != before and not check:
        write_fstab(after)
    return after != before


def take_from_fstab(point: Path, *, check: bool) -> bool:
    """Whether there was a line for that place."""
    before = lines_of_fstab()
    after = [one for one in before if not is_at(one, point)]
    if after != before and not check:
        write_fstab(after)
    return after != before


def mounted_at(point: Path) -> str:
    """The device that is mounted at a place, resolved."""
    found = ""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        source, where = line.split()[:2]
        if where == str(point):
            found = str(Path(source).resolve())
    return found


def own(folder: Path, owner: str, mode: int, *, check: bool) -> bool:
    """Make a folder with an owner and mode; whether something changed."""
    import grp
    import pwd

    user, group = pwd.getpwnam(owner).pw_uid, grp.getgrnam(owner).gr_gid
    there = folder.stat() if folder.is_dir() else None
    if there and (there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode)) == (user, group, mode):
        return False
    if not check:
        folder.mkdir(exist_ok=True)
        os.chown(folder, user, group)
        folder.chmod(mode)
    return True


def prepare(module: AnsibleModule, disk: Disk, result: dict) -> None:
    """All of it, as far as it isn't done. Raises Refused."""
    check = module.check_mode
    part = disk.mine()
    if part is None:
        wipe = disk.refuse_unless_empty(module.params["wipe"])
        result["changed"] = True
        if check:
            return
        if wipe:
            for one in (*disk.partitions(), disk.path):
                disk.run(["wipefs", "--all", str(one)])
        disk.run(["sfdisk", "--quiet", str(disk.path)], data=f"label: gpt\ntype={LINUX}, name={disk.label}\n")
        disk.tell_kernel()
    part = node_of(disk)
    tags = disk.tags(part)
    if not tags.get("TYPE"):
        used = disk.in_use()
        if used:
            raise Refused(f"the disk `{disk.path}` ({disk.id}) is in use: {used}")
        result["changed"] = True
        if check:
            return
        disk.run(["mkfs.xfs", "-q", str(part)])
        tags = disk.tags(part)
    if tags.get("TYPE") != "xfs":
        raise Refused(f"the partition `{part}` holds `{tags.get('TYPE')}`, not xfs: it isn't as this module made it")
    result["uuid"] = tags["UUID"]
    mount(module, disk, part, result)


def mount(module: AnsibleModule, disk: Disk, part: Path, result: dict) -> None:
    """The disk's place in fstab and in the tree, its marker and its log folder."""
    check = module.check_mode
    point = Path(module.params["root"]) / disk.id
    if put_in_fstab(fstab_line(result["uuid"], point), point, check=check):
        result["changed"] = True
    there = mounted_at(point)
    if there and there != str(part.resolve()):
        raise Refused(f"`{there}` is mounted at `{point}`, where `{part}` belongs")
    if not there:
        result["changed"] = True
        if check:
            return
        # Root's, and closed to others: a broker that starts without the disk can't fill the disk of `/` instead.
        point.mkdir(parents=True, exist_ok=True)
        disk.run(["mount", "-t", "xfs", "-o", "noatime", "--source", f"UUID={result['uuid']}", "--target", str(point)])
    marker = point / MARKER
    if not marker.is_file() or marker.read_text(encoding="utf-8").strip() != result["uuid"]:
        result["changed"] = True
        if not check:
            marker.write_text(result["uuid"] + "\n", encoding="utf-8")
    if own(point / "log", module.params["owner"], 0o700, check=check):
        result["changed"] = True


def release(module: AnsibleModule, result: dict) -> None:
    """Unmount a disk and forget it. Raises Refused."""
    identity = module.params["id"]
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", identity):
        raise Refused(f"`{identity}` is no disk's id")
    point = Path(module.params["root"]) / identity
    result.update(id=identity, log_dir=str(point / "log"))
    if take_from_fstab(point, check=module.check_mode):
        result["changed"] = True
    if mounted_at(point):
        result["changed"] = True
        if not module.check_mode:
            code, out, err = module.run_command(["umount", str(point)])
            if code != 0:
                raise Refused(f"`{point}` can't be unmounted: {(err or out).strip()}")


def main() -> None:
    """Run by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "device": {"type": "str"},
            "id": {"type": "str"},
            "root": {"type": "str", "default": "/srv/penstock"},
            "owner": {"type": "str", "default": "penstock"},
            "wipe": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["checked", "present", "released"], "default": "present"},
        },
        required_if=[("state", "released", ["id"]), ("state", "present", ["device"]), ("state", "checked", ["device"])],
        supports_check_mode=True,
    )
    result: dict = {"changed": False}
    try:
        # The module of a play that was killed goes on to its end; this one waits for it.
        lock = Path(LOCK).open("w")  # noqa: SIM115 - held until this process ends
        fcntl.flock(lock, fcntl.LOCK_EX)
        if module.params["state"] == "released":
            release(module, result)
            module.exit_json(**result)
        disk = Disk(module, module.params["device"])
        result["id"] = disk.id
        result["log_dir"] = str(Path(module.params["root"]) / disk.id / "log")
        if module.params["state"] == "checked":
            if disk.mine() is None:
                disk.refuse_unless_empty(module.params["wipe"])
        else:
            prepare(module, disk, result)
    except (Refused, OSError, KeyError) as error:
        module.fail_json(msg=str(error), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
