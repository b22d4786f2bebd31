"""A cluster of broker processes around a real ZooKeeper, for tests: started, killed, paused, looked at through public doors."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from penstock.ports import hold_ports
from support.cuttingproxy import Net
from support.harness import BrokerProcess
from support.lossy_disk import forget_start
from support.patience import until
from support.zookeeper import ZooKeeper, connected, new_root

PROPERTIES = {"zookeeper.session.timeout.ms": 2000, "replica.lag.time.max.ms": 2000, "penstock.ballast.bytes": 0}
WAIT_S = 60.0


class ClusterProcesses:
    """Brokers 1 to n; `brokers[id]`. They are around one ZooKeeper, or around an ensemble.

    net: the brokers reach each other, and the ZooKeepers, through its proxies: `1` is broker 1, `z1` the first ZooKeeper. So do
    clients that a broker was named to; they are never cut off.
    """

    def __init__(
        self,
        *servers: ZooKeeper,
        folder: Path,
        count: int = 3,
        properties: Mapping[str, object] | None = None,
        net: Net | None = None,
    ) -> None:
        root = new_root()
        self.servers = ",".join(server.address for server in servers) + root
        """The ZooKeepers and the chroot, past all proxies."""
        self.brokers: dict[int, BrokerProcess] = {}
        for number, port in enumerate(hold_ports(count), 1):
            reached, advertised = self.servers, list[str]()
            if net is not None:
                name = str(number)
                ways = [net.proxy(server.port, f"z{at}", name) for at, server in enumerate(servers, 1)]
                reached = ",".join(f"127.0.0.1:{way.port}" for way in ways) + root
                advertised = ["--advertised", f"127.0.0.1:{net.proxy(port, name).port}"]
            arguments = ("--zookeeper", reached, "--id", str(number), *advertised)
            broker = BrokerProcess(folder / f"broker-{number}", {**PROPERTIES, **(properties or {})}, arguments)
            broker.port = port
            self.brokers[number] = broker

    def start(self) -> ClusterProcesses:
        """Start all of them, and wait until each one knows all."""
        for broker in self.brokers.values():
            broker.start()
        self.until_known(set(self.brokers))
        return self

    def until_known(self, live: set[int]) -> None:
        """Wait until each of these brokers knows that these live, and no others."""
        for number in live:
            until(partial(self._knows, number, live), f"broker {number} to know {live}", self.log_text)

    def _knows(self, number: int, live: set[int]) -> bool:
        with contextlib.suppress(Exception):
            return set(self.admin({number}).list_topics(timeout=5).brokers) == live
        return False

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self, numbers: Collection[int] | None = None) -> AdminClient:
        """An admin client that knows all of them, or these."""
        known = [broker.bootstrap for number, broker in self.brokers.items() if numbers is None or number in numbers]
        return AdminClient({"bootstrap.servers": ",".join(known), "topic.metadata.refresh.interval.ms": 200})

    def create(self, name: str, partitions: int = 1, factor: int = 3, **configs: str) -> None:
        """Create a topic."""
        topic = NewTopic(name, partitions, factor, config={key.replace("_", "."): text for key, text in configs.items()})
        admin = self.admin()
        admin.create_topics([topic])[name].result(WAIT_S)

    def alter(self, name: str, by: Collection[int], key: str, value: str) -> None:
        """Set a config of a topic at one of these brokers."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[])
        resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
        admin = self.admin(by)
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def leader(self, name: str, partition: int = 0) -> int:
        """Who leads, by the metadata that clients get; -1: nobody."""
        found = self._partition(name, partition)
        return -1 if found is None else int(found.leader)

    def _partition(self, name: str, partition: int) -> Any:
        with contextlib.suppress(Exception):
            return self.admin().list_topics(name, timeout=5).topics[name].partitions.get(partition)
        return None

    def until_led(self, name: str, *, by: set[int], isr: set[int] | None = None, partition: int = 0) -> int:
        """Wait until one of these leads, and the ISR is that one, in one and the same picture; answers the leader."""
        leaders: list[int] = []

        def is_so() -> bool:
            found = self._partition(name, partition)
            leaders.append(-1 if found is None else int(found.leader))
            return leaders[-1] in by and (isr is None or (found is not None and set(found.isrs) == isr))

        until(is_so, f"{name}-{partition} led by {by}", self.log_text)
        return leaders[-1]

    def until_shown(self, name: str, count: int, *, by: Collection[int]) -> None:
        """Wait until each of these brokers shows so many partitions of a topic."""

        def is_so(number: int) -> bool:
            with contextlib.suppress(KafkaException):
                return len(self.admin({number}).list_topics(name, timeout=5).topics[name].partitions) == count
            return False

        for number in by:
            until(partial(is_so, number), f"broker {number} to show {count} partitions of {name}", self.log_text)

    def state(self, name: str, partition: int = 0) -> dict[str, Any]:
        """A partition's state, as ZooKeeper has it."""
        state: dict[str, Any] = json.loads(self.node(f"/brokers/topics/{name}/partitions/{partition}/state"))
        return state

    def until_stored(self, name: str, **fields: object) -> None:
        """Wait until the state of the first partition has these fields."""

        def is_so() -> bool:
            state = self.state(name)
            return all(state[field] == value for field, value in fields.items())

        until(is_so, f"{name}-0 with {fields}", self.log_text)

    def node(self, path: str) -> bytes:
        """A node of the chroot; raises kazoo's NoNodeError."""
        with connected(self.servers) as client:
            data: bytes = client.get(path)[0]
            return data

    def pause(self, number: int) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.brokers[number].signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self.brokers[number].signal(signal.SIGCONT)

    def close(self) -> None:
        """End all of them."""
        for broker in self.brokers.values():
            with contextlib.suppress(AssertionError, ProcessLookupError):
                broker.signal(signal.SIGCONT)
            broker.close()

    def log_text(self) -> str:
        """The last lines that each has logged."""
        return "\n".join(f"--- {number}\n{broker.log_text()[-6000:]}" for number, broker in self.brokers.items())


def cut_power(broker: BrokerProcess, topic: str, keep: int, partition: int = 0) -> None:
    """Kill a broker's machine: of a partition's log so many batches are left."""
    broker.kill()
    forget_start(broker.data)
    (segment,) = (broker.data / f"{topic}-{partition}").glob("*.log")
    data, at = segment.read_bytes(), 0
    for _ in range(keep):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert at < len(data.rstrip(b"\0"))
    segment.write_bytes(data[:at])


@contextlib.contextmanager
def cluster(
    server: ZooKeeper | Sequence[ZooKeeper], folder: Path, count: int = 3, net: Net | None = None, **properties: object
) -> Iterator[ClusterProcesses]:
    """A running cluster."""
    servers = [server] if isinstance(server, ZooKeeper) else server
    given = {key.replace("_", "."): value for key, value in properties.items()}
    made = ClusterProcesses(*servers, folder=folder, count=count, properties=given, net=net)
    try:
        yield made.start()
    finally:
        made.close()
        if net is not None:
            net.close()
