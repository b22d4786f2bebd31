"""A pipeline that runs for an hour while everything happens to it that an operator's year has: `make soak SOAK=3600 SEED=7`.

A round is an event under load, or an operator's day: then the writers rest. The aggregate's disk loses its power, and disks of
memory are filled (as root; else the aggregate is killed instead). In the end all is compared with the ledger, by clients and
libraries of other makers. Of `calm`, whose records nobody takes away, the audit must say that it is complete, and which rows
the table's owner has deleted; of `stormy` it may never say so once records are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from support.lossy_disk import LossyDisk
from support.small_disk import SmallDisk, memory_disk
from support.soak_events import AT_REST, UNDER_LOAD
from support.soak_world import DEDUPED, SOURCES, Soak

QUIET = 0.35  # of the rounds have no event under load
SMALL = {SOURCES[0]: "1g", "dedupe": "256m"}


Event = Callable[[Soak], None]


def pass_a_round(soak: Soak, at_rest: Sequence[Event]) -> None:
    """An event, under load or while the writers rest."""
    writers = soak.writers()
    quiet = soak.dice.random() < QUIET
    if not quiet:
        time.sleep(soak.dice.random())
        do(soak, soak.dice.choice(UNDER_LOAD))
    for writer in writers:
        writer.join()
    if quiet:
        do(soak, soak.dice.choice(at_rest))
    soak.keep_going()


def do(soak: Soak, event: Event) -> None:
    """Let something happen, and count it."""
    print(f"{time.strftime('%H:%M:%S')} {event.__name__}", flush=True)
    event(soak)
    soak.events[event.__name__] += 1


def finish(soak: Soak) -> list[str]:
    """All is copied, deduplicated, loaded and compared; what is wrong."""
    soak.settle()
    wrong = []
    for topic in soak.topics:
        wrong += soak.ledger.judge(topic, soak.read(f"{topic}.deduped" if topic in DEDUPED else topic))
    soak.load(soak.yesterday)
    print(soak.run("audit", codes=(0, 1, 3)))
    return wrong


def play(
    folder: Path,
    seconds: float,
    seed: int,
    disk: LossyDisk | None,
    small: dict[str, SmallDisk],
    at_rest: Sequence[Event] = AT_REST,
) -> int:
    """A whole run; 0 when nothing is wrong."""
    soak = Soak(folder, seed, disk, small)
    end = time.monotonic() + seconds
    try:
        soak.mirror.start()
        soak.dedupe.start(await_started=False)
        while time.monotonic() < end:
            pass_a_round(soak, at_rest)
        wrong = finish(soak)
    except AssertionError as error:
        wrong = [str(error)]
    finally:
        soak.close()
    for what, count in sorted((soak.events + soak.ended).items()):
        print(f"{what:55} {count}")
    print(f"{'records acknowledged':55} {sum(soak.ledger.acknowledged.values())}, {soak.ledger.unknown} of unknown fate")
    for one in wrong:
        print(f"WRONG: {one}")
    print("nothing is wrong" if not wrong else f"{len(wrong)} things are wrong; the logs are in {folder}")
    return 1 if wrong else 0


@contextlib.contextmanager
def disks(folder: Path) -> Iterator[tuple[LossyDisk | None, dict[str, SmallDisk]]]:
    """The aggregate's disk and the small ones; none where this process may not mount any."""
    with contextlib.ExitStack() as stack:
        lacking = LossyDisk.why_not("xfs")
        if lacking:
            print(f"{lacking}: the aggregate is killed instead, and no disk is filled", flush=True)
            yield None, {}
            return
        disk = stack.enter_context(LossyDisk(folder, "xfs"))
        yield disk, {name: stack.enter_context(memory_disk(folder / f"disk-{name}", size)) for name, size in SMALL.items()}


def main() -> int:
    """The command behind `make soak`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    names = {event.__name__: event for event in AT_REST}
    parser.add_argument(
        "--at-rest", nargs="+", choices=names, default=list(names), help="these events alone while writers rest"
    )
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {seed}, folder {folder}", flush=True)
    with disks(folder) as (disk, small):
        failed = play(folder, given.seconds, seed, disk, small, [names[name] for name in given.at_rest])
    if not failed:
        shutil.rmtree(folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
