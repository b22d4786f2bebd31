"""Three brokers on this machine: what a replicated record costs, how an empty follower catches up, and how long nothing is
acknowledged when a broker is killed, hangs or is stopped."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.bench import frames
from penstock.bench.case import Case, Sample
from penstock.bench.cases import produce
from penstock.bench.clusters import BROKERS, GROUP, TRANSACTION, Cluster, until
from penstock.bench.stockclients import StockClient, StockCommitter, StockProducer, StockTransactions
from penstock.bench.world import GB, RECYCLED_TOPIC, SETTLE_S, Skipped, World, confluent
from penstock.pyx.wire import requests
from penstock.pyx.wire.connection import WireConnection

REPLICATED = {"min.insync.replicas": "2"}
ALL = -1  # acks
AHEAD_BYTES = 128 << 20  # to each leader before what is measured: its pages are then those of old segments


@contextmanager
def replicated_topic(
    world: World,
    cluster: Cluster,
    hint: str,
    replicas: Sequence[int] = (),
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A topic of three copies, deleted at the end. These brokers hold each partition, the first one as its leader; otherwise
    the cluster spreads the leaders."""
    name = world.new_name(hint)
    given = {**REPLICATED, **(configs or {})}
    requests.create_topic(cluster.nodes[1].bootstrap, name, partitions, given, factor=BROKERS, replicas=replicas)
    try:
        cluster.until_whole()
        yield name
    finally:
        requests.patiently(lambda: requests.delete_topic(cluster.nodes[1].bootstrap, name))  # That may be on its way back.


@dataclass
class Replicated(Case):
    """acks=all of three copies: batches of one size, several requests in flight to each of so many leaders. GB are those of
    record values, before compression."""

    name: str
    title: str
    batch_bytes: int
    gb: float
    record_bytes: int = 1024
    codec: str = "none"
    leaders: int = BROKERS
    connections: int = 1
    in_flight: int = 4
    _loads: dict[str, list[frames.Frames]] = field(default_factory=dict)
    _topics: dict[str, list[str]] = field(default_factory=dict)

    def prepare(self, world: World, side: str) -> None:
        cluster = world.cluster(side)
        self._loads[side], self._topics[side] = [], []
        for leader in list(cluster.nodes)[: self.leaders]:
            name = world.new_name(self.name)
            configs = {**RECYCLED_TOPIC, **REPLICATED}
            requests.create_topic(cluster.nodes[leader].bootstrap, name, 1, configs, replicas=cluster.led_by(leader))
            self._topics[side].append(name)
            load = frames.produce(
                world.path(self.name),
                name,
                1,
                batch_bytes=self.batch_bytes,
                record_bytes=self.record_bytes,
                codec=self.codec,
                acks=ALL,
            )
            self._loads[side].append(load)
        cluster.until_whole()

    def run(self, world: World, side: str) -> Sample:
        cluster, loads = world.cluster(side), self._loads[side]
        count = world.scaled(self.gb * GB / loads[0].value_bytes / self.leaders, least=4)
        self._send(world, cluster, loads, max(4, min(count, world.scaled(AHEAD_BYTES / loads[0].batch_bytes))))
        time.sleep(SETTLE_S)
        store_cpu_s = cluster.store_cpu_s()
        done, cpu_s = world.measured(cluster, lambda: self._send(world, cluster, loads, count))
        store_cpu_s = cluster.store_cpu_s() - store_cpu_s
        return {**produce.sample(done, cpu_s, done["requests"], loads[0].value_bytes), "zookeeper_cpu_s": store_cpu_s}

    def _send(self, world: World, cluster: Cluster, loads: list[frames.Frames], count: int) -> dict[str, float]:
        at = zip(list(cluster.nodes.values())[: self.leaders], loads, strict=True)
        return world.requests_side_by_side(at, connections=self.connections, in_flight=self.in_flight, requests=count)

    def finish(self, world: World, side: str) -> None:
        for load in self._loads.pop(side, []):
            load.path.unlink()
        for name in self._topics.pop(side, []):
            requests.delete_topic(world.cluster(side).nodes[1].bootstrap, name)


@dataclass
class PacedReplicated(Case):
    """One record of 1 KiB a request by the clock, to one leader, acknowledged by all of three copies."""

    name: str = "replicated-ack-latency"
    title: str = "acknowledgement of all, 3 copies, 500 a second, 1 KiB each"
    rate: int = 500
    seconds: float = 20.0
    record_bytes: int = 1024

    def run(self, world: World, side: str) -> Sample:
        cluster = world.cluster(side)
        with replicated_topic(world, cluster, self.name, cluster.led_by(1)) as name:
            size = self.record_bytes
            load = frames.produce(world.path(self.name), name, 1, batch_bytes=size, record_bytes=size, acks=ALL)
            count = int(self.rate * world.seconds(self.seconds))
            leader = cluster.nodes[1]
            done, cpu_s = world.measured(cluster, lambda: world.requests(leader, load, rate=self.rate, requests=count)[-1])
            load.path.unlink()
        latencies = {f"{name}_ms": float(done[f"{name}_us"]) / 1e3 for name in ("p50", "p99", "p999")}
        return {**latencies, "cpu_us_per_request": cpu_s / float(done["requests"]) * 1e6}


@dataclass
class CatchUp(Case):
    """A follower that was stopped before a topic had a record starts when it has 1 GB: from the first byte that it has to the
    last one, by DescribeLogDirs."""

    name: str = "catch-up"
    title: str = "an empty follower catches up with 1 GB (scaled) in 6 partitions"
    gb: float = 1.0
    partitions: int = 6
    warm: bool = False
    rounds_max: int = 3

    def run(self, world: World, side: str) -> Sample:
        cluster = world.cluster(side)
        follower = BROKERS
        with replicated_topic(world, cluster, self.name, cluster.led_by(1), self.partitions) as name:
            cluster.nodes[follower].stop()
            try:
                cluster.until_whole(cluster.others(follower))
                self._fill(world, cluster, name)
            finally:
                started = time.monotonic()
                cluster.nodes[follower].launch()
            whole = cluster.log_bytes(1, name)
            until(lambda: cluster.log_bytes(follower, name) > 0, "the follower began to fetch nothing")
            first, began, cpu_s = cluster.log_bytes(follower, name), time.monotonic(), cluster.cpu_s()
            if first > whole / 2:
                raise Skipped("the follower had most of it before anybody could ask how much: a larger `--scale` shows more")
            until(lambda: cluster.log_bytes(follower, name) >= whole, "the follower didn't catch up")
            took_s, cpu_s = time.monotonic() - began, cluster.cpu_s() - cpu_s
            cluster.until_in_isr(follower, name)
            in_isr_s = time.monotonic() - started
        copied = whole - first
        return {
            "mb_per_s": copied / 1e6 / took_s,
            "cpu_s_per_gb": cpu_s / (copied / GB),
            "mb_at_first_look": first / 1e6,
            "exec_to_isr_s": in_isr_s,
        }

    def _fill(self, world: World, cluster: Cluster, name: str) -> None:
        path = world.path(self.name)
        load = frames.produce(path, name, self.partitions, batch_bytes=131_072, record_bytes=1024, acks=ALL)
        count = world.scaled(self.gb * GB / load.value_bytes, least=2 * self.partitions)
        world.requests(cluster.nodes[1], load, in_flight=4, requests=count)
        path.unlink()


@dataclass
class Failover(Case):
    """A broker is hit while a client of librdkafka goes on, `times` times (scaled), each with a topic of its own: from that to
    the next acknowledgement of an operation that began later. Then the broker comes back."""

    name: str
    title: str
    times: int = 5
    warm: bool = False
    rounds_max: int = 1
    leads = True  # whether the broker that is hit leads the partition

    def run(self, world: World, side: str) -> Sample:
        cluster = world.cluster(side)
        found: list[dict[str, float]] = []
        failures = 0
        for number in range(world.scaled(self.times)):
            victim = self.victim(cluster, number)
            # The partition that is written to isn't the victim's own if it's the coordinator that is measured.
            replicas = cluster.led_by(victim if self.leads else cluster.others(victim)[0])
            with replicated_topic(world, cluster, self.name, replicas) as name, self.client(cluster, name, number) as client:
                at = time.monotonic()
                try:
                    self.hit(cluster, victim)
                    acknowledged = client.until_acknowledged(at)
                finally:
                    started = time.monotonic()
                    self.mend(cluster, victim)
                cluster.until_in_isr(victim, name)
                found.append({"to_ack": acknowledged - at, "back_in_isr": time.monotonic() - started})
            failures += len(client.failures)
            cluster.until_whole()
        sample: Sample = {}
        for metric in ("to_ack", "back_in_isr"):
            values = [one[metric] for one in found]
            sample |= {f"{metric}_median_s": statistics.median(values), f"{metric}_max_s": max(values)}
        return {**sample, "failed_operations": float(failures)}

    @abstractmethod
    def victim(self, cluster: Cluster, number: int) -> int:
        """The broker that is hit this time."""

    def client(self, cluster: Cluster, name: str, number: int) -> StockClient:
        """The client, not started."""
        return StockProducer(confluent(), cluster.bootstrap, name)

    def hit(self, cluster: Cluster, victim: int) -> None:
        """Do to the broker what is measured."""
        cluster.nodes[victim].kill()

    def mend(self, cluster: Cluster, victim: int) -> None:
        """Let it come back, and don't wait."""
        cluster.nodes[victim].launch()


@dataclass
class LeaderKilled(Failover):
    """kill -9 of the partition's leader, which is the controller or isn't."""

    is_controller: bool = False

    def victim(self, cluster: Cluster, number: int) -> int:
        controller = cluster.controller
        return controller if self.is_controller else cluster.others(controller)[number % 2]


@dataclass
class LeaderHangs(LeaderKilled):
    """SIGSTOP of the partition's leader. The client gives a request 2 s; its default, 60 s, would be all that is measured."""

    def client(self, cluster: Cluster, name: str, number: int) -> StockClient:
        return StockProducer(confluent(), cluster.bootstrap, name, socket_timeout_ms=2000)

    def hit(self, cluster: Cluster, victim: int) -> None:
        cluster.pause(victim)

    def mend(self, cluster: Cluster, victim: int) -> None:
        cluster.resume(victim)


@dataclass
class CoordinatorKilled(Failover):
    """kill -9 of the coordinator of a group or of a transactional id, which leads no partition that the client writes to."""

    key_type: int = GROUP
    leads = False

    def victim(self, cluster: Cluster, number: int) -> int:
        return cluster.coordinator(self.key_type, self._key(number))

    def client(self, cluster: Cluster, name: str, number: int) -> StockClient:
        kind = StockCommitter if self.key_type == GROUP else StockTransactions
        return kind(confluent(), cluster.bootstrap, name, self._key(number))

    def _key(self, number: int) -> str:
        return f"{self.name}-{number}"


@dataclass
class RollingRestart(Case):
    """Each broker is stopped and started in turn, while a producer of librdkafka writes to a partition that it leads."""

    name: str = "rolling-restart"
    title: str = (
        "controlled stop and start of each broker in turn, beside a stock librdkafka producer of a partition that it leads"
    )
    warm: bool = False
    rounds_max: int = 3

    def run(self, world: World, side: str) -> Sample:
        cluster = world.cluster(side)
        gaps, stops, backs = list[float](), list[float](), list[float]()
        failures = 0
        for number, node in cluster.nodes.items():
            with (
                replicated_topic(world, cluster, self.name, cluster.led_by(number)) as name,
                StockProducer(confluent(), cluster.bootstrap, name) as client,
            ):
                at = time.monotonic()
                node.stop()
                stopped = time.monotonic()
                node.launch()
                cluster.until_in_isr(number, name)
                back = time.monotonic()
                client.until_acknowledged(back)
                gaps.append(client.longest_gap_s(at, back))
                stops.append(stopped - at)
                backs.append(back - stopped)
            failures += len(client.failures)
            cluster.until_whole()
        return {
            "gap_max_s": max(gaps),
            "gap_median_s": statistics.median(gaps),
            "failed_operations": float(failures),
            "stop_median_s": statistics.median(stops),
            "back_in_isr_median_s": statistics.median(backs),
        }


@dataclass
class LeadersLost(Case):
    """The broker that leads 1,000 partitions is killed: until each has a leader that knows it, from the kill, and from when the
    survivors know of it: the broker is gone from their metadata, or a partition has another leader."""

    name: str
    title: str
    is_controller: bool = False
    partitions: int = 1_000
    warm: bool = False
    rounds_max: int = 3

    def run(self, world: World, side: str) -> Sample:
        cluster = world.cluster(side)
        count = world.scaled(self.partitions, least=4)
        controller = cluster.controller
        victim = controller if self.is_controller else cluster.others(controller)[0]
        asked = cluster.others(victim)
        with replicated_topic(world, cluster, self.name, cluster.led_by(victim), count) as name:
            cpu_s = sum(cluster.nodes[number].cpu_s() for number in asked)
            at = time.monotonic()
            cluster.nodes[victim].kill()
            try:
                until(lambda: any(self._noticed(cluster, number, victim, name) for number in asked), "the kill wasn't noticed")
                noticed = time.monotonic()
                until(lambda: all(self._led(cluster, number, victim, name, count) for number in asked), "leaders are missing")
                led = time.monotonic()
                cpu_s = sum(cluster.nodes[number].cpu_s() for number in asked) - cpu_s
            finally:
                cluster.nodes[victim].launch()
            cluster.until_whole()
            whole = time.monotonic()
        return {
            "from_detection_s": led - noticed,
            "from_kill_s": led - at,
            "survivors_cpu_s": cpu_s,
            "exec_to_whole_s": whole - led,
        }

    def _noticed(self, cluster: Cluster, asked: int, victim: int, name: str) -> bool:
        answer = cluster.metadata(name, of=asked)
        brokers = {broker.node_id for broker in answer.brokers}
        return victim not in brokers or any(one.leader_id != victim for one in answer.topics[0].partitions)

    def _led(self, cluster: Cluster, asked: int, victim: int, name: str, count: int) -> bool:
        with WireConnection(cluster.nodes[asked].bootstrap) as connection:
            return requests.is_led(connection, name, count, without=victim)


CASES: list[Case] = [
    Replicated("replicated-128k", "produce, 3 copies, acks=all, 128 KB batches", 131_072, 1.0),
    Replicated("replicated-128k-lz4", "the same, batches of events, lz4", 131_072, 1.0, frames.EVENTS, "lz4"),
    Replicated("replicated-16k", "produce, 3 copies, acks=all, 16 KB batches", 16_384, 0.5),
    Replicated(
        "replicated-request-5",
        "one record of 100 B a request, 3 copies, acks=all, 1 connection, 5 in flight",
        batch_bytes=100,
        gb=0.002,
        record_bytes=100,
        leaders=1,
        in_flight=5,
    ),
    PacedReplicated(),
    CatchUp(),
    LeaderKilled(
        "leader-killed", "kill -9 of a partition's leader, to the next acknowledgement of a stock librdkafka producer"
    ),
    LeaderKilled("controller-killed", "the same where the leader is the controller", is_controller=True),
    CoordinatorKilled(
        "group-coordinator-killed", "kill -9 of a group's coordinator, to the next commit of a stock librdkafka consumer"
    ),
    CoordinatorKilled(
        "transaction-coordinator-killed",
        "kill -9 of a transactional id's coordinator, to the next transaction of a stock librdkafka producer",
        key_type=TRANSACTION,
    ),
    LeaderHangs(
        "leader-hangs", "SIGSTOP of a partition's leader, to the next acknowledgement; librdkafka with socket.timeout.ms=2000"
    ),
    RollingRestart(),
    LeadersLost("leaders-lost", "kill -9 of a broker that leads 1,000 partitions (scaled) of 3 copies"),
    LeadersLost("controller-lost", "the same where that broker is the controller", is_controller=True),
]
