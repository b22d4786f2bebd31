"""A cluster under load to which everything happens: `make cluster-soak SOAK=3600 SEED=7`.

Three brokers around an ensemble of three ZooKeeper servers; clients write, read, commit and ask for ends the whole time. Things
happen one after the other, some two at once; after each the cluster has to become whole. In the end the history of all that
clients were told is judged (`history.py`), and the time between two acknowledgements is shown at its longest.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from kazoo.client import KazooClient

from penstock.broker.store.base import paths
from support import zookeeper
from support.cluster_world import ClusterProcesses
from support.history import Anomaly, History, Outcome, check
from support.load import Load
from support.patience import until

TOPIC, PARTITIONS, FACTOR = "soak", 4, 3
PAUSE_S = (0.2, 8.0)
BODIES = (Load.idempotent, Load.idempotent, Load.transactional, Load.member, Load.watcher)


class ClusterSoak:
    """A cluster, its load, and the dice."""

    def __init__(self, folder: Path, servers: Sequence[zookeeper.ZooKeeper], seed: int) -> None:
        self.dice = random.Random(seed)
        self.servers = servers
        self.events: collections.Counter[str] = collections.Counter()
        self.world = ClusterProcesses(*servers, folder=folder)
        self._keeper = KazooClient(self.world.servers.partition("/")[0], logger=logging.Logger("keeper"))  # which nobody reads
        self._root = "/" + self.world.servers.partition("/")[2]
        self.load: Load | None = None
        self._seed = seed

    def begin(self) -> None:
        """Start it all."""
        self._keeper.start(60)
        self.world.start()
        self.world.create(TOPIC, PARTITIONS, FACTOR, min_insync_replicas="2")
        self.until_whole()
        self.load = Load(self.world.bootstrap, TOPIC, PARTITIONS, self._seed, rest_s=0.01, stay_s=10.0)
        self.load.start(*BODIES)
        self.load.wait_for(acknowledged=100, commits=1, ends=1)

    def until_whole(self) -> None:
        """All live, and all partitions have all their replicas in sync."""
        everybody = set(self.world.brokers)
        self.world.until_known(everybody)
        for partition in range(PARTITIONS):
            self.world.until_led(TOPIC, by=everybody, isr=everybody, partition=partition)

    def keep_going(self) -> None:
        """The cluster becomes whole and serves, whatever has happened."""
        self.until_whole()
        assert self.load is not None
        self.load.wait_for(acknowledged=50, commits=1, ends=1)

    def close(self) -> None:
        """End it all."""
        if self.load is not None:
            with contextlib.suppress(AssertionError, Exception):
                self.load.stop()
        self.world.close()
        self._keeper.stop()
        self._keeper.close()

    # Whom something happens to

    def anybody(self) -> int:
        """A broker."""
        return self.dice.choice(sorted(self.world.brokers))

    def leader(self) -> int:
        """A broker that leads a partition."""
        found = self.world.leader(TOPIC, self.dice.randrange(PARTITIONS))
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


def kill(soak: ClusterSoak) -> None:
    """kill -9 of a broker; it is back a little later."""
    number = soak.someone()
    soak.world.brokers[number].kill()
    time.sleep(soak.dice.uniform(0, 6))
    soak.world.brokers[number].start()


def kill_quickly(soak: ClusterSoak) -> None:
    """kill -9 of a broker that is started at once, several times."""
    number = soak.someone()
    for _ in range(soak.dice.randint(2, 4)):
        soak.world.brokers[number].kill()
        soak.world.brokers[number].start()
        time.sleep(soak.dice.uniform(0, 0.5))


def kill_all(soak: ClusterSoak) -> None:
    """kill -9 of all brokers."""
    for broker in soak.world.brokers.values():
        broker.kill()
    for number in soak.dice.sample(sorted(soak.world.brokers), len(soak.world.brokers)):
        soak.world.brokers[number].start()


def kill_one_while_another_is_paused(soak: ClusterSoak) -> None:
    """The leader is killed while a follower is stopped, which wakes behind the election."""
    killed = soak.leader()
    paused = soak.dice.choice([number for number in soak.world.brokers if number != killed])
    soak.world.pause(paused)
    try:
        soak.world.brokers[killed].kill()
        time.sleep(soak.dice.uniform(0, 6))
    finally:
        soak.world.resume(paused)
    time.sleep(soak.dice.uniform(0, 2))
    soak.world.brokers[killed].start()


def pause(soak: ClusterSoak) -> None:
    """SIGSTOP of a broker, for less or for more than its session lasts."""
    number = soak.someone()
    soak.world.pause(number)
    try:
        time.sleep(soak.dice.uniform(*PAUSE_S))
    finally:
        soak.world.resume(number)


def restart(soak: ClusterSoak) -> None:
    """A broker is stopped as by an operator, and started."""
    number = soak.someone()
    soak.world.brokers[number].stop()
    soak.world.brokers[number].start()


def restart_in_turn(soak: ClusterSoak) -> None:
    """All of them, one after the other, each once the cluster is whole."""
    for number in sorted(soak.world.brokers):
        soak.world.brokers[number].stop()
        soak.world.brokers[number].start()
        soak.until_whole()


def expel(soak: ClusterSoak) -> None:
    """Somebody deletes a broker's registration by hand."""
    soak.remove(paths.broker(soak.someone()))


def depose(soak: ClusterSoak) -> None:
    """Somebody deletes the controller's node by hand."""
    soak.remove(paths.CONTROLLER)


def kill_keeper(soak: ClusterSoak) -> None:
    """kill -9 of a member of the ensemble, its leader now and then."""
    server = soak.dice.choice(list(soak.servers))
    server.kill()
    time.sleep(soak.dice.uniform(0, 4))
    server.start()


def kill_keepers(soak: ClusterSoak) -> None:
    """The whole ensemble is away for a while, shorter or longer than sessions last."""
    for server in soak.servers:
        server.kill()
    time.sleep(soak.dice.uniform(0, 5))
    for server in soak.servers:
        server.launch()
    for server in soak.servers:
        until(server.serves, "the ensemble to serve again", server.log_text)


EVENTS: tuple[Callable[[ClusterSoak], None], ...] = (
    kill, kill, kill_quickly, kill_all, kill_one_while_another_is_paused, pause, pause, restart, restart_in_turn, expel, depose,
    kill_keeper, kill_keepers,
)  # fmt: skip


def gaps(history: History) -> dict[int, float]:
    """By partition, the longest time in seconds between two acknowledgements."""
    found: dict[int, float] = {}
    for partition in sorted({send.partition for send in history.sends}):
        ends = sorted(one.ended for one in history.sends if one.partition == partition and one.outcome is Outcome.OK)
        found[partition] = max((later - sooner for sooner, later in pairwise(ends)), default=0.0)
    return found


def play(
    folder: Path,
    servers: Sequence[zookeeper.ZooKeeper],
    seed: int,
    *,
    seconds: float = 0.0,
    events: Sequence[Callable[[ClusterSoak], None]] = (),
) -> tuple[ClusterSoak, History, list[Anomaly]]:
    """These events, then random ones for so long; what clients were told, and what is wrong with it."""
    soak = ClusterSoak(folder, servers, seed)
    end = time.monotonic() + seconds
    planned = iter(events)
    try:
        soak.begin()
        assert soak.load is not None
        while (event := next(planned, None)) is not None or time.monotonic() < end:
            event = event or soak.dice.choice(EVENTS)
            print(f"{time.strftime('%H:%M:%S')} {event.__name__}", flush=True)
            time.sleep(soak.dice.random())
            event(soak)
            soak.events[event.__name__] += 1
            soak.keep_going()
        history = soak.load.finish()
    finally:
        soak.close()
    return soak, history, check(history)


@contextlib.contextmanager
def keepers(folder: Path) -> Iterator[list[zookeeper.ZooKeeper]]:
    """The ensemble."""
    with zookeeper.ensemble(folder) as servers:
        yield servers


def main() -> int:
    """The command behind `make cluster-soak`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    names = {event.__name__: event for event in EVENTS}
    parser.add_argument("--events", nargs="+", choices=sorted(names), default=[], help="these first")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-soak-"))
    print(f"seed {seed}, folder {folder}", flush=True)
    with keepers(folder / "zookeeper") as servers:
        soak, history, anomalies = play(
            folder, servers, seed, seconds=given.seconds, events=[names[name] for name in given.events]
        )
    for what, count in sorted(soak.events.items()):
        print(f"{what:55} {count}")
    outcomes = collections.Counter(send.outcome.value for send in history.sends)
    print(f"{'records acknowledged, refused, of unknown fate':55} {outcomes['ok']}, {outcomes['fail']}, {outcomes['info']}")
    print(f"{'longest time without an acknowledgement, s':55} {', '.join(f'{one:.1f}' for one in gaps(history).values())}")
    for one in anomalies:
        print(f"WRONG: {one.kind}: {one.what}")
    print("nothing is wrong" if not anomalies else f"{len(anomalies)} things are wrong; the logs are in {folder}")
    if not anomalies:
        shutil.rmtree(folder)
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
