"""The sides that are measured, and those that are servers: our broker, an earlier one, Apache Kafka, the floor below all."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.bench import process
from penstock.bench.apache_kafka import ApacheKafka
from penstock.bench.programs import Programs
from penstock.broker.process import PROGRAM, BrokerProcess
from penstock.ports import hold_ports

PENSTOCK = "penstock"
BEFORE = "before"  # our broker out of another checkout, with the same properties
OURS = (PENSTOCK, BEFORE)
KAFKA = "kafka"
FLOOR = "floor"
# Anchors of the pipeline's rows: others' programs, and ours without what a row is about.
MIRROR_MAKER = "mirrormaker"
CONFLUENT = "confluent"
SPARK = "spark"
WITHOUT = "without"  # the case's title says without what
# All sides in the order of reports, each as a target names it.
NAMES = {
    PENSTOCK: "ours",
    BEFORE: "before",
    KAFKA: "Kafka",
    MIRROR_MAKER: "MirrorMaker 2",
    CONFLUENT: "confluent-kafka",
    SPARK: "bare Spark",
    WITHOUT: "without",
    FLOOR: "floor",
}
OTHERS = (KAFKA, MIRROR_MAKER, CONFLUENT, SPARK)  # what isn't ours


def penstock_of(checkout: Path) -> Path:
    """The command of a checkout in which `make build` ran. Its own folder, not the caller's, is what it imports from."""
    return checkout / ".venv" / "bin" / "penstock"


class Server(ABC):
    """A running process with an address."""

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """host:port."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of the process while it runs."""

    @abstractmethod
    def stop(self) -> None:
        """End it cleanly and wait; harmless when it is gone."""

    def cpu_s(self) -> float:
        """CPU seconds since its start, user and system, all threads."""
        return process.cpu_s(self.pid)

    def rss_mib(self) -> float:
        """Resident memory."""
        return process.rss_mib(self.pid)


class Broker(Server):
    """A broker with a folder that outlives it: everything that it writes is in there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def launch(self) -> None:
        """Start it and don't wait."""

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9."""

    @abstractmethod
    def log_folder(self, topic: str, partition: int) -> Path:
        """Where the segments of a partition are."""


class Penstock(Broker):
    """`penstock broker` with its default settings but for the given ones, out of this checkout or of another."""

    def __init__(
        self, folder: Path, properties: Mapping[str, str], checkout: Path | None = None, arguments: Sequence[str] = ()
    ) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Byte code is kept, as everywhere but where an environment forbids it: a start must not measure Python's compiler.
        keep = {"PYTHONDONTWRITEBYTECODE": ""}
        program = [str(penstock_of(checkout))] if checkout else PROGRAM
        self._process = BrokerProcess(folder / "data", properties, arguments, environment=keep, program=program)
        (self._process.port,) = hold_ports(1)

    @property
    def bootstrap(self) -> str:
        return self._process.bootstrap

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def http(self) -> str:
        """Where it serves figures; empty unless its properties say so."""
        return self._process.http

    def launch(self) -> None:
        self._process.launch()

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        if self._process.running:
            self._process.stop()
        self._process.close()

    def kill(self) -> None:
        self._process.kill()

    def log_folder(self, topic: str, partition: int) -> Path:
        return self._process.data / f"{topic}-{partition}"


class Kafka(Broker):
    """A node of Apache Kafka."""

    def __init__(self, node: ApacheKafka) -> None:
        super().__init__(node.folder)
        self._node = node

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    @property
    def pid(self) -> int:
        return self._node.pid

    def launch(self) -> None:
        self._node.launch()

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        self._node.kill()

    def log_folder(self, topic: str, partition: int) -> Path:
        return self._node.data / f"{topic}-{partition}"


class Floor(Server):
    """A server that makes only the system calls that nobody can do without; see programs/floor.c."""

    def __init__(self, programs: Programs, mode: str, **options: object) -> None:
        self._process: subprocess.Popen[str] = programs.start("floor", mode, **options)
        assert self._process.stdout is not None
        self._port = self._process.stdout.readline().strip()
        if not self._port:
            raise RuntimeError(f"the floor did not start: {self._process.communicate()[1]}")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
