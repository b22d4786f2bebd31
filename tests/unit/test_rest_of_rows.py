"""Counters that a page has no room for: whatever comes, goes and grows, none goes back, and together they miss nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics import REST, Family, Rest
from penstock.pipeline.stages import figures
from penstock.pipeline.stages.figures import Growth, Key

MOST = 3
COUNTER = Family("counted", "counter", "Counted.")
STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "grow", "grow", "end", "page", "page"]), st.sampled_from("abcdefgh"), st.integers(1, 9)),
    max_size=60,
)
"""What happens to a row, by how much; at a page the row says nothing."""
LAST = ("page", "a", 1)


class Reader:
    """Compares each page with the one before it."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.grown = 0.0  # as a counter's rate has it: the first number of a series says nothing
        self.first = 0.0  # the first numbers of series that came after the first page

    def read(self, series: Mapping[str, float], restarted: set[str]) -> None:
        """A page has these series; rows that have ended, and come again, are `restarted`."""
        for name, number in series.items():
            before = self.last.get(name)
            if before is None or name in restarted:
                self.first += number
            else:
                assert number >= before, f"{name} goes back from {before} to {number}"
                self.grown += number - before
        missing = [name for name in self.last if name not in series and name != REST]
        assert set(missing) <= restarted, f"{missing} are left out, and are there"
        self.last = dict(series)


@given(STEPS)
def test_the_rest_of_rows_that_come_and_go(steps: list[tuple[str, str, int]]) -> None:
    """As with a broker's topics: what is made again under a name begins at 0, and the sum of all keeps what ended."""
    rest, reader = Rest[str](1), Reader()
    rows: dict[str, int] = {}
    total, ended = 0, set[str]()
    for step, name, by in [*steps, LAST]:
        if step == "grow":
            rows[name] = rows.get(name, 0) + by
            total += by
        elif step == "end" and rows.pop(name, None) is not None:
            ended.add(name)
        elif step == "page":
            each = {key: (number,) for key, number in rows.items()}
            shown = rest.ordered(each, rows.__getitem__, MOST)[:MOST]
            (others,) = rest.count(each, shown, (total,))
            reader.read({**{key: rows[key] for key in shown}, REST: others}, ended)
            ended = set()
    assert reader.grown <= total <= reader.grown + reader.first


@given(STEPS)
def test_the_rest_of_lanes_that_end_and_go_on(steps: list[tuple[str, str, int]]) -> None:
    """As with a stage's topics: a lane that comes back has what it had, or begins at 0."""
    growth, reader = Growth([COUNTER]), Reader()
    lanes: dict[str, int] = {}
    ended: dict[str, int] = {}
    gone, total = set[str](), 0
    for step, name, by in [*steps, LAST]:
        if step == "grow":
            lanes[name] = lanes.get(name, ended.pop(name, 0) if by % 2 else 0) + by
            total += by
        elif step == "end" and name in lanes:
            ended[name] = lanes.pop(name)
            gone.add(name)
        elif step == "page":
            for key, number in lanes.items():
                growth.add(("s", key, "0"), {COUNTER: number})
            counts = growth.bounded([("s", key, "") for key in lanes], lambda key: lanes[key[1]])
            assert len(counts) <= MOST + 1
            reader.read({topic: numbers[COUNTER] for (_, topic, _), numbers in counts.items()}, gone)
            gone = set()
    assert reader.grown <= growth.total[0] <= total


@pytest.fixture(autouse=True, scope="module")
def most() -> object:
    """A bound that few rows pass."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(figures, "SERIES_MAX", MOST)
        yield


def test_a_page_has_room_again() -> None:
    """What was left out comes on the page as soon as there is a place, and the rest keeps what it had."""
    growth = Growth([COUNTER])
    keys: list[Key] = [("s", name, "0") for name in "abcd"]

    def page(*names: str) -> dict[str, float]:
        for key in keys:
            if key[1] in names:
                growth.add(key, {COUNTER: 10})
        found = growth.bounded([("s", name, "") for name in names], lambda key: -ord(key[1]))
        return {topic: numbers[COUNTER] for (_, topic, _), numbers in found.items()}

    assert page(*"abcd") == {"a": 10, "b": 10, "c": 10, REST: 10}
    assert page(*"acd") == {"a": 10, "c": 10, "d": 10, REST: 10}
    assert page(*"ac") == {"a": 10, "c": 10, REST: 10}
    assert page(*"abcd") == {"a": 10, "c": 10, "b": 10, REST: 10}
