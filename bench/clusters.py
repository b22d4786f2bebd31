"""Three brokers of a side as one cluster: ours around a ZooKeeper, and Apache Kafka's with controllers of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.bench import process
from penstock.bench.apache_kafka import ApacheCluster
from penstock.bench.sides import Broker, Kafka, Penstock
from penstock.bench.zookeeper import ZooKeeper
from penstock.errors import KafkaError, raise_for
from penstock.pyx.wire import messages, requests
from penstock.pyx.wire.connection import WireConnection

BROKERS = 3
GROUP, TRANSACTION = 0, 1  # what FindCoordinator calls them
COORDINATOR_VERSION = 2
LOG_DIRS_VERSION = 1
LIMIT_S = 180.0
LOOK_S = 0.02  # between two looks at what a cluster says of itself


class Cluster(ABC):
    """Brokers 1 to 3, each with a folder that outlives it."""

    def __init__(self, folder: Path, nodes: Sequence[Broker]) -> None:
        self.folder = folder
        self.nodes: Mapping[int, Broker] = dict(enumerate(nodes, 1))
        self._paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    @abstractmethod
    def controller(self) -> int:
        """Which broker is the controller; -1 = nobody is. Raises OSError, EOFError, KafkaError."""

    @abstractmethod
    def start(self) -> None:
        """Start all of them and wait until each one serves and knows the others."""

    def stop(self) -> None:
        """End all of them, whose data nobody wants any more; harmless where one is gone."""
        for number, node in self.nodes.items():
            self.resume(number)
            node.stop()

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        os.kill(self.nodes[number].pid, signal.SIGSTOP)
        self._paused.add(number)

    def resume(self, number: int) -> None:
        """SIGCONT; harmless for a broker that wasn't paused."""
        if number in self._paused:
            self._paused.remove(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.nodes[number].pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds of all brokers together, which all run, since their start."""
        return sum(node.cpu_s() for node in self.nodes.values())

    def store_cpu_s(self) -> float:
        """CPU seconds of the processes that keep its metadata, where these aren't the brokers."""
        return 0.0

    def others(self, number: int) -> list[int]:
        """All brokers but this one."""
        return [other for other in self.nodes if other != number]

    def led_by(self, number: int) -> list[int]:
        """All brokers, as the replicas of a partition that this one leads first."""
        return [number, *self.others(number)]

    def metadata(self, *topics: str, of: int | None = None, every: bool = False) -> Any:
        """What a broker says of these topics, of `every` topic, or of no topic. Raises OSError, EOFError."""
        wanted = requests.metadata_request(*topics)
        if not topics and not every:
            wanted.topics = []
        with WireConnection(self.nodes[of or 1].bootstrap) as connection:
            return connection.ask(wanted, requests.METADATA_VERSION)

    def coordinator(self, key_type: int, key: str) -> int:
        """Which broker coordinates a group or a transactional id, once there is one: the first question makes the coordinators'
        topic. Raises TimeoutError."""

        def ask() -> int:
            with WireConnection(self.nodes[1].bootstrap) as connection:
                answer = connection.ask(messages.FindCoordinatorRequest(key=key, key_type=key_type), COORDINATOR_VERSION)
            raise_for(answer.error_code, f"the coordinator of {key}")
            return int(answer.node_id)

        return requests.patiently(ask)

    def log_bytes(self, number: int, topic: str) -> int:
        """Bytes that a broker holds of a topic, in all partitions. Raises OSError, EOFError."""
        with WireConnection(self.nodes[number].bootstrap) as connection:
            answer = connection.ask(messages.DescribeLogDirsRequest(topics=None), LOG_DIRS_VERSION)
        topics = [one for result in answer.results for one in result.topics if one.name == topic]
        return sum(partition.partition_size for one in topics for partition in one.partitions)

    def until_whole(self, live: Collection[int] = ()) -> None:
        """Wait until these brokers, otherwise all, know each other, and every partition has them in its ISR. Raises
        TimeoutError."""
        live = set(live or self.nodes)

        def is_whole() -> bool:
            for number in live:
                answer = self.metadata(of=number, every=True)
                if {broker.node_id for broker in answer.brokers} != live:
                    return False
                partitions = [one for topic in answer.topics for one in topic.partitions]
                if any(one.leader_id not in live or not live & {*one.replica_nodes} <= {*one.isr_nodes} for one in partitions):
                    return False
            return True

        until(is_whole, "the cluster didn't get whole")

    def until_in_isr(self, number: int, topic: str) -> None:
        """Wait until a broker is in the ISR of each partition of a topic, as another broker says. Raises TimeoutError."""
        asked = self.others(number)[0]

        def is_in() -> bool:
            (found,) = self.metadata(topic, of=asked).topics
            return bool(found.partitions) and all(number in one.isr_nodes for one in found.partitions)

        until(is_in, f"broker {number} didn't get into the ISR of `{topic}`")


class PenstockCluster(Cluster):
    """`penstock broker --zookeeper`, three times, and one ZooKeeper server; out of this checkout or of another."""

    def __init__(self, folder: Path, properties: Mapping[str, str], checkout: Path | None = None) -> None:
        self._zookeeper = ZooKeeper(folder / "zookeeper")
        nodes = []
        for number in range(1, BROKERS + 1):
            arguments = ("--zookeeper", f"{self._zookeeper.address}/bench", "--id", str(number))
            nodes.append(Penstock(folder / str(number), properties, checkout, arguments))
        super().__init__(folder, nodes)

    def start(self) -> None:
        self._zookeeper.start()
        for node in self.nodes.values():
            node.start()
        self.until_whole()

    def stop(self) -> None:
        super().stop()
        self._zookeeper.kill()

    @property
    def controller(self) -> int:
        return int(self.metadata().controller_id)

    def store_cpu_s(self) -> float:
        return process.cpu_s(self._zookeeper.pid)


class KafkaCluster(Cluster):
    """Apache Kafka's: each node is broker and controller."""

    def __init__(self, folder: Path, properties: Mapping[str, str]) -> None:
        self._cluster = ApacheCluster(folder, properties, nodes=BROKERS)
        super().__init__(folder, [Kafka(node) for node in self._cluster.nodes])

    def start(self) -> None:
        self._cluster.start()
        self.until_whole()

    def stop(self) -> None:
        """Kill them: the last ones, which are no quorum any more, would take a minute to stop."""
        for node in self.nodes.values():
            node.kill()

    @property
    def controller(self) -> int:
        with WireConnection(self.nodes[1].bootstrap) as connection:
            answer = connection.ask(requests.quorum_request(), requests.QUORUM_VERSION)
        raise_for(answer.error_code, "the quorum")
        return int(answer.topics[0].partitions[0].leader_id)


def until(is_so: Callable[[], bool], otherwise: str, limit_s: float = LIMIT_S) -> None:
    """Wait until it is so; an error of the cluster is a no. Raises TimeoutError with what `otherwise` is the matter."""
    deadline = time.monotonic() + limit_s
    last = ""
    while True:
        try:
            if is_so():
                return
        except (OSError, EOFError, KafkaError) as error:
            last = f": {error}"
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise + last)
        time.sleep(LOOK_S)
