"""The data folder: one owner, one broker, an honest clean mark."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.configs.flushes import Flushes
from penstock.broker.logs.folder import CLEAN_SHUTDOWN, DataFolder, FolderError
from penstock.broker.uuids import new_uuid, uuid_bytes, uuid_text


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "new" / "data", 1)
    with pytest.raises(FolderError, match="in use by another broker"):
        DataFolder.open(tmp_path / "new" / "data", 1)
    folder.close(clean=True)
    DataFolder.open(tmp_path / "new" / "data", 1).close(clean=True)


def test_a_folder_whose_lock_file_is_removed_still_has_one_owner(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1)
    (tmp_path / ".lock").unlink()
    for _ in range(2):
        with pytest.raises(FolderError, match="in use by another broker"):
            DataFolder.open(tmp_path, 1)
    assert not (tmp_path / ".lock").exists()
    folder.close(clean=True)
    DataFolder.open(tmp_path, 1).close(clean=True)


TRIES = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.{}(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"


@pytest.mark.parametrize("call", ["lockf", "flock"], ids=["kafka", "before"])
def test_kafka_and_penstocks_of_before_are_refused(tmp_path: Path, call: str) -> None:
    """Java's FileChannel.lock is lockf; before the folder itself was locked, flock of the file was all there was."""
    command = [sys.executable, "-c", TRIES.format(call), str(tmp_path / ".lock")]
    folder = DataFolder.open(tmp_path, 1)
    with pytest.raises(FolderError, match=f"in use by another broker .process {os.getpid()}."):
        DataFolder.open(tmp_path, 1)
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr
    folder.close(clean=True)
    subprocess.run(command, check=True)


@pytest.mark.parametrize("call", ["lockf", "flock"], ids=["kafka", "before"])
def test_kafka_and_penstocks_of_before_refuse_a_start(tmp_path: Path, call: str) -> None:
    DataFolder.open(tmp_path, 1).close(clean=True)
    command = [sys.executable, "-c", TRIES.format(call) + "; print('has it', flush=True); input()", str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None and other.stdout.readline() == b"has it\n"
        with pytest.raises(FolderError, match="in use by another broker"):
            DataFolder.open(tmp_path, 1)
        other.stdin.close()
    DataFolder.open(tmp_path, 1).close(clean=True)


def test_the_cluster_id_stays_and_another_broker_is_refused(tmp_path: Path) -> None:
    first = DataFolder.open(tmp_path, 1)
    first.close(clean=True)
    with pytest.raises(FolderError, match="belongs to broker 1, not to 2"):
        DataFolder.open(tmp_path, 2)
    again = DataFolder.open(tmp_path, 1)
    assert again.cluster_id == first.cluster_id
    again.close(clean=True)


def test_the_clean_mark_is_there_only_between_a_clean_stop_and_the_next_start(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1)
    assert not folder.was_clean
    folder.close(clean=True)
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    folder = DataFolder.open(tmp_path, 1)
    assert folder.was_clean
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    folder.close(clean=False)
    folder = DataFolder.open(tmp_path, 1)
    assert not folder.was_clean
    folder.close(clean=False)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it holds nothing"),
        (bytes(80), "it holds zeros only"),
        (b"version=0\nbroker.id=1\n" + bytes(30), "bytes that are no text"),
        (b"version=0\nbroker.id=1\ncluster.id=\xff\xfe\n", "bytes that are no text"),
        (b"version=0\n", "`broker.id` is missing"),
        (b"version=1\nbroker.id=1\ncluster.id=x\n", "`node.id` is missing"),
        (b"version=0\nbroker.id=\ncluster.id=x\n", "`broker.id` is missing"),
        (b"version=0\nbroker.id=one\ncluster.id=x\n", "`broker.id=one` is not a whole number"),
        (b"version=0\nbroker.id=\xc2\xb2\ncluster.id=x\n", "is not a whole number"),
        (b"version=0\nbroker.id=1\ncluster.id=\n", "`cluster.id` is missing"),
        (b"version=0\nbroker.id=1\nclust", "line 3"),
        (b"version=0\nbroker.id=1\ncluster.id=x\\", "continued line"),
        (b"version=0\nbroker.id=1\ncluster.id=x\npenstock.metadata.store.id=short\n", "id=short` is not an id"),
    ],
)
def test_a_damaged_identity_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    DataFolder.open(tmp_path, 1).close(clean=True)
    meta = tmp_path / "meta.properties"
    meta.write_bytes(content)
    for _ in range(2):
        with pytest.raises(FolderError, match="is damaged") as refusal:
            DataFolder.open(tmp_path, 1)
        said = str(refusal.value)
        assert f"`{meta}`" in said and why in said and said.isprintable()
        assert "put a copy of it back" in said and "`broker.id=1`" in said
    assert meta.read_bytes() == content


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be used"):
        DataFolder.open(tmp_path / "file", 1)


def test_ids_have_kafkas_text() -> None:
    for _ in range(200):
        made = new_uuid()
        text = uuid_text(made)
        assert uuid_bytes(text) == made and len(text) == 22 and not text.startswith("-")
    with pytest.raises(ValueError, match="16 bytes"):
        uuid_bytes("AAAA")


def test_transactions_count_as_flushed_only_from_a_clean_beginning_on(tmp_path: Path) -> None:
    # (flushes in this run, ends cleanly) -> what a start after it may believe of what a power cut has left
    none, stages, every = Flushes.NONE, Flushes.STAGES, Flushes.ALL
    runs = [
        (every, False, every),  # a new folder
        (every, False, every),
        (none, False, none),
        (every, False, none),  # what the run before left unflushed may still be lost
        (every, True, none),
        (every, False, every),
        (stages, False, stages),
        (every, False, stages),
        (none, True, none),
        (stages, False, stages),
        (every, True, stages),
        (every, False, every),
    ]
    for flushes, clean, believed in runs:
        folder = DataFolder.open(tmp_path, 1, flushes=flushes)
        folder.opened()
        folder.close(clean=clean)
        after = DataFolder.open(tmp_path, 1, flushes=flushes)
        assert after.was_flushed == believed
        after.close(clean=clean)


def test_a_folder_that_lost_its_identity_is_not_new(tmp_path: Path) -> None:
    DataFolder.open(tmp_path, 1).close(clean=False)
    (tmp_path / "flights-0").mkdir()
    (tmp_path / "meta.properties").unlink()
    DataFolder.open(tmp_path, 1, flushes=Flushes.ALL).close(clean=False)
    after = DataFolder.open(tmp_path, 1, flushes=Flushes.ALL)
    assert after.was_flushed is Flushes.NONE
    after.close(clean=False)


def test_a_kill_before_the_logs_are_open_is_no_power_cut_after_a_clean_stop(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1)
    folder.opened()
    folder.close(clean=True)
    lock = tmp_path / ".lock"
    process, boot_id = lock.read_text().split()
    lock.write_text(f"{process}\n{boot_id[::-1]}\n")  # another start of the machine
    DataFolder.open(tmp_path, 1).close(clean=False)
    after = DataFolder.open(tmp_path, 1)
    assert not after.power_cut and not after.was_clean
    after.close(clean=False)
    lock.write_text(f"{process}\n{boot_id[::-1]}\n")
    after = DataFolder.open(tmp_path, 1)
    assert after.power_cut
    after.close(clean=False)


def lost(lock: Path) -> None:
    lock.unlink()


def emptied(lock: Path) -> None:
    lock.write_bytes(b"")


def zeroed(lock: Path) -> None:
    lock.write_bytes(bytes(lock.stat().st_size))


@pytest.mark.parametrize("harm", [lost, emptied, zeroed])
def test_a_lock_file_that_is_lost_is_no_power_cut(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    folder = DataFolder.open(tmp_path, 1, flushes=Flushes.ALL)
    folder.mark_store("A" * 22)
    (tmp_path / "flights-0").mkdir()
    folder.opened()
    folder.close(clean=False)
    lock = tmp_path / ".lock"
    harm(lock)
    for _ in range(2):  # What the first start leaves is no better known.
        folder = DataFolder.open(tmp_path, 1, flushes=Flushes.ALL)
        assert (folder.is_unknown, folder.power_cut, folder.was_flushed) == (True, False, Flushes.NONE)
        folder.close(clean=False)
    folder = DataFolder.open(tmp_path, 1)
    folder.opened()
    folder.close(clean=False)
    folder = DataFolder.open(tmp_path, 1)
    assert (folder.is_unknown, folder.power_cut) == (False, False)
    folder.close(clean=True)
    harm(lock)
    DataFolder.open(tmp_path, 1).close(clean=False)  # killed as it starts, after a clean stop
    folder = DataFolder.open(tmp_path, 1)
    assert (folder.is_unknown, folder.power_cut) == (False, False)
    folder.close(clean=True)


@pytest.mark.parametrize("text", ["", "4711\n"], ids=["kafka", "before"])
def test_a_lock_file_that_never_had_a_boot_id_may_mean_a_power_cut(tmp_path: Path, text: str) -> None:
    """Of such a run it was never written down: its log is recovered as Kafka would, and Penstocks of before did."""
    (tmp_path / "flights-0").mkdir()
    (tmp_path / ".lock").write_text(text)
    folder = DataFolder.open(tmp_path, 1)
    assert (folder.is_unknown, folder.power_cut) == (False, True)
    folder.close(clean=False)
