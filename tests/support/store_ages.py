"""The id store against what its ids' ages say, under a clock that is set ahead by months: see property/test_store_ages.py.

It stands for the worker: turns that publish and add, files by time and before output expires, kills between any two steps,
repair from an output of which retention has taken the beginning.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dedupe.position import DedupePosition
from penstock.dedupe.repair import expires_soon
from penstock.pyx.ids.store import IdStore
from support.id_columns import add, spill, unseen

BOUND = 1 << 20
MEMORY_IDS = 3000
WITHIN = int(0.4 * BOUND / 20)  # so many newest ids are within the size bound, whatever files cost besides
SPILL_S = 900
DAY_S = 86_400

TURN = st.tuples(st.just("turn"), st.integers(1, 4000), st.sampled_from(["", "published", "added", "written"]))
STEPS = st.lists(
    st.one_of(
        TURN,
        TURN,
        st.tuples(st.just("trim"), st.integers(0, 100), st.booleans()),
        st.tuples(st.just("clock"), st.sampled_from([60, SPILL_S, 31 * DAY_S]), st.none()),
        st.tuples(st.just("stop"), st.none(), st.none()),
    ),
    max_size=25,
)


@dataclass
class Worker:
    """A store, its output and its position; `control` is the file that sets the clock ahead."""

    folder: Path
    control: Path
    output: list[bytes | None] = field(default_factory=list)  # by offset; None: a transaction's marker
    start: int = 0
    position: DedupePosition = field(default_factory=lambda: DedupePosition(0, "", ""))
    random: random.Random = field(default_factory=lambda: random.Random(11))
    ahead_s: int = 0
    kept_at: float = 0.0

    def __post_init__(self) -> None:
        self.set_clock()
        self.store = self.opened()

    def set_clock(self) -> None:
        """Set the clock of this process."""
        self.control.write_text(str(self.ahead_s))

    def opened(self) -> IdStore:
        """The store as a start opens it."""
        self.kept_at = time.time()
        return IdStore(str(self.folder / "ids"), BOUND, MEMORY_IDS)

    def keep(self) -> None:
        """Make a file of what is in memory."""
        spill(self.store)
        self.kept_at = time.time()

    def known(self) -> list[bytes]:
        """The ids that must be known, newest first."""
        found = [word for word in reversed(self.output) if word is not None]
        return found[:WITHIN]

    def turn(self, count: int, crash: str) -> None:
        """Publish new ids among repeats; a crash leaves what was done so far."""
        new = [self.random.randbytes(16) for _ in range(count)]
        known = self.known()
        repeats = self.random.sample(known, min(len(known), 200))
        ids = [*new[: count // 2], *repeats, *new[count // 2 :]]
        fresh = [word for word, is_new in zip(ids, unseen(self.store, ids), strict=True) if is_new]
        assert fresh == new
        self.output += fresh
        end = len(self.output)
        self.output.append(None)
        self.position = replace(self.position, written=self.position.written + count, output_end=end)
        if crash == "published":
            return self.restart()
        add(self.store, list(ids), end, time.time_ns() // 1_000_000)
        if crash == "added":
            return self.restart()
        if time.time() - self.kept_at >= SPILL_S:
            self.keep()
        if crash == "written":
            self.store.write_file()
            return self.restart()
        return None

    def trim(self, percent: int, looked: bool) -> None:
        """Retention takes the output's beginning; the worker looks before, or not in time."""
        start = max(self.start, len(self.output) * percent // 100)
        if looked and expires_soon(self.store, start):
            self.keep()
        self.start = start

    def restart(self) -> None:
        """Close without a word, open, repair; what the output can't tell any more must be said."""
        kept_to = self.store.kept_to
        self.store.close()
        self.store = self.opened()
        assert self.store.complete_to == kept_to
        unknown = self.position.unknown_ids(kept_to, self.start)
        lost = [word for word in self.output[kept_to : self.start] if word is not None]
        assert bool(unknown) == bool(lost), (unknown, kept_to, self.start, self.position)
        if unknown:  # The operator accepts it: those ids may come again.
            first, last = map(int, unknown.split(".."))
            assert all(word is None for word in self.output[last + 1 : self.start])
            assert first == kept_to
            self.output[first : last + 1] = [None] * (last + 1 - first)
            self.position = replace(self.position, unknown=unknown).accept()
        left = self.output[max(kept_to, self.start) :]
        add(self.store, left, len(self.output), time.time_ns() // 1_000_000)
        if unknown:
            self.keep()

    def stop(self) -> None:
        """A clean stop, then a start."""
        if self.store.records_noted:
            self.keep()
        self.restart()

    def check(self) -> None:
        """Every id within the size bound is known."""
        known = self.known()
        assert not any(unseen(self.store, [*known]))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def ages(steps: list[tuple[str, int, str | bool | None]]) -> None:
    """Any steps: no id within the bound is unknown, unless the worker says so."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder), Path(sys.argv[1]))
        for kind, number, word in steps:
            if kind == "turn":
                worker.turn(number, str(word))
            elif kind == "trim":
                worker.trim(number, bool(word))
            elif kind == "clock":
                worker.ahead_s += number
                worker.set_clock()
            else:
                worker.stop()
            worker.check()
        worker.restart()
        worker.check()
        worker.store.close()


if __name__ == "__main__":
    ages()
    print("done")
