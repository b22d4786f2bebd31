"""All cases, in the order in which they run: short ones first, the long one last."""

from __future__ import annotations

from penstock.bench.case import Case
from penstock.bench.cases import clients, consume, functions, latency, lifecycle, linkedin, many, produce, steps

_BY_NAME = {case.name: case for case in (*produce.CASES, *consume.CASES)}

BROKER_CASES: list[Case] = [
    *produce.CASES,
    *consume.CASES,
    *latency.CASES,
    *clients.CASES,
    *lifecycle.CASES,
    *(steps.Steps(_BY_NAME[name]) for name in ("produce-1m", "produce-16k", "request-5", "consume-1")),
    *functions.CASES,
    *linkedin.CASES,
    *many.CASES,
]
