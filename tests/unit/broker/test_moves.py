"""Partitions that are moved between log folders in every order: each serves, lies in one folder, and has all its records."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.broker.logs.ballast import Ballast
from penstock.broker.logs.logdirs import FUTURE, LogDir, LogDirs, Placed, beside, topic_id_in
from penstock.broker.logs.movestate import MoveState, Phase
from penstock.broker.logs.moving import BACK, PIECE_BYTES, SWAPPED, Copying, GivenUpError, Move
from penstock.broker.topic import Topic
from penstock.failpoints import declared
from penstock.pyx.wire.requests import delete_topic
from support import faultio
from support.logs import Log, batch
from support.moves import NAMES, Folders, Key
from support.patience import until

KEY = ("t", 0)
STEPS = int(os.environ.get("PENSTOCK_MOVES_STEPS", "40"))
"""Of the random walk."""
SEED = os.environ.get("PENSTOCK_MOVES_SEED") or secrets.token_hex(4)
LARGE = bytes(100_000)


@pytest.fixture
def make_folders(tmp_path: Path) -> Iterator[Callable[..., Folders]]:
    """A function that starts a broker with three log folders."""
    made: list[Folders] = []

    def make(**properties: object) -> Folders:
        made.append(Folders(tmp_path, **properties))
        return made[-1]

    yield make
    for one in made:
        one.broker.close()


class Writer:
    """Writes to partitions until `end`; `acknowledged` are the values of each, in order. Also over kills and restarts."""

    def __init__(self, folders: Folders, keys: list[Key]) -> None:
        self.acknowledged: dict[Key, list[bytes]] = {key: [] for key in keys}
        self._folders = folders
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._ended.is_set():
            for key, values in self.acknowledged.items():
                value = b"%d " % number + LARGE[: number % 7 * 3000]
                self._folders.put(key, value)
                values.append(value)
                number += 1

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def has_all(folders: Folders, key: Key, acknowledged: list[bytes]) -> bool:
    """Whether a partition has these records in this order; those whose acknowledgement was lost may stand between them."""
    values = iter(folders.values(key))
    return all(wanted in values for wanted in acknowledged)


def check_whole(folders: Folders, places: Mapping[Key, str], acknowledged: Mapping[Key, list[bytes]]) -> None:
    """Each partition serves from one folder and has what was acknowledged."""
    assert "is offline" not in folders.broker.log_text(), folders.broker.log_text()[-3000:]
    for key, values in acknowledged.items():
        assert folders.serves(key), key
        assert folders.on_disk(key) == [places[key]]
        assert has_all(folders, key, values), key


def test_the_last_of_many_overlapping_moves_counts(make_folders: Callable[..., Folders]) -> None:
    folders = make_folders()
    folders.create("t", 1, internal_segment_bytes=1_000_000)
    for _ in range(60):
        folders.put(KEY, LARGE)
    print(f"seed {SEED}")
    choose = random.Random(SEED)
    writer = Writer(folders, [KEY])
    try:
        for _ in range(60):
            last = choose.choice(NAMES)
            assert folders.ask(KEY, last) == 0
            time.sleep(choose.random() * 0.15)
        places = folders.settle()
    finally:
        writer.end()
    assert places[KEY] == last
    check_whole(folders, places, writer.acknowledged)
    until(lambda: not folders.leftovers(), "the removal of what was moved", folders.broker.log_text)


def test_another_move_is_asked_for_while_the_first_is_finished(make_folders: Callable[..., Folders]) -> None:
    folders = make_folders(PENSTOCK_FAILPOINTS="moving.closed=delay:500")
    folders.create("t", 1)
    folders.put(KEY, b"1")
    for first, last in (("b", "c"), ("b", "a"), ("c", "c"), ("a", "c")):
        assert folders.ask(KEY, first) == 0
        places = folders.described()[KEY]
        assert len(places[0]) == 1 and len(places[1]) <= 1
        assert folders.ask(KEY, last) == 0
        assert folders.settle()[KEY] == last
        check_whole(folders, {KEY: last}, {KEY: [b"1"]})


def test_a_move_asked_for_while_the_first_is_noted_is_shown(make_folders: Callable[..., Folders], tmp_path: Path) -> None:
    control = tmp_path / "faults"
    folders = make_folders(LD_PRELOAD=faultio.build(tmp_path), FAULT_CTL=control)
    folders.create("t", 1)
    folders.put(KEY, b"1")
    control.write_text("sync hang metadata.db-wal\n")  # The partition lies in b, and the store doesn't hear of it yet.
    assert folders.ask(KEY, "b") == 0
    until(lambda: folders.described()[KEY] == (["b"], []), "the partition in b", folders.broker.log_text)
    assert folders.ask(KEY, "a") == 0
    assert folders.described()[KEY] == (["b"], ["a"])
    control.unlink()
    assert folders.settle()[KEY] == "a"
    check_whole(folders, {KEY: "a"}, {KEY: [b"1"]})


def test_a_partition_is_described_in_one_folder_at_every_moment(make_folders: Callable[..., Folders]) -> None:
    folders = make_folders(PENSTOCK_FAILPOINTS="moving.closed=delay:300,moving.swapped=delay:300")
    folders.create("t", 1)
    folders.put(KEY, LARGE)
    assert folders.ask(KEY, "b") == 0
    seen: list[tuple[list[str], list[str]]] = []
    while not seen or seen[-1] != (["b"], []):
        seen.append(folders.described()[KEY])
        assert seen[-1] in ((["a"], ["b"]), (["b"], [])), seen[-1]
        time.sleep(0.01)


class Walk:
    """A random walk of all that may happen to partitions that move, beside a model of where each must lie."""

    def __init__(self, folders: Folders, choose: random.Random) -> None:
        self.folders = folders
        self.choose = choose
        folders.create("t", 2, internal_segment_bytes=1_000_000)
        self.keys: list[Key] = [("t", 0), ("t", 1)]
        for key in self.keys * 30:
            folders.put(key, LARGE)
        # Where a partition may come to lie: the last is what was asked for last, and is the only one while the broker lives.
        self.may: dict[Key, list[str]] = {key: [place] for key, place in folders.settle().items()}
        self.churned: dict[Key, list[bytes]] = {}
        self.steps: list[tuple[Callable[[], None], int]] = [
            (self.move, 30), (self.rest, 4), (self.churn, 3), (self.grow, 2), (self.stop, 2), (self.kill, 2),
        ]  # fmt: skip

    def step(self) -> None:
        (chosen,) = self.choose.choices([step for step, _ in self.steps], [weight for _, weight in self.steps])
        chosen()

    def move(self) -> None:
        key, to = self.choose.choice(list(self.may)), self.choose.choice(NAMES)
        assert self.folders.ask(key, to) == 0, (key, self.folders.broker.log_text()[-2000:])
        self.may[key].append(to)
        time.sleep(self.choose.random() * 0.1)

    def rest(self) -> None:
        self.see(self.folders.settle(), after_a_stop=False)

    def churn(self) -> None:
        """Delete the other topic, in the middle of what its partitions do, and make it again."""
        delete_topic(self.folders.broker.bootstrap, "churn")
        for key in [key for key in self.may if key[0] == "churn"]:
            del self.may[key]
        self.folders.create("churn", 2)
        self.churned = {("churn", 0): [], ("churn", 1): []}
        for key, values in self.churned.items():
            values.append(b"%d" % self.choose.getrandbits(32))
            self.folders.put(key, values[0])
        self.may |= {key: lies for key, (lies, _) in self.folders.described().items() if key[0] == "churn"}

    def grow(self) -> None:
        """One partition more of the other topic."""
        if not self.churned or len(self.churned) > 5:
            return
        key = ("churn", len(self.churned))
        admin = AdminClient({"bootstrap.servers": self.folders.broker.bootstrap})
        admin.create_partitions([NewPartitions("churn", key[1] + 1)])["churn"].result()
        self.churned[key] = []
        self.may[key] = list(self.folders.described()[key][0])

    def stop(self) -> None:
        assert self.folders.broker.stop() == 0, self.folders.broker.log_text()[-3000:]
        self._start()

    def kill(self) -> None:
        self.folders.broker.kill()
        self._start()

    def _start(self) -> None:
        self.folders.broker.start()
        self.see(self.folders.settle(), after_a_stop=True)
        assert self.folders.leftovers() == []

    def see(self, places: Mapping[Key, str], *, after_a_stop: bool) -> None:
        """Compare with where partitions lie; a stop or a kill may have forgotten moves."""
        for key, allowed in self.may.items():
            assert places[key] in (allowed if after_a_stop else allowed[-1:]), (key, allowed, places[key])
            self.may[key] = [places[key]]


def test_a_random_walk_loses_nothing(make_folders: Callable[..., Folders]) -> None:
    print(f"PENSTOCK_MOVES_SEED={SEED} PENSTOCK_MOVES_STEPS={STEPS}")
    # Moves take long enough for others to be asked for at each of their steps.
    delays = "moving.closed=delay:20,moving.opened=delay:20"
    walk = Walk(make_folders(PENSTOCK_FAILPOINTS=delays), random.Random(SEED))
    writer = Writer(walk.folders, walk.keys)
    try:
        for _ in range(STEPS):
            walk.step()
        walk.rest()
    finally:
        writer.end()
    places = {key: lies[-1] for key, lies in walk.may.items()}
    check_whole(walk.folders, places, {**writer.acknowledged, **walk.churned})


def spec(name: str, action: str) -> str:
    """What lets a failpoint happen: of those on the way back, a failure before."""
    return f"{SWAPPED}=error,{name}={action}" if name == BACK else f"{name}={action}"


@pytest.mark.parametrize("name", declared("moving."))
def test_killed_at_each_step_a_partition_lies_in_one_folder(make_folders: Callable[..., Folders], name: str) -> None:
    folders = make_folders(PENSTOCK_FAILPOINTS=spec(name, "kill"))
    folders.create("t", 1, internal_segment_bytes=300_000)
    values = [b"%d " % number + LARGE for number in range(10)]
    for value in values:
        folders.put(KEY, value)
    with suppress(EOFError, ConnectionError):  # It may die before it answers.
        assert folders.ask(KEY, "b") == 0
    until(lambda: not folders.broker.running, f"the kill at {name}", folders.broker.log_text)
    folders.broker.close()
    folders.broker.environment.clear()
    folders.broker.start()
    assert folders.leftovers() == []
    places = folders.settle()
    check_whole(folders, places, {KEY: values})
    for to in ("b", "a"):  # Nothing is left that stands in the way of another move.
        assert folders.ask(KEY, to) == 0
        assert folders.settle()[KEY] == to
        folders.put(KEY, values[0])
        values.append(values[0])
    check_whole(folders, {KEY: "a"}, {KEY: values})


@pytest.mark.parametrize("name", declared("moving."))
def test_a_move_that_fails_at_any_step_leaves_the_partition_open(make_folders: Callable[..., Folders], name: str) -> None:
    folders = make_folders(PENSTOCK_FAILPOINTS=spec(name, "error"))
    folders.create("t", 1, internal_segment_bytes=300_000)
    values = [b"%d " % number + LARGE for number in range(10)]
    for value in values:
        folders.put(KEY, value)
    assert folders.ask(KEY, "b") == 0
    until(lambda: "failed while" in folders.broker.log_text(), "the failure", folders.broker.log_text)
    (said,) = [line for line in folders.broker.log_text().splitlines() if "failed while" in line]
    places = folders.settle()
    for word in ("t", "0", str(folders.paths["b"]), "moving.", f"it lies in {folders.paths[places[KEY]]}"):
        assert word in said
    folders.put(KEY, b"after")
    assert folders.serves(KEY) and has_all(folders, KEY, [*values, b"after"])
    if name != BACK:  # There the new folder keeps the name until the next start.
        check_whole(folders, places, {KEY: [*values, b"after"]})
    folders.broker.kill()
    folders.broker.start()
    check_whole(folders, places, {KEY: [*values, b"after"]})


@pytest.mark.parametrize("order", ["living first", "living last"])
def test_of_two_folders_the_one_that_has_gone_on_stays(tmp_path: Path, order: str) -> None:
    """The living one may be the smaller one: its old segments have gone."""
    log = Log(tmp_path / "living", segment_bytes=20_000)
    for _ in range(20):
        log.append(batch(size=5000))
    log.stop()
    shutil.copytree(tmp_path / "living", tmp_path / "stale")
    log.config["retention_bytes"] = 50_000
    log.lead(clean=True)
    end = log.append(batch(size=5000)) + 1
    assert log.upkeep().segments_deleted > 0
    log.stop()
    # As a kill leaves it, the stale one may have room ahead.
    stale = max((tmp_path / "stale" / log.folder.name).glob("*.log"))
    with stale.open("ab") as file:
        file.truncate(stale.stat().st_size + 1_000_000)
    names = ["living", "stale"] if order == "living first" else ["stale", "living"]
    dirs = LogDirs.open([tmp_path / name for name in names], 1)
    dirs.admit({}, {})
    topic_id = topic_id_in(log.folder)
    assert topic_id is not None
    dirs.locate({(log.topic, 0): Placed(topic_id, "")}, set())
    kept = dirs.of((log.topic, 0))
    dirs.close(clean=True)
    assert kept is not None and kept.path.name == "living"
    log.lead(clean=False)
    assert log.offsets().log_end == end
    log.drop()


def test_only_what_a_move_has_left_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a" / "their-future").mkdir(parents=True)
    (tmp_path / "a" / "their-future" / "plans").touch()
    (tmp_path / "a" / f"t-0.{'0' * 32}-future").mkdir()
    LogDirs.open([tmp_path / "a"], 1).close(clean=True)
    assert [path.name for path in (tmp_path / "a").glob("*-future")] == ["their-future"]


def test_a_copy_is_given_up_in_the_middle_of_a_file(tmp_path: Path) -> None:
    dirs = [LogDir(tmp_path / name, None, Ballast(tmp_path, 0)) for name in "ab"]
    log = dirs[0].holds(KEY) / f"{0:020}.log"
    log.parent.mkdir(parents=True)
    dirs[1].path.mkdir()
    with log.open("wb") as file:
        file.truncate(1000 * PIECE_BYTES)
    move = Move(Topic(KEY[0], bytes(16)), 0, dirs[0], MoveState(Phase.COPYING, dirs[1]), beside(dirs[1], KEY, FUTURE))
    copying = Copying(move)
    failures: list[BaseException] = []

    class Sizes:
        def batch_bytes(self, key: Key) -> dict[str, int]:
            return {log.name: log.stat().st_size}

        def lies_in(self, key: Key) -> LogDir:
            return dirs[0]

        def flush(self, key: Key) -> None:
            raise AssertionError

        async def swap(self, move: Move, copying: Copying) -> None:
            raise AssertionError

    def copy() -> None:
        try:
            copying.ahead(Sizes())
        except GivenUpError as error:
            failures.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    until(lambda: move.copied_bytes() >= PIECE_BYTES, "the first piece")
    move.given_up = True
    thread.join()
    assert failures and move.copied_bytes() < log.stat().st_size
    copying.clear()
    assert list(dirs[1].path.iterdir()) == []
