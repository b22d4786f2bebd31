"""A cluster under load to which everything happens: `make cluster-soak SOAK=3600 SEED=7`.

Three brokers around an ensemble of three ZooKeeper servers; clients write, read, commit and ask for ends the whole time. Things
happen one after the other, some two at once (`cluster_events.py`); after each the cluster has to become whole. Each broker has
a disk of its own whose power can be cut, which needs root, and its links run through proxies that hold bytes back.

An era is a topic, its load, and the history of all that clients were told, which is judged at its end (`history.py`). It ends
after some events, and with a power cut that took the newest records of all in-sync replicas: then the history is held against
what such a cut may take (`losses.py`). It may do so only if as many brokers lost power as a record has holders at least.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from penstock.broker.store.base import paths
from penstock.pyx.wire.connection import WireConnection
from penstock.pyx.wire.messages import OffsetForLeaderEpochRequest
from support import losses, zookeeper
from support.clock import Clock
from support.cluster_world import ClusterProcesses
from support.cuttingproxy import Net
from support.history import Anomaly, History, Outcome, check
from support.load import Load
from support.lossy_disk import LossyDisk, flush_file, forget_start
from support.patience import until

PARTITIONS, FACTOR, MIN_ISR = 4, 3, 2
ERA_EVENTS = 20
QUICK = {"penstock.disk.hang.ms": 2000, "penstock.disk.settle.ms": 2000}
BODIES = (Load.idempotent, Load.idempotent, Load.transactional, Load.member, Load.watcher)
DISK = "ext4"
# Of which logs, and of how many of them, the kernel writes something before a power cut.
FLUSHED = (("__consumer_offsets-*", 0.5), ("__transaction_state-*", 0.5), ("soak-*", 0.4))
UNCLEAN = "an unclean election in epoch"
Partition = tuple[str, int]


class ClusterSoak:
    """A cluster, its load, and the dice. disks: the brokers', by their ids; empty: nobody's power can be cut."""

    def __init__(
        self, folder: Path, servers: Sequence[zookeeper.ZooKeeper], seed: int, disks: Mapping[int, LossyDisk], net: Net
    ) -> None:
        self.dice = random.Random(seed)
        self.servers = servers
        self.disks = disks
        self.net = net
        self.events: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        """What became of the records of all eras."""
        self.gaps: dict[int, float] = {}
        self.unserved: dict[str, float] = {}
        """By event, the longest time in seconds until all partitions were served while it lasted."""
        self.anomalies: list[Anomaly] = []
        self.world = ClusterProcesses(
            *servers, folder=folder, properties={"min.insync.replicas": MIN_ISR, **QUICK}, net=net, count=FACTOR
        )
        self.clocks = {number: Clock(_made(folder / f"clock-{number}")) for number in self.world.brokers}
        for number, clock in self.clocks.items():
            self.world.brokers[number].environment = clock.environment
        for number, disk in disks.items():
            self.world.brokers[number].data = disk.path / "data"
        self._keeper = KazooClient(self.world.servers.partition("/")[0], logger=logging.Logger("keeper"))  # which nobody reads
        self._root = "/" + self.world.servers.partition("/")[2]
        self._seed = seed
        self.eras = 0
        self._unclean: dict[Partition, int] = {}
        self.load: Load | None = None
        self.topic = ""
        self.powerless: set[int] = set()
        """Whose power was cut in this event, and the times of it (see `losses.Loss`)."""
        self.power_cut = 0.0
        self.power_back = 0.0
        self.flushed: dict[int, int] = {}

    def begin(self) -> None:
        """Start it all."""
        self._keeper.start(60)
        self.world.start()
        self.begin_era()

    def begin_era(self) -> None:
        """Another topic, and load on it."""
        self.eras += 1
        self.topic = f"soak-{self.eras}"
        self.world.create(self.topic, PARTITIONS, FACTOR, min_insync_replicas=str(MIN_ISR))
        self.until_whole()
        self.load = Load(self.world.bootstrap, self.topic, PARTITIONS, self._seed, rest_s=0.01, stay_s=10.0)
        self.load.start(*BODIES)
        self.load.wait_for(acknowledged=100, commits=1, ends=1)

    def end_era(self, loss: losses.Loss | None = None) -> None:
        """Judge what the load was told. loss: acknowledged records are gone."""
        assert self.load is not None
        history = self.load.finish(has_loss=loss is not None)
        self.load = None
        self.outcomes.update(send.outcome.value for send in history.sends)
        for partition, longest in gaps(history).items():
            self.gaps[partition] = max(longest, self.gaps.get(partition, 0.0))
        found = check(history if loss is None else losses.without(history, loss))
        if loss is not None:
            gone = sum(1 for _ in losses.lost(history, loss))
            self.outcomes["lost"] += gone
            print(f"  lost with all in-sync replicas: {gone} records above {dict(loss.ends)}", flush=True)
            found += losses.excess(loss)
        for one in found:
            print(f"WRONG in {self.topic}: {one.kind}: {one.what}", flush=True)
        self.anomalies += found

    def until_whole(self) -> None:
        """All live, and all partitions have all their replicas in sync, those of internal topics too."""
        everybody = set(self.world.brokers)
        self.world.until_known(everybody)
        until(lambda: self._is_whole(everybody), "all replicas to be in sync", self.world.log_text, every_s=0.2)
        for partition in range(PARTITIONS):
            self.world.until_led(self.topic, by=everybody, isr=everybody, partition=partition)

    def _is_whole(self, everybody: set[int]) -> bool:
        return all(state["leader"] in everybody and set(state["isr"]) == everybody for state, _ in self._states().values())

    def _states(self) -> dict[Partition, tuple[dict[str, Any], int]]:
        """The state of each partition in the store, and its version."""
        found: dict[Partition, tuple[dict[str, Any], int]] = {}

        def is_read() -> bool:
            found.clear()
            with contextlib.suppress(KazooException):  # Its server was killed, or a topic is being made.
                for name in self._keeper.get_children(self._root + paths.TOPICS):
                    for index in map(int, self._keeper.get_children(f"{self._root}{paths.topic(name)}/partitions")):
                        data, stat = self._keeper.get(self._root + paths.partition_state(name, index))
                        found[name, index] = json.loads(data), stat.version
                return True
            return False

        until(is_read, "the states in the store")
        return found

    def happen(self, event: Callable[[ClusterSoak], None]) -> None:
        """Let something happen. The cluster becomes whole and serves, whatever it was."""
        print(f"{time.strftime('%H:%M:%S')} {event.__name__}", flush=True)
        time.sleep(self.dice.random())
        self.powerless.clear()
        self.flushed.clear()
        event(self)
        self.events[event.__name__] += 1
        self.until_whole()
        gone = self._elected_uncleanly()
        if gone and len(self.powerless) < MIN_ISR:
            self.anomalies.append(Anomaly("unclean_election", f"{gone} after {event.__name__} of {sorted(self.powerless)}"))
            print(f"WRONG: {self.anomalies[-1]}", flush=True)
        if gone:
            self._see_said(gone)
            ends = {
                index: self._epoch_end((name, index), epoch - 1) for (name, index), epoch in gone.items() if name == self.topic
            }
            self.end_era(losses.Loss(ends, self.power_cut, self.power_back, dict(self.flushed)))
            self.begin_era()
        elif self.events.total() % ERA_EVENTS == 0:
            self.end_era()
            self.begin_era()
        assert self.load is not None
        self.load.wait_for(acknowledged=50, commits=1, ends=1)

    def until_served(self, event: str) -> None:
        """What happens to a broker lasts. Clients are served all the same: in each partition something is acknowledged that was
        sent since."""
        began = time.monotonic()
        until(
            lambda: self._served_since(began) == set(range(PARTITIONS)),
            f"service during {event}",
            self.world.log_text,
            every_s=0.2,
        )
        took_s = time.monotonic() - began
        self.unserved[event] = max(took_s, self.unserved.get(event, 0.0))
        print(f"  served after {took_s:.1f} s", flush=True)

    def _served_since(self, began: float) -> set[int]:
        assert self.load is not None
        sends = list(self.load.history.sends)
        return {send.partition for send in sends if send.started > began and send.outcome is Outcome.OK}

    def close(self) -> None:
        """End it all."""
        for clock in self.clocks.values():
            clock.set_ahead(0)
        for disk in self.disks.values():
            disk.thaw()
        self.net.heal()
        if self.load is not None:
            with contextlib.suppress(AssertionError, Exception):
                self.load.stop()
        self.world.close()
        self._keeper.stop()
        self._keeper.close()

    def _elected_uncleanly(self) -> dict[Partition, int]:
        """Partitions that have an unclean leader epoch since the last look, by their states; the epoch."""
        known, self._unclean = self._unclean, {one: state["unclean_epoch"] for one, (state, _) in self._states().items()}
        return {one: epoch for one, epoch in self._unclean.items() if epoch > known.get(one, -1)}

    def _see_said(self, gone: Mapping[Partition, int]) -> None:
        """Each leader has logged what is gone."""
        text = "".join(broker.log_text() for broker in self.world.brokers.values())
        for (name, index), epoch in gone.items():
            if f"topic={name} partition={index}: {UNCLEAN} {epoch}:" not in text:
                self.anomalies.append(Anomaly("silent_loss", f"{name}-{index} was elected uncleanly in epoch {epoch}"))

    def _epoch_end(self, partition: Partition, epoch: int) -> int:
        """Where the records of epochs up to this one end in the leader's log."""
        form = OffsetForLeaderEpochRequest
        asked = form.OffsetForLeaderPartition(partition=partition[1], leader_epoch=epoch)
        request = form(topics=[form.OffsetForLeaderTopic(topic=partition[0], partitions=[asked])])
        ends: list[int] = []

        def is_answered() -> bool:
            leader = self.world.brokers.get(self.world.leader(*partition))
            if leader is None:
                return False
            with contextlib.suppress(OSError, EOFError), WireConnection(leader.bootstrap) as wire:
                answer = wire.ask(request, 4).topics[0].partitions[0]
                ends.append(int(answer.end_offset))
                return bool(answer.error_code == 0)
            return False

        until(is_answered, f"the leader of {partition} to say where epoch {epoch} ends", self.world.log_text)
        return ends[-1]

    # Power

    def flush_some(self, *numbers: int) -> None:
        """As the kernels of these brokers may do at any time. What is then on a disk of an in-sync replica is no loss."""
        before, acknowledged = self._states(), self._acknowledged()
        on_disk = set[tuple[int, int]]()
        for number in numbers:
            for pattern, share in FLUSHED:
                for folder in sorted(self.world.brokers[number].data.glob(pattern)):
                    if self.dice.random() < share:
                        for segment in folder.glob("*.log"):
                            flush_file(segment)
                        name, _, index = folder.name.rpartition("-")
                        if name == self.topic:
                            on_disk.add((number, int(index)))
        after = self._states()
        for number, partition in on_disk:
            state, version = before[self.topic, partition]
            if number in state["isr"] and after[self.topic, partition][1] == version:  # It was in sync the whole time.
                self.flushed[partition] = max(acknowledged.get(partition, 0), self.flushed.get(partition, 0))

    def _acknowledged(self) -> dict[int, int]:
        """By partition, the end of what was acknowledged so far."""
        assert self.load is not None
        found: dict[int, int] = {}
        for send in list(self.load.history.sends):
            if send.outcome is Outcome.OK and send.offset is not None:
                found[send.partition] = max(send.offset + 1, found.get(send.partition, 0))
        return found

    def lose_power(self, *numbers: int) -> None:
        """These brokers' machines lose power. What wasn't flushed is gone; they are off until `regain_power`."""
        self.power_cut = time.monotonic()
        for number in numbers:
            self.world.brokers[number].kill()
        for number in numbers:
            self.disks[number].cut()
        self.powerless.update(numbers)

    def mount(self, *numbers: int) -> None:
        """Their machines are on again."""
        for number in numbers:
            self.disks[number].unmount()
            self.disks[number].mount()
            forget_start(self.world.brokers[number].data)

    def regain_power(self, *numbers: int) -> None:
        """They start again, in this order."""
        self.mount(*numbers)
        for number in numbers:
            self.power_back = time.monotonic()
            self.world.brokers[number].start()

    # Whom something happens to

    def anybody(self) -> int:
        """A broker."""
        return self.dice.choice(sorted(self.world.brokers))

    def leader(self) -> int:
        """A broker that leads a partition."""
        found = self.world.leader(self.topic, self.dice.randrange(PARTITIONS))
        return found if found in self.world.brokers else self.anybody()

    def controller(self) -> int:
        """The broker that is the controller."""
        with contextlib.suppress(Exception):
            found = int(self.world.admin().describe_cluster().result(20).controller.id)
            if found in self.world.brokers:
                return found
        return self.anybody()

    def someone(self) -> int:
        """One of these."""
        return self.dice.choice([self.anybody, self.leader, self.controller])()

    def remove(self, path: str) -> None:
        """Delete a node of the store, as somebody with a shell would."""
        with contextlib.suppress(Exception):
            self._keeper.delete(self._root + path)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def gaps(history: History) -> dict[int, float]:
    """By partition, the longest time in seconds between two acknowledgements."""
    found: dict[int, float] = {}
    for partition in sorted({send.partition for send in history.sends}):
        ends = sorted(one.ended for one in history.sends if one.partition == partition and one.outcome is Outcome.OK)
        found[partition] = max((later - sooner for sooner, later in pairwise(ends)), default=0.0)
    return found
