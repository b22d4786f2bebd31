"""The aborted filter against a plain model of a log: what is given is exactly what was committed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.clients.fetcher import committed_only
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.rawbatch import RawBatch, marker
from penstock.pyx.wire.messages import FetchResponse

Aborted = FetchResponse.AbortedTransaction
PLAIN = -1


@dataclass
class Log:
    """A partition with its transactions, as a broker knows them."""

    batches: list[RawBatch] = field(default_factory=list)
    fate: list[str] = field(default_factory=list)  # of each batch: plain, open, committed, aborted, marker
    owner: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first offset, marker's offset
    first: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def add(self, data: bytes, fate: str, owner: int) -> None:
        placed = self.end.to_bytes(8, "big") + data[8:]
        self.batches.append(RawBatch(placed))
        self.fate.append(fate)
        self.owner.append(owner)
        self.end = self.batches[-1].last_offset + 1

    def write(self, producer: int, count: int) -> None:
        builder = BatchBuilder()
        for i in range(count):
            builder.append(None, b"%d" % i, 0)
        if producer == PLAIN:
            self.add(builder.build(), "plain", PLAIN)
        else:
            self.first.setdefault(producer, self.end)
            self.add(builder.build(producer, 0, 0, True), "open", producer)

    def finish(self, producer: int, commit: bool) -> None:
        began = self.first.pop(producer, None)
        if began is None:
            return
        if not commit:
            self.aborted.append((producer, began, self.end))
        for i, fate in enumerate(self.fate):
            if fate == "open" and self.owner[i] == producer:
                self.fate[i] = "committed" if commit else "aborted"
        self.add(marker(commit, producer, 0, 0, 0), "marker", producer)

    def answer(self, start: int, stop: int) -> list[RawBatch]:
        """What a read-committed fetch of the batches start..stop gives after the filter."""
        sent = self.batches[start:stop]
        low, high = sent[0].base_offset, sent[-1].last_offset
        overlapping = [
            Aborted(producer_id=producer, first_offset=first)
            for producer, first, last in self.aborted
            if last >= low and first <= high
        ]
        return list(committed_only(sent, overlapping))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([PLAIN, 7, 8, 9]), st.integers(1, 4)),
        st.tuples(st.just("finish"), st.sampled_from([7, 8, 9]), st.booleans()),
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS, st.data())
def test_exactly_the_committed_batches_are_given(steps: list[tuple[str, int, int]], data: st.DataObject) -> None:
    log = Log()
    for what, producer, argument in steps:
        if what == "write":
            log.write(producer, argument)
        else:
            log.finish(producer, bool(argument))
    stable = min(log.first.values(), default=log.end)
    stop = sum(batch.base_offset < stable for batch in log.batches)
    if not stop:
        return
    start = data.draw(st.integers(0, stop - 1))
    cut = data.draw(st.integers(start + 1, stop))
    expected = [i for i in range(start, cut) if log.fate[i] in ("plain", "committed")]
    assert [batch.base_offset for batch in log.answer(start, cut)] == [log.batches[i].base_offset for i in expected]


def test_a_producer_that_aborts_and_then_commits_in_one_answer() -> None:
    log = Log()
    log.write(7, 2)
    log.finish(7, commit=False)
    log.write(7, 3)
    log.finish(7, commit=True)
    assert [batch.base_offset for batch in log.answer(0, 4)] == [3]


def test_without_an_aborted_list_everything_but_markers_is_given() -> None:
    log = Log()
    log.write(PLAIN, 1)
    log.write(7, 1)
    log.finish(7, commit=True)
    assert len(list(committed_only(log.batches, []))) == 2
