"""A night: events of our broker's topic become a partitioned Delta table, by `penstock etl` and by a bare Spark job.

Both read the same records of the same broker. What is measured begins when Spark is up, so that the start of a JVM, which a
night of any size has once, stands beside it (`start_s`) and not in the rate. CPU time and memory are those of Python and the
JVM together.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.process import TreeMemory, tree_cpu_s
from penstock.bench.programs import SOURCES, ProgramError
from penstock.bench.sides import BEFORE, PENSTOCK, SPARK, WITHOUT, Server, penstock_of
from penstock.bench.world import World
from penstock.broker.process import PROGRAM
from penstock.pipeline.etl.jars import spark_jars
from penstock.pyx.wire import requests

PARTITIONS = 4
BATCH_RECORDS = 400
NIGHT = "2026-01-31"  # long over
SCHEMA = (
    "id STRING NOT NULL, day DATE NOT NULL, scheduled TIMESTAMP NOT NULL, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING NOT NULL, dest STRING, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,"
    " sched_arr_time INT, arr_delay INT, air_time INT, distance INT"
)
EVENT_DAY = "day"
DAYS = (b'"day":"2013-01-30"', b'"day":"2013-01-31"')  # a night holds its own day's events and late ones
UP = " is up"  # what both say when their Spark is


@dataclass
class Night(Case):
    """A night of so many events, of which a share is no row; without: none of them."""

    name: str
    title: str
    events: int
    bad_percent: int = 0
    sides: tuple[str, ...] = (PENSTOCK, SPARK)
    warm: bool = False  # each side is a process of its own, with a JVM of its own
    _topics: dict[tuple[int, int], str] = field(default_factory=dict)  # by the server's pid and the share of rejects

    def prepare(self, world: World, side: str) -> None:
        broker = world.broker(PENSTOCK)
        key = broker.pid, self._bad_percent(side)
        if key not in self._topics:
            self._topics[key] = self._fill(world, broker, self._bad_percent(side))

    def _bad_percent(self, side: str) -> int:
        return 0 if side == WITHOUT else self.bad_percent

    def _fill(self, world: World, broker: Server, bad_percent: int) -> str:
        """A topic `X` without records, which the night finds to be complete, and `X.deduped` with the events."""
        topic = world.topic(broker, self.name, PARTITIONS)
        output = f"{topic}.deduped"
        requests.create_topic(broker.bootstrap, output, PARTITIONS)
        values = _values(bad_percent)
        bodies = [frames.batch(itertools.islice(values, BATCH_RECORDS)) for _ in range(8)]
        asked = [
            (requests.produce_request(output, {partition: body}), requests.PRODUCE_VERSION)
            for body in bodies
            for partition in range(PARTITIONS)
        ]
        path = world.path(self.name)
        frames.write(path, asked)
        count = -(-self._count(world) // BATCH_RECORDS)
        world.requests(broker, path, in_flight=4, requests=count, error_at=frames.error_at(output))
        path.unlink()
        return topic

    def _count(self, world: World) -> int:
        return world.scaled(self.events, least=2000) // BATCH_RECORDS * BATCH_RECORDS

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(PENSTOCK)
        folder = world.path(self.name)
        folder.mkdir()
        try:
            command = self._command(world, side, folder, broker.bootstrap, self._topics[broker.pid, self._bad_percent(side)])
            return _sample(_timed(command, folder), self._count(world))
        finally:
            shutil.rmtree(folder)

    def _command(self, world: World, side: str, folder: Path, bootstrap: str, topic: str) -> list[str]:
        table = folder / "table"
        if side == SPARK:
            words = [bootstrap, f"{topic}.deduped", str(table), SCHEMA, EVENT_DAY, ":".join(map(str, spark_jars(s3a=False)))]
            return [sys.executable, str(SOURCES / "bare_night.py"), *words]
        config = folder / "pipeline.properties"
        properties = {
            "bootstrap.servers": bootstrap,
            "source.one.bootstrap.servers": bootstrap,
            "topics": topic,
            "penstock.etl.table": str(table),
            "penstock.etl.schema": SCHEMA,
            "penstock.etl.event.day": EVENT_DAY,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        program = [str(penstock_of(world.before))] if side == BEFORE and world.before else PROGRAM
        return [*program, "etl", "--config", str(config), "--night", NIGHT, "--json"]

    def finish(self, world: World, side: str) -> None:
        for topic in self._topics.values():
            broker = world.broker(PENSTOCK)
            world.drop(broker, topic)
            world.drop(broker, f"{topic}.deduped")
        self._topics.clear()


def _values(bad_percent: int) -> Iterator[bytes]:
    """Events without an end; so many of a hundred have a text where a number should be."""
    days = [[value for value in frames.events() if day in value] for day in DAYS]
    late, own = (itertools.cycle(day) for day in days)
    for number in itertools.count():
        value = next(late if number % 10 == 0 else own)
        yield value.replace(b'"distance":', b'"distance":"far","was":') if number % 100 < bad_percent else value


@dataclass
class _Times:
    whole_s: float
    night_s: float
    cpu_s: float  # of the night, by all processes
    memory_mib: float


def _timed(command: Sequence[str], folder: Path) -> _Times:
    """Run a side to its end. Raises ProgramError for one that fails."""
    began = time.monotonic()
    complaints: list[str] = []
    up: list[tuple[float, float]] = []

    def listen(pid: int, stderr: IO[str]) -> None:
        for line in stderr:
            complaints.append(line)
            if UP in line:
                up.append((time.monotonic(), tree_cpu_s(pid)))

    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        listener = Thread(target=listen, args=(process.pid, process.stderr))
        listener.start()
        with TreeMemory(process.pid) as memory:
            said = process.stdout.readline()
            done, cpu_s = time.monotonic(), tree_cpu_s(process.pid)
        process.stdout.read()
        listener.join()
    if process.returncode != 0 or not said or not up:
        raise ProgramError(f"{command[:3]} failed: {''.join(complaints)[-1000:]}")
    return _Times(done - began, done - up[0][0], cpu_s - up[0][1], memory.peak_mib)


def _sample(times: _Times, count: int) -> Sample:
    return {
        "rows_per_s": count / times.night_s,
        "cpu_us_per_row": times.cpu_s / count * 1e6,
        "all_memory_mib": times.memory_mib,
        "night_s": times.night_s,
        "start_s": times.whole_s - times.night_s,
        "whole_s": times.whole_s,
    }


CASES: list[Case] = [
    Night("night-small", "a night of 2,000 events", 2000),
    Night("night-2m", "a night of 2,000,000 events", 2_000_000),
    Night(
        "night-rejects",
        "a night of 2,000,000 events, 1 % of them rejects; without",
        2_000_000,
        bad_percent=1,
        sides=(PENSTOCK, WITHOUT),
    ),
]
