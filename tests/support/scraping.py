"""What a process says of itself over HTTP, read by Prometheus' own parsers."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from support.stages import StageProcess

LIMIT_S = 150.0
OPEN_METRICS = "application/openmetrics-text"
SERVED = re.compile(r"figures are at (http://\S+)/metrics")
Labels = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one page, by name and labels."""

    def __init__(self, page: str | bytes, *, open_metrics: bool = False) -> None:
        families = list(parsed(page, open_metrics=open_metrics))
        self.kinds = {family.name: family.type for family in families}
        self.samples: dict[tuple[str, Labels], float] = {}
        for sample in (sample for family in families for sample in family.samples):
            key = sample.name, frozenset(sample.labels.items())
            assert key not in self.samples, f"{key} twice"
            self.samples[key] = sample.value

    def get(self, name: str, /, **labels: object) -> float | None:
        """The sample with just these labels; None: it isn't there."""
        return self.samples.get((name, frozenset((label, str(value)) for label, value in labels.items())))

    def __call__(self, name: str, /, **labels: object) -> float:
        """The same, which has to be there."""
        found = self.get(name, **labels)
        assert found is not None, (name, labels, self.rows(name))
        return found

    def rows(self, name: str, /, **labels: object) -> list[tuple[dict[str, str], float]]:
        """The samples of a name that have these labels among theirs."""
        wanted = {(label, str(value)) for label, value in labels.items()}
        return [(dict(have), value) for (found, have), value in self.samples.items() if found == name and wanted <= have]

    def value(self, name: str, /, **labels: object) -> float:
        """The one sample that has these labels among its own."""
        found = self.rows(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0][1]

    def total(self, name: str, /, **labels: object) -> float:
        """The sum of the samples that have these labels; there is one at least."""
        found = self.rows(name, **labels)
        assert found, f"{name} {labels}"
        return sum(value for _, value in found)

    def states(self) -> dict[tuple[str, str, str], str]:
        """The state of each lane, by source, topic and partition."""
        found = [have for have, value in self.rows("penstock_lane_state") if value]
        states = {(have["source"], have["topic"], have["partition"]): have["state"] for have in found}
        assert len(states) == len(found), found
        return states


def served(said: str) -> str:
    """Where a process serves, by what it said."""
    found = SERVED.search(said)
    assert found is not None, said
    return found[1]


def address(process: StageProcess) -> str:
    """Where a stage serves."""
    process.wait_for("figures are at http://")
    return served(process.text())


def get(url: str, accept: str = "") -> tuple[int, bytes]:
    """Status and body of an address."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get_json(url: str) -> tuple[int, Any]:
    """Status and what the body says."""
    status, body = get(url)
    return status, json.loads(body)


def parsed(page: str | bytes, *, open_metrics: bool = False) -> list[Metric]:
    """The families of a page; that it can be read is a part of what is tested."""
    text = page if isinstance(page, str) else page.decode()
    return list((open_metrics_families if open_metrics else text_families)(text))


def page_at(url: str, *, open_metrics: bool = False) -> bytes:
    """The page at an address now."""
    status, page = get(f"{url}/metrics", OPEN_METRICS if open_metrics else "")
    assert status == 200, page
    return page


def scrape_at(url: str, *, open_metrics: bool = False) -> Scrape:
    """The figures at an address now."""
    return Scrape(page_at(url, open_metrics=open_metrics), open_metrics=open_metrics)


def scrape(process: StageProcess, *, open_metrics: bool = False) -> Scrape:
    """The figures of a stage now."""
    return scrape_at(address(process), open_metrics=open_metrics)


def health(process: StageProcess, which: str) -> tuple[int, Any]:
    """What `/health/live` or `/health/ready` answers."""
    return get_json(f"{address(process)}/health/{which}")


def await_figures(process: StageProcess, enough: Callable[[Scrape], bool]) -> Scrape:
    """Scrape until the figures are so."""
    for found in scrapes(process):
        if enough(found):
            return found
    raise AssertionError


def scrapes(process: StageProcess) -> Iterator[Scrape]:
    """Scrapes one after the other; a test that waits for too long fails."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        page = page_at(address(process))
        yield Scrape(page)
        assert time.monotonic() < deadline, f"{page.decode()}\n{process.text()}"
        time.sleep(0.05)
