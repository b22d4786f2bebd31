"""The module that prepares disks, on loop devices in a mount namespace of its own: what it refuses, and what it may wipe."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.packages import COLLECTION

MODULE = COLLECTION / "ansible_collections/penstock/appliance/plugins/modules/penstock_disk.py"
SIZE = 320 << 20  # XFS takes no less than 300 MB
LACKING = [one for one in ("losetup", "sfdisk", "mkfs.xfs", "mkfs.ext4", "wipefs", "unshare") if not shutil.which(one)]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes loop devices"),
    pytest.mark.skipif(bool(LACKING), reason=f"not there: {', '.join(LACKING)}"),
    pytest.mark.skipif(importlib.util.find_spec("ansible") is None, reason="the extra `deploy` isn't installed: `make build`"),
    pytest.mark.xdist_group("disks"),
]


def run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Box:
    """Disks that are loop devices, and a folder that stands for /etc while the module runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices: list[str] = []
        shutil.copytree("/etc", folder / "etc", symlinks=True)
        (folder / "etc" / "fstab").write_text("# of nobody\n")

    def disk(self) -> str:
        """Another empty disk, under a name of its own."""
        image = self.folder / f"disk{len(self.devices)}"
        with image.open("wb") as file:
            file.truncate(SIZE)
        done = subprocess.run(
            ["losetup", "--show", "--find", "--partscan", str(image)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"loop devices can't be made here: {done.stderr.strip()}")
        self.devices.append(done.stdout.strip())
        return self.devices[-1]

    def module(self, device: str, state: str = "present", wipe: list[str] | None = None) -> dict[str, Any]:
        """What the module answers; it mounts in a namespace that ends with it."""
        arguments = {"device": device, "state": state, "wipe": wipe or [], "owner": "root", "root": str(self.folder / "srv")}
        file = self.folder / "arguments.json"
        file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_remote_tmp": str(self.folder)}}))
        script = 'mount --bind "$1" /etc && exec "$2" "$3" "$4"'
        words = [script, "sh", str(self.folder / "etc"), sys.executable, str(MODULE), str(file)]
        done = subprocess.run(["unshare", "--mount", "sh", "-c", *words], capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def close(self) -> None:
        for device in self.devices:
            run("losetup", "--detach", device)


@pytest.fixture(scope="module")
def partitions_are_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where /dev isn't the kernel's own, a new partition has no device file."""
    probe = Box(tmp_path_factory.mktemp("probe"))
    try:
        device = probe.disk()
        partitions(device)
        run("partx", "--update", device)
        if not Path(f"{device}p1").exists():
            pytest.skip("partitions of loop devices have no device files here")
    finally:
        probe.close()


@pytest.fixture
def box(tmp_path: Path, partitions_are_seen: None) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.close()


def swap(device: str) -> None:
    run("mkswap", device)


def partitions(device: str) -> None:
    run("sfdisk", "--quiet", device, text="label: gpt\ntype=L\n")


def write_at(device: str, position: int) -> None:
    with Path(device).open("r+b") as file:
        file.seek(position)
        file.write(b"x")


HELD: dict[str, tuple[Callable[[str], object], str]] = {
    "a file system": (lambda device: run("mkfs.ext4", "-q", device), "it holds `ext4`"),
    "swap": (swap, "it holds `swap`"),
    "partitions": (partitions, "it has partitions: "),
    "an empty table": (lambda device: run("sfdisk", "--quiet", device, text="label: dos\n"), "it holds `dos`"),
    "a byte at its begin": (lambda device: write_at(device, 5000), "its first or last MiB isn't all zeros"),
    "a byte at its end": (lambda device: write_at(device, SIZE - 5000), "its first or last MiB isn't all zeros"),
}


@pytest.mark.parametrize("what", HELD)
def test_a_disk_that_holds_something_is_refused_until_it_may_be_wiped(box: Box, what: str) -> None:
    fill, words = HELD[what]
    device = box.disk()
    fill(device)
    before = Path(device).read_bytes()
    for state in ("checked", "present"):
        refused = box.module(device, state)
        assert refused["failed"] and words in refused["msg"] and f"name `{refused['id']}` in `disks_wipe`" in refused["msg"]
        assert box.module(device, state, wipe=["another"])["failed"]
    assert Path(device).read_bytes() == before
    assert not box.module(device, "checked", wipe=[refused["id"]]).get("failed")
    assert Path(device).read_bytes() == before
    made = box.module(device, wipe=[refused["id"]])
    assert made["changed"] and made["uuid"] in (box.folder / "etc" / "fstab").read_text()


def test_a_disk_that_is_used_is_refused_even_if_it_may_be_wiped(box: Box, tmp_path: Path) -> None:
    device = box.disk()
    run("mkfs.ext4", "-q", device)
    point = tmp_path / "point"
    point.mkdir()
    run("mount", device, str(point))
    try:
        name = box.module(device, "checked")["id"]
        refused = box.module(device, wipe=[name])
        assert refused["failed"] and f"is in use: it is mounted at {point}" in refused["msg"]
    finally:
        run("umount", str(point))


def test_a_partition_is_no_disk(box: Box) -> None:
    device = box.disk()
    partitions(device)
    run("partx", "--update", device)
    assert "is a partition; name the whole disk" in box.module(f"{device}p1", "checked")["msg"]


def test_a_disk_of_another_box_is_refused_and_one_of_this_box_is_not(box: Box) -> None:
    device = box.disk()
    made = box.module(device)
    assert made["changed"], made
    fstab = box.folder / "etc" / "fstab"
    known = fstab.read_text()
    assert not box.module(device, "checked").get("failed")
    assert box.module(device)["uuid"] == made["uuid"]
    # As another box sees it, or this one after it was released.
    fstab.write_text("")
    for state in ("checked", "present"):
        refused = box.module(device, state)
        assert refused["failed"] and "it was a Penstock's disk before" in refused["msg"]
        assert f"UUID={made['uuid']}" in refused["msg"]
    fstab.write_text(known)
    assert not box.module(device, "checked").get("failed")
    fstab.write_text("")
    again = box.module(device, wipe=[made["id"]])
    assert again["changed"] and again["uuid"] != made["uuid"]


def test_a_run_that_was_cut_short_is_taken_up(box: Box) -> None:
    """After the table, and after the file system: nothing lies on it yet."""
    device = box.disk()
    name = box.module(device, "checked")["id"]
    run("sfdisk", "--quiet", device, text=f"label: gpt\ntype=L, name=penstock-{name}\n")
    assert not box.module(device, "checked").get("failed")
    run("partx", "--update", device)
    run("mkfs.xfs", "-q", f"{device}p1")
    assert not box.module(device, "checked").get("failed")
    uuid = run("blkid", "--probe", "--output", "value", "--match-tag", "UUID", f"{device}p1").strip()
    assert box.module(device)["uuid"] == uuid
