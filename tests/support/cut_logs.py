"""Logs that lost their end, while the rest of a cluster, and what it knows of them, is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from penstock.broker import Cluster
from penstock.broker.tools.logcommand import command
from penstock.pyx.record.rawbatch import RawBatch
from support.harness import BrokerProcess
from support.lossy_disk import forget_start
from support.patience import until


def stored(folder: Path, topic: str, partition: int = 0) -> Iterator[RawBatch]:
    """The batches of a log that has one segment; zeros follow the last one."""
    data, at = memoryview(segment(folder, topic, partition).read_bytes()), 0
    while at + 12 <= len(data) and any(data[at + 8 : at + 12]):
        batch = RawBatch(data[at:])
        yield batch
        at += batch.size_in_bytes


def segment(folder: Path, topic: str, partition: int = 0) -> Path:
    (found,) = (folder / f"{topic}-{partition}").glob("*.log")
    return found


def cut(folder: Path, topic: str, keep: int, partition: int = 0) -> None:
    """Keep so many batches of a stopped broker's log."""
    sizes = [batch.size_in_bytes for batch in stored(folder, topic, partition)]
    assert keep < len(sizes)
    path = segment(folder, topic, partition)
    path.write_bytes(path.read_bytes()[: sum(sizes[:keep])])


def lose_end(broker: BrokerProcess, topic: str, keep: int, partition: int = 0) -> None:
    """A single node lost the end of a log behind so many batches, and an operator accepts that it did: offsets go on where they
    were."""
    assert broker.stop() == 0
    cut(broker.data, topic, keep, partition)
    done = CliRunner().invoke(command, ["accept", "--yes", str(broker.data / f"{topic}-{partition}")])
    assert done.exit_code == 0, done.output
    broker.start()


class PowerCut:
    """All brokers of a cluster lose power; of the log of a topic's first partition only what it has now was flushed."""

    def __init__(self, cluster: Cluster, data: Path, topic: str) -> None:
        self._cluster = cluster
        self._folders = {number: data / f"broker-{number}" for number in (1, 2, 3)}
        self._topic = topic
        self._keep = 0
        until(lambda: cluster.isr(topic, 0) == {1, 2, 3}, "all replicas to be in sync")
        until(self._are_equal, "all replicas to have the marker of the last transaction")

    def _are_equal(self) -> bool:
        logs = [list(stored(folder, self._topic)) for folder in self._folders.values()]
        self._keep = len(logs[0])
        return {len(log) for log in logs} == {self._keep} and logs[0][-1].is_control

    def strike(self) -> None:
        """Cut the power, and start all again."""
        for number in self._folders:
            self._cluster.kill(number, expire=True)
        for folder in self._folders.values():
            cut(folder, self._topic, self._keep)
            forget_start(folder)
        self._cluster.start(*self._folders)
        until(lambda: self._cluster.leader(self._topic, 0) > 0, "a leader")
