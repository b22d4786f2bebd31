"""A node that has much to keep: partitions, groups, producers, and a log that has been past its retention for long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.scraper import HTTP, scrape
from penstock.bench.sides import PENSTOCK, Broker, Penstock
from penstock.bench.world import MIB, World
from penstock.errors import raise_for
from penstock.pyx.wire import messages, requests
from penstock.pyx.wire.connection import WireConnection

TOPIC_PARTITIONS = 100
SCRAPES = 50


@dataclass
class Crowd(Case):
    """10,000 partitions in topics of 100, 10,000 groups with an offset each; what Metadata takes then, and a scrape."""

    name: str = "crowd"
    title: str = "10,000 partitions and 10,000 groups (scaled) on one node"
    sides: tuple[str, ...] = (PENSTOCK,)
    warm: bool = False
    rounds_max: int = 1
    partitions: int = 10_000
    groups: int = 10_000

    def run(self, world: World, side: str) -> Sample:
        with world.own_broker(side, HTTP, many_files=True) as broker:
            assert isinstance(broker, Penstock)
            broker.start()
            return self._measure(world, broker)

    def _measure(self, world: World, broker: Penstock) -> Sample:
        each = min(TOPIC_PARTITIONS, world.scaled(TOPIC_PARTITIONS, least=2))
        topics = [f"crowd-{number}" for number in range(max(1, world.scaled(self.partitions) // each))]
        started = time.monotonic()
        for topic in topics:
            requests.create_topic(broker.bootstrap, topic, each)
        created = time.monotonic()
        body = frames.batch([b"one"])
        with WireConnection(broker.bootstrap, 60) as connection:
            for topic in topics:
                requests.produce(connection, topic, dict.fromkeys(range(each), body))
            groups, began = world.scaled(self.groups, least=2), time.monotonic()
            for number in range(groups):
                commit(connection, f"group-{number}", topics[number % len(topics)])
            committed_s = time.monotonic() - began
        path = world.path(self.name)
        one = self._ask(world, broker, path, topics[:1], 2_000)
        all_of_them = self._ask(world, broker, path, [], 100)
        rss_mib = broker.rss_mib()
        cpu_ms, page_mb = scraped(broker)
        return {
            "metadata_one_p99_ms": one["p99_us"] / 1e3,
            "metadata_one_p50_ms": one["p50_us"] / 1e3,
            "metadata_all_p99_ms": all_of_them["p99_us"] / 1e3,
            "metadata_all_p50_ms": all_of_them["p50_us"] / 1e3,
            "rss_mib": rss_mib,
            "scrape_cpu_ms": cpu_ms,
            "scrape_mb": page_mb,
            "partitions": float(len(topics) * each),
            "create_s": created - started,
            "first_commits_per_s": groups / committed_s,
        }

    def _ask(self, world: World, broker: Broker, path: Path, topics: list[str], count: int) -> dict[str, float]:
        frames.write(path, [(requests.metadata_request(*topics), requests.METADATA_VERSION)])
        try:
            return world.requests(broker, path, requests=world.scaled(count, least=10))[-1]
        finally:
            path.unlink()


def scraped(broker: Penstock) -> tuple[float, float]:
    """CPU in milliseconds, and size in MB, of a scrape of a broker that does nothing else. The first pages make labels that
    the others have; what the broker takes by itself meanwhile is taken off."""
    for _ in range(2):
        page = scrape(broker.http)
    began_s, before_s = time.monotonic(), broker.cpu_s()
    for _ in range(SCRAPES):
        page = scrape(broker.http)
    took_s, used_s = time.monotonic() - began_s, broker.cpu_s() - before_s
    before_s = broker.cpu_s()
    time.sleep(took_s)
    idle_s = broker.cpu_s() - before_s
    return max(0.0, used_s - idle_s) / SCRAPES * 1e3, len(page) / 1e6


def commit(connection: WireConnection, group: str, topic: str) -> None:
    """Commit an offset as a consumer does that assigns its partitions itself; waits for the coordinator."""
    own = messages.OffsetCommitRequest
    partition = own.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = own(group_id=group, topics=[own.OffsetCommitRequestTopic(name=topic, partitions=[partition])])

    def attempt() -> None:
        answer = connection.ask(request, requests.OFFSET_COMMIT_VERSION)
        raise_for(answer.topics[0].partitions[0].error_code, group)

    requests.patiently(attempt)


@dataclass
class Sustained(Case):
    """50 producers with keys, small batches, far past retention; throughput and p99 minute by minute (in a run
    of less than six minutes by sixths of it).

    Requests leave by the clock, well below what the broker could take, so that a broker that tires shows it.
    """

    name: str = "sustained"
    title: str = "50 producers, keys, past retention, by the minute"
    sides: tuple[str, ...] = (PENSTOCK,)
    warm: bool = False
    rounds_max: int = 1
    series: tuple[str, ...] = ("mb_per_s_in_window_", "p99_ms_in_window_")
    producers: int = 50
    partitions: int = 50
    rate: int = 10_000
    batch_bytes: int = 4_096

    def run(self, world: World, side: str) -> Sample:
        broker = world.broker(side)
        # At this rate the log is past its retention from the first minute on, and two or three segments a second are rolled.
        configs = {"segment.bytes": str(16 * MIB), "retention.bytes": str(32 * MIB), "file.delete.delay.ms": "0"}
        partitions, rate = world.scaled(self.partitions, least=4), world.scaled(self.rate, least=100)
        partitions, rate = min(partitions, self.partitions), min(rate, self.rate)
        topic = world.topic(broker, self.name, partitions, configs)
        path = world.path(self.name)
        load = frames.produce(
            path,
            topic,
            partitions,
            batch_bytes=self.batch_bytes,
            record_bytes=100,
            keyed=True,
            payloads=2,
            # Each partition has a rate of its own, as with real keys: else all of them would roll at the same moment.
            weights=[10 + partition for partition in range(partitions)],
        )
        seconds = world.minutes * 60
        window_s = min(60.0, seconds / 6)
        try:
            printed, cpu_s = world.measured(
                broker,
                lambda: world.requests(broker, load, connections=self.producers, rate=rate, seconds=seconds, window=window_s),
            )
        finally:
            world.drop(broker, topic)
            path.unlink()
        return self._sample(printed, load, cpu_s, window_s)

    def _sample(self, printed: list[dict[str, float]], load: frames.Frames, cpu_s: float, window_s: float) -> Sample:
        whole = printed[-1]
        windows = [one for one in printed[:-1] if one["seconds"] > window_s / 2]
        rates = [one["requests"] * load.value_bytes / 1e6 / one["seconds"] for one in windows]
        tails = [one["p99_us"] / 1e3 for one in windows]
        # The first third against the last: one bad second of the machine must not decide.
        third = max(1, len(windows) // 3)
        sample = {
            "throughput_last_to_first": _middle(rates[-third:]) / _middle(rates[:third]),
            "p99_last_to_first": _middle(tails[-third:]) / max(_middle(tails[:third]), 1e-6),
            "throughput_worst_to_first": min(rates) / _middle(rates[:third]),
            "p99_worst_to_first": max(tails) / max(_middle(tails[:third]), 1e-6),
            "mb_per_s": whole["requests"] * load.value_bytes / 1e6 / whole["seconds"],
            "p99_ms": whole["p99_us"] / 1e3,
            "cpu_us_per_request": cpu_s / whole["requests"] * 1e6,
        }
        for number, (rate, tail) in enumerate(zip(rates, tails, strict=True), 1):
            sample[f"mb_per_s_in_window_{number}"] = rate
            sample[f"p99_ms_in_window_{number}"] = tail
        return sample


def _middle(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


CASES: list[Case] = [Crowd(), Sustained()]
