"""Random lives of a log, with stops and kills, against a model of a few lines."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import KafkaError
from penstock.pyx.record.rawbatch import RawBatch, marker, split
from support.logs import LOGS, NOW_MS, Killed, Log, batch, delete_records

PRODUCERS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 4)),
        st.tuples(st.just("send"), PRODUCERS, st.integers(1, 3)),
        st.tuples(st.just("again"), PRODUCERS, st.integers(0, 5)),
        st.tuples(st.just("skip"), PRODUCERS, st.integers(1, 3)),
        st.tuples(st.just("end"), PRODUCERS, st.booleans(), st.booleans()),
        st.tuples(st.just("delete records"), st.integers(0, 40)),
        st.sampled_from([("upkeep",), ("flush",), ("stop",), ("kill",), ("kill",), ("torn kill",)]),
    ),
    min_size=5,
    max_size=60,
)


class Model:
    """What the log should be."""

    def __init__(self) -> None:
        self.log_start = 0
        self.log_end = 0
        self.batches: list[tuple[int, int]] = []  # base offset, record count
        self.epochs: dict[int, int] = {}
        self.recent: dict[int, deque[tuple[int, int, int]]] = {}
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []  # producer, first offset, the marker's offset

    def add(self, count: int) -> int:
        base = self.log_end
        self.batches.append((base, count))
        self.log_end += count
        return base

    def next_sequence(self, producer: int) -> int:
        recent = self.recent.get(producer)
        return recent[-1][1] + 1 if recent else 0

    def sent(self, producer: int, count: int) -> int:
        first = self.next_sequence(producer)
        base = self.add(count)
        self.recent.setdefault(producer, deque(maxlen=5)).append((first, first + count - 1, base))
        self.epochs.setdefault(producer, 0)
        if producer == 3:  # the transactional one
            self.open.setdefault(producer, base)
        return base

    def end(self, producer: int, commit: bool, bump: bool) -> int:
        at = self.add(1)
        first = self.open.pop(producer, None)
        if first is not None and not commit:
            self.aborted.append((producer, first, at))
        if bump:
            self.recent[producer] = deque(maxlen=5)
        self.epochs[producer] = self.epochs.get(producer, 0) + bump
        self.recent.setdefault(producer, deque(maxlen=5))
        return at

    def check(self, log: Log) -> None:
        state = log.state()
        stable = max(min([self.log_end, *self.open.values()]), self.log_start)
        assert state.offsets[:4] == (self.log_start, stable, self.log_end, self.log_end)
        raws = [RawBatch(data) for data in state.batches]
        kept = [(base, count) for base, count in self.batches if base + count > self.log_start]
        assert [(raw.base_offset, raw.record_count) for raw in raws] == kept
        assert {p.producer_id: p.producer_epoch for p in state.producers} == self.epochs
        assert {k: list(v) for k, v in self.recent.items()} == state.sequences
        assert {p.producer_id: p.txn_first_offset for p in state.producers if p.txn_first_offset >= 0} == self.open
        assert state.aborted == [(p, first) for p, first, at in self.aborted if at >= self.log_start]
        for offset in range(self.log_start, self.log_end, 3):
            first = split(LOGS.read(log.topic, 0, offset, 1))[0]
            assert first.base_offset <= offset <= first.last_offset


class Life:
    """A log, its model, and the folders of its lives."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.root = root
        self.lives = 0
        self.log = Log(root / "0", **config)
        self.model = Model()

    def kill(self, garbage: bytes) -> None:
        self.lives += 1
        to = self.root / str(self.lives)
        shutil.copytree(self.log.root, to)
        killed = Killed(to, self.log)
        last = sorted(killed.folder.glob("*.log"))[-1]
        with last.open("ab") as file:
            file.write(garbage)
        dead = self.log
        self.log = killed.open()
        dead.drop()
        shutil.rmtree(dead.root)
        assert self.log.recovered.cut_bytes == len(garbage)

    def step(self, step: tuple[object, ...]) -> None:
        log, model = self.log, self.model
        match step:
            case ("plain", int(count)):
                assert log.append(batch(count)) == model.add(count)
            case ("send", int(producer), int(count)):
                sent = self.records(producer, model.next_sequence(producer), count)
                assert log.append(sent) == model.sent(producer, count)
            case ("again", int(producer), int(back)):
                recent = model.recent.get(producer, ())
                if back < len(recent):
                    first, last, base = recent[-1 - back]
                    assert log.append(self.records(producer, first, last - first + 1)) == base
            case ("skip", int(producer), int(gap)):
                if producer in model.recent:
                    self.refused(self.records(producer, model.next_sequence(producer) + gap, 1))
            case ("end", int(producer), bool(commit), bool(bump)):
                epoch = model.epochs.get(producer, 0) + bump
                assert log.mark(marker(commit, producer, epoch, 0, NOW_MS)) == model.end(producer, commit, bump)
            case ("delete records", int(offset)):
                if offset <= model.log_end:
                    model.log_start = max(model.log_start, offset)
                    assert delete_records(log.topic, offset) == model.log_start
            case ("upkeep",):
                log.upkeep()
            case ("flush",):
                log.upkeep()
                LOGS.write_checkpoints()
            case ("stop",):
                assert log.restart().cut_bytes == 0
            case ("kill",):
                self.kill(b"")
            case ("torn kill",):
                self.kill(batch(2)[:-1])
            case _:
                raise AssertionError(step)

    def records(self, producer: int, sequence: int, count: int) -> bytes:
        epoch = self.model.epochs.get(producer, 0)
        return batch(count, producer=(producer, epoch, sequence), transactional=producer == 3)

    def refused(self, data: bytes) -> None:
        try:
            self.log.append(data)
        except KafkaError as error:
            assert error.code == 45
        else:
            raise AssertionError("an append with a gap in its sequence was taken")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
@given(STEPS, st.sampled_from([300, 700, 100_000]), st.sampled_from([0, 200, 4096]))
def test_a_log_is_its_model_through_stops_and_kills(
    steps: list[tuple[object, ...]], segment_bytes: int, index_interval_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = {"segment_bytes": segment_bytes, "index_interval_bytes": index_interval_bytes, "retention_ms": -1}
        life = Life(Path(folder), config)
        for step in steps:
            life.step(step)
            if step[0] in ("stop", "kill", "torn kill"):
                life.model.check(life.log)
        life.model.check(life.log)
        life.kill(b"")
        life.model.check(life.log)
        life.log.drop()
