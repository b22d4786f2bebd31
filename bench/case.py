"""A case: one thing that is measured, in turn on each of its sides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from penstock.bench.sides import KAFKA, PENSTOCK
from penstock.bench.world import World

Sample = dict[str, float]  # metric -> value, the one that counts most first

# Metric -> what people read, and its decimals.
METRICS = {
    "cpu_s_per_gb": ("broker CPU s/GB", 3),
    "cpu_us_per_request": ("broker CPU us/request", 2),
    "cpu_s_per_gb_copied": ("CPU s/GB", 3),
    "cpu_us_per_record": ("CPU us/record", 3),
    "mb_per_s": ("MB/s", 0),
    "requests_per_s": ("requests/s", 0),
    "records_per_s": ("records/s", 0),
    "cpu_s": ("broker CPU s", 2),
    "client_cpu_s": ("client CPU s", 2),
    "p99_growth": ("p99, x alone", 2),
    "p50_ms": ("p50 ms", 3),
    "p99_ms": ("p99 ms", 3),
    "p999_ms": ("p99.9 ms", 3),
    "tail_p50_ms": ("end to end p50 ms", 3),
    "tail_p99_ms": ("end to end p99 ms", 3),
    "tail_p999_ms": ("end to end p99.9 ms", 3),
    "stolen_percent": ("taken by the host, % of all processors", 2),
}


def label(metric: str) -> str:
    """What a metric is called in a report."""
    return METRICS[metric][0] if metric in METRICS else metric.replace("_", " ")


def show(metric: str, value: float) -> str:
    """A value with as many decimals as make sense."""
    digits = METRICS[metric][1] if metric in METRICS else (0 if value >= 1000 else 2)
    return f"{value:,.{digits}f}"


class Case(ABC):
    """Subclasses are small dataclasses; one instance a case."""

    name: str
    title: str
    sides: tuple[str, ...] = (PENSTOCK, KAFKA)
    warm = True  # one unrecorded round first: a JVM compiles, page caches fill
    rounds_max = 1_000
    series: tuple[str, ...] = ()  # prefix of metrics that are drawn one after the other

    def prepare(self, world: World, side: str) -> None:  # noqa: B027 - most cases need none
        """Once for each side, before the rounds."""

    @abstractmethod
    def run(self, world: World, side: str) -> Sample:
        """Measure once. Raises Skipped when it can't be measured here."""

    def finish(self, world: World, side: str) -> None:  # noqa: B027
        """Once for each side that was prepared, after the rounds, whatever happened."""


@dataclass
class Measured:
    """What came of a case: samples in the order of rounds, or why there are none."""

    name: str
    title: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, side: str, metric: str) -> float | None:
        """Over the rounds; None when it was not measured."""
        found = sorted(sample[metric] for sample in self.samples.get(side, []) if metric in sample)
        if not found:
            return None
        middle = len(found) // 2
        return found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2

    def metrics(self) -> list[str]:
        """All metrics of all sides, in their order."""
        found: dict[str, None] = {}
        for samples in self.samples.values():
            for sample in samples:
                found.update(dict.fromkeys(sample))
        return list(found)
