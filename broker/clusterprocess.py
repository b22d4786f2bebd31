"""A cluster of brokers as one process, for a program that starts it and tells it whom to kill: `penstock demo --cluster`.

`python -m penstock.broker.clusterprocess DIR --set KEY=VALUE` prints `cluster started on HOST:PORT,...` when it serves. Each
line on its standard input asks for one broker to be killed, and is answered once that has its role, or a follower's, again:

    leader TOPIC PARTITION      ->  killed 2, which led TOPIC-PARTITION
    controller                  ->  killed 1, which was the controller

A broker is killed as `Broker.kill` says: this process lives on. It ends by SIGTERM, or with its input.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from penstock import log
from penstock.broker.inprocesscluster import Cluster

BROKERS = 3
LOOK_S = 0.02
"""How often the tree is looked at for who has a role."""
DOWN_S = 1.0
"""How long a killed broker stays away after another one has its role."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A property of each broker.")
def main(folder: Path, settings: tuple[str, ...]) -> None:
    """Run the cluster in this process."""
    log.setup("INFO", "text", "cluster")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    properties = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    with Cluster(BROKERS, data=folder, properties=properties) as cluster:
        print(f"cluster started on {cluster.bootstrap}", flush=True)
        for line in sys.stdin:
            print(_kill(cluster, *line.split()), flush=True)


def _kill(cluster: Cluster, role: str, topic: str = "", partition: str = "0") -> str:
    def who() -> int:
        return cluster.leader(topic, int(partition)) if role == "leader" else cluster.controller

    def in_sync() -> bool:
        return role != "leader" or victim in cluster.isr(topic, int(partition))

    _until(lambda: who() > 0)
    victim = who()
    cluster.kill(victim, expire=True)
    _until(lambda: who() not in (victim, -1))
    time.sleep(DOWN_S)
    cluster.start(victim)
    _until(in_sync)
    was = f"led {topic}-{partition}" if role == "leader" else "was the controller"
    return f"killed {victim}, which {was}"


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
