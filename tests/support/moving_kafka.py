"""Three nodes of Apache Kafka, of which a test kills one at a time. The nodes that run say what each of them is."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from penstock.pyx.wire import requests
from penstock.pyx.wire.connection import WireConnection
from support import kafka_jars
from support.patience import until

ASK_S = 5.0
PROPERTIES: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


class MovingKafka:
    """Nodes 1 to 3. What is asked and gets no answer, since a node was killed just now, is -1 or empty."""

    def __init__(self, folder: Path) -> None:
        """Format the nodes in a folder. Raises RuntimeError with what Kafka said."""
        self._cluster = kafka_jars.ApacheCluster(folder, {**kafka_jars.PROPERTIES, **PROPERTIES}, jvm=kafka_jars.jvm())
        self._nodes = dict(enumerate(self._cluster.nodes, 1))

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return self._cluster.bootstrap

    def __enter__(self) -> MovingKafka:
        try:
            self._cluster.start()
            until(lambda: self._live() == set(self._nodes), "each node to know all", self.log_text)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all nodes: the last ones to stop in order would wait for a quorum that is no more."""
        for node in self._nodes.values():
            node.kill()

    @property
    def controller(self) -> int:
        """The node that leads the quorum; -1: the others know none."""
        best = -1, -1
        for answer in self._ask_all(requests.quorum_request(), requests.QUORUM_VERSION):
            if not answer.error_code:
                (part,) = answer.topics[0].partitions
                best = max(best, (part.leader_epoch, part.leader_id))
        return best[1]

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition; -1: none does."""
        found = self._partition(topic, partition)
        return -1 if found is None else int(found.leader_id)

    def isr(self, topic: str, partition: int) -> Set[int]:
        """The nodes that are in sync."""
        found = self._partition(topic, partition)
        return set() if found is None else set(found.isr_nodes)

    def kill(self, number: int, *, expire: bool = False) -> None:
        """Kill a node by SIGKILL. With or without `expire` the controller fences it only after its session's timeout."""
        self._nodes[number].kill()

    def start(self, number: int) -> None:
        """Start a node again; returns when its controller takes it for live."""
        self._nodes[number].start()

    def log_text(self) -> str:
        """The end of what each node logged."""
        return "\n".join(f"node {number}:\n{node.log_text()[-3000:]}" for number, node in self._nodes.items())

    def _live(self) -> set[int]:
        """The nodes that all nodes know."""
        answers = self._ask_all(requests.metadata_request(), requests.METADATA_VERSION)
        known = [{broker.node_id for broker in answer.brokers} for answer in answers]
        return set.intersection(*known) if len(known) == len(self._nodes) else set()

    def _partition(self, topic: str, partition: int) -> Any:
        """A partition as the node shows it that has heard of its newest leader."""
        request = requests.metadata_request(topic)
        parts = [
            part
            for answer in self._ask_all(request, requests.METADATA_VERSION)
            for shown in answer.topics
            if not shown.error_code
            for part in shown.partitions
            if part.partition_index == partition
        ]
        return max(parts, key=lambda part: part.leader_epoch, default=None)

    def _ask_all(self, request: Any, version: int) -> list[Any]:
        """The answers of the nodes that run."""
        answers = []
        for node in self._nodes.values():
            if node.process is None:
                continue
            try:
                with WireConnection(node.bootstrap, ASK_S) as connection:
                    answers.append(connection.ask(request, version))
            except (OSError, EOFError):
                continue
        return answers
