"""Roles that come after the deletion of their topic: a large message of roles is overtaken by a small one that deletes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import (
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    PartitionRole,
    StoppedReplica,
    StopReplica,
)
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.logs.logdirs import LogDirs
from penstock.broker.replication.replicas import Replicas
from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import LogManager

BROKER_EPOCH, PARTITION = 5, ("t", 0)


class NoFetchers:
    """Nothing is followed here."""

    def add(self, topic: str, topic_id: bytes, partition: int, leader: int) -> None:
        """See FetcherThreads."""

    def remove(self, topic: str, partition: int) -> None:
        """See FetcherThreads."""


async def no_configs(name: str) -> dict[str, str]:
    """A topic has none of its own."""
    return {}


def role(topic_id: bytes) -> LeaderAndIsrRequest:
    """Lead a new partition alone."""
    state = LeaderAndIsr(1, 0, (1,))
    told = PartitionRole(PARTITION, topic_id, (1,), state, {1: BROKER_EPOCH})
    return LeaderAndIsrRequest(1, 1, 1, BROKER_EPOCH, (told,))


def test_a_log_is_not_made_again_by_a_role_that_its_deletion_overtook(tmp_path: Path) -> None:
    deleted, later = bytes([1] * 16), bytes([2] * 16)

    async def play(held: Replicas) -> list[LeaderAndIsrAnswer]:
        first = await held.take(role(deleted), lambda: BROKER_EPOCH)
        assert (tmp_path / "t-0").is_dir()
        stop = StopReplica(1, 1, 1, BROKER_EPOCH, (StoppedReplica(PARTITION, deleted, delete=True),))
        assert (await held.drop(stop, lambda: BROKER_EPOCH)).errors == {PARTITION: 0}
        late = await held.take(role(deleted), lambda: BROKER_EPOCH)
        assert not (tmp_path / "t-0").exists()
        return [first, late, await held.take(role(later), lambda: BROKER_EPOCH)]

    dirs, logs = LogDirs.open([tmp_path], 1), LogManager()
    dirs.admit({}, {})
    with ThreadPoolExecutor(1) as executor:
        held = Replicas(
            1, BrokerConfig(SCHEMA.parse({}), ()), dirs, logs, executor, NoFetchers(),
            coordinators=SimpleNamespace(), configs=no_configs, alter=None, lease_is_over=lambda: False,  # type: ignore[arg-type]
            isolate=lambda partitions: None, monotonic_ms=lambda: 0,
        )  # fmt: skip
        answers = asyncio.run(play(held))
        logs.stop(*PARTITION)
    dirs.close(clean=False)
    assert [answer.answers[PARTITION].error for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]
