"""The disk below a folder: its file system, a slower one for one process, and a file system of one's own in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from penstock.bench.slowflush import slow_flush
from penstock.bench.world import Skipped

GROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/dev/block")
MAKE = {"xfs": ["mkfs.xfs", "-q", "-f"], "ext4": ["mkfs.ext4", "-q", "-F"]}
TOOLS = "/usr/sbin:/sbin:/usr/bin:/bin"


@contextmanager
def slow_disk(pid: int, folder: Path, bytes_per_s: int) -> Iterator[None]:
    """Let a process read no faster than that from a folder's disk (a limit of a control group). Raises Skipped."""
    device, old = disk_of(folder), GROUPS / "blkio"
    try:
        if old.is_dir():
            home, group = _enter(pid, old, "blkio", {"blkio.throttle.read_bps_device": f"{device} {bytes_per_s}"})
        else:
            (GROUPS / "cgroup.subtree_control").write_text("+io")
            home, group = _enter(pid, GROUPS, "", {"io.max": f"{device} rbps={bytes_per_s}"})
    except OSError as error:
        raise Skipped(f"the disk can't be slowed down here: {error}") from None
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextmanager
def own_disk(folder: Path, kind: str, size: int, flush_ms: int = 0) -> Iterator[Path]:
    """A file system in a file, by a loop device: what it flushes, the disk below flushes, too. flush_ms: how much longer each
    flush takes. Raises Skipped."""
    if os.getuid() != 0 or shutil.which(MAKE[kind][0], path=TOOLS) is None:
        raise Skipped(f"a disk of its own needs root and `{MAKE[kind][0]}`")
    if not Path("/dev/loop-control").exists():
        raise Skipped("a disk of its own needs loop devices")
    image, place = folder / f"{kind}.img", folder / kind
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    try:
        _run([*MAKE[kind], str(image)])
        with slow_flush(image, flush_ms) if flush_ms else nullcontext(image) as below, _device(below) as device:
            _run(["mount", device, str(place)])
            try:
                yield place
            finally:
                _run(["umount", str(place)])
    finally:
        image.unlink()
        place.rmdir()


@contextmanager
def _device(image: Path) -> Iterator[str]:
    """A block device of a file. Raises Skipped."""
    loop = _run(["losetup", "--find", "--show", str(image)])
    try:
        yield loop
    finally:
        _run(["losetup", "--detach", loop])


def _run(command: list[str]) -> str:
    environment = {**os.environ, "PATH": TOOLS}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise Skipped(f"`{command[0]}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def disk_of(folder: Path) -> str:
    """MAJOR:MINOR of the whole disk, which is what limits are set on. Raises Skipped."""
    device = folder.stat().st_dev
    entry = DEVICES / f"{os.major(device)}:{os.minor(device)}"
    if not entry.exists():
        raise Skipped(f"`{folder}` is not on a disk of its own file system's")
    if (entry / "partition").exists():
        entry = entry.resolve().parent
    return (entry / "dev").read_text().strip()


def file_system(folder: Path) -> str:
    """`ext4`, `xfs` ...: what a folder lies on; `?` if nothing says it."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0]
    return "?"


def own_groups(pid: int) -> dict[str, str]:
    """The group that a process is in, by controller; by "" in version 2 of control groups."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def _enter(pid: int, root: Path, controller: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """Move the process into a new group that has these limits. Returns the group that it was in, and the new one."""
    home = own_groups(pid)[controller]
    group = root / f"penstock-bench-{pid}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.rmdir()
        raise
    return root / home.lstrip("/"), group
