"""The slower disk of a measurement: a limit that holds for a process and goes with it, or a sentence why not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.bench import disk
from penstock.bench.disk import disk_of, file_system, own_groups, slow_disk
from penstock.bench.slowflush import slow_flush
from penstock.bench.world import Skipped

LIMITS = ("blkio.throttle.read_bps_device", "io.max")


def test_a_process_is_limited_and_let_go(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    group = Path(f"/proc/{sleeper.pid}/cgroup")
    before = group.read_text()
    try:
        with slow_disk(sleeper.pid, tmp_path, 8_000_000):
            mine = next(path for path in own_groups(sleeper.pid).values() if "penstock-bench" in path)
            (limited,) = disk.GROUPS.glob(f"**{mine}")
            limits = "".join(path.read_text() for path in limited.iterdir() if path.name in LIMITS)
            assert disk_of(tmp_path) in limits
            assert "8000000" in limits
        assert not limited.exists()
    except Skipped as error:
        assert "can't be slowed down here" in str(error) or "is not on a disk" in str(error)
    finally:
        assert group.read_text() == before
        sleeper.kill()
        sleeper.communicate()


def test_a_folder_that_is_on_no_disk_is_refused() -> None:
    with pytest.raises(Skipped, match="is not on a disk"):
        disk_of(Path("/proc"))


def test_version_2_of_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written where, in folders that stand for the kernel's: `io.max` of a group below the root."""
    groups = tmp_path / "cgroup"
    groups.mkdir()
    written: list[tuple[str, str]] = []
    write_text = Path.write_text

    def noted(path: Path, text: str) -> int:
        written.append((str(path.relative_to(tmp_path)), text))
        return write_text(path, text)

    pid = os.getpid()
    (groups / "cgroup.subtree_control").touch()
    monkeypatch.setattr(disk, "GROUPS", groups)
    monkeypatch.setattr(disk, "disk_of", lambda _: "8:0")
    monkeypatch.setattr(disk, "own_groups", lambda _: {"": "/app.slice"})
    (groups / "app.slice").mkdir()
    monkeypatch.setattr(Path, "write_text", noted)
    monkeypatch.setattr(Path, "rmdir", lambda path: written.append((str(path.relative_to(tmp_path)), "removed")))
    with slow_disk(pid, tmp_path, 250_000_000):
        written.append(("", "measured"))
    group = f"cgroup/penstock-bench-{pid}"
    assert written == [
        ("cgroup/cgroup.subtree_control", "+io"),
        (f"{group}/io.max", "8:0 rbps=250000000"),
        (f"{group}/cgroup.procs", str(pid)),
        ("", "measured"),
        ("cgroup/app.slice/cgroup.procs", str(pid)),
        (group, "removed"),
    ]


def test_the_file_system_is_named(tmp_path: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    named = subprocess.run(["df", "--output=fstype", tmp_path], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert file_system(tmp_path) in (named.split()[-1], "?")  # A chroot may not see what it is mounted from.


def test_a_slow_flush_holds_up_itself_alone(tmp_path: Path) -> None:
    """What is written lies in the file below at once, and is read while a flush waits, here until the place goes."""
    file = tmp_path / "image"
    file.write_bytes(bytes(1 << 20))
    ended: list[OSError | None] = []

    def flush(descriptor: int) -> None:
        try:
            os.fsync(descriptor)
            ended.append(None)
        except OSError as error:
            ended.append(error)

    try:
        with slow_flush(file, 3_600_000) as place:
            descriptor = os.open(place, os.O_RDWR)
            os.pwrite(descriptor, b"written", 5000)
            flushing = threading.Thread(target=flush, args=(descriptor,))
            flushing.start()
            there = file.read_bytes()[5000:5007], os.pread(descriptor, 7, 5000), os.fstat(descriptor).st_size, len(ended)
        flushing.join()
        with contextlib.suppress(OSError):  # nobody is there to hear of it
            os.close(descriptor)
        assert there == (b"written", b"written", 1 << 20, 0)
        assert isinstance(ended[0], OSError)
        assert not place.exists()
        with slow_flush(file, 1) as place, place.open("r+b") as opened:
            assert opened.read(5007)[5000:] == b"written"
            opened.write(b" again")
            opened.flush()
            os.fsync(opened.fileno())
        assert file.read_bytes()[5000:5013] == b"written again"
    except Skipped as error:
        assert "needs root and FUSE with passthrough" in str(error)
