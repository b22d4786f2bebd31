"""A log of transactional and idempotent batches whose files a crash or a bad disk has changed: what is recovered is the
longest prefix of right batches, with the producers, transactions and indexes that belong to it.

Each case opens a copy of the files by a `LogManager` of its own, as a new process would.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.log.logtable import CorruptLogError
from penstock.pyx.record.rawbatch import marker, split
from support.logs import NOW_MS, TOPIC_ID, batch

TOPIC = "hurt"
CONFIG = {"segment_bytes": 900, "index_interval_bytes": 150}
BASE_OFFSET = range(8)
LEADER_EPOCH = range(12, 16)
_copies = itertools.count()


class State(NamedTuple):
    """What a reader, a producer and a coordinator can see of a log."""

    batches: list[bytes]
    log_end: int
    last_stable: int
    producers: list[tuple[int, ...]]
    sequences: dict[int, list[tuple[int, int, int]]]
    aborted: list[tuple[int, int]]
    by_time: tuple[int, int] | None


def state(logs: LogManager) -> State:
    offsets = logs.offsets(TOPIC, 0)
    batches: list[bytes] = []
    offset = offsets.log_start
    while data := logs.read(TOPIC, 0, offset, 1 << 20):
        for raw in split(data):
            raw.check()
            batches.append(bytes(raw))
            offset = raw.next_offset
    producers = logs.producers(TOPIC, 0)
    return State(
        batches,
        offsets.log_end,
        offsets.last_stable,
        [tuple(producer) for producer in producers],
        {producer.producer_id: logs.sequences(TOPIC, 0, producer.producer_id) for producer in producers},
        logs.aborted(TOPIC, 0, 0, offsets.log_end),
        logs.offset_for_timestamp(TOPIC, 0, NOW_MS + 8),
    )


class Original(NamedTuple):
    """The log as it was: its folder, and its state after each batch."""

    root: Path
    after: list[State]

    @property
    def log(self) -> Path:
        """The last segment."""
        return sorted((self.root / f"{TOPIC}-0").glob("*.log"))[-1]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Three producers: one idempotent, two transactional of which one aborts again and again; several segments."""
    root = tmp_path_factory.mktemp("original")
    logs = LogManager()
    logs.lead(TOPIC, TOPIC_ID, 0, 0, str(root), CONFIG)
    after = [state(logs)]
    for i in range(8):
        steps: list[Callable[[], object]] = [
            partial(logs.append_client, TOPIC, 0, batch(2, producer=(1, 0, 2 * i), timestamp_ms=NOW_MS + i)),
            partial(
                logs.append_client,
                TOPIC,
                0,
                batch(1, producer=(2 + i % 2, 0, i // 2), transactional=True, timestamp_ms=NOW_MS + i),
            ),
            partial(logs.append, TOPIC, 0, marker(i % 2 == 0, 2 + i % 2, 0, 0, NOW_MS + i)),
        ]
        for step in steps:
            step()
            after.append(state(logs))
    copy = tmp_path_factory.mktemp("copy") / "logs"
    shutil.copytree(root, copy)  # The files as kill -9 leaves them: nothing was flushed or closed.
    assert len(list(copy.glob(f"{TOPIC}-0/*.log"))) > 2
    return Original(copy, after)


@pytest.fixture
def damaged(original: Original, tmp_path: Path) -> Callable[[Callable[[Path], None]], State]:
    """Damages a copy by a function of its folder, recovers it, and checks that it can be written and opened again."""

    def recovered(damage: Callable[[Path], None]) -> State:
        root = tmp_path / str(next(_copies))
        shutil.copytree(original.root, root)
        damage(root / f"{TOPIC}-0")
        logs = LogManager()
        logs.lead(TOPIC, TOPIC_ID, 0, 0, str(root), CONFIG)
        found = state(logs)
        logs.append_client(TOPIC, 0, batch(1))
        again = LogManager()
        again.lead(TOPIC, TOPIC_ID, 0, 0, str(root), CONFIG)
        assert state(again).batches[:-1] == found.batches
        shutil.rmtree(root)
        return found

    return recovered


def tail(original: Original, count: int) -> tuple[int, list[int]]:
    """Where the last `count` batches begin in the last segment, and how many batches are before each."""
    sizes = [len(data) for data in original.after[-1].batches[-count:]]
    size = original.log.stat().st_size
    return size - sum(sizes), sizes


def last(folder: Path) -> Path:
    return sorted(folder.glob("*.log"))[-1]


def changed(edit: Callable[[bytearray], None]) -> Callable[[Path], None]:
    """A damage of the last segment's bytes."""

    def damage(folder: Path) -> None:
        path = last(folder)
        data = bytearray(path.read_bytes())
        edit(data)
        path.write_bytes(data)

    return damage


def places(original: Original, count: int = 3) -> Iterator[tuple[int, int, int]]:
    """Each byte of the last batches: its position in the file, in its batch, and how many batches come before."""
    start, sizes = tail(original, count)
    before = len(original.after[-1].batches) - count
    for number, size in enumerate(sizes):
        for at in range(size):
            yield start + at, at, before + number
        start += size


def test_undamaged_all_is_there(original: Original, damaged: Callable[..., State]) -> None:
    assert damaged(lambda folder: None) == original.after[-1]


def cut_at(position: int, data: bytearray) -> None:
    del data[position:]


def test_cut_at_each_byte(original: Original, damaged: Callable[..., State]) -> None:
    for position, _, before in places(original):
        assert damaged(changed(partial(cut_at, position))) == original.after[before]


def test_a_flipped_bit_in_each_byte(original: Original, damaged: Callable[..., State]) -> None:
    for position, at, before in places(original):

        def flip(data: bytearray, position: int = position) -> None:
            data[position] ^= 1 << position % 8

        follows = before + 1 < len(original.after) - 1
        follows = follows or at in BASE_OFFSET  # the batch itself is right: no torn write leaves that
        if follows and at not in LEADER_EPOCH:
            with pytest.raises(CorruptLogError):
                damaged(changed(flip))
            continue
        found = damaged(changed(flip))
        if at in LEADER_EPOCH:
            # No checksum covers it, and any epoch may be right: the batches stay, nothing else of them has changed.
            assert [data[:12] + data[16:] for data in found.batches] == [
                data[:12] + data[16:] for data in original.after[-1].batches
            ]
        else:
            assert found == original.after[before], (position, at)


@pytest.mark.parametrize("junk", [bytes(5000), b"\xff" * 333, bytes(range(256)) * 3, b"\x00" * 7 + b"\x01" * 99])
def test_what_was_not_written_by_us_is_cut(original: Original, damaged: Callable[..., State], junk: bytes) -> None:
    assert damaged(changed(lambda data: data.extend(junk))) == original.after[-1]


def test_a_whole_old_batch_again_is_no_torn_write(original: Original, damaged: Callable[..., State]) -> None:
    again = original.after[-1].batches[-1]
    with pytest.raises(CorruptLogError):
        damaged(changed(lambda data: data.extend(again)))


def test_a_zeroed_tail_is_cut(original: Original, damaged: Callable[..., State]) -> None:
    for position, _, before in itertools.islice(places(original), 0, None, 7):

        def zero(data: bytearray, position: int = position) -> None:
            data[position:] = bytes(len(data) - position)

        found = damaged(changed(zero))
        # A batch may end in zeros by itself: then it is whole.
        assert found in (original.after[before], original.after[before + 1])


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("how", ["gone", "empty", "half", "garbage", "zeros"])
def test_what_can_be_built_again_is(original: Original, damaged: Callable[..., State], suffix: str, how: str) -> None:
    def damage(folder: Path) -> None:
        for path in folder.glob(f"*{suffix}"):
            data = path.read_bytes()
            if how == "gone":
                path.unlink()
            else:
                path.write_bytes(
                    {
                        "empty": b"",
                        "half": data[: len(data) // 2 + 1],
                        "garbage": bytes(byte ^ 0x5A for byte in data) + b"!",
                        "zeros": bytes(len(data)),
                    }[how]
                )

    assert damaged(damage) == original.after[-1]


def test_a_segment_in_the_middle_is_not_given_up_for_lost(original: Original, damaged: Callable[..., State]) -> None:
    def damage(folder: Path) -> None:
        middle = sorted(folder.glob("*.log"))[1]
        data = bytearray(middle.read_bytes())
        data[len(data) // 2] ^= 1
        middle.write_bytes(data)

    with pytest.raises(CorruptLogError, match="others follow"):
        damaged(damage)
