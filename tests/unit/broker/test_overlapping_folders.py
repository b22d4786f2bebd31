"""Log folders inside one another, and folders of brokers that have a partition's name: refused, and never touched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.broker.logs.folder import FolderError
from penstock.broker.logs.logdirs import LogDirs, Placed
from penstock.broker.logs.overlap import overlap
from penstock.pyx.log.logmanager import LogManager
from support.asking import complaint, names, refused
from support.harness import BrokerProcess
from support.logs import TOPIC_ID
from support.moves import Folders
from support.patience import until

WAIT_S = 120.0
OTHERS = "version=1\nnode.id=9\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"


def linked(folder: Path, to: Path) -> Path:
    folder.symlink_to(to, target_is_directory=True)
    return folder


def cases(root: Path) -> dict[str, tuple[list[Path], str]]:
    """Folders, and what the sentence says of them."""
    a, b = root / "a", root / "b"
    for folder in (a / "disk-1", b, root / "deep" / "er"):
        folder.mkdir(parents=True)
    return {
        "inside": ([a, a / "disk-1"], f"`{a / 'disk-1'}` lies inside the log folder `{a}`"),
        "around": ([a / "disk-1", b, a], f"`{a / 'disk-1'}` lies inside the log folder `{a}`"),
        "absent": ([b, b / "new" / "one"], f"`{b / 'new' / 'one'}` lies inside"),
        "dots": ([a, b / ".." / "a" / "disk-1"], "lies inside"),
        "link to one inside": ([a, linked(root / "in", a / "disk-1")], f"`{root / 'in'}` lies inside"),
        "link around": ([a / "disk-1", linked(root / "out", a)], "lies inside"),
        "link": ([a, linked(root / "same", a)], f"`{a}` and `{root / 'same'}` are the same folder"),
        "same by dots": ([a, b / ".." / "a"], "are the same folder"),
    }


@pytest.mark.parametrize(
    "name", ["inside", "around", "absent", "dots", "link to one inside", "link around", "link", "same by dots"]
)
def test_folders_that_overlap_are_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    folders, words = cases(tmp_path)[name]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FolderError) as error:
        LogDirs.open(folders, 1)
    assert words in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_beside_each_other_are_none_of_that(tmp_path: Path) -> None:
    for name in ("data", "data-1", "other"):
        (tmp_path / name).mkdir()
    assert overlap([tmp_path / "data", tmp_path / "data-1", tmp_path / "other", tmp_path / "data"]) == ""


def test_a_bind_mount_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel lists one of a folder inside a log folder, at a path outside of it."""
    for name in ("data/disk", "bound", "else"):
        (tmp_path / name).mkdir(parents=True)
    listed = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 8:1 {tmp_path}/data/disk {tmp_path}/bound rw - ext4 /dev/sda1 rw\n"
        f"3 1 8:2 / {tmp_path}/else rw - ext4 /dev/sdb1 rw\n"
    )
    monkeypatch.setattr("penstock.broker.logs.overlap.mountinfo", lambda: listed)
    assert "lies inside" in overlap([tmp_path / "data", tmp_path / "bound"])
    assert "same folder" in overlap([tmp_path / "data" / "disk", tmp_path / "bound"])
    assert overlap([tmp_path / "data", tmp_path / "else"]) == ""


@pytest.mark.parametrize("check", [False, True])
def test_a_start_is_refused_with_one_sentence(tmp_path: Path, check: bool) -> None:
    outer, inner = tmp_path / "data", tmp_path / "data" / "disk-1"
    done = refused("--data", str(outer), "--set", f"log.dirs={outer},{inner}", *["--check"] * check)
    assert done.returncode == 1
    assert f"`{inner}` lies inside the log folder `{outer}`" in complaint(done.stderr)
    assert not outer.exists()


def created(broker: BrokerProcess, topic: str, partitions: int) -> KafkaException | None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    error: BaseException | None = admin.create_topics([NewTopic(topic, partitions)])[topic].exception(WAIT_S)
    assert error is None or isinstance(error, KafkaException)
    return error


def test_what_is_no_partition_keeps_its_name_and_its_files(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    data = tmp_path / "broker"
    theirs, nested, file = data / "disk-1", data / "held-0", data / "plain-0"
    (theirs / "t-0").mkdir(parents=True)
    (theirs / "meta.properties").write_text(OTHERS)
    (nested / "within").mkdir(parents=True)
    (nested / "within" / "meta.properties").write_text(OTHERS)
    file.write_text("x")
    broker = make_broker()
    for topic, partitions, place in (("disk", 2, theirs), ("held", 1, nested), ("plain", 1, file)):
        error = created(broker, topic, partitions)
        assert error is not None
        assert error.args[0].code() == ClientError.TOPIC_EXCEPTION
        assert f"`{place}`" in error.args[0].str()
        assert topic not in names(broker)
    assert created(broker, "disk", 1) is None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    error = admin.create_partitions([NewPartitions("disk", 2)])["disk"].exception(WAIT_S)
    assert error is not None and f"`{theirs}`" in str(error)
    broker.restart()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["disk"])["disk"].result(WAIT_S)
    broker.stop()
    assert (theirs / "meta.properties").read_text() == OTHERS and (theirs / "t-0").is_dir()
    assert (nested / "within" / "meta.properties").read_text() == OTHERS
    assert file.read_text() == "x"
    assert [path.name for path in data.iterdir() if path.name.endswith(("-stray", "-delete"))] == []


def test_another_log_folder_takes_a_partition_whose_name_is_taken(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    (tmp_path / "broker" / "disk-0").mkdir(parents=True)
    (tmp_path / "broker" / "disk-0" / "meta.properties").write_text(OTHERS)
    broker = make_broker(**{"log.dirs": tmp_path / "second"})
    assert created(broker, "disk", 1) is None
    assert (tmp_path / "second" / "disk-0" / "partition.metadata").exists()


def test_a_brokers_folder_is_no_copy_of_a_partition(tmp_path: Path) -> None:
    """Of two folders with a partition's name, at start: the one that has a meta.properties is none."""
    for name in ("a", "b"):
        (tmp_path / name / "t-0").mkdir(parents=True)
    (tmp_path / "a" / "t-0" / "meta.properties").write_text(OTHERS)
    dirs = LogDirs.open([tmp_path / "a", tmp_path / "b"], 1)
    dirs.admit({}, {})
    dirs.locate({("t", 0): Placed(bytes(15) + b"1", "")}, set())
    kept = dirs.of(("t", 0))
    assert kept is not None and kept.path.name == "b"
    dirs.close(clean=True)
    assert (tmp_path / "a" / "t-0" / "meta.properties").read_text() == OTHERS


def theirs(folder: Path, within: str) -> Path:
    """Another broker's log folder, as a mount at a folder of ours or in it would show it; its meta.properties."""
    file = folder / within / "meta.properties"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(OTHERS)
    (file.parent / "metadata.db").write_text("x")
    return file


WITHIN = ["", "deep/er"]
HEX = "0123456789abcdef" * 2


def delete_open_log(root: Path, within: str) -> Path:
    logs = LogManager()
    logs.lead("t", TOPIC_ID, 0, 0, str(root), {})
    kept = theirs(root / "t-0", within)
    with pytest.raises(OSError, match="is a log folder of a broker"):
        logs.delete("t", 0)
    return kept


def remove_deleted(root: Path, within: str) -> Path:
    kept = theirs(root / f"t-0.{HEX}-delete", within)
    assert LogManager().remove_deleted(str(root)) == 0
    return kept


def open_folders(root: Path, within: str) -> Path:
    kept = theirs(root / f"t-0.{HEX}-future", within)
    LogDirs.open([root], 1).close(clean=True)
    return kept


def locate(root: Path, within: str) -> Path:
    """Where the store knows another topic of the name."""
    (root / "t-0").mkdir()
    kept = theirs(root / "t-0", within)
    dirs = LogDirs.open([root], 1)
    dirs.admit({}, {})
    try:
        with contextlib.suppress(OSError):
            dirs.locate({("t", 0): Placed(TOPIC_ID, "")}, set())
    finally:
        dirs.close(clean=True)
    return kept


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("door", [delete_open_log, remove_deleted, open_folders, locate])
def test_no_door_moves_or_removes_a_log_folder(tmp_path: Path, door: Callable[[Path, str], Path], within: str) -> None:
    root = tmp_path / "log"
    root.mkdir()
    kept = door(root, within)
    assert kept.read_text() == OTHERS and kept.with_name("metadata.db").read_text() == "x"


@pytest.mark.parametrize("within", WITHIN)
def test_a_move_and_a_deletion_leave_a_log_folder_where_it_is(tmp_path: Path, within: str) -> None:
    folders = Folders(tmp_path)
    try:
        folders.create("t", 1)
        folders.put(("t", 0), b"1")
        (here,) = folders.on_disk(("t", 0))
        kept = theirs(folders.paths[here] / "t-0", within)
        to = next(name for name in folders.paths if name != here)
        assert folders.ask(("t", 0), to) == 0
        assert folders.settle()[("t", 0)] == here
        folders.put(("t", 0), b"2")
        assert folders.values(("t", 0)) == [b"1", b"2"]
        assert kept.read_text() == OTHERS and folders.on_disk(("t", 0)) == [here]
        admin = AdminClient({"bootstrap.servers": folders.broker.bootstrap})
        admin.delete_topics(["t"])["t"].result(WAIT_S)
        until(lambda: f"`{kept.parent}` is a log folder" in folders.broker.log_text(), "a sentence", folders.broker.log_text)
        assert kept.read_text() == OTHERS
    finally:
        folders.broker.close()
