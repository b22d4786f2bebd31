"""Apache Kafka for benchmarks and tests: its jars through Maven, a KRaft node in a folder of its own, and clusters of those."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.pipeline.etl import maven
from penstock.ports import hold_ports

KAFKA_VERSION = "4.4.0"
# The log binding of the distribution of 4.x, which no pom names; 3.x brings its own.
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5"
START_LIMIT_S = 120.0

LOG4J = """\
Configuration:
  Appenders:
    Console: { name: STDOUT, PatternLayout: { pattern: "[%d] %p %m (%c)%n" } }
  Loggers:
    Root: { level: WARN, AppenderRef: [ { ref: STDOUT } ] }
"""

# What one node needs to be one, and what Kafka's own config/server.properties sets; all else is Kafka's default.
PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "1",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# Over the former: what Kafka's defaults are, which one node can't have.
CLUSTER_PROPERTIES = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
# The options of Kafka's own start script.
JVM = [
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"),
    "-Djava.awt.headless=true",
]


def kafka_classpath(version: str = KAFKA_VERSION) -> str:
    """The class path of Kafka's server, tools and clients of a version, fetched on first use."""
    wanted = [
        maven.Jar(f"org.apache.kafka:{name}:{version}", transitive=True)
        for name in ("kafka_2.13", "kafka-tools", "kafka-clients")
    ]
    if not version.startswith("3."):
        wanted.append(maven.Jar(LOG_BINDING))
    return ":".join(str(path) for path in maven.fetch(wanted))


@dataclass(frozen=True)
class Seat:
    """A node's place in its cluster: its id and ports, the controllers that vote, and the cluster's id."""

    node_id: int
    client_port: int
    controller_port: int
    voters: str
    cluster_id: str


def seats(count: int) -> list[Seat]:
    """Places for the nodes 1 to `count` of a new cluster. Each is a controller that votes."""
    # A leading letter: an id that begins with a dash would be taken for an option.
    cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    ports = hold_ports(2 * count)
    numbered = list(zip(range(1, count + 1), ports[:count], ports[count:], strict=True))
    voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, _, controller in numbered)
    return [Seat(number, client, controller, voters, cluster_id) for number, client, controller in numbered]


class ApacheKafka:
    """One node of Apache Kafka, broker and controller, by default as its own files configure it.

    The folder, the ports and the data stay over `stop()` or `kill()` and `start()`.
    """

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        *,
        version: str = KAFKA_VERSION,
        jvm: Sequence[str] = JVM,
        seat: Seat | None = None,
    ) -> None:
        """Format a node in folder; `properties` go over the defaults. Without a seat it is a cluster of its own. Raises
        RuntimeError with what Kafka said."""
        seat = seat or seats(1)[0]
        self.folder = folder
        self.classpath = kafka_classpath(version)
        self.process: subprocess.Popen[bytes] | None = None
        self.jvm = list(jvm)
        folder.mkdir(parents=True, exist_ok=True)
        self.bootstrap = f"127.0.0.1:{seat.client_port}"
        self._port = seat.client_port
        own = {
            "node.id": str(seat.node_id),
            "controller.quorum.voters": seat.voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{seat.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.data),
        }
        lines = [f"{name}={value}\n" for name, value in {**PROPERTIES, **own, **(properties or {})}.items()]
        (folder / "server.properties").write_text("".join(lines), encoding="utf-8")
        (folder / "log4j2.yaml").write_text(LOG4J, encoding="utf-8")
        self._format(seat.cluster_id)

    @property
    def data(self) -> Path:
        """The folder of the logs."""
        return self.folder / "data"

    def java(self, *arguments: str) -> list[str]:
        """The command line of one of Kafka's programs, with the node's options."""
        options = [*self.jvm, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"]
        return ["java", *options, "-cp", self.classpath, *arguments]

    def _format(self, cluster_id: str) -> None:
        arguments = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
        arguments += ["--config", str(self.folder / "server.properties")]
        done = subprocess.run(self.java(*arguments), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's format failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start the node and wait until its client port is open. Raises RuntimeError with the log's end."""
        self.launch()
        self.await_started()

    def await_started(self) -> None:
        """Wait until the client port of a launched node is open. Raises RuntimeError with the log's end."""
        assert self.process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Kafka did not start: {self.log_text()[-3000:]}")
            time.sleep(0.1)

    def launch(self) -> None:
        """Start the node and don't wait."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.java("kafka.Kafka", str(self.folder / "server.properties")),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def log_text(self) -> str:
        """What it logged so far, over all its starts."""
        return (self.folder / "server.log").read_text(errors="replace")

    def _answers(self) -> bool:
        """The port opens only when the broker is registered and unfenced, so no more than that is asked."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        """The process id of the running node."""
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """Stop cleanly (SIGTERM) and wait; kill when it takes longer than a minute."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def kill(self) -> None:
        """End the node by SIGKILL and wait."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


class ApacheCluster:
    """Nodes 1 to n of Apache Kafka, each of them broker and controller. Folders, ports and data stay over stops and kills."""

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        *,
        nodes: int = 3,
        version: str = KAFKA_VERSION,
        jvm: Sequence[str] = JVM,
    ) -> None:
        """Format the nodes in folders below `folder`; see ApacheKafka."""
        given = {**CLUSTER_PROPERTIES, **(properties or {})}
        self.nodes = [
            ApacheKafka(folder / str(seat.node_id), given, version=version, jvm=jvm, seat=seat) for seat in seats(nodes)
        ]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        """Start all nodes, since one alone elects nobody, and wait for each. Raises RuntimeError with the log's end of one."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_started()

    def stop(self) -> None:
        """Stop all nodes cleanly."""
        for node in self.nodes:
            node.stop()

    def kill(self, index: int) -> None:
        """End `nodes[index]` by SIGKILL and wait."""
        self.nodes[index].kill()
