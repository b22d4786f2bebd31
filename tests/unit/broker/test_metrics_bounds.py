"""However many topics, partitions and groups there are, a page stays small, and making it leaves the loop to others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import turns
from penstock.broker.clustermember import ReplicationFigures
from penstock.broker.metrics.bounds import PAGE_BYTES, ROWS_MAX, Bounds
from penstock.broker.metrics.families import FAMILIES, GROUP_LAG, MESSAGES_IN
from penstock.broker.metrics.groups import GroupGatherer
from penstock.broker.metrics.partitions import PartitionGatherer
from penstock.broker.metrics.topics import COUNTED, TopicGatherer
from penstock.broker.topic import PartitionState, Topic
from penstock.broker.turns import Turns
from penstock.metrics import REST, Page, labels_text
from penstock.pyx.log.logmanager import TopicFigures
from support.onloop import on_loop
from support.scraping import Scrape

MANY = 10_000


class World:
    """So much of a broker's parts as gatherers ask, with so many topics, of a partition each, and so many groups."""

    def __init__(self, count: int, wanted: str = "auto") -> None:
        self.names = [f"topic-{number:05}" for number in range(count)]
        self.figures = {name: TopicFigures(*[number + 1] * len(COUNTED)) for number, name in enumerate(self.names)}
        self.total = TopicFigures(*[sum(column) for column in zip(*self.figures.values(), strict=True)])
        states = {name: Topic(name, bytes(16), [PartitionState(0, 1, 0, [1], [1])]) for name in self.names}
        topics = SimpleNamespace(all=states.values, get=states.get, partition_count=lambda: count)
        group = SimpleNamespace(dead=False, members={})
        groups = SimpleNamespace(entries=dict.fromkeys(f"group-{name}" for name in self.names), find=lambda name: group)
        config = {"penstock.metrics.partitions": wanted, "min.insync.replicas": 1}
        folder = SimpleNamespace(path=Path("/data"))
        dirs = SimpleNamespace(of=lambda key: folder)
        context: Any = SimpleNamespace(
            topics=topics, groups=groups, config=config, dirs=dirs, node_id=1, replication=ReplicationFigures()
        )
        self.context = context
        self.lag: Any = SimpleNamespace(
            committed=lambda name: [((name.removeprefix("group-"), 0), 10)], seconds=lambda *given: (1.0, True)
        )
        self.logs = {(name, 0): (1000, 0, number + 20) for number, name in enumerate(self.names)}
        self.topics = TopicGatherer(self.context)

    async def page(self) -> tuple[bytes, Bounds]:
        """All that has no bound by itself."""
        page, bounds, some = Page(), Bounds(), Turns()
        await self.topics.write(page, bounds, dict(self.figures), self.total, some)
        await GroupGatherer(self.context, self.lag).write(page, bounds, self.logs, some)
        await PartitionGatherer(self.context).write(page, bounds, self.logs, some)
        bounds.write(page)
        return page.encode(), bounds


@on_loop
async def test_many_topics_and_groups_make_a_page_that_is_no_larger() -> None:
    world = World(MANY)
    body, bounds = await world.page()
    assert len(body) < PAGE_BYTES
    found = Scrape(body).samples
    shown = [labels for (name, labels) in found if name == "kafka_server_brokertopicmetrics_messagesin_total"]
    topics = {dict(labels).get("topic") for labels in shown}
    busiest = set(world.names[-len(topics) + 2 :])
    assert topics == {None, REST, *busiest} and len(busiest) <= ROWS_MAX
    assert bounds.dropped[MESSAGES_IN.name] == MANY - len(busiest)
    # What is shown by topic and the rest together are all.
    counted = {
        dict(labels).get("topic"): number for (name, labels), number in found.items() if name.endswith("messagesin_total")
    }
    assert counted.pop(None) == sum(counted.values()) == sum(range(MANY + 1))
    furthest = [dict(labels)["consumergroup"] for (name, labels) in found if name == "kafka_consumergroup_lag"]
    assert set(furthest) == {f"group-{name}" for name in world.names[-len(furthest) :]}
    assert bounds.dropped[GROUP_LAG.name] == MANY - len(furthest)
    assert "kafka_log_log_size" not in {name for name, _ in found}
    assert bounds.dropped["kafka_log_log_size"] == MANY
    dropped = {dict(labels)["family"] for name, labels in found if name == "penstock_metrics_dropped_series"}
    assert dropped == set(bounds.dropped) <= {family.name for family in FAMILIES}


@on_loop
async def test_each_partition_has_its_series_where_that_is_asked_for() -> None:
    found = Scrape((await World(2_500, "true").page())[0]).samples
    assert len([name for name, _ in found if name == "kafka_log_log_size"]) == 2_500


@on_loop
async def test_the_rest_of_the_topics_never_goes_back() -> None:
    world = World(2_500)
    rest = ("kafka_server_brokertopicmetrics_messagesin_total", frozenset({("topic", REST)}))

    async def grown() -> float:
        return Scrape((await world.page())[0]).samples[rest]

    def grow(name: str, by: int) -> None:
        world.figures[name] = TopicFigures(*(number + by for number in world.figures[name]))
        world.total = TopicFigures(*(number + by for number in world.total))

    before = await grown()
    grow(world.names[0], 100)  # the least busy one: it is not on the page
    assert await grown() == before + 100
    grow(world.names[-1], 1000)  # the busiest, which is
    assert await grown() == before + 100
    for name in world.names[-50:]:  # Others take the places of those that go.
        del world.figures[name]
    assert await grown() == before + 100
    grow(world.names[0], 7)
    assert await grown() == before + 107


@on_loop
async def test_a_page_is_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for a turn each piece of work is one: no piece has more than one topic, partition or group."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    world, passes = World(300), 0

    async def count() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    counting = asyncio.create_task(count())
    await world.page()
    counting.cancel()
    # Each topic's partitions, each partition's labels, each group, each group's labels and age.
    assert passes > 5 * 300


@given(st.lists(st.text(max_size=300), max_size=50), st.integers(0, 20_000))
def test_what_fits_is_no_longer_than_it_may_be(names: list[str], most_bytes: int) -> None:
    labels = [labels_text(MESSAGES_IN, (name,)) for name in names]
    bounds = Bounds()
    count = bounds.fitting([MESSAGES_IN], labels, most_bytes)
    page = Page()
    page.family(MESSAGES_IN)
    head = len(page.encode())
    page.samples((text, 10**15) for text in labels[:count])
    assert len(page.encode()) - head <= most_bytes
    assert bounds.dropped.get(MESSAGES_IN.name, 0) == len(names) - count
