"""The id store: what it knows, what survives a restart or a kill, and how it ages."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.pyx.ids.store import IdStore, RocksError
from support.clock import Clock
from support.id_columns import add, column, spill, unseen

ROOM = 64 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IdStore]:
    made = IdStore(str(tmp_path / "ids"), ROOM, 1000)
    yield made
    made.close()


def test_the_first_of_each_id_is_unseen(store: IdStore) -> None:
    ids = [b"a", b"b", b"a", None, b"", None, b"", b"b"]
    assert unseen(store, ids) == [True, True, False, True, True, True, False, False]
    # Nothing was added by asking.
    assert unseen(store, ids)[0]
    add(store, ids, 8)
    assert unseen(store, [*ids, b"c", None]) == [word is None for word in ids] + [True, True]


def test_ids_in_files_are_known(store: IdStore) -> None:
    add(store, [b"in a file", b"", None], 3)
    spill(store)
    add(store, [b"in memory"], 4)
    assert unseen(store, [b"in memory", b"in a file", b"", b"nowhere"]) == [False, False, False, True]
    stats = store.stats()
    assert (stats["ids_in_memory"], stats["ids_in_files"], stats["files"]) == (1, 2, 1)


def test_ids_that_look_like_the_files_own_entries(store: IdStore) -> None:
    ids = [bytes(9), b"\x00", b"\x01", bytes(8) + b"\x01", b"\xff" * 9]
    add(store, ids, 5)
    spill(store)
    assert not any(unseen(store, ids))
    assert all(unseen(store, [bytes(8), bytes(10), b"\x00\x00", b"\xff"]))
    assert (store.complete_to, store.stats()["ids_in_files"]) == (5, 5)


def test_very_long_ids(store: IdStore) -> None:
    long = [bytes([i]) * (5 << 20) for i in range(3)]
    add(store, long, 3)
    assert store.files >= 1
    assert unseen(store, [*long, long[0] + b"x", long[0][:-1]]) == [False, False, False, True, True]


def test_add_stops_when_memory_is_full(store: IdStore) -> None:
    ids = column([b"%d" % i for i in range(2500)])
    assert store.add(*ids, 2500, 1) == 1000
    assert store.is_full()
    assert (store.complete_to, store.reaches_to) == (0, 2500)
    assert store.add(*ids, 2500, 1, 1000) == 1000
    spill(store)
    assert store.add(*ids, 2500, 1, 1000) == 2000
    spill(store)
    assert store.add(*ids, 2500, 1, 2000) == 2500
    assert store.complete_to == 2500
    assert not any(store.unseen(*ids))


def test_records_without_new_ids_make_a_file_due_too(store: IdStore) -> None:
    """What a restart has to read again is bounded also where nothing is to be remembered."""
    for turn in range(8):
        assert not store.is_full()
        add(store, [None] * 1000, 1000 * (turn + 1))
    assert (store.files, store.is_full()) == (1, False)


def test_no_records_at_all(store: IdStore) -> None:
    assert unseen(store, []) == []
    add(store, [], 7)
    assert store.complete_to == 7


def test_a_restart_keeps_files_and_forgets_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "ids")
    store = IdStore(path, ROOM, 1000)
    add(store, [b"kept"], 10, now_ms=111)
    spill(store)
    add(store, [b"lost"], 20, now_ms=222)
    assert (store.complete_to, store.reaches_to) == (20, 20)
    store.close()
    store = IdStore(path, ROOM, 1000)
    assert unseen(store, [b"kept", b"lost"]) == [False, True]
    assert (store.complete_to, store.reaches_to, store.stats()["oldest_ms"]) == (10, 10, 111)
    store.close()


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "whole"])
def test_a_file_that_was_not_ingested_says_nothing(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ids"
    store = IdStore(str(path), ROOM, 1000)
    add(store, [b"a"], 1)
    store.write_file()
    store.close()
    (left,) = path.glob("*.ids")
    data = left.read_bytes()
    left.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "garbage": bytes(99), "whole": data}[damage])
    store = IdStore(str(path), ROOM, 1000)
    assert unseen(store, [b"a"]) == [True]
    assert (store.complete_to, list(path.glob("*.ids"))) == (0, [])
    add(store, [b"a"], 1)
    spill(store)
    assert unseen(store, [b"a"]) == [False]
    store.close()


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    store = IdStore(str(path), ROOM, 1000)
    add(store, [b"%d" % i for i in range(900)], 900)
    spill(store)
    store.close()
    (file,) = path.glob("*.sst")
    data = bytearray(file.read_bytes())
    data[100:2000] = bytes(1900)
    file.write_bytes(data)
    with pytest.raises(RocksError, match="ids"):
        damaged = IdStore(str(path), ROOM, 1000)
        unseen(damaged, [b"%d" % i for i in range(900)])


def test_a_folder_is_opened_once(tmp_path: Path, store: IdStore) -> None:
    with pytest.raises(RocksError, match="lock"):
        IdStore(str(tmp_path / "ids"), ROOM, 1000)


def test_a_store_is_read_while_it_is_open(tmp_path: Path, store: IdStore) -> None:
    path = str(tmp_path / "ids")
    add(store, [b"a"], 3)
    spill(store)
    store.write_file()  # and never ingested: another one's business
    reading = IdStore(path, ROOM, 1000, read_only=True)
    assert (unseen(reading, [b"a", b"b"]), reading.kept_to, reading.stats()["ids_in_files"]) == ([False, True], 3, 1)
    with pytest.raises(RocksError, match="reading only"):
        reading.write_file()
    reading.close()
    store.ingest_file()
    with pytest.raises(RocksError):
        IdStore(str(tmp_path / "nowhere"), ROOM, 1000, read_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_closed_store_refuses(store: IdStore) -> None:
    store.close()
    store.close()
    ids = column([b"a"])
    for use in (
        lambda: store.unseen(*ids),
        lambda: store.add(*ids, 1, 1),
        store.write_file,
        store.ingest_file,
        store.stats,
    ):
        with pytest.raises(RocksError, match="closed"):
            use()


def test_columns_that_do_not_fit(store: IdStore) -> None:
    data, starts, null = column([b"a", b"bc"])
    with pytest.raises(ValueError, match="fit together"):
        store.unseen(data, starts, null[:1])
    with pytest.raises(ValueError, match="fit together"):
        store.unseen(data[:2], starts, null)
    with pytest.raises(ValueError, match="fit together"):
        store.add(data, starts.astype(np.int32), null, 1, 1)
    with pytest.raises(ValueError, match="fit together"):
        store.add(data, np.array([0, -1, 3]), null, 1, 1)
    with pytest.raises(ValueError, match="no record 3"):
        store.add(data, starts, null, 1, 1, 3)
    with pytest.raises(RocksError, match="no file was written"):
        store.ingest_file()


def test_the_oldest_ids_go_first_and_the_size_stays_bounded(tmp_path: Path) -> None:
    bound = 4 << 20
    store = IdStore(str(tmp_path / "ids"), bound, 20_000)
    source = random.Random(3)
    ids = [source.randbytes(16) for _ in range(400_000)]
    for turn in range(0, len(ids), 4000):
        add(store, ids[turn : turn + 4000], turn + 4000, now_ms=turn + 1)
    # Dropping runs in the background.
    deadline = time.monotonic() + 120
    while store.stats()["size_bytes"] > bound and time.monotonic() < deadline:
        time.sleep(0.02)
    stats = store.stats()
    assert stats["size_bytes"] <= bound
    assert stats["files"] <= 60
    assert sum(file.stat().st_size for file in (tmp_path / "ids").glob("*.sst")) <= 1.2 * bound
    mask = store.unseen(*column(ids))
    window = int(np.count_nonzero(~mask))
    assert mask[: len(ids) - window].all() and not mask[len(ids) - window :].any()
    assert 0.5 * bound / 17 < window < len(ids) / 2  # a good part of the bound is in use
    oldest = len(ids) - window
    assert oldest - 8000 <= stats["oldest_ms"] <= oldest + 8000
    # A restart drops nothing more, and forgets only what was in memory.
    in_memory = stats["ids_in_memory"]
    store.close()
    store = IdStore(str(tmp_path / "ids"), bound, 20_000)
    again = store.unseen(*column(ids[oldest : len(ids) - in_memory]))
    assert not again.any()
    assert store.complete_to >= len(ids) - 24_000
    store.close()


def test_no_file_goes_by_its_age(store: IdStore, tmp_path: Path) -> None:
    """What RocksDB itself has noted: with one of the two left at its default it takes thirty days for the other."""
    options = (tmp_path / "ids" / max(path.name for path in (tmp_path / "ids").glob("OPTIONS-*"))).read_text()
    found = dict(line.strip().split("=", 1) for line in options.splitlines() if "=" in line)
    assert (found["ttl"], found["periodic_compaction_seconds"]) == ("0", "0")


MONTH_LATER = """
import sys, time
from pathlib import Path
from penstock.pyx.ids.store import IdStore
from support.id_columns import add, spill, unseen

MERGED = 8
store = IdStore(sys.argv[1], 64 << 20, 1000)

def await_merge(files):
    deadline = time.monotonic() + 120
    while store.stats()["files"] >= files:
        assert time.monotonic() < deadline, store.stats()
        time.sleep(0.02)

def write_and_merge(first):
    # A merged file has the time of its making, which is what age was judged by.
    before = store.stats()["files"]
    for number in range(first, first + MERGED):
        add(store, [b"%d-%d" % (number, i) for i in range(100)], number + 1)
        spill(store)
    await_merge(before + MERGED)

write_and_merge(0)
Path(sys.argv[2]).write_text(str(31 * 86_400))
assert time.time() - float(sys.argv[3]) > 30 * 86_400, "the clock was not set ahead"
write_and_merge(MERGED)
ids = [b"%d-%d" % (number, i) for number in range(2 * MERGED) for i in range(100)]
print(sum(unseen(store, ids)), store.stats()["ids_in_files"], flush=True)
store.close()
"""


def test_ids_are_known_after_a_month(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    tests = str(Path(__file__).parents[2])
    control = clock.environment["CLOCK_CTL"]
    ran = subprocess.run(
        [sys.executable, "-c", MONTH_LATER, str(tmp_path / "ids"), control, str(time.time())],
        env={**os.environ, **clock.environment, "PYTHONPATH": tests},
        cwd=tests,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, [b"0", b"1600"]), ran.stderr.decode()


CHOSEN = """
import sys
import numpy as np
from penstock.pyx.ids.store import IdStore

# MurmurHash64A backwards, with the key that C++'s std::hash always has: ids of 8 bytes with equal low halves of their hash.
COUNT, MASK = 600_000, (1 << 64) - 1
MULTIPLIER = (0xC6A4A793 << 32) + 0x5BD1E995
BACK = np.uint64(pow(MULTIPLIER, -1, 1 << 64))

def unmix(h):
    return h ^ (h >> np.uint64(47))

h = unmix((np.arange(COUNT, dtype=np.uint64) << np.uint64(32)) | np.uint64(0x1234567))
h = unmix(h * BACK) * BACK
data = h ^ np.uint64(0xC70F6907 ^ (8 * MULTIPLIER & MASK))
ids = (unmix(data * BACK) * BACK).astype("<u8")

store = IdStore(sys.argv[1], 1 << 30, COUNT + 1)
columns = ids.view(np.uint8), np.arange(COUNT + 1, dtype=np.int64) * 8, np.zeros(COUNT, np.bool_)
assert store.unseen(*columns).all()
assert store.add(*columns, COUNT, 1) == COUNT
assert not store.unseen(*columns).any()
print("done", flush=True)
"""


def test_nobody_can_choose_ids_that_collide(tmp_path: Path) -> None:
    """With a hash that is the same everywhere such ids are looked for one behind the other: hours for a few million."""
    tests = str(Path(__file__).parents[2])
    words = [sys.executable, "-c", CHOSEN, str(tmp_path / "ids")]
    ran = subprocess.run(words, cwd=tests, capture_output=True, check=False, timeout=120)
    assert ran.stdout == b"done\n", ran.stderr.decode()


@pytest.mark.parametrize("damage", [None, b"", b"short", bytes(17)])
def test_each_store_has_a_hash_of_its_own(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "ids"
    key = path / "hash.key"
    store = IdStore(str(path), ROOM, 1000)
    add(store, [b"%d" % i for i in range(900)], 900)
    spill(store)
    first = key.read_bytes()
    assert (len(first), key.stat().st_mode & 0o777) == (16, 0o600)
    store.close()
    IdStore(str(path), ROOM, 1000).close()
    assert key.read_bytes() == first
    IdStore(str(tmp_path / "another"), ROOM, 1000).close()
    assert (tmp_path / "another" / "hash.key").read_bytes() != first
    # A store of an older version has none; its files say all that there is.
    if damage is None:
        key.unlink()
    else:
        key.write_bytes(damage)
    store = IdStore(str(path), ROOM, 1000)
    assert not any(unseen(store, [b"%d" % i for i in range(900)]))
    assert key.read_bytes() != first and len(key.read_bytes()) == 16
    store.close()


WRITER = """
import sys
from support.clock import Clock
from support.id_columns import add
from penstock.pyx.ids.store import IdStore
store = IdStore(sys.argv[1], 64 << 20, 1000)
done = store.complete_to
print("opened", done, flush=True)
while True:
    add(store, [b"%d" % i for i in range(done, done + 700)], done + 700)
    done += 700
    print("added", done, flush=True)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    path = str(tmp_path / "ids")
    tests = str(Path(__file__).parents[2])
    source = random.Random(5)
    complete_to = 0
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, cwd=tests, env={"PYTHONPATH": tests}
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"opened %d\n" % complete_to
        for _ in range(source.randint(5, 30)):
            writer.stdout.readline()
        time.sleep(source.random() / 100)
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        store = IdStore(path, ROOM, 1000)
        assert store.complete_to > complete_to
        complete_to = store.complete_to
        assert not any(unseen(store, [b"%d" % i for i in range(complete_to)]))
        assert all(unseen(store, [b"%d" % i for i in range(store.reaches_to, store.reaches_to + 100)]))
        store.close()
