"""The logs of this broker's replicas, between the machines of `broker/cluster/` and the data plane.

The data plane has what changes with every request: how far each follower has fetched, and the high watermark. So before a
machine is asked, `look` reads its marks from the data plane. What it has decided - role, epochs, ISR, MAX - `apply` sets there
before anything else depends on it.

A follower's fetches end before its role changes, and begin after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from penstock import log
from penstock.broker.cluster import leader as leading
from penstock.broker.cluster import replica as replicas
from penstock.broker.cluster.leaderandisr import NO_EPOCH
from penstock.broker.cluster.log import Log
from penstock.broker.cluster.messages import Partition, PartitionRole
from penstock.broker.cluster.replica import Replica, Role
from penstock.broker.cluster.roles import Roles
from penstock.broker.topic import INTERNAL
from penstock.errors import KafkaError
from penstock.pyx.log import replicatable
from penstock.pyx.log.logmanager import LogManager

_log = log.get(__name__)
T = TypeVar("T")


class FetcherThreads(Protocol):
    """What follows leaders for this broker's replicas (`penstock.pyx.net.fetcher.Fetchers`)."""

    def add(self, topic: str, topic_id: bytes, partition: int, leader: int) -> None:
        """Fetch a partition from a broker."""

    def remove(self, topic: str, partition: int) -> None:
        """No longer. Returns when nothing of it is being appended any more."""


class Coordinators(Protocol):
    """What coordinates the names of the internal topics' partitions, and ends transactions that hang in all
    (`penstock.broker.coordination.coordinators`)."""

    def elected(self, topic: str, partition: int, leader_epoch: int, unclean_epoch: int) -> None:
        """This broker leads it in that epoch. unclean_epoch: the newest that an unclean election began; -1: none."""

    def resigned(self, topic: str, partition: int) -> None:
        """It doesn't."""


@dataclass(frozen=True, slots=True)
class _Log:
    """A log as the machines see it (`cluster.log.Log`)."""

    logs: LogManager
    partition: Partition
    end: int = 0
    last_epoch: int = NO_EPOCH
    removed_below: int = 0

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.logs.offset_for_epoch(*self.partition, epoch)


class ReplicaLogs:
    """Of one broker. On the loop; what may wait for a disk is done in the executor's threads."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        executor: ThreadPoolExecutor,
        fetchers: FetcherThreads,
        coordinators: Coordinators,
    ) -> None:
        self.roles = Roles(node_id)
        self.changing = asyncio.Lock()
        """Held by whoever changes roles, or asks a machine: one after the other."""
        self.may_lose: set[str] = set()
        """Topics of which a replica may be elected that lacks records."""
        self._node_id = node_id
        self._logs = logs
        self._executor = executor
        self._fetchers = fetchers
        self._coordinators = coordinators

    async def in_thread(self, work: Callable[..., T], *given: object) -> T:
        """What it gives or raises. Whoever is cancelled waits for it all the same: nobody else may change roles meanwhile."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def look(self, replica: Replica) -> Log:
        """What the data plane knows of a replica goes into its machine; answers its log."""
        try:
            state = self._logs.replica_state(*replica.partition)
        except KafkaError:
            return _Log(self._logs, replica.partition)
        replica.high_watermark = state.high_watermark
        if state.role == "offline" and replica.role is Role.FOLLOWER:
            replica.role = Role.OFFLINE
        if state.role != "leader" and replica.leader is not None:
            replicas.fence(replica)  # A follower knew a newer epoch.
            self.resign([replica.partition])
        if replica.leader is not None:
            if state.leader_epoch == replica.leader.state.leader_epoch:
                replica.leader.epoch_start = state.epoch_start
            for seen in self._logs.marks(*replica.partition):
                mark = replica.leader.marks.get(seen.broker)
                if mark is None:
                    continue
                mark.broker_epoch, mark.end = seen.broker_epoch, seen.end
                mark.caught_up_ms, mark.fetched_ms, mark.end_at_fetch = seen.caught_up_ms, seen.fetched_ms, seen.end_at_fetch
                mark.removed_below = seen.removed_below
        return _Log(self._logs, replica.partition, state.log_end, state.last_epoch, state.removed_below)

    async def apply(self, changed: Iterable[Replica]) -> list[Partition]:
        """Set in the data plane what machines have decided; answers what it refused."""
        return await self.in_thread(self._apply, changed)

    def resign(self, partitions: Iterable[Partition]) -> None:
        """This broker coordinates nothing in these any more."""
        for name, index in partitions:
            if name in INTERNAL:
                self._coordinators.resigned(name, index)

    def _apply(self, changed: Iterable[Replica]) -> list[Partition]:
        failed = []
        for replica in changed:
            try:
                self._apply_one(replica)
            except (KafkaError, OSError, RuntimeError) as error:
                _log.error("topic=%s partition=%d can't take its role: %s", *replica.partition, error)
                failed.append(replica.partition)
        return failed

    def _apply_one(self, replica: Replica) -> None:
        role = replica.newest_role
        assert role is not None
        name, index = replica.partition
        self._fetchers.remove(name, index)
        if replica.role is Role.LEADER:
            self._set_leader(replica)
        elif replica.role is Role.FOLLOWER:
            self._follow(replica, role)
        else:
            self._logs.fence(name, index)

    def _follow(self, replica: Replica, role: PartitionRole) -> None:
        name, index = replica.partition
        self._logs.set_follower(
            name, index, broker_epoch=replica.broker_epoch, leader=role.state.leader,
            leader_epoch=role.state.leader_epoch, partition_epoch=role.state.partition_epoch,
            unclean_epoch=role.state.unclean_epoch,
        )  # fmt: skip
        self._fetchers.add(name, role.topic_id, index, role.state.leader)

    def _set_leader(self, replica: Replica) -> None:
        leader = replica.leader
        assert leader is not None
        state, members = leader.state, leading.all_in_sync(leader)
        self._logs.set_leader(
            *replica.partition,
            broker_epoch=replica.broker_epoch,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=[
                replicatable.Replica(broker, broker in state.isr, broker in members, leader.broker_epochs.get(broker, NO_EPOCH))
                for broker in leader.marks
            ],
            enough=state.needed(leader.role.replicas),
            sole=self._is_sole(leader, members),
        )

    def _is_sole(self, leader: leading.Leader, members: Collection[int]) -> bool:
        """Whether nobody else can be elected, as long as this broker doesn't say that others are in sync."""
        if len(leader.role.replicas) == 1:
            return True
        is_alone = set(members) == {self._node_id} and not leader.state.elr
        return is_alone and leader.partition[0] not in self.may_lose
