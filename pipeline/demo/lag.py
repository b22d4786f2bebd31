"""Reads a pipeline's positions from outside, by ordinary requests: how far is each stage behind the one before?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.config import Config
from penstock.errors import KafkaError
from penstock.pipeline import job
from penstock.pipeline.clients.admin import LATEST, Admin
from penstock.pipeline.demo.progress import Sample, Show

PAUSE_S = 0.5
LOOK_TIMEOUT_S = 5.0


async def _stable_ends(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    async with Admin(bootstrap) as admin:
        cluster = await admin.metadata([topic])
        partitions = [(topic, number) for number in cluster.topics[topic].partitions]
        ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation="read_committed")
        return {partition: end.offset for partition, end in ends.items()}


async def _positions(bootstrap: str, group: str, partitions: list[tuple[str, int]]) -> int:
    async with Admin(bootstrap) as admin:
        committed = await admin.committed(group, partitions, require_stable=False)
        return sum(found[0] for found in committed.values() if found is not None)


async def _look(config: Config) -> tuple[int, int, int, int]:
    """Offsets mirrored, offsets that the mirror is behind; the same of dedupe."""
    target, topic = config["bootstrap.servers"], job.input_topic(config)
    mirrored = at_sources = 0
    for name, bootstrap in job.sources(config).items():
        ends = await _stable_ends(bootstrap, topic)
        at_sources += sum(ends.values())
        mirrored += await _positions(target, job.mirror_group(config, name), list(ends))
    arrived = await _stable_ends(target, topic)
    read = await _positions(target, job.dedupe_group(config), list(arrived))
    return mirrored, at_sources - mirrored, read, sum(arrived.values()) - read


async def watch(path: Path, show: Show, samples: list[Sample], nights_done: Callable[[], int], nights: int) -> None:
    """Take samples until cancelled. While a broker is down there is nothing to see, and the next sample comes later."""
    config = job.load(path)
    while True:
        try:
            mirrored, mirror_lag, read, dedupe_lag = await asyncio.wait_for(_look(config), LOOK_TIMEOUT_S)
        except (OSError, KafkaError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            continue
        show.set("mirrored", mirrored, f"{mirror_lag} behind")
        show.set("deduped", max(0, mirrored - dedupe_lag), f"{dedupe_lag} behind")
        samples.append(Sample(show.elapsed_s, mirror_lag, dedupe_lag, nights - nights_done(), mirrored, read))
        await asyncio.sleep(PAUSE_S)


def seconds_behind(at_s: Sequence[float], read: Sequence[int], lag: Sequence[int]) -> list[float]:
    """How long the first record has waited that a stage hadn't read, at each of the times. By its arrival, since these records
    tell of 2013: it has come after the last time at which the log ended where the stage is now."""
    seconds, there = [], 0
    for now, (position, behind) in enumerate(zip(read, lag, strict=True)):
        while there < now and read[there + 1] + lag[there + 1] <= position:
            there += 1
        seconds.append(at_s[now] - at_s[there] if behind > 0 else 0.0)
    return seconds
