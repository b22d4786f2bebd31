"""Random lives of a compacted log, with passes, kills and stops, against a model: the newest value of each key."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.pyx.log.checkpoint import CLEANED, OURS, STARTS
from penstock.pyx.record.rawbatch import marker
from support.compacted import CompactedLog, Kept
from support.logs import FLUSH_DUE_MS, LOGS, NOW_MS, delete_records

KEYS = st.integers(0, 5).map(lambda number: b"k%d" % number)
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(min_size=1, max_size=6))), min_size=1, max_size=4)
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, 1, (2, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([PLAIN, IDEMPOTENT, *TRANSACTIONAL]), PAIRS, st.integers(0, 4)),
        st.tuples(st.just("put"), st.sampled_from([PLAIN, IDEMPOTENT, *TRANSACTIONAL]), PAIRS, st.just(0)),
        st.tuples(st.just("end"), st.sampled_from(TRANSACTIONAL), st.booleans()),
        st.tuples(st.just("compact"), st.sampled_from([24 * 3, 24 * 8, 1 << 16]), st.sampled_from([0, 400, 1100])),
        st.tuples(st.just("compact"), st.just(1 << 16), st.just(1100)),
        st.tuples(st.just("delete records"), st.integers(0, 30)),
        st.sampled_from([("roll",), ("roll",), ("roll",), ("kill",), ("stop",), ("upkeep",), ("flush",)]),
        st.tuples(st.just("alter"), st.booleans()),
        st.tuples(st.just("lose"), st.sampled_from([OURS, STARTS, CLEANED])),
    ),
    min_size=5,
    max_size=50,
)
COMPACT, DELETE = {"cleanup_compact": 1, "cleanup_delete": 0}, {"cleanup_compact": 0, "cleanup_delete": 1, "retention_ms": -1}
ROOT = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Model:
    """What was appended, and how each transaction ended."""

    records: dict[int, Kept] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)  # offset -> producer, while its transaction is open
    aborted: set[int] = field(default_factory=set)
    next_sequence: dict[int, int] = field(default_factory=dict)
    last_batch: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    log_start: int = 0
    log_end: int = 0
    clean_to: int = 0

    @property
    def stable(self) -> int:
        return max(min([self.log_end, *self.owner]), self.log_start)

    def newest(self) -> dict[bytes | None, Kept]:
        """Of each key, what counts for a read_committed consumer."""
        decided = (self.records[offset] for offset in sorted(self.records) if offset < self.stable)
        return {record.key: record for record in decided if record.offset not in self.aborted}

    def check(self, log: CompactedLog) -> None:
        kept = log.kept(committed=True)
        assert all(self.records[record.offset] == record for record in kept), "what is there was appended so"
        assert not {record.offset for record in kept} & self.aborted
        seen: dict[bytes | None, list[Kept]] = {}
        for record in kept:
            seen.setdefault(record.key, []).append(record)
        for key, record in self.newest().items():
            found = [other for other in seen.get(key, []) if other.offset >= self.log_start]
            if record.offset < self.log_start:
                assert found == []
            elif record.value is not None:
                assert found[-1] == record
            else:  # A tombstone may be gone, but never before all that it stands for.
                assert found == [] or found[-1] == record
            # Between the log start and the clean part's end there is one record of each key.
            assert len([other for other in found if other.offset < self.clean_to]) <= 1
        assert log.offsets()[:4] == (self.log_start, self.stable, self.log_end, self.log_end)
        known = {producer: LOGS.sequences(log.topic, 0, producer)[-1] for producer in self.last_batch}
        assert known == self.last_batch


class Life:
    """A log and its model, step by step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = CompactedLog(root / "0", index_interval_bytes=0, segment_bytes=400)  # passes leave several
        self.model = Model()
        self.now_ms = NOW_MS
        self.kills = 0

    def put(self, producer: int, pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
        model, transactional = self.model, producer in TRANSACTIONAL
        first = model.next_sequence.get(producer, 0)
        name = (-1, -1, -1) if producer == PLAIN else (producer, 0, first)
        timestamp_ms = NOW_MS + 10 * model.log_end
        base = self.log.put(*pairs, producer=name, transactional=transactional, timestamp_ms=timestamp_ms, codec=codec)
        assert base == model.log_end
        for i, (key, value) in enumerate(pairs):
            model.records[base + i] = Kept(base + i, key, value, timestamp_ms + i)
            if transactional:
                model.owner[base + i] = producer
        model.log_end += len(pairs)
        if producer != PLAIN:
            model.next_sequence[producer] = first + len(pairs)
            model.last_batch[producer] = (first, first + len(pairs) - 1, base)

    def end(self, producer: int, commit: bool) -> None:
        model = self.model
        if producer not in model.owner.values():
            return
        self.log.mark(marker(commit, producer, 0, 0, NOW_MS))
        mine = {offset for offset, owner in model.owner.items() if owner == producer}
        model.owner = {offset: owner for offset, owner in model.owner.items() if owner != producer}
        if not commit:
            model.aborted |= mine
        model.log_end += 1

    def compact(self, buffer_bytes: int, later_ms: int) -> None:
        self.now_ms += later_ms
        if not self.log.config["cleanup_compact"]:
            return
        done = self.log.compact(self.now_ms, buffer_bytes=buffer_bytes)
        assert done.first_dirty >= self.model.clean_to
        self.model.clean_to = done.first_dirty

    def delete_records(self, offset: int) -> None:
        offset = min(offset, self.model.stable)
        if offset > self.model.log_start:
            delete_records(self.log.topic, offset)
            self.model.log_start = offset

    def kill(self) -> None:
        self.kills += 1
        self.log.kill(self.root / str(self.kills))
        LOGS.write_overdue_checkpoints(str(self.log.root))  # as a start does

    def alter(self, compact: bool) -> None:
        self.log.config = {**self.log.config, **(COMPACT if compact else DELETE)}
        LOGS.reconfigure(self.log.topic, 0, self.log.config)

    def lose(self, name: str) -> None:
        """A checkpoint is gone at the next start."""
        if self.model.log_start:
            return  # What DeleteRecords has deleted might be seen again.
        self.kills += 1
        self.log.stop()
        LOGS.write_checkpoints()
        self.log.root = shutil.copytree(self.log.root, self.root / str(self.kills))
        (self.log.root / name).unlink(missing_ok=True)
        self.log.lead(clean=True)
        LOGS.write_overdue_checkpoints(str(self.log.root))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_the_newest_value_of_each_key_is_never_lost(steps: list[tuple[object, ...]]) -> None:
    root = Path(tempfile.mkdtemp(dir=ROOT))
    life = Life(root)
    does = {
        "put": life.put,
        "end": life.end,
        "compact": life.compact,
        "delete records": life.delete_records,
        "roll": life.log.roll,
        "kill": life.kill,
        "stop": life.log.restart,
        "upkeep": life.log.upkeep,
        "flush": lambda: life.log.upkeep(NOW_MS + 2 * FLUSH_DUE_MS),
        "alter": life.alter,
        "lose": life.lose,
    }
    try:
        for name, *arguments in steps:
            does[str(name)](*arguments)  # type: ignore[operator]
            life.model.check(life.log)
        life.log.roll()
        for producer in TRANSACTIONAL:
            life.end(producer, False)
        life.alter(True)
        life.log.roll()
        while life.log.cleanable().cleanable_bytes:
            life.compact(1 << 16, 1100)
        life.model.check(life.log)
    finally:
        life.log.drop()
        shutil.rmtree(root)
