"""A replica is found to be caught up; before it counts for the high watermark, that goes on by the others' fetches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from unit.broker.test_late_roles import NoFetchers, later, no_configs

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, LeaderAndIsrRequest, PartitionRole
from penstock.broker.cluster.replica import Replica
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.replication.replicalogs import ReplicaLogs
from penstock.broker.replication.replicas import Replicas
from penstock.pyx.log.logmanager import LogManager
from support.dataplane import batch

EPOCHS = {1: 5, 2: 6, 3: 7}
PARTITION = ("overtaken", 0)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class World:
    """Broker 1 leads, broker 2 is in sync, broker 3 has fetched all that there was."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.logs = LogManager()
        self.dirs = LogDirs.open([folder], 1)
        self.dirs.admit({}, {})
        self.asks: list[AlterPartition] = []
        self.asked = asyncio.Event()
        self.held = Replicas(
            1, BrokerConfig(SCHEMA.parse({}), ()), self.dirs, self.logs, executor, NoFetchers(),
            coordinators=SimpleNamespace(elected=lambda *_: None),
            configs=no_configs, stored_id=later, controller=lambda: 2, alter=self.alter,
            lease_is_over=lambda: False, isolate=lambda partitions: None, monotonic_ms=now_ms,
        )  # fmt: skip

    async def alter(self, controller: int, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        self.asks += asks
        self.asked.set()
        raise ConnectionError("nobody is asked here")

    def fetch(self, replica: int, offset: int) -> None:
        outcome = self.logs.replica_fetched(
            *PARTITION, replica=replica, broker_epoch=EPOCHS[replica], leader_epoch=0, offset=offset,
            last_epoch=0 if offset else -1, now_ms=now_ms(),
        )  # fmt: skip
        assert outcome.error == 0

    def append(self) -> None:
        self.logs.append(*PARTITION, batch([b"x"]))

    async def begin(self) -> None:
        state = LeaderAndIsr(1, 0, (1, 2), partition_epoch=0, min_isr=2, is_new=True)
        told = PartitionRole(PARTITION, bytes([1] * 16), (1, 2, 3), state, EPOCHS)
        await self.held.take(LeaderAndIsrRequest(1, 1, 1, EPOCHS[1], (told,)), lambda: EPOCHS[1])
        self.append()
        for replica in (2, 3):
            self.fetch(replica, 1)

    def high_watermark(self) -> int:
        return self.logs.replica_state(*PARTITION).high_watermark


def test_an_entrant_that_the_high_watermark_has_passed_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ReplicaLogs._apply
    overtakes = [True]

    def apply(held: ReplicaLogs, changed: Iterable[Replica]) -> list[tuple[str, int]]:
        changed = list(changed)
        if changed and overtakes:  # Between the look and the moment from which the entrant counts.
            overtakes.clear()
            world.append()
            world.fetch(2, 2)
            assert world.high_watermark() == 2
        return real(held, changed)

    async def play() -> None:
        await world.begin()
        monkeypatch.setattr(ReplicaLogs, "_apply", apply)
        await world.held.proposals.propose([PARTITION])
        await asyncio.sleep(0)
        assert not overtakes and not world.asks
        world.append()
        world.fetch(2, 3)
        assert world.high_watermark() == 3  # It doesn't count.
        world.fetch(3, 3)
        await world.held.proposals.propose([PARTITION])
        await world.asked.wait()
        assert [ask.isr for ask in world.asks] == [(1, 2, 3)]
        world.append()
        world.fetch(2, 4)
        assert world.high_watermark() == 3  # It counts from then on.

    with ThreadPoolExecutor(1) as executor:
        world = World(tmp_path, executor)
        try:
            asyncio.run(play())
        finally:
            world.logs.stop(*PARTITION)
            world.dirs.close(clean=False)
