"""The figures of a stage for Prometheus: its lanes, by partition or, where there are many, by topic.

Each figure is counted or kept where it happens, by the loop alone. A scrape runs on that loop and asks nobody.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.metrics import REST, Family, Page, Rest, dropped_series, labels_text
from penstock.pipeline.stages.lane import Lane
from penstock.pipeline.stages.lanes import Lanes
from penstock.pipeline.stages.state import GOING, STANDING

SERIES_MAX = 2_000  # partitions, and topics, that get series of their own
LANES_A_STEP = 100  # judged before the loop does something else: about 2 ms

STAGE = ("stage", "name")
OF_A_LANE = (*STAGE, "source", "topic", "partition")
STATES = (*GOING, *STANDING)

READ = Family(
    "penstock_lane_read_records", "counter", "Records read, by this process, in transactions that are committed.", OF_A_LANE
)
RECORDS = Family("penstock_lane_records", "counter", "Records published, by this process.", OF_A_LANE)
BYTES = Family("penstock_lane_bytes", "counter", "Bytes of the batches published, by this process.", OF_A_LANE)
LAG_RECORDS = Family(
    "penstock_lane_lag_records", "gauge", "Offsets from the committed position to the end of the log that is read.", OF_A_LANE
)
LAG_SECONDS = Family(
    "penstock_lane_lag_seconds",
    "gauge",
    "Age of the first batch that is not read yet, by its timestamp; 0 at the end.",
    OF_A_LANE,
)
LAST_COMMIT = Family(
    "penstock_lane_last_commit_timestamp_seconds",
    "gauge",
    "When the position was committed last, with or without records.",
    OF_A_LANE,
)
STATE = Family(
    "penstock_lane_state",
    "gauge",
    "1 for the state that the partition is in, as `status` names it; 0 for those it has left.",
    (*OF_A_LANE, "state"),
)
LANES = Family("penstock_lanes", "gauge", "Partitions, or topics that have none yet, by state.", (*STAGE, "state"))
HELD = Family("penstock_stage_held_bytes", "gauge", "Fetched, and not yet in a transaction that has ended.", STAGE)
READY = Family("penstock_stage_ready", "gauge", "1: each partition was tried once, and the target answers.", STAGE)
DROPPED = dropped_series(*STAGE)
BY_LANE = (READ, RECORDS, BYTES, LAG_RECORDS, LAG_SECONDS, LAST_COMMIT)
FAMILIES = (*BY_LANE, STATE, LANES, HELD, READY, DROPPED)

Key = tuple[str, str, str]
"""Source (empty where a stage reads its target), topic, partition (empty: all that there are)."""
OTHERS: Key = ("", REST, "")
Numbers = Mapping[Family, float]


class Placed(NamedTuple):
    """A lane, those that it is one of, and its source."""

    source: str
    lanes: Lanes
    lane: Lane

    @property
    def key(self) -> Key:
        """What its series are known by."""
        return self.source, self.lane.tp[0], str(self.lane.tp[1])


class Growth:
    """What the counters of topics have grown by since there were too many partitions for series of their own. A lane that ends,
    or that counts from 0 again, takes nothing back."""

    def __init__(self, families: Sequence[Family]) -> None:
        """`families`: those of a table; its counters are kept here from one page to the next."""
        self.families = [family for family in families if family.kind == "counter"]
        self._lanes: dict[Key, list[float]] = {}
        self._topics: dict[Key, list[float]] = {}
        self.total: list[float] = [0] * len(self.families)
        """Of all lanes that ever were."""
        self._rest: Rest[Key] = Rest(len(self.families))

    def add(self, key: Key, numbers: Numbers) -> None:
        """The numbers that a lane has now."""
        now = [numbers.get(family, 0) for family in self.families]
        before = self._lanes.get(key, [])
        if any(number < last for number, last in zip(now, before, strict=False)):
            before = []
        self._lanes[key] = now
        topic = self._topics.setdefault(_topic(key), [0] * len(now))
        for at, number in enumerate(now):
            grown = number - (before[at] if before else 0)
            topic[at] += grown
            self.total[at] += grown

    def bounded(self, topics: Iterable[Key], weight: Callable[[Key], float]) -> dict[Key, dict[Family, float]]:
        """The counters of these topics; of those that there is no room for together, under `REST`."""
        rows = {key: self._topics[key] for key in topics}
        shown = self._rest.ordered(rows, weight, SERIES_MAX)[:SERIES_MAX]
        rest = self._rest.count(self._topics, shown, self.total)  # those that are gone, too: they may come back
        counts = {key: dict(zip(self.families, rows[key], strict=True)) for key in shown}
        if len(shown) < len(rows) or any(rest):
            counts[OTHERS] = dict(zip(self.families, rest, strict=True))
        return counts


class Table:
    """What a page has of some lanes: one line of numbers for each partition, or for each topic, of which there are `SERIES_MAX`
    at most."""

    def __init__(
        self,
        stage: tuple[str, str],
        by_partition: bool,
        joined: Mapping[Family, Callable[[list[float]], float]],
        growth: Growth,
    ) -> None:
        """`joined`: what makes one number of those of several lanes, where that isn't their sum. `growth` is that of the pages
        before."""
        self._lanes = 0
        self._stage = stage
        self._by_partition = by_partition
        self._joined = joined
        self._growth = growth
        self._rows: dict[Key, list[Numbers]] = {}

    def add(self, key: Key, numbers: Numbers) -> None:
        """Numbers of a lane."""
        self._lanes += 1
        if not self._by_partition:
            self._growth.add(key, numbers)
        self._rows.setdefault(key if self._by_partition else _topic(key), []).append(numbers)

    async def write(self, page: Page, families: Sequence[Family], weight: Family, dropped: dict[str, int]) -> None:
        """Put the families on a page; topics beyond the bound, those with the smallest `weight`, are one. `dropped` gets how
        many series of each family that costs."""
        counts: Mapping[Key, Mapping[Family, float]] = {}
        rows: Mapping[Key, Sequence[Numbers]] = self._rows
        if not self._by_partition:
            counts = self._growth.bounded(rows, lambda key: sum(numbers.get(weight, 0) for numbers in self._rows[key]))
            others = [numbers for key, lanes in self._rows.items() if key not in counts for numbers in lanes]
            rows = {key: self._rows.get(key, others) for key in counts}
        dropped |= {family.name: self._lanes - len(rows) for family in families}
        labels: dict[Key, str] = {}  # all families have the same
        for some in pieces(rows, LANES_A_STEP):
            labels |= {key: labels_text(weight, (*self._stage, *key)) for key in some}
            await asyncio.sleep(0)
        for family in families:
            page.family(family)
            join = self._joined.get(family, sum)
            for some in pieces(rows, LANES_A_STEP):
                if counts and family in self._growth.families:
                    page.samples((labels[key], counts[key][family]) for key in some)
                else:
                    kept = {key: [numbers[family] for numbers in rows[key] if family in numbers] for key in some}
                    page.samples((labels[key], join(numbers)) for key, numbers in kept.items() if numbers)
                await asyncio.sleep(0)


def _topic(key: Key) -> Key:
    """What the series of its topic are known by."""
    return *key[:2], ""


def pieces(keys: Iterable[Key], size: int) -> Iterator[list[Key]]:
    """The keys, so many at a time."""
    left = iter(keys)
    while some := list(itertools.islice(left, size)):
        yield some


def by_partition(choice: str, count: int) -> bool:
    """Whether so many partitions have series of their own, by `penstock.metrics.partitions`."""
    return count <= SERIES_MAX if choice == "auto" else choice == "true"


class LaneFigures:
    """A Source: what the lanes of a stage have done, how far they are behind, and their states."""

    def __init__(
        self,
        stage: tuple[str, str],
        choice: str,
        lanes: Callable[[], Iterable[Placed]],
        topics: Callable[[], Mapping[Key, str]],
        dropped: dict[str, int],
    ) -> None:
        """`stage`: its kind and its name. `choice` is `penstock.metrics.partitions`. `topics` gives the states of topics that
        have no lane. `dropped`: see `Table.write`."""
        self._stage = stage
        self._choice = choice
        self._lanes = lanes
        self._topics = topics
        self._dropped = {} if choice == "false" else dropped  # what was chosen isn't missing
        self._growth = Growth(BY_LANE)
        self._had: dict[Key, set[str]] = {}
        """The states that each has had: those get a series, since all states of all partitions would be most of the page."""

    async def metrics(self, page: Page) -> None:
        """See Source."""
        placed = {each.key: each for each in self._lanes()}
        table = Table(self._stage, by_partition(self._choice, len(placed)), {LAG_SECONDS: max, LAST_COMMIT: min}, self._growth)
        states: dict[Key, str] = {}
        for some in pieces(placed, LANES_A_STEP):
            for key in some:
                _, lanes, lane = placed[key]
                table.add(key, _numbers(lanes, lane))
                states[key] = lanes.view.state(lane)["state"]
            await asyncio.sleep(0)
        states |= self._topics()
        await table.write(page, BY_LANE, READ, self._dropped)
        page.family(STATE)
        shown = states if by_partition(self._choice, len(placed)) else {}
        self._dropped[STATE.name] = len(states) - len(shown)
        for some in pieces(shown, LANES_A_STEP):
            for key in some:
                had = self._had.setdefault(key, set())
                had.add(states[key])
                page.samples(
                    (labels_text(STATE, (*self._stage, *key, word(state))), int(state == states[key])) for state in sorted(had)
                )
            await asyncio.sleep(0)
        found = Counter(states.values())
        page.family(LANES)
        for state in STATES:
            page.sample((*self._stage, word(state)), found[state])


def word(state: str) -> str:
    """A state as a label has it."""
    return state.replace(" ", "_")


def _numbers(lanes: Lanes, lane: Lane) -> Numbers:
    """What is known of a lane; its counters are there before it has begun."""
    counts = lane.worker.counts
    numbers: dict[Family, float] = {READ: counts.read, RECORDS: counts.records, BYTES: counts.bytes}
    if (lag := lanes.view.lag(lane)) is not None:
        numbers[LAG_RECORDS], numbers[LAG_SECONDS] = lag
    if lane.resolved.is_set() and (committed_ms := lane.worker.position.committed_ms) >= 0:
        numbers[LAST_COMMIT] = committed_ms / 1000
    return numbers
