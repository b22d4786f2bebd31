"""What the demo's processes say of themselves over HTTP: once a second how long requests take, at the end what was counted."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.pipeline.demo.parts import BrokerPart, Part

PAUSE_S = 1.0
ANSWER_S = 5.0
REQUEST = "Produce"
BUCKET = re.compile(r"penstock_request_seconds_bucket\{(?P<labels>[^}]*)\} (?P<count>\d+)")
SERVED = re.compile(r"figures are at http://(\S+)/metrics")
LABEL = re.compile(r'(\w+)="([^"]*)"')

Buckets = dict[float, int]
"""Requests that took no longer, by that many seconds."""


@dataclass
class Latency:
    """The produce requests of all brokers since the sample before: how many, and how long the median and 99 in 100 took."""

    at_s: float
    requests: int
    median_s: float
    p99_s: float


async def watch(brokers: Iterable[BrokerPart], elapsed_s: Callable[[], float], samples: list[Latency]) -> None:
    """Take samples until cancelled. A broker that is down is left out; one that has started counts from nothing again."""
    parts, before = list(brokers), dict[str, Buckets]()
    while True:
        await asyncio.sleep(PAUSE_S)
        added = Counter[float]()
        for part in parts:
            try:
                found = buckets(await get(part.http))
            except (OSError, TimeoutError, ValueError):
                continue
            known = before.get(part.name, {})
            if any(count < known.get(bound, 0) for bound, count in found.items()):
                known = {}
            added.update({bound: count - known.get(bound, 0) for bound, count in found.items()})
            before[part.name] = found
        if requests := max(added.values(), default=0):
            samples.append(Latency(elapsed_s(), requests, quantile(added, 0.5), quantile(added, 0.99)))


async def counted(mirror: Part, dedupe: Part) -> dict[str, int]:
    """Records copied and repeats dropped, as the stages have counted since they started last. Raises as `get`."""
    found = {}
    for part, name in ((mirror, "penstock_lane_records_total"), (dedupe, "penstock_dedupe_duplicates_total")):
        address = SERVED.findall(part.log_path.read_text(errors="replace"))[-1]
        lines = [line for line in (await get(address)).splitlines() if line.startswith(f"{name}{{")]
        found[name] = sum(int(line.rpartition(" ")[2]) for line in lines)
    return found


async def get(address: str) -> str:
    """The page of `/metrics` at HOST:PORT. Raises OSError, TimeoutError, ValueError."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    return body.decode()


def buckets(page: str) -> Buckets:
    """The cumulative buckets of produce requests, from their first byte to their answer."""
    found = Counter[float]()
    for line in page.splitlines():
        if (match := BUCKET.fullmatch(line)) is not None:
            labels = dict(LABEL.findall(match["labels"]))
            if (labels["request"], labels["phase"]) == (REQUEST, "total"):
                found[float(labels["le"])] += int(match["count"])
    return dict(found)


def quantile(cumulative: Mapping[float, int], share: float) -> float:
    """The seconds within which that share of requests was answered, linear within a bucket as Prometheus has it."""
    bounds = sorted(cumulative)
    wanted = share * cumulative[bounds[-1]]
    for lower, upper in itertools.pairwise([0.0, *bounds]):
        if cumulative[upper] >= wanted:
            below = cumulative.get(lower, 0)
            inside = cumulative[upper] - below
            return lower if math.isinf(upper) or not inside else lower + (upper - lower) * (wanted - below) / inside
    return bounds[-1]
