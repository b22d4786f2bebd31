"""Figures as Prometheus reads them: families, samples, and the page of one scrape.

A part declares its families (`Family`), and is a `Source` that fills a page with what it counted. The figures themselves live
beside what they measure, each with one writer; nothing here counts.

The page is OpenMetrics 1.0 where the scraper asks for it, else Prometheus' text format 0.0.4. It is made by joining text, as a
broker with 10,000 partitions has 30,000 samples a scrape: `labels_text` makes the text of labels once, to be kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import resource
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import penstock
from penstock.http import Answer, Route

K = TypeVar("K", bound=Hashable)

Kind = Literal["counter", "gauge", "histogram", "summary"]
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
REST = "*rest*"
"""The label of what a bound on series left out, all together. No topic or group has such a name of its own: `*` is in none."""


@dataclass(frozen=True)
class Family:
    """A metric. A counter's name has no `_total`: its samples get it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a family's name has no _total")


def labels_text(family: Family, values: Sequence[str]) -> str:
    """The label values of one sample as they stand on the page: `{topic="a",partition="0"}`."""
    if not values:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(family.labels, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(number: float) -> str:
    if isinstance(number, int) or math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


class Page:
    """One answer to a scrape. A family is begun once, and all of its samples follow it."""

    def __init__(self, open_metrics: bool = False) -> None:
        self._open_metrics = open_metrics
        self._pieces: list[str] = []
        self._names: set[str] = set()
        self._family: Family | None = None

    def family(self, family: Family) -> None:
        """Begin a family. Raises ValueError if the page has it already."""
        if family.name in self._names:
            raise ValueError(f"{family.name} is on the page already")
        self._names.add(family.name)
        self._family = family
        named = family.name if self._open_metrics else self._sample_name()
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        self._pieces.append(f"# HELP {named} {text}\n# TYPE {named} {family.kind}\n")

    def sample(self, values: Sequence[str], number: float) -> None:
        """A sample of the family that was begun last; the values are those of its labels, in their order."""
        assert self._family is not None
        self._pieces.append(f"{self._sample_name()}{labels_text(self._family, values)} {_number(number)}\n")

    def samples(self, prepared: Iterable[tuple[str, float]]) -> None:
        """Samples whose labels are texts that `labels_text` made."""
        name = self._sample_name()
        self._pieces.extend([f"{name}{labels} {_number(number)}\n" for labels, number in prepared])

    def histogram(self, values: Sequence[str], bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        """One histogram: upper bounds, how many are in each bucket (the last one: above all bounds), their sum."""
        assert self._family is not None and len(counts) == len(bounds) + 1
        name, labels = self._family.name, labels_text(self._family, values)
        inner = labels[1:-1] + "," * bool(labels)
        so_far = 0
        for bound, count in zip([*bounds, math.inf], counts, strict=True):
            so_far += count
            self._pieces.append(f'{name}_bucket{{{inner}le="{_number(bound)}"}} {so_far}\n')
        self._pieces.append(f"{name}_sum{labels} {_number(total)}\n{name}_count{labels} {so_far}\n")

    def summary(self, values: Sequence[str], quantiles: Mapping[float, float], count: int, total: float) -> None:
        """One summary: the number at each quantile, how many there were, their sum."""
        assert self._family is not None
        name, labels = self._family.name, labels_text(self._family, values)
        inner = labels[1:-1] + "," * bool(labels)
        for quantile, number in quantiles.items():
            self._pieces.append(f'{name}{{{inner}quantile="{_number(quantile)}"}} {_number(number)}\n')
        self._pieces.append(f"{name}_sum{labels} {_number(total)}\n{name}_count{labels} {count}\n")

    def encode(self) -> bytes:
        """The page's bytes."""
        return "".join(self._pieces).encode("utf-8", "replace") + b"# EOF\n" * self._open_metrics

    @property
    def content_type(self) -> str:
        """What the page is, for HTTP."""
        return OPEN_METRICS if self._open_metrics else TEXT_FORMAT

    def _sample_name(self) -> str:
        assert self._family is not None
        return f"{self._family.name}_total" if self._family.kind == "counter" else self._family.name


class Rest(Generic[K]):
    """Counters of rows of which a page has no room for all: which rows it shows, and what the others make together.

    A row that was on the last page stays while it is there. What the others grow by is the rest's for good: a row that comes on
    the page later leaves there what it had, and one that is gone takes nothing along. So no counter goes back, and from page
    to page all together grow by as much as all rows do; the first numbers of a row that is new are its own.
    """

    def __init__(self, columns: int) -> None:
        """`columns`: how many counters a row has."""
        self._apart: list[float] = [0] * columns  # what isn't the rest's, of all that was ever counted
        self._shown: dict[K, Sequence[float]] = {}
        self._left_out: set[K] = set()

    def ordered(self, rows: Mapping[K, Sequence[float]], weight: Callable[[K], float], most: int) -> list[K]:
        """The rows in the order in which they get the page's places, of which there are `most`: first those that the last page
        had, then those of the greatest weight."""
        stay = [key for key in self._shown if key in rows]
        fresh = [key for key in rows if key not in self._shown]
        if len(rows) > most:
            fresh.sort(key=weight, reverse=True)
        return stay + fresh

    def count(self, rows: Mapping[K, Sequence[float]], shown: Iterable[K], total: Sequence[float]) -> list[float]:
        """What the rest has on a page that shows some of the rows. `total`: what all rows make together, with those that there
        are no more."""
        now: dict[K, Sequence[float]] = {key: tuple(rows[key]) for key in shown}
        for key, numbers in now.items():
            before = self._shown.get(key, numbers if key in self._left_out else ())
            if any(number < last for number, last in zip(numbers, before, strict=False)):
                before = ()  # Another row of that name, which has begun at nothing.
            for at, number in enumerate(numbers):
                self._apart[at] += number - (before[at] if before else 0)
        self._shown = now
        self._left_out = {key for key in rows if key not in now} if len(rows) > len(now) else set()
        return [number - apart for number, apart in zip(total, self._apart, strict=True)]


def dropped_series(*labels: str) -> Family:
    """The family by which a part says what its page leaves out; `labels` are the part's own, before the family's name."""
    return Family(
        "penstock_metrics_dropped_series",
        "gauge",
        f"Series that this page lacks, as there would be too many; what can be summed is under `{REST}`.",
        (*labels, "family"),
    )


class Source(Protocol):
    """A part of a process that has figures."""

    async def metrics(self, page: Page) -> None:
        """Fill the page. On the loop: it lets others go on at least every 5 ms."""


BUILD = Family("penstock_build_info", "gauge", "The version that runs; always 1.", ("version", "part"))
CPU = Family("process_cpu_seconds", "counter", "Time that the process ran on processors, user and system, seconds.")
RESIDENT = Family("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM, bytes.")
VIRTUAL = Family("process_virtual_memory_bytes", "gauge", "Address space of the process, bytes.")
OPEN_FDS = Family("process_open_fds", "gauge", "File descriptors that are open.")
MAX_FDS = Family("process_max_fds", "gauge", "File descriptors that may be open.")
STARTED = Family("process_start_time_seconds", "gauge", "When the process began, seconds since 1970.")
FAMILIES = (BUILD, CPU, RESIDENT, VIRTUAL, OPEN_FDS, MAX_FDS, STARTED)


class Process:
    """Figures of the process itself, by the names of Prometheus' own clients."""

    def __init__(self, part: str) -> None:
        """`part`: broker, mirror, dedupe or etl."""
        self._part = part
        self._started_s = _started_s()

    async def metrics(self, page: Page) -> None:
        """See Source."""
        one(page, BUILD, 1, (penstock.__version__, self._part))
        times = os.times()
        one(page, CPU, times.user + times.system)
        with contextlib.suppress(OSError):  # a sandbox without /proc
            virtual, resident, open_fds = _memory_and_files()
            one(page, RESIDENT, resident)
            one(page, VIRTUAL, virtual)
            one(page, OPEN_FDS, open_fds)
        one(page, MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        one(page, STARTED, self._started_s)


def one(page: Page, family: Family, number: float, values: Sequence[str] = ()) -> None:
    """A family with one sample."""
    page.family(family)
    page.sample(values, number)


def each(page: Page, family: Family, numbers: Mapping[str, float]) -> None:
    """A family with one label, and a sample for each of its values."""
    page.family(family)
    for value, number in numbers.items():
        page.sample((value,), number)


def _memory_and_files() -> tuple[int, int, int]:
    """Bytes of address space, bytes in RAM, open descriptors. Raises OSError."""
    pages = Path("/proc/self/statm").read_text().split()
    page_bytes = resource.getpagesize()
    open_fds = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # but the listing's own
    return int(pages[0]) * page_bytes, int(pages[1]) * page_bytes, open_fds


def _started_s() -> float:
    """When this process began, seconds since 1970."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return time.time()


class Health(Protocol):
    """What a process says of itself to whoever probes it. Both are right or wrong, with details that become JSON."""

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Whether it moves; who hears no for a while may restart it."""

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether it does its work now."""


def routes(sources: Sequence[Source], health: Health) -> dict[str, Route]:
    """The paths by which every process is watched: `/metrics`, `/health/live`, `/health/ready`."""
    # Scrapes take turns, so that many at once cost the loop no more than one.
    turn = asyncio.Lock()

    async def metrics(headers: Mapping[str, str]) -> Answer:
        async with turn:
            page = Page(_wants_open_metrics(headers.get("accept", "")))
            for source in sources:
                await source.metrics(page)
            return Answer(200, page.content_type, page.encode())

    async def live(headers: Mapping[str, str]) -> Answer:
        return _judged(*health.live())

    async def ready(headers: Mapping[str, str]) -> Answer:
        return _judged(*health.ready())

    return {"/metrics": metrics, "/health/live": live, "/health/ready": ready}


def _judged(good: bool, details: dict[str, Any]) -> Answer:
    return Answer(200 if good else 503, "application/json", json.dumps(details).encode() + b"\n")


def _wants_open_metrics(accept: str) -> bool:
    """Whether the header asks for OpenMetrics before plain text."""
    best: dict[str, float] = {}
    for choice in accept.split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        weight = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
        with contextlib.suppress(ValueError):
            best[kind] = max(best.get(kind, 0.0), float(weight))
    return best.get("application/openmetrics-text", 0.0) > 0 and best["application/openmetrics-text"] >= best.get(
        "text/plain", 0.0
    )
