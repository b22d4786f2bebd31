"""What a process shows by HTTP, read as Prometheus reads it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

WAIT_S = 30.0
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def get(address: str, path: str, accept: str = "*/*") -> tuple[int, bytes]:
    """Status and body of a request."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get_json(address: str, path: str) -> tuple[int, Any]:
    """Status and what the body says."""
    status, body = get(address, path)
    return status, json.loads(body)


def families(address: str, *, open_metrics: bool = True) -> list[Metric]:
    """The families of a page; that it can be read is a part of what is tested."""
    status, body = get(address, "/metrics", OPEN_METRICS if open_metrics else "*/*")
    assert status == 200, body
    parse = open_metrics_families if open_metrics else text_families
    return list(parse(body.decode()))


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _samples(found: Iterable[Metric]) -> Samples:
    return {(one.name, frozenset(one.labels.items())): one.value for family in found for one in family.samples}


def read(page: bytes) -> Samples:
    """The samples of a page in the text format, by name and labels."""
    return _samples(text_families(page.decode()))


class Scrape:
    """The samples of one page."""

    def __init__(self, address: str) -> None:
        self.samples = _samples(families(address))

    def get(self, name: str, **labels: object) -> float | None:
        """The sample with just these labels; None: it isn't there."""
        return self.samples.get((name, frozenset((key, str(value)) for key, value in labels.items())))

    def __call__(self, name: str, **labels: object) -> float:
        """The same, which has to be there."""
        found = self.get(name, **labels)
        assert found is not None, (name, labels, sorted(str(one) for one in self.samples if one[0] == name))
        return found

    def rows(self, name: str) -> list[dict[str, str]]:
        """The labels of each sample of a name."""
        return [dict(labels) for found, labels in self.samples if found == name]
