"""A run of a cluster soak by its seed: `make cluster-soak SOAK=3600 SEED=7`."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support import zookeeper
from support.cluster_events import DISKS, EVENTS, POWER_CUTS, Event
from support.cluster_soak import DISK, FACTOR, ClusterSoak
from support.cuttingproxy import Net
from support.lossy_disk import LossyDisk


def play(
    folder: Path,
    servers: Sequence[zookeeper.ZooKeeper],
    seed: int,
    disks: Mapping[int, LossyDisk],
    *,
    seconds: float = 0.0,
    events: Sequence[Event] = (),
) -> ClusterSoak:
    """These events, then random ones for so long. The soak says what is wrong with what clients were told."""
    net = Net()
    soak = ClusterSoak(folder, servers, seed, disks, net)
    end = time.monotonic() + seconds
    any_event = (*EVENTS, *POWER_CUTS, *DISKS) if disks else EVENTS
    planned = iter(events)
    try:
        soak.begin()
        while (event := next(planned, None)) is not None or time.monotonic() < end:
            soak.happen(event or soak.dice.choice(any_event))
        soak.end_era()
    finally:
        soak.close()
        net.close()
    return soak


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[dict[int, LossyDisk]]:
    """A disk for each broker, whose power can be cut."""
    with contextlib.ExitStack() as stack:
        found = {}
        for number in range(1, FACTOR + 1):
            home = folder / f"machine-{number}"
            home.mkdir()
            found[number] = stack.enter_context(LossyDisk(home, DISK))
        yield found


def main() -> int:
    """The command behind `make cluster-soak`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    names = {event.__name__: event for event in (*EVENTS, *POWER_CUTS, *DISKS)}
    parser.add_argument("--events", nargs="+", choices=sorted(names), default=[], help="these first")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-soak-"))
    lacking = LossyDisk.why_not(DISK)
    print(f"seed {seed}, folder {folder}{f'; no power is cut: {lacking}' if lacking else ''}", flush=True)
    with zookeeper.ensemble(folder / "zookeeper") as servers, contextlib.ExitStack() as stack:
        disks = {} if lacking else stack.enter_context(machines(folder))
        soak = play(folder, servers, seed, disks, seconds=given.seconds, events=[names[name] for name in given.events])
    for what, count in sorted(soak.events.items()):
        print(f"{what:55} {count}")
    for what, count in sorted(soak.outcomes.items()):
        print(f"{f'records: {what}':55} {count}")
    print(f"{'longest time without an acknowledgement, s':55} {', '.join(f'{one:.1f}' for one in soak.gaps.values())}")
    for what, longest in sorted(soak.unserved.items()):
        print(f"{f'longest time until clients were served during {what}, s':55} {longest:.1f}")
    print("nothing is wrong" if not soak.anomalies else f"{len(soak.anomalies)} things are wrong; the logs are in {folder}")
    if not soak.anomalies:
        shutil.rmtree(folder)
    return 1 if soak.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
