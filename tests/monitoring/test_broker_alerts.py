"""Alerts of a broker: each is made to fire by what it is for, on a real broker under a real Prometheus, and ends again."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.broker.metrics.bounds import ROWS_MAX
from penstock.ports import hold_ports
from support import faultio
from support.asking import create
from support.clock import Clock
from support.harness import BrokerProcess
from support.patience import until
from support.prometheus import ABSENT, Prometheus, is_there

Make = Callable[..., BrokerProcess]
Faults = tuple[dict[str, str], Path]
WAIT_S = 60.0
FREE = "penstock_log_folder_free_bytes"
FOLDERS: dict[str, object] = {"log.flush.interval.ms": 100, "log.flush.scheduler.interval.ms": 100}

pytestmark = pytest.mark.skipif(not is_there(), reason=ABSENT)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus"), "--hangs", "20m") as made:  # ten seconds of these rules
        yield made


@pytest.fixture
def watched(prometheus: Prometheus, make_broker: Make) -> Make:
    """Starts a broker, like `make_broker`, which Prometheus looks at from then on."""

    def make(**properties: object) -> BrokerProcess:
        address = f"127.0.0.1:{hold_ports(1)[0]}"
        broker = make_broker(**{"penstock.http.listen": address, **properties})
        prometheus.watch(("broker", "ewr", "ewr-1", address))
        until(lambda: [number for _, number in prometheus.query('up{instance="ewr-1"}')] == [1], "the first scrape")
        return broker

    return make


def send(broker: BrokerProcess, topic: str, partition: int = 0, value: bytes = b"x") -> None:
    """One record, whatever becomes of it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000, "linger.ms": 0})
    producer.produce(topic, value, partition=partition)
    producer.flush(60)


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """The environment of a broker whose calls on files can be made to fail, and the file that says which."""
    control = tmp_path / "control"
    yield {"LD_PRELOAD": str(faultio.build(tmp_path)), "FAULT_CTL": str(control)}, control
    control.write_text("")


def plant(control: Path, rule: str) -> None:
    beside = control.with_suffix(".new")
    beside.write_text(rule)
    beside.replace(control)


def spread(broker: BrokerProcess, second: Path) -> int:
    """A topic over both log folders; a partition of it in the second one."""
    create(broker, "spread", partitions=2, segment_bytes=1 << 20)
    (folder,) = second.glob("spread-*")
    return int(folder.name.rpartition("-")[2])


def test_a_folder_that_fails(
    watched: Make, prometheus: Prometheus, faults: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    environment, control = faults
    second = tmp_path / "second folder"
    broker = watched(environment=environment, **FOLDERS, **{"log.dirs": second})
    partition = spread(broker, second)
    plant(control, f"write {errno.EIO} spread\n")
    send(broker, "spread", partition)
    found = prometheus.await_firing("PenstockFolderOffline", folder=str(second))
    assert found["summary"] == f"Log folder {second} of broker ewr-1 is offline."
    found = prometheus.await_firing("PenstockPartitionsOffline")
    assert "partitions of broker ewr-1 in ewr are offline" in found["summary"]
    plant(control, "")
    broker.kill()
    broker.start()
    prometheus.await_clear("PenstockFolderOffline", "PenstockPartitionsOffline")


def test_a_folder_that_is_full(
    watched: Make, prometheus: Prometheus, faults: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    environment, control = faults
    second = tmp_path / "second"
    broker = watched(environment=environment, **FOLDERS, **{"log.dirs": second})
    partition = spread(broker, second)
    plant(control, f"write {errno.ENOSPC} {second}\n")
    send(broker, "spread", partition)
    found = prometheus.await_firing("PenstockFolderFull", folder=str(second))
    assert found["hint"] == f"df -h '{second}'; penstock topics log-dirs -b 'ewr-1':9092"
    plant(control, "")
    prometheus.await_clear("PenstockFolderFull")


def test_a_disk_that_hangs(watched: Make, prometheus: Prometheus, faults: Faults, tmp_path: Path) -> None:
    environment, control = faults
    second = tmp_path / "second"
    broker = watched(environment=environment, **{"log.dirs": second})
    partition = spread(broker, second)
    plant(control, f"sync hang {second}\nwrite hang spread-{partition}/0000\n")
    send(broker, "spread", partition)
    found = prometheus.await_firing("PenstockFolderHangs", folder=str(second))
    assert found["summary"].startswith(f"The disk of log folder {second} of broker ewr-1 has not answered for ")
    found = prometheus.await_firing("PenstockThreadHangs", instance="ewr-1")
    assert found["thread"].startswith("network-")
    # The other folder's disk answers, and the other threads move.
    firing = prometheus.firing()
    assert (len(firing["PenstockFolderHangs"]), len(firing["PenstockThreadHangs"])) == (1, 1)
    plant(control, "")
    prometheus.await_clear("PenstockFolderHangs", "PenstockThreadHangs")


def test_a_clock_that_jumps_ahead(watched: Make, prometheus: Prometheus, tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    watched(environment=clock.environment)
    clock.set_ahead(31 * 24 * 3600)
    prometheus.await_firing("PenstockClockOff", instance="ewr-1")
    clock.set_ahead(0)
    prometheus.await_clear("PenstockClockOff")


def test_a_start_that_does_not_get_on(watched: Make, prometheus: Prometheus, faults: Faults) -> None:
    environment, control = faults
    broker = watched(environment=environment)
    create(broker, "held", partitions=1)
    send(broker, "held")
    broker.kill()
    plant(control, "read hang held-0/0000\n")
    broker.launch()
    found = prometheus.await_firing("PenstockBrokerNotReady", instance="ewr-1")
    assert found["summary"] == "Broker ewr-1 in ewr is not ready, and its recovery does not move."
    plant(control, "")
    prometheus.await_clear("PenstockBrokerNotReady")


def test_series_that_are_left_out(watched: Make, prometheus: Prometheus) -> None:
    broker = watched()
    create(broker, "many", partitions=ROWS_MAX + 1)
    found = prometheus.await_firing("PenstockSeriesDropped", family="kafka_log_log_size")
    assert "broker ewr-1 leaves" in found["summary"] and "series of kafka_log_log_size out of its figures" in found["summary"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["many"])["many"].result(WAIT_S)
    prometheus.await_clear("PenstockSeriesDropped")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=48m") != 0:
        pytest.skip(f"no disk can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)  # MNT_DETACH: the broker ends after this


def test_a_disk_that_fills_up(watched: Make, prometheus: Prometheus, small_disk: Path) -> None:
    broker = watched(**{"log.dirs": small_disk / "log"})
    partition = spread(broker, small_disk / "log")

    def fires() -> bool:
        send(broker, "spread", partition, os.urandom(400_000))
        time.sleep(0.2)
        return "PenstockDiskFullSoon" in prometheus.firing()

    until(fires, "the alert while about a MiB a second comes in", lambda: str(prometheus.query(FREE)))
    found = prometheus.await_firing("PenstockDiskFullSoon", folder=str(small_disk / "log"))
    assert found["summary"].startswith(f"Log folder {small_disk}/log of broker ewr-1 is full within ")
    # Nothing more comes in.
    prometheus.await_clear("PenstockDiskFullSoon")
