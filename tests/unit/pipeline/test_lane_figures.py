"""The page of a stage without a stage: which states there are, how many series at most, whatever things are called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics import REST, Page
from penstock.mirror.position import UNSEEN, MirrorPosition
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.stages import figures
from penstock.pipeline.stages.figures import STATES, LaneFigures, Placed, word
from penstock.pipeline.stages.heldback import LONG_AGO_MS, Hold
from penstock.pipeline.stages.lanecounts import LaneCounts
from penstock.pipeline.stages.outlook import Ends, Outlook
from penstock.pipeline.stages.state import Ahead, Sight, state_of
from penstock.pyx.record.rawbatch import RawBatch
from support.logs import batch
from support.scraping import Scrape

SILENT_MS = 370_000
HOUR_MS = 3_600_000


def position(age_ms: int = 0, **noted: Any) -> MirrorPosition:
    """A position that was committed so long ago."""
    return MirrorPosition(5, b"t", b"t", committed_ms=time.time_ns() // 1_000_000 - age_ms, **noted)


def sights() -> list[tuple[str, Sight]]:
    """What may be seen of a partition now, with the state that it is in."""
    old = position(HOUR_MS)
    return [
        ("copying", Sight(position(), [(5, Ahead(5, 5, None))])),
        ("copying", Sight(old, [(5, Ahead(5, 5, None))])),  # nothing waits
        ("copying", Sight(old, [(5, Ahead(9, 9, 5))])),  # it came just now
        ("copying", Sight(position(), [(5, Ahead(9, 9, None))])),  # something was committed just now
        ("copying", Sight(replace(old, committed_ms=-1), [(5, Ahead(9, 9, None))])),  # nobody knows when
        ("silent", Sight(old, [(5, Ahead(9, 9, None))])),
        ("silent", Sight(old, [(5, Ahead(9, 9, 7))])),
        ("registered", Sight(replace(position(), topic_id=UNSEEN), [])),
        ("stopped", Sight(replace(old, stopped="why", stalled="why"), unreachable="why", lost="why")),
        ("stalled", Sight(replace(old, stalled="why"), unreachable="why", lost="why")),
        ("unreachable", Sight(old, [(5, Ahead(9, 9, None))], unreachable="why")),
        ("no topic", Sight(old, no_topic="why")),
        ("lost", Sight(old, [(5, Ahead(9, 9, None))], lost="why")),
        ("copying", Sight(position(), [(5, Ahead(5, 9, None))], hold=Hold(SILENT_MS, "waits"))),
        ("waiting", Sight(position(), [(5, Ahead(5, 9, None))], hold=Hold(SILENT_MS + 1, "waits"))),
        ("waiting", Sight(position(), [(5, Ahead(5, 9, None))], hold=Hold(LONG_AGO_MS, "waits"))),
    ]


@pytest.mark.parametrize("number", range(len(sights())))
def test_the_state_of_what_is_seen(number: int) -> None:
    wanted, sight = sights()[number]  # made here: a run of all tests takes longer than a partition may be silent
    assert isinstance(sight.position, MirrorPosition)
    found = state_of(sight, SILENT_MS, sight.position.going)
    assert found["state"] == wanted and wanted in STATES
    assert found["why"] or wanted == "copying"


def test_the_age_of_what_was_not_read() -> None:
    now_ms, outlook = time.time_ns() // 1_000_000, Outlook()
    outlook.note_unread(7, RawBatch(batch(timestamp_ms=now_ms - HOUR_MS)))
    assert outlook.lag_s(7, -1) == pytest.approx(HOUR_MS / 1000, abs=60)
    # Of another offset nobody has seen the batch: it came after the one before it, and since the lane was at the end.
    assert outlook.lag_s(8, now_ms - HOUR_MS) == pytest.approx(0, abs=60)
    # Nor does a stamp of the future say when it came.
    outlook._at_end_ms = now_ms - 2 * HOUR_MS
    assert outlook.lag_s(8, now_ms + HOUR_MS) == pytest.approx(2 * HOUR_MS / 1000, abs=60)
    outlook.note_unread(9, RawBatch(batch(timestamp_ms=now_ms + HOUR_MS)))
    assert outlook.lag_s(9, -1) == pytest.approx(2 * HOUR_MS / 1000, abs=60)
    outlook.see({("t", 0): Ends(9, 9)}, {("t", 0): 8}, 100.0)
    assert outlook.waits_since == 100.0
    outlook.see({("t", 0): Ends(9, 9)}, {("t", 0): 8}, 200.0)
    assert outlook.waits_since == 100.0
    outlook.see({("t", 0): Ends(9, 12)}, {("t", 0): 9}, 300.0)  # what is open can't be read
    assert outlook.waits_since == float("inf")


def test_a_state_that_was_left_is_0() -> None:
    crowd = Crowd()
    source = LaneFigures(("mirror", "m"), "auto", lambda: [crowd.placed("s", ("t", 0))], dict, {})

    def states() -> dict[str, float]:
        made = Page()
        asyncio.run(source.metrics(made))
        return {have["state"]: value for have, value in Scrape(made.encode().decode()).rows("penstock_lane_state")}

    assert states() == {"copying": 1}
    crowd.found = "no topic"
    assert states() == {"copying": 0, "no_topic": 1}


@dataclass
class Crowd:
    """Lanes that only have figures."""

    behind: int = 3
    seconds: float = 2.0
    found: str = "copying"
    worker: Any = field(default_factory=lambda: SimpleNamespace(counts=LaneCounts(5, 4, 400), position=position()))

    def state(self, lane: Any) -> dict[str, str]:
        return {"state": self.found, "why": ""}

    def lag(self, lane: Any) -> tuple[int, float] | None:
        return self.behind, self.seconds

    def placed(self, source: str, tp: TopicPartition) -> Placed:
        resolved = SimpleNamespace(is_set=lambda: True)
        lane: Any = SimpleNamespace(tp=tp, worker=self.worker, resolved=resolved)
        lanes: Any = SimpleNamespace(view=self)
        return Placed(source, lanes, lane)


def page(
    name: str,
    placed: list[Placed],
    choice: str = "auto",
    topics: Callable[[], dict[Any, str]] = dict,
    dropped: dict[str, int] | None = None,
) -> str:
    made = Page()
    lost = {} if dropped is None else dropped
    asyncio.run(LaneFigures(("mirror", name), choice, lambda: placed, topics, lost).metrics(made))
    return made.encode().decode()


@settings(max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_names_are_read_back_as_they_are(name: str, source: str) -> None:
    found = Scrape(page(name, [Crowd().placed(source, ("t", 3))]))
    lane = {"stage": "mirror", "name": name, "source": source, "topic": "t", "partition": "3"}
    assert found.rows("penstock_lane_lag_records") == [(lane, 3)]
    assert [have for have, value in found.rows("penstock_lane_state") if value] == [{**lane, "state": "copying"}]


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound that a test passes sooner than the true one."""
    assert figures.SERIES_MAX == 2_000
    monkeypatch.setattr(figures, "SERIES_MAX", 40)
    return 40


def test_partitions_have_series_up_to_a_bound_then_topics_have(most: int) -> None:
    crowd, slow = Crowd(), Crowd(behind=10, seconds=99.0, found="silent")
    tps = [(f"t{number % 10}", number // 10) for number in range(most)]
    few = [crowd.placed("s", tp) for tp in tps]
    found = Scrape(page("m", few))
    assert len(found.rows("penstock_lane_records_total")) == most
    assert len(found.rows("penstock_lane_state")) == most
    many = [*few, slow.placed("s", ("t0", 1 << 20))]
    dropped: dict[str, int] = {}
    found = Scrape(page("m", many, topics=lambda: {("s", "new", ""): "not copied"}, dropped=dropped))
    assert dropped.pop("penstock_lane_state") == len(many) + 1
    assert set(dropped.values()) == {len(many) - 10} and "penstock_lane_records" in dropped
    assert len(found.rows("penstock_lane_records_total")) == 10 and not found.rows("penstock_lane_state")
    ours = {"source": "s", "topic": "t0", "partition": ""}
    assert found.value("penstock_lane_records_total", **ours) == 4 * 5
    assert found.value("penstock_lane_lag_records", **ours) == 3 * 4 + 10
    assert found.value("penstock_lane_lag_seconds", **ours) == 99.0
    numbers = {have["state"]: count for have, count in found.rows("penstock_lanes")}
    assert numbers == {**dict.fromkeys(map(word, STATES), 0), "copying": most, "silent": 1, "not_copied": 1}
    found = Scrape(page("m", many, "true"))
    assert len(found.rows("penstock_lane_records_total")) == len(many)
    assert len(Scrape(page("m", few, "false")).rows("penstock_lane_records_total")) == 10


def test_the_topics_of_a_page_stay_on_the_next(most: int) -> None:
    """The busiest one of a later page has its place among the others, whose counter doesn't go back."""
    crowds = [Crowd() for _ in range(most + 5)]
    source = LaneFigures(
        ("m", "n"), "false", lambda: [crowd.placed("s", (f"t{n}", 0)) for n, crowd in enumerate(crowds)], dict, {}
    )

    def records() -> dict[str, float]:
        made = Page()
        asyncio.run(source.metrics(made))
        return {have["topic"]: count for have, count in Scrape(made.encode().decode()).rows("penstock_lane_records_total")}

    before = records()
    assert before[REST] == 5 * 4
    crowds[-1].worker.counts = LaneCounts(1000, 1000, 1000)
    after = records()
    assert after.keys() == before.keys() and after[REST] == 4 * 4 + 1000
    del crowds[0]  # the others have other names now: each counts from 0 again, or goes on
    assert records()[REST] >= after[REST]


def test_topics_beyond_a_bound_are_one(most: int) -> None:
    crowd, busy = Crowd(), Crowd()
    busy.worker.counts = LaneCounts(1000, 1000, 1000)
    placed = [(busy if number == 50 else crowd).placed("s", (f"t{number}", 0)) for number in range(most + 30)]
    found = Scrape(page("m", placed))
    rows = found.rows("penstock_lane_records_total")
    assert len(rows) == most + 1 and sum(count for _, count in rows) == 4 * (len(placed) - 1) + 1000
    assert found.value("penstock_lane_records_total", topic="t50") == 1000
    assert found.value("penstock_lane_records_total", topic=REST) == 4 * 30
