"""What a case works with: brokers, topics, load, and CPU seconds."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.bench import frames
from penstock.bench.apache_kafka import ApacheKafka
from penstock.bench.clusters import Cluster, KafkaCluster, PenstockCluster
from penstock.bench.programs import Programs, ended
from penstock.bench.sides import BEFORE, KAFKA, OURS, PENSTOCK, Broker, Floor, Kafka, Penstock, Server
from penstock.pyx.wire import requests

T = TypeVar("T")
GB = 1e9
MIB = 1 << 20
SETTLE_S = 0.3  # what a broker still does after its last answer belongs to the case

# Pages that were free for about two seconds may go back to a virtual machine's host, and coming back they cost the broker's
# system time more than anything else does. So the brokers that produce cases use drop old segments at once.
RECYCLING = {
    PENSTOCK: {"log.retention.check.interval.ms": "100"},
    BEFORE: {"log.retention.check.interval.ms": "100"},
    KAFKA: {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"},
}
RECYCLED_BYTES = 64 * MIB
RECYCLED_TOPIC = {
    "segment.bytes": str(RECYCLED_BYTES),
    "retention.bytes": str(RECYCLED_BYTES),
    "file.delete.delay.ms": "0",
}


class Skipped(Exception):
    """A case can't be measured here; the text is the reason in a sentence."""


@dataclass
class World:
    """Lives through a whole run. `scale` multiplies sizes, counts and times of the load.

    `before` is the checkout whose broker is the side of that name.
    """

    folder: Path
    scale: float
    minutes: float
    programs: Programs
    before: Path | None = None
    _brokers: dict[tuple[str, str, tuple[tuple[str, str], ...]], Broker] = field(default_factory=dict)
    _clusters: dict[str, Cluster] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def scaled(self, number: float, least: float = 1) -> int:
        """A count or size at this scale."""
        return int(max(least, number * self.scale))

    def seconds(self, number: float, least: float = 0.3) -> float:
        """A time at this scale."""
        return max(least, number * self.scale)

    # Brokers

    def broker(self, side: str, name: str = "", **more: str) -> Broker:
        """A broker that serves all cases that ask for the same name and properties (`_` for `.` in the latter's names)."""
        key = (side, name, tuple(sorted(more.items())))
        if key in self._brokers and not _lives(self._brokers[key]):
            self._brokers.pop(key).stop()
        if key not in self._brokers:
            properties = {**RECYCLING[side], **{name.replace("_", "."): value for name, value in more.items()}}
            broker = self._fresh_broker(side, properties)
            self._brokers[key] = broker
            broker.start()
        return self._brokers[key]

    @contextmanager
    def own_broker(
        self, side: str, properties: Mapping[str, str] | None = None, *, many_files: bool = False
    ) -> Iterator[Broker]:
        """A broker of the case's own in a new folder, not started, with other settings than the default ones if there are
        `properties`; stopped at the end, and what it wrote removed.

        What is many files goes only when all is over. For a minute ext4 doesn't use the numbers of deleted files again,
        and reads each of them whenever a file is made: a broker that deletes thousands of files makes the next one's partitions
        slow, ours or Kafka's.
        """
        broker = self._fresh_broker(side, dict(properties or {}))
        try:
            yield broker
        finally:
            broker.stop()
            if not many_files:
                shutil.rmtree(broker.folder, ignore_errors=True)

    def _fresh_broker(self, side: str, properties: dict[str, str]) -> Broker:
        folder = self.folder / f"{side}-{next(self._numbers)}"
        if side in OURS:
            return Penstock(folder, properties, self.before if side == BEFORE else None)
        return Kafka(ApacheKafka(folder, properties))

    def cluster(self, side: str) -> Cluster:
        """The three brokers that serve all cases of clusters: whole, whatever the case before did to it."""
        cluster = self._clusters.get(side)
        if cluster is not None and not all(_lives(node) for node in cluster.nodes.values()):
            self._clusters.pop(side).stop()  # A case has failed halfway.
            shutil.rmtree(cluster.folder, ignore_errors=True)
            cluster = None
        if cluster is None:
            folder = self.folder / f"{side}-cluster-{next(self._numbers)}"
            if side in OURS:
                cluster = PenstockCluster(folder, RECYCLING[side], self.before if side == BEFORE else None)
            else:
                cluster = KafkaCluster(folder, RECYCLING[side])
            self._clusters[side] = cluster
            cluster.start()
        cluster.until_whole()
        return cluster

    def floor(self, mode: str, **options: object) -> Floor:
        """A floor server; the case stops it."""
        return Floor(self.programs, mode, **options)

    def close(self) -> None:
        """Stop all brokers and remove the data."""
        for broker in self._brokers.values():
            broker.stop()
        for cluster in self._clusters.values():
            cluster.stop()
        self._brokers.clear()
        self._clusters.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Topics and files

    def path(self, hint: str) -> Path:
        """A name for a file that is used by nobody else."""
        return self.folder / f"{hint}-{next(self._numbers)}"

    def new_name(self, hint: str) -> str:
        """A name for a topic that no other one has."""
        return f"bench-{hint}-{next(self._numbers)}"

    def topic(self, server: Server, hint: str, partitions: int, configs: dict[str, str] | None = None) -> str:
        """A new topic."""
        name = self.new_name(hint)
        requests.create_topic(server.bootstrap, name, partitions, configs)
        return name

    def drop(self, server: Server, topic: str) -> None:
        """Delete a topic."""
        requests.delete_topic(server.bootstrap, topic)

    # Load

    def measured(self, server: Server | Cluster, work: Callable[[], T]) -> tuple[T, float]:
        """What the work gave, and the CPU seconds that it cost the server, or all brokers of a cluster."""
        before = server.cpu_s()
        result = work()
        time.sleep(SETTLE_S)
        return result, server.cpu_s() - before

    def requests(self, server: Server, load: frames.Frames | Path, **options: object) -> list[dict[str, Any]]:
        """Send requests; see programs/requests.c. What it printed; the last is the whole."""
        if isinstance(load, frames.Frames):
            options = {"error_at": load.error_at, **options}
            load = load.path
        return self.programs.run("requests", to=server.bootstrap, frames=load, **options)

    def requests_side_by_side(self, loads: Iterable[tuple[Server, frames.Frames]], **options: object) -> dict[str, float]:
        """Send each server its requests, all at once: counts together, seconds and percentiles of the slowest."""
        running = [
            self.programs.start("requests", to=server.bootstrap, frames=load.path, error_at=load.error_at, **options)
            for server, load in loads
        ]
        results = [ended(process)[-1] for process in running]
        total = {name: float(sum(result[name] for result in results)) for name in ("requests", "client_cpu_s")}
        return {**total, **{name: float(max(one[name] for one in results)) for name in ("seconds", "p50_us", "p99_us")}}

    def fetch(self, server: Server, consumers: int, frame: Path, *, idle: bool = False, **options: object) -> dict[str, float]:
        """Consumers side by side, each reading all: records and bytes together, seconds of the slowest."""
        start = self.programs.start_idle if idle else self.programs.start
        running = [start("fetch", to=server.bootstrap, frame=frame, **options) for _ in range(consumers)]
        results = [ended(process)[-1] for process in running]
        total = {name: float(sum(result[name] for result in results)) for name in ("bytes", "records", "requests")}
        return {**total, "seconds": max(float(result["seconds"]) for result in results)}


def confluent() -> Any:
    """The package confluent_kafka. Raises Skipped when it isn't installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise Skipped("confluent-kafka is not installed; the extra `bench` has it") from None
    return confluent_kafka


def _lives(broker: Broker) -> bool:
    try:
        return Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, AssertionError):
        return False
