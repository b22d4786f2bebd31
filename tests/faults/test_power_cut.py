"""The target's power is cut: the mirror's copy is exact, whatever the disk had written, as its transactions are flushed.

A power cut takes what wasn't flushed, of each file as much as it likes. So before each cut some files are flushed and others
aren't, those of positions and decisions more often than those of records. `make powercuts CUTS=100` cuts more
often, with `SEED=7` with the dice of a run that failed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, KafkaError
from support.harness import BrokerProcess
from support.lossy_disk import LossyDisk, flush_file, forget_start
from support.mirror_world import World, brokers
from support.patience import until

CUTS = int(os.environ.get("PENSTOCK_CUTS", "4"))
NOT_FLUSHED = "transactions are not flushed: a power cut may take records whose commit"
INTERNAL = ("__consumer_offsets-*/*.log", "__transaction_state-*/*.log")


@contextmanager
def target_on(disk: LossyDisk, folder: Path, **given: object) -> Iterator[BrokerProcess]:
    properties = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        **given,
    }
    target = BrokerProcess(disk.path / "target", properties)
    target.log_path = folder / "target.log"
    try:
        yield target.start()
    finally:
        target.close()


def start_machine_again(disk: LossyDisk, target: BrokerProcess) -> None:
    disk.cut()
    target.kill()
    disk.unmount()
    disk.mount()
    forget_start(target.data)
    target.start()


def flush_some(target: BrokerProcess, chance: random.Random) -> None:
    for pattern, share in ((INTERNAL[0], 0.7), (INTERNAL[1], 0.6), ("flights*/*.log", 0.2)):
        for path in sorted(target.data.glob(pattern)):
            if chance.random() < share:
                flush_file(path)


def keep_going(w: World) -> None:
    """As its unit does: a mirror that was fenced, as records of its transaction may be gone, ends and is started again."""
    if not w.mirror.running:
        w.mirror.start()


def await_copied(w: World) -> None:
    def copied() -> bool:
        keep_going(w)
        try:
            positions = w.positions("EWR")
        except KafkaError as error:
            assert error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
            return False
        return all(at is not None and at[0] == w.ends("EWR")[partition] for partition, at in positions.items())

    until(copied, "all to be copied", w.mirror.text)


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_a_copy_is_exact_through_power_cuts(tmp_path: Path, kind: str) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED") or random.randrange(1 << 30))
    print("PENSTOCK_SEED", seed)  # shown if it fails
    chance = random.Random(seed)
    with (
        LossyDisk(tmp_path, kind) as disk,
        brokers(tmp_path, "EWR") as sources,
        target_on(disk, tmp_path) as target,  # flushes them by default
        World(tmp_path / "w", sources, target, target_configs={}, penstock_mirror_batch_bytes=3000) as w,
    ):
        w.fill(2)
        w.mirror.start()
        w.await_copied()
        flush_file(target.data / "metadata.db")
        for _ in range(CUTS):
            w.fill(chance.randrange(1, 30))
            time.sleep(chance.random() / 4)
            flush_some(target, chance)
            start_machine_again(disk, target)
            keep_going(w)
        w.fill(2)
        await_copied(w)
        assert w.mirror.stop() == 0
        w.check()
        assert "a power cut came before this start" in target.log_text()
        assert NOT_FLUSHED not in target.log_text()
        assert "transactions except those of mirror and dedupe are not flushed" in target.log_text()


def test_without_flushes_a_position_may_survive_its_records(tmp_path: Path) -> None:
    with (
        LossyDisk(tmp_path, "xfs") as disk,
        brokers(tmp_path, "EWR") as sources,
        target_on(disk, tmp_path, **{"penstock.transaction.flush": False}) as target,
        World(tmp_path / "w", sources, target, target_configs={}) as w,
    ):
        w.fill(2)
        w.mirror.start()
        w.await_copied()
        for path in target.data.glob("*"):
            if not path.name.startswith(w.topic) and path.is_file():
                flush_file(path)
        for pattern in INTERNAL:
            for path in target.data.glob(pattern):
                flush_file(path)
        assert w.mirror.stop() == 0
        start_machine_again(disk, target)
        assert w.positions("EWR")[0] is not None
        w.mirror.start()
        w.await_copied()
        with pytest.raises(AssertionError, match="lost"):
            w.check_ids()
        assert NOT_FLUSHED in target.log_text()  # as its start said
