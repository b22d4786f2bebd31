"""A cluster whose brokers are killed one at a time, each for a role that it has, while a test goes on."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Set
from typing import Protocol

from support.patience import until

PROPERTIES: Mapping[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.ms": -1,
    "replica.lag.time.max.ms": 2000,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "min.insync.replicas": 2,
}
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
PAUSE_S = 0.3
LOOK_S = 0.05


class MovingCluster(Protocol):
    """What is killed: `penstock.broker.Cluster`, or `support.moving_kafka`. Brokers are named by their ids."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def controller(self) -> int: ...

    def leader(self, topic: str, partition: int) -> int: ...

    def isr(self, topic: str, partition: int) -> Set[int]: ...

    def kill(self, number: int, *, expire: bool = False) -> None: ...

    def start(self, number: int) -> object: ...


@contextlib.contextmanager
def moving(cluster: MovingCluster, topic: str, kills: int = 6) -> Iterator[threading.Event]:
    """Kill the leader of a topic's first partition, the controller, and both coordinators in turn, and start each again once
    the others have what it led. The event is set when so many were killed; the end waits for that."""
    done, ended = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for kill, role in zip(range(kills), itertools.cycle((topic, "controller", TRANSACTIONS, GROUPS)), strict=False):
                if ended.wait(PAUSE_S):
                    return
                _kill_for(cluster, role, kill % 2 == 0)
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, name="moving")
    thread.start()
    try:
        yield done
        done.wait()
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _kill_for(cluster: MovingCluster, role: str, expire: bool) -> None:
    """Kill the broker that has a role; what it led is led by others, and follows again, before this returns."""
    until(lambda: _who(cluster, role) > 0, f"somebody to be {role}", every_s=LOOK_S)
    victim = _who(cluster, role)
    cluster.kill(victim, expire=expire)
    until(lambda: _who(cluster, role) not in (victim, -1), f"another broker than {victim} to be {role}", every_s=LOOK_S)
    cluster.start(victim)
    if role != "controller":
        until(lambda: victim in cluster.isr(role, 0), f"{victim} to follow {role}", every_s=LOOK_S)


def _who(cluster: MovingCluster, role: str) -> int:
    return cluster.controller if role == "controller" else cluster.leader(role, 0)
