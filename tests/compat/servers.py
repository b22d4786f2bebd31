"""The servers that a suite meets: brokers of ours or nodes of Apache Kafka, one or several, for as long as the suite runs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from suite import FetchError

from penstock.broker.process import BrokerProcess
from support.kafka_jars import ApacheCluster, ApacheKafka, jvm

# What the suites take for granted of a broker.
PROPERTIES: dict[str, object] = {
    "num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": True,
}
# In a cluster, topics that a suite or a client doesn't place itself have all the copies they can have. Kafka's defaults for
# internal topics stay: three copies, and two in sync for transactions.
CLUSTER_PROPERTIES: dict[str, object] = {"default.replication.factor": 3, "min.insync.replicas": 2}
# The defaults of our brokers, which the cluster of the tests shortens.
PATIENCE: dict[str, object] = {"zookeeper.session.timeout.ms": 6000, "replica.lag.time.max.ms": 30_000}
# Three nodes share the machine with a suite: its JVMs must not starve each other into elections.
APACHE_PATIENCE: dict[str, object] = {"broker.session.timeout.ms": 30_000}
HEAP = "-Xmx768M"
# kafka-go's tests have an address of their own.
LISTEN = {"kafka_go": "localhost:9092"}


class Servers(NamedTuple):
    """Where a suite finds the servers."""

    bootstrap: str  # one address or several, with commas
    log_dir: Path | None  # of the first one's logs; None: elsewhere


@contextlib.contextmanager
def serving(suite: str, brokers: int, is_apache: bool, work: Path) -> Iterator[Servers]:
    """Servers of a suite's own, in a folder that goes with them; what they logged stays in `work`.

    Raises FetchError if a suite can't be had so, AssertionError or RuntimeError with the log's end if a server doesn't start.
    """
    address = LISTEN.get(suite)
    with tempfile.TemporaryDirectory(prefix="penstock-compat-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.callback(_keep_logs, folder, work / "servers")
        start = _apache if is_apache else _broker if brokers == 1 else _cluster
        servers = start(stack, folder, brokers, address)
        yield servers if address is None else servers._replace(bootstrap=address)


def _keep_logs(folder: Path, to: Path) -> None:
    to.mkdir()
    for log in sorted([*folder.glob("*.log"), *folder.glob("*/server.log")]):
        shutil.copyfile(log, to / "-".join(log.relative_to(folder).parts))


def _broker(stack: contextlib.ExitStack, folder: Path, _: int, address: str | None) -> Servers:
    broker = BrokerProcess(folder / "broker", {"broker.id": 1, **PROPERTIES})
    if address is not None:
        _listen_at(broker, address)
    stack.callback(broker.close)
    broker.start()
    return Servers(broker.bootstrap, broker.data)


def _cluster(stack: contextlib.ExitStack, folder: Path, brokers: int, address: str | None) -> Servers:
    # Here, since a run with one broker need not have Java and kazoo.
    from support.cluster_world import ClusterProcesses
    from support.zookeeper import ZooKeeper

    zookeeper = ZooKeeper(folder / "zookeeper")
    stack.callback(zookeeper.kill)
    properties = {**PROPERTIES, **CLUSTER_PROPERTIES, **PATIENCE}
    cluster = ClusterProcesses(zookeeper.start(), folder=folder, count=brokers, properties=properties)
    if address is not None:
        _listen_at(cluster.brokers[1], address)
    stack.callback(cluster.close)
    cluster.start()
    return Servers(cluster.bootstrap, cluster.brokers[1].data)


def _apache(stack: contextlib.ExitStack, folder: Path, brokers: int, address: str | None) -> Servers:
    if address is not None:
        raise FetchError(f"the suite knows only {address}: start Apache Kafka there, and give --bootstrap {address}")
    wanted = {**PROPERTIES, **(CLUSTER_PROPERTIES if brokers > 1 else {}), **APACHE_PATIENCE}
    properties = {name: str(value).lower() for name, value in wanted.items()}
    if brokers == 1:
        node = ApacheKafka(folder / "1", **{name.replace(".", "_"): value for name, value in properties.items()})
        stack.callback(node.stop)
        return Servers(node.bootstrap, node.data)
    cluster = ApacheCluster(folder, properties, nodes=brokers, jvm=[*jvm(), HEAP])
    stack.callback(cluster.stop)
    cluster.start()
    return Servers(cluster.bootstrap, cluster.nodes[0].data)


def _listen_at(broker: BrokerProcess, address: str) -> None:
    broker.properties["advertised.listeners"] = f"PLAINTEXT://{address}"
    broker.port = int(address.rpartition(":")[2])
