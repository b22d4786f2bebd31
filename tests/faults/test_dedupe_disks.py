"""Disks of a dedupe stage that are full, read-only or failing: the process lives, and the partition goes on once they mend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import faultio
from support.dedupe_world import World
from support.harness import BrokerProcess
from support.patience import until
from support.small_disk import SmallDisk, memory_disk

FAILING = 5
CALLS = {
    "write": ["ids/", ".ids$", "MANIFEST", "OPTIONS", "CURRENT", "IDENTITY", ".dbtmp$", ".log$", ".sst$", "LOG$"],
    "sync": ["ids/", "/ids$", ".ids$", "MANIFEST", "CURRENT", ".dbtmp$", ".log$", ".sst$"],
    "read": ["ids/", ".ids$", "MANIFEST", "CURRENT", ".sst$"],
    "open": ["ids/", "/ids$", ".ids$", "MANIFEST", "CURRENT", ".sst$", "LOCK$"],
    "rename": ["ids/", ".ids$", ".dbtmp$"],
    "remove": ["ids/", ".ids$", "MANIFEST", ".log$", ".sst$"],
}

# Of the child: each fault under a life of the store; then the store must work, with all that was in its files before. A number
# after the place lets so many calls succeed first, so that the fault comes in the middle of a step. Only where the manifest's
# sync fails RocksDB removes a file that the manifest may name: then an operator is needed.
LIFE = """
import os, shutil, sys
from pathlib import Path
from penstock.pyx.ids.store import IdStore, RocksDiskError, RocksError
from support.id_columns import column, unseen
folder, call, places = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
control = Path(os.environ["FAULT_CTL"])

def words(name, n):
    return [b"%s-%06d" % (name, k) for k in range(n)]

def add(store, name, n, to):
    store.add(*column(words(name, n)), to, 1)
    store.write_file()
    store.ingest_file()

def opened(path, **more):
    return IdStore(str(path), 1 << 26, 200_000, **more)

def life(path):
    failed = 0
    def attempt(step):
        nonlocal failed
        try:
            return step()
        except (RocksDiskError, OSError):
            failed += 1
        except RocksError as error:
            assert call == "sync" and ".ldb: No such file" in str(error), error
    store = attempt(lambda: opened(path))
    if store is not None:
        for turn in range(2):
            attempt(lambda: unseen(store, words(b"old", 5000) + words(b"new%d" % turn, 5000)))
            attempt(lambda: add(store, b"turn%d" % turn, 60_000, 20 + turn))
            attempt(store.stats)
        attempt(lambda: opened(path, read_only=True).close())
        attempt(store.close)
        attempt(store.close)
    attempt(lambda: opened(path).close())
    return failed

before = folder / "before"
store = opened(before / "ids")
for file in range(10):
    add(store, b"%d" % file, 2000, file + 1)
add(store, b"old", 5000, 12)
store.close()
met = 0
for place in places:
    for errno in ("28", "5"):
        for first in (0, 2, 5, 13) if call == "read" else (0, 1, 3):
            path = folder / "now" / "ids"
            shutil.rmtree(path.parent, ignore_errors=True)
            shutil.copytree(before, path.parent)
            print(call, place, errno, first, flush=True)
            control.write_text(f"{call} {errno} {place} {first}\\n")
            met += life(path)
            control.write_text("")
            try:
                store = opened(path)
            except RocksError as error:
                assert call == "sync" and ".ldb: No such file" in str(error), error
                continue
            assert not any(unseen(store, words(b"old", 5000)))
            add(store, b"after", 1000, 50)
            assert not any(unseen(store, words(b"after", 1000)))
            store.close()
print("met", met)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faultio.build(tmp_path_factory.mktemp("faultio"))


@pytest.mark.parametrize("call", CALLS)
def test_no_call_of_the_store_ends_the_process(tmp_path: Path, library: Path, call: str) -> None:
    done = faultio.run(LIFE, library, tmp_path / "control", tmp_path, call, *CALLS[call], limit_s=400)
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
    assert int(done.stdout.split()[-1]) > 0


def test_files_have_a_largest_size(tmp_path: Path, library: Path) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n" + LIFE
    done = faultio.run(script, library, tmp_path / "control", tmp_path, "write", "LOG$", limit_s=400)
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
    assert int(done.stdout.split()[-1]) > 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with memory_disk(tmp_path / "disk", "64m") as made:
        yield made


def two_disks(folder: Path, disk: SmallDisk, broker: BrokerProcess, **properties: object) -> World:
    """A world whose partition 0 has its store on the small disk."""
    w = World(folder / "world", broker, partitions=2, penstock_dedupe_memory_max_ids=10_000, **properties)
    (w.folder / "data").mkdir()
    (disk.path / "store").mkdir()
    w.database.symlink_to(disk.path / "store")
    return w


def feed(w: World, disk: SmallDisk) -> None:
    """Fill the disk, and give partition 0 ids that need room: a store that is opened again has some of its own once."""
    disk.fill()
    w.send(0, [w.batch(0, w.some_ids(0, 2000), 0)])


def await_stalled(w: World, why: str, hold: Callable[[], None] = lambda: None) -> None:
    """Partition 0 stands still and says why, the other one goes on, and the log repeats nothing. Until then it calls `hold`."""

    def stands() -> bool:
        hold()
        return why in w.position()[1].get("stalled", "")

    until(stands, "the position to say why", w.stage.text)
    said = w.stage.text().count(f"{w.topic}-0 starts again")
    status = w.ask("status")
    assert status.returncode == 1 and "stalled" in status.stdout, status.stdout + status.stderr
    w.send(1, [w.batch(1, w.some_ids(1, 300), 0)])
    w.await_done([1])
    assert w.stage.running
    assert w.stage.text().count(f"{w.topic}-0 starts again") == said > 0, w.stage.text()


def test_a_full_disk_holds_up_its_partition_until_it_has_room(
    tmp_path: Path, shared_broker: BrokerProcess, disk: SmallDisk
) -> None:
    with two_disks(tmp_path, disk, shared_broker) as w:
        w.fill(batches=5, count=3000)
        w.stage.start()
        w.await_done()
        disk.fill()
        await_stalled(w, "No space left on device", lambda: feed(w, disk))
        w.fill(batches=2, count=300)
        disk.drain()
        w.finish()
        assert w.position()[1]["stalled"] == ""


def test_a_full_disk_at_the_start(tmp_path: Path, shared_broker: BrokerProcess, disk: SmallDisk) -> None:
    with two_disks(tmp_path, disk, shared_broker) as w:
        disk.fill()
        w.fill(batches=5, count=3000)
        w.stage.start()
        await_stalled(w, "No space left on device", disk.fill)
        disk.drain()
        w.finish()


def test_a_disk_that_became_read_only(tmp_path: Path, shared_broker: BrokerProcess, disk: SmallDisk) -> None:
    with two_disks(tmp_path, disk, shared_broker) as w:
        w.fill(batches=10, count=300)
        w.run_once()
        disk.remount("ro")
        w.fill(batches=5, count=300)
        w.stage.start()
        await_stalled(w, "Read-only file system")
        disk.remount("rw")
        w.finish()


def test_a_stop_while_the_disk_is_full(tmp_path: Path, shared_broker: BrokerProcess, disk: SmallDisk) -> None:
    with two_disks(tmp_path, disk, shared_broker) as w:
        w.stage.start()
        w.fill(batches=1, count=9000)
        w.await_done()
        disk.fill()
        assert w.stage.stop() == 0, w.stage.text()
        assert "the ids in memory are not kept" in w.stage.text() and "Traceback" not in w.stage.text()
        disk.drain()
        w.fill(batches=1, count=300)
        w.stage.start()
        w.finish()


def test_ids_that_cannot_become_a_file_in_time(tmp_path: Path, shared_broker: BrokerProcess, disk: SmallDisk) -> None:
    with two_disks(tmp_path, disk, shared_broker, penstock_dedupe_spill_ms=1000) as w:
        w.stage.start()
        w.fill(batches=1, count=20)
        w.await_done()
        w.await_file()
        await_stalled(w, "No space left on device", lambda: feed(w, disk))
        disk.drain()
        until(lambda: w.position()[1]["stalled"] == "", "the position to say no more", w.stage.text)
        w.finish()


def test_a_failing_disk(tmp_path: Path, shared_broker: BrokerProcess, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "control"
    with World(tmp_path / "world", shared_broker, partitions=2, penstock_dedupe_memory_max_ids=1000) as w:
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("FAULT_CTL", str(control))
        w.fill(batches=10, count=300)
        w.stage.start()
        w.await_done()
        for call in ("sync", "write", "read"):
            control.write_text(f"{call} {FAILING} {w.topic}-0/\n")
            for batch in range(3):
                w.send(0, [w.batch(0, w.some_ids(0, 700, 0.3), batch)])
            await_stalled(w, "Input/output error")
            control.write_text("")
            w.await_done()
            until(lambda: w.position()[1]["stalled"] == "", "the position to say no more", w.stage.text)
            assert w.stage.stop() == 0
            w.stage.start()
        w.finish()
        shutil.rmtree(w.folder / "data")
