"""Requests on a page: how many, in which version, how long each phase took."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate

from penstock.broker.metrics.bounds import Bounds
from penstock.broker.metrics.families import REQUEST_SECONDS, REQUESTS, SLOW_REQUESTS, TIMES
from penstock.broker.turns import Turns
from penstock.metrics import Page, each, labels_text
from penstock.pyx.net.border import BOUNDS_S, DataPlane, RequestTimes

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
WINDOW_S = 150.0
"""Quantiles are those of the requests of this time, and up to as much before it."""
COARSE = 16
"""Of the data plane's buckets so many become one on the page: a factor of 4."""
COARSE_BOUNDS_S = BOUNDS_S[COARSE - 1 :: COARSE]
TIMES_BYTES = 450_000
"""Enough for some 36 APIs. The broker of a pipeline's aggregate is asked for about 20."""
VERSIONS_BYTES = 30_000

Times = Mapping[tuple[str, str], RequestTimes]


class RequestGatherer:
    """Requests of one data plane on a page."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        # What was counted when the two last windows began: a page has what came since the older one.
        self._begun: deque[tuple[float, Times]] = deque([(time.monotonic(), {})], 2)

    async def write(self, page: Page, bounds: Bounds, turns: Turns) -> None:
        """All families of requests."""
        times = self._data_plane.request_times()
        now_s = time.monotonic()
        if now_s - self._begun[-1][0] >= WINDOW_S:
            self._begun.append((now_s, times))
        since = self._begun[0][1]
        await turns.take()
        named: dict[str, int] = {}
        for (request, phase), counted in times.items():
            if phase == "total":
                named[request] = sum(counted.counts)
        requests = sorted(named, key=lambda name: named[name], reverse=True)
        labels = [labels_text(TIMES["total"], (request,)) for request in requests]
        # One request has a line for each quantile, two more, and those of the histogram, in each phase.
        lines = (len(QUANTILES) + 2 + len(COARSE_BOUNDS_S) + 3) * len(TIMES)
        fitting = bounds.fitting([TIMES["total"]] * lines, labels, TIMES_BYTES)
        requests = requests[:fitting]
        for phase, family in TIMES.items():
            page.family(family)
            for request in requests:
                await turns.take()
                if (found := times.get((request, phase))) is None:  # throttle: there are no quotas.
                    page.summary((request,), dict.fromkeys(QUANTILES, 0.0), named[request], 0.0)
                    continue
                recent = _minus(found.counts, since.get((request, phase)))
                page.summary((request,), quantiles(recent), sum(found.counts), found.sum_ns / 1e6)
        page.family(REQUEST_SECONDS)
        for (request, phase), counted in times.items():
            if request in requests:
                await turns.take()
                page.histogram((request, phase), COARSE_BOUNDS_S, coarse(counted.counts), counted.sum_ns / 1e9)
        await turns.take()
        self._write_counts(page, bounds)

    def _write_counts(self, page: Page, bounds: Bounds) -> None:
        counts = self._data_plane.requests_by_version().items()
        seen = [((name, str(version)), number) for (name, version), number in counts]
        bounds.write_largest(page, REQUESTS, seen, VERSIONS_BYTES, with_rest=False)
        each(page, SLOW_REQUESTS, dict(sorted(self._data_plane.slow_counts().items())))


def _minus(counts: Sequence[int], before: RequestTimes | None) -> Sequence[int]:
    return counts if before is None else [now - then for now, then in zip(counts, before.counts, strict=True)]


def quantiles(counts: Sequence[int]) -> dict[float, float]:
    """Milliseconds below which so many of what was counted lie: the upper bound of the bucket, 0 if nothing was counted."""
    so_far = list(accumulate(counts))
    found = dict.fromkeys(QUANTILES, 0.0)
    if so_far[-1]:
        for quantile in QUANTILES:
            at = next(at for at, count in enumerate(so_far) if count >= quantile * so_far[-1])
            found[quantile] = BOUNDS_S[min(at, len(BOUNDS_S) - 1)] * 1000
    return found


def coarse(counts: array[int]) -> list[int]:
    """The counts in the buckets of `COARSE_BOUNDS_S`."""
    edges = [*range(0, len(COARSE_BOUNDS_S) * COARSE, COARSE), len(counts)]
    sums = [sum(counts[at : at + COARSE]) for at in edges[:-1]]
    return [*sums, sum(counts) - sum(sums)]
