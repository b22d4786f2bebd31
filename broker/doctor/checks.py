"""What the facts mean: each check is a function of them alone, and gives findings.

`bad` loses data or keeps the broker from serving; `warning` costs speed or warns of what comes; `unseen` is a fact that this
process can't find out (in a container or a sandbox): neither right nor wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.broker.doctor.facts import MARKER, Disk, Facts
from penstock.durable import PRIVATE_UMASK
from penstock.hints import quoted

Level = Literal["good", "warning", "bad", "unseen"]
FREE_SHARE = 0.05
FSYNC_MS = 100.0
READ_AHEAD_KB = 4096
SWAPPINESS = 1
DIRTY_BYTES = 1 << 30
DIRTY_BACKGROUND_BYTES = 256 << 20
SOMAXCONN = 4096
OPEN_FILES = 100_000
PERSISTENT = "`/etc/sysctl.d/60-penstock.conf` (the role `host` writes it), then `sysctl --system`"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what is there, what is wanted, why, and what to type."""

    name: str
    level: Level
    found: str
    wanted: str
    why: str = ""
    do: str = ""


def check_all(facts: Facts) -> list[Finding]:
    """Everything, the disks first."""
    return [finding for check in CHECKS for finding in check(facts)]


def folders(facts: Facts) -> Iterator[Finding]:
    """Each log folder lies on a mounted disk of its own, with room."""
    if not facts.disks:
        yield Finding("folders", "unseen", "none was named", "`--config FILE` with `log.dirs`, or `--data DIR`")
    seen: dict[str, str] = {}
    for disk in facts.disks:
        if not disk.exists:
            yield _disk(
                disk, "folder", "bad", "missing", "a folder on a mounted disk",
                "its partitions are offline until it is there", "mount its disk (`findmnt --verify`, `lsblk -f`)",
            )  # fmt: skip
            continue
        if disk.on_root:
            yield _disk(
                disk, "disk", "warning", "on the disk of `/`", "a disk of its own",
                "a full log takes the whole machine with it; or its disk isn't mounted, and the broker fills this one instead",
                "mount its disk, or choose another folder in `log.dirs`",
            )  # fmt: skip
        elif disk.marked is False:
            yield _disk(
                disk, "disk", "warning", f"no {MARKER} at {disk.mount_point}", "a disk that the role `disks` has prepared",
                "nothing says that this is the right disk",
            )  # fmt: skip
        else:
            yield _disk(disk, "disk", "good", str(disk.device), "a disk of its own")
        twin = seen.setdefault(str(disk.mount_point), disk.folder)
        if twin != disk.folder:
            yield _disk(
                disk, "alone", "warning", f"the same disk as {twin}", "one folder a disk",
                "two folders of one disk fail together and wait for each other", "take one of them out of `log.dirs`",
            )  # fmt: skip
        if disk.mode is not None:
            yield _disk(
                disk, "readers", "warning" if disk.mode & PRIVATE_UMASK else "good", f"mode {disk.mode:04o}", "mode 0700",
                "other users of the machine can read all records", f"chmod 700 {quoted(disk.folder)}",
            )  # fmt: skip
        yield from _room(disk)


def _room(disk: Disk) -> Iterator[Finding]:
    if disk.free_bytes is None or not disk.size_bytes:
        yield _disk(disk, "free", "unseen", "can't see", f"at least {FREE_SHARE:.0%}")
        return
    share = disk.free_bytes / disk.size_bytes
    level: Level = "good" if share >= FREE_SHARE else "bad" if share < FREE_SHARE / 5 else "warning"
    yield _disk(
        disk, "free", level, f"{share:.1%} ({disk.free_bytes >> 20} MiB)", f"at least {FREE_SHARE:.0%}",
        "a full disk refuses every produce to it",
        "let retention take more (`penstock configs set topic NAME retention.bytes=...`)",
    )  # fmt: skip


def file_systems(facts: Facts) -> Iterator[Finding]:
    """XFS, without access times, writable."""
    for disk in facts.disks:
        if not disk.exists:
            continue
        if disk.file_system is None:
            yield _disk(disk, "file system", "unseen", "can't see", "xfs")
            continue
        yield _disk(
            disk, "file system", "good" if disk.file_system == "xfs" else "warning", disk.file_system, "xfs",
            "a produce costs the kernel about a quarter less there than on ext4",
        )  # fmt: skip
        quiet = "noatime" in disk.options
        yield _disk(
            disk, "access times", "good" if quiet else "warning", "noatime" if quiet else "kept", "noatime",
            "each read writes to the disk", f"mount -o remount,noatime {quoted(disk.mount_point)}",
        )  # fmt: skip
        if "ro" in disk.options:
            yield _disk(disk, "mode", "bad", "read-only", "read-write", "nothing can be appended", "look into `dmesg`")


def queues(facts: Facts) -> Iterator[Finding]:
    """The kernel's settings of each disk that fit long reads and writes in line."""
    for disk in facts.disks:
        if not disk.exists:
            continue
        if disk.read_ahead_kb is None:
            yield _disk(disk, "read-ahead", "unseen", "can't see", f"{READ_AHEAD_KB} KiB")
        elif disk.rotational:
            level: Level = "good" if disk.read_ahead_kb >= READ_AHEAD_KB else "warning"
            yield _disk(
                disk, "read-ahead", level, f"{disk.read_ahead_kb} KiB", f"{READ_AHEAD_KB} KiB",
                "several consumers of one rotating disk make its head move for each small read",
                "udev rule 60-penstock.rules (the role `host` writes it)",
            )  # fmt: skip
        if disk.rotational:
            right = disk.scheduler == "mq-deadline"
            yield _disk(
                disk, "scheduler", "good" if right else "warning", str(disk.scheduler), "mq-deadline",
                "a rotating disk without it lets a long write wait behind reads for seconds",
                "udev rule 60-penstock.rules (the role `host` writes it)",
            )  # fmt: skip


def flushes(facts: Facts) -> Iterator[Finding]:
    """How long a disk takes to flush 4 KiB."""
    for disk in facts.disks:
        if not disk.exists:
            continue
        if disk.fsync_p99_ms is None:
            yield _disk(disk, "fsync p99", "unseen", "can't write there", f"at most {FSYNC_MS:.0f} ms")
            continue
        level: Level = "good" if disk.fsync_p99_ms <= FSYNC_MS else "warning"
        yield _disk(
            disk, "fsync p99", level, f"{disk.fsync_p99_ms} ms", f"at most {FSYNC_MS:.0f} ms",
            "the disk is busy, or about to fail", "look at `smartctl -a` and `iostat -x 1`",
        )  # fmt: skip


def features(facts: Facts) -> Iterator[Finding]:
    """What the kernel offers to the data plane."""
    if not facts.missing_features:
        seen = "all" if facts.disks else "all that need no folder"
        yield Finding("kernel features", "good", f"{seen} (Linux {facts.kernel})", "all")
    for name, why in facts.missing_features:
        # A kill would be taken for a power cut: that one isn't about speed.
        level: Level = "bad" if name == "boot_id" else "warning"
        yield Finding(f"kernel feature {name}", level, "missing", "there", why, "a kernel of 6.5 or newer, or a wider sandbox")


def memory(facts: Facts) -> Iterator[Finding]:
    """How the kernel handles memory that isn't written yet, or could go to swap."""
    yield _at_most(
        "vm.swappiness", facts.swappiness, SWAPPINESS,
        "a broker whose memory is on a disk waits for it with every connection",
    )  # fmt: skip
    why = "else a share of all memory is written at once: minutes of a SATA disk, in which every flush waits"
    for name, value, most in (
        ("vm.dirty_bytes", facts.dirty_bytes, DIRTY_BYTES),
        ("vm.dirty_background_bytes", facts.dirty_background_bytes, DIRTY_BACKGROUND_BYTES),
    ):
        if value == 0:  # a ratio is in force
            yield Finding(name, "warning", "a ratio", str(most), why, f"{name}={most} in {PERSISTENT}")
        else:
            yield _at_most(name, value, most, why)
    if facts.huge_pages is None:
        yield Finding("transparent huge pages", "unseen", "can't see", "madvise or never")
    else:
        level: Level = "warning" if facts.huge_pages == "always" else "good"
        yield Finding(
            "transparent huge pages", level, facts.huge_pages, "madvise or never",
            "memory grows by 2 MiB for what needs 4 KiB",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (the role `host` sets it at each start)",
        )  # fmt: skip


def limits(facts: Facts) -> Iterator[Finding]:
    """How many connections and files the broker may have."""
    if facts.somaxconn is None:
        yield Finding("net.core.somaxconn", "unseen", "can't see", str(SOMAXCONN))
    else:
        level: Level = "good" if facts.somaxconn >= SOMAXCONN else "warning"
        yield Finding(
            "net.core.somaxconn", level, str(facts.somaxconn), f"at least {SOMAXCONN}",
            "when thousands of clients come back at once, the kernel drops some",
            f"net.core.somaxconn={SOMAXCONN} in {PERSISTENT}",
        )  # fmt: skip
    level = "good" if facts.open_files >= OPEN_FILES else "warning"
    yield Finding(
        "open files", level, str(facts.open_files), f"at least {OPEN_FILES}",
        "a partition takes some descriptors, a connection one",
        f"`LimitNOFILE={OPEN_FILES}` in the unit, `ulimit -n {OPEN_FILES}` in a shell",
    )  # fmt: skip


def clock(facts: Facts) -> Iterator[Finding]:
    """Retention and nights go by the clock."""
    if facts.clock_synchronised is None:
        yield Finding("clock", "unseen", "can't see", "synchronised")
        return
    level: Level = "good" if facts.clock_synchronised else "warning"
    found = "synchronised" if facts.clock_synchronised else "not synchronised"
    yield Finding(
        "clock", level, found, "synchronised", "retention and nights go by it", "apt install chrony; chronyc tracking"
    )  # fmt: skip


def kernel_version(facts: Facts) -> Iterator[Finding]:
    """Linux 6.5 has cachestat, 6.12 time slices that are looked at."""
    found = re.match(r"(\d+)\.(\d+)", facts.kernel)
    if found is None:
        yield Finding("kernel", "unseen", facts.kernel, "6.12 or newer")
        return
    level: Level = "good" if (int(found[1]), int(found[2])) >= (6, 12) else "warning"
    yield Finding(
        "kernel", level, facts.kernel, "6.12 or newer",
        "older ones can't say what of a file is in memory (6.5), and don't look at time slices (6.12): acks wait longer "
        "beside readers of old data", "Debian: the kernel of bookworm-backports",
    )  # fmt: skip


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    folders, file_systems, queues, flushes, kernel_version, features, memory, limits, clock,
)  # fmt: skip


def _disk(disk: Disk, name: str, level: Level, found: str, wanted: str, why: str = "", do: str = "") -> Finding:
    return Finding(f"{disk.folder}: {name}", level, found, wanted, why, do)


def _at_most(name: str, value: int | None, most: int, why: str) -> Finding:
    if value is None:
        return Finding(name, "unseen", "can't see", f"at most {most}", why)
    level: Level = "good" if value <= most else "warning"
    return Finding(name, level, str(value), f"at most {most}", why, f"{name}={most} in {PERSISTENT}")
