"""What the demo makes of what it sees: lag in seconds, and how long requests take."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from penstock.metrics import Family, Page
from penstock.pipeline.demo import scrape
from penstock.pipeline.demo.lag import seconds_behind
from penstock.pipeline.demo.parts import BrokerPart

SECONDS = Family("penstock_request_seconds", "histogram", "Time.", ("request", "phase"))
BOUNDS = (0.001, 0.004, 0.016)


def page(*counts: int, others: int = 0) -> str:
    made = Page()
    made.family(SECONDS)
    made.histogram(("Produce", "total"), BOUNDS, counts, 1.0)
    made.histogram(("Produce", "local"), BOUNDS, (others, 0, 0, 0), 1.0)
    made.histogram(("FetchConsumer", "total"), BOUNDS, (0, 0, 0, others), 1.0)
    return made.encode().decode()


def test_a_lag_is_as_old_as_the_last_time_when_the_log_ended_where_the_stage_is() -> None:
    at_s = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    read = [0, 0, 10, 10, 40, 50]
    ends = [0, 10, 30, 40, 50, 50]
    assert seconds_behind(at_s, read, [end - at for end, at in zip(ends, read, strict=True)]) == [0, 0.5, 0.5, 1.0, 0.5, 0]


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [((10, 0, 0, 0), 0.5, 0.0005), ((0, 10, 0, 0), 0.5, 0.0025), ((5, 5, 0, 0), 0.99, 0.00394), ((0, 0, 0, 3), 0.5, 0.016)],
)
def test_a_quantile_lies_within_its_bucket(counts: tuple[int, ...], share: float, seconds: float) -> None:
    found = scrape.buckets(page(*counts, others=7))
    assert sorted(found) == [*BOUNDS, math.inf] and found[math.inf] == sum(counts)
    assert scrape.quantile(found, share) == pytest.approx(seconds)


def test_what_came_since_the_sample_before_is_drawn_also_when_a_broker_has_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {"a": [page(8, 0, 0, 0), page(10, 0, 0, 0), "", page(1, 0, 0, 0)], "b": [page(0, 0, 0, 0)] * 4}

    async def get(address: str) -> str:
        if not (found := pages[address].pop(0)):
            raise ConnectionRefusedError
        return found

    async def ask() -> list[int]:
        brokers = []
        for name in pages:
            part = BrokerPart(name, tmp_path)
            part.http = name
            brokers.append(part)
        samples: list[scrape.Latency] = []
        watching = asyncio.ensure_future(scrape.watch(brokers, lambda: 0.0, samples))
        while any(pages.values()):  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0)
        watching.cancel()
        return [sample.requests for sample in samples]

    monkeypatch.setattr(scrape, "get", get)
    monkeypatch.setattr(scrape, "PAUSE_S", 0.0)
    assert asyncio.run(ask()) == [8, 2, 1]
