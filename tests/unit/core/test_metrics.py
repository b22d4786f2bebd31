"""The page of a scrape, read back by Prometheus' own parsers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families
from prometheus_client.samples import Sample

from penstock.metrics import Family, Page, Process, labels_text, routes
from support.onloop import on_loop

RECORDS = Family("a_records", "counter", 'Records, "all" of them\nin \\ out.', ("topic", "partition"))
SIZE = Family("a_size_bytes", "gauge", "Bytes.", ("topic",))
SECONDS = Family("a_seconds", "histogram", "Time.", ("request",))
TIMES = Family("a_time_ms", "summary", "Time.", ("request",))
names = st.text(max_size=30)
numbers = st.integers(0, 2**62) | st.floats(0, 1e300)


def samples(page: Page, open_metrics: bool) -> dict[tuple[str, tuple[str, ...]], float]:
    parse = open_metrics_families if open_metrics else text_families
    found: list[Sample] = [sample for family in parse(page.encode().decode()) for sample in family.samples]
    return {(sample.name, tuple(sample.labels.values())): sample.value for sample in found}


@pytest.mark.parametrize("open_metrics", [False, True])
@given(records=st.dictionaries(st.tuples(names, names), numbers, max_size=5), sizes=st.dictionaries(names, numbers, max_size=5))
def test_a_page_says_what_was_put_on_it(
    open_metrics: bool, records: dict[tuple[str, str], float], sizes: dict[str, float]
) -> None:
    page = Page(open_metrics)
    page.family(RECORDS)
    page.samples([(labels_text(RECORDS, values), number) for values, number in records.items()])
    page.family(SIZE)
    for name, number in sizes.items():
        page.sample((name,), number)
    expected: dict[tuple[str, tuple[str, ...]], float] = {("a_records_total", values): n for values, n in records.items()}
    expected.update((("a_size_bytes", (name,)), n) for name, n in sizes.items())
    assert samples(page, open_metrics) == expected


@pytest.mark.parametrize("open_metrics", [False, True])
def test_a_histogram_is_cumulative(open_metrics: bool) -> None:
    page = Page(open_metrics)
    page.family(SECONDS)
    page.histogram(("Produce",), (0.001, 1.0), (3, 0, 2), 7.5)
    assert samples(page, open_metrics) == {
        ("a_seconds_bucket", ("Produce", "0.001")): 3,
        ("a_seconds_bucket", ("Produce", "1.0")): 3,
        ("a_seconds_bucket", ("Produce", "+Inf")): 5,
        ("a_seconds_sum", ("Produce",)): 7.5,
        ("a_seconds_count", ("Produce",)): 5,
    }


@pytest.mark.parametrize("open_metrics", [False, True])
def test_a_summary_has_quantiles_and_what_they_are_of(open_metrics: bool) -> None:
    page = Page(open_metrics)
    page.family(TIMES)
    page.summary(("Produce",), {0.5: 1.5, 0.99: 20.0}, 7, 42.5)
    assert samples(page, open_metrics) == {
        ("a_time_ms", ("Produce", "0.5")): 1.5,
        ("a_time_ms", ("Produce", "0.99")): 20.0,
        ("a_time_ms_sum", ("Produce",)): 42.5,
        ("a_time_ms_count", ("Produce",)): 7,
    }


def test_numbers_that_are_none_are_said_as_prometheus_does() -> None:
    page = Page()
    page.family(SIZE)
    for name, number in (("nan", math.nan), ("up", math.inf), ("down", -math.inf)):
        page.sample((name,), number)
    assert [line.split()[-1] for line in page.encode().decode().splitlines()[2:]] == ["NaN", "+Inf", "-Inf"]


def test_a_family_is_on_a_page_once() -> None:
    page = Page()
    page.family(SIZE)
    with pytest.raises(ValueError, match="already"):
        page.family(SIZE)
    with pytest.raises(ValueError, match="no _total"):
        Family("a_total", "counter", "")


def _age_s() -> float:
    """How long this process has run, by ps."""
    return float(subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, check=True).stdout)


def open_files() -> float:
    """As a scrape says it."""
    page = Page()
    asyncio.run(Process("broker").metrics(page))
    return samples(page, False)["process_open_fds", ()]


class _Half:
    """A process that lives and isn't ready."""

    async def metrics(self, page: Page) -> None:
        page.family(SIZE)
        page.sample(("a",), 1)

    def live(self) -> tuple[bool, dict[str, Any]]:
        return True, {"loop": "moves"}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        return False, {"recovering": [3, 1000]}


@pytest.mark.parametrize(
    ("accept", "open_metrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;q=0.5,application/openmetrics-text;version=1.0.0;q=0.6", True),
        ("application/openmetrics-text;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text; q=x", False),
    ],
)
@on_loop
async def test_a_scrape_gets_the_format_that_it_asks_for(accept: str, open_metrics: bool) -> None:
    there = routes([Process("broker"), _Half()], _Half())
    answer = await there["/metrics"]({"accept": accept})
    assert answer.status == 200 and answer.content_type.startswith("application/openmetrics" if open_metrics else "text/plain")
    parse = open_metrics_families if open_metrics else text_families
    found = {sample.name: sample.value for family in parse(answer.body.decode()) for sample in family.samples}
    assert found["a_size_bytes"] == 1 and found["penstock_build_info"] == 1
    assert found["process_resident_memory_bytes"] > 1 << 20 and found["process_cpu_seconds_total"] > 0
    assert 3 <= found["process_open_fds"] <= found["process_max_fds"]
    assert found["process_start_time_seconds"] == pytest.approx(time.time() - _age_s(), abs=5)


def test_open_descriptors_are_counted() -> None:
    before = open_files()
    with Path(os.devnull).open("rb"):
        assert open_files() == before + 1


@on_loop
async def test_health_is_json_with_a_status() -> None:
    there = routes([], _Half())
    live, ready = await there["/health/live"]({}), await there["/health/ready"]({})
    assert (live.status, json.loads(live.body)) == (200, {"loop": "moves"})
    assert (ready.status, json.loads(ready.body)) == (503, {"recovering": [3, 1000]})
