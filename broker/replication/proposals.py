"""Proposals of other ISRs (AlterPartition) for the partitions that this broker leads, and the controller's answers.

`cluster.leader` decides what is proposed: as soon as the data plane says that a replica has caught up, and some times a second
for members that lag and proposals without an answer. A proposal is sent only once its entrants count for the high watermark
(R2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import leader as leading
from penstock.broker.cluster import replica as replicas
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import AlterPartition, AlterPartitionAnswer, Partition
from penstock.broker.cluster.replica import Replica
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.replication.replicalogs import ReplicaLogs
from penstock.pyx.log.logmanager import LogManager

TICK_S = 0.5
SAY_AGAIN_S = 60.0
"""How often proposals without an answer and members that lag are looked for."""

_log = log.get(__name__)


class Proposals:
    """Of one broker, on the loop. alter: asks the controller for another ISR; raises OSError where it can't be reached."""

    def __init__(
        self,
        replica_logs: ReplicaLogs,
        logs: LogManager,
        config: BrokerConfig,
        alter: Callable[[AlterPartition], Awaitable[AlterPartitionAnswer]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._replica_logs = replica_logs
        self._roles = replica_logs.roles
        self._logs = logs
        self._config = config
        self._alter = alter
        self._now_ms = monotonic_ms
        self.isr_shrinks = 0
        self.isr_expands = 0
        """How often an ISR lost and got members while this broker led."""
        self._below, self._below_said_s = 0, -SAY_AGAIN_S
        self._running = tasks.Group("proposals")

    def start(self) -> None:
        """Begin to propose."""
        asyncio.get_running_loop().add_reader(self._logs.entrants_fd, self._take_entrants)
        self._running.start(self._scan_for_ever())

    async def stop(self) -> None:
        """Propose nothing more."""
        asyncio.get_running_loop().remove_reader(self._logs.entrants_fd)
        await self._running.stop()

    async def propose(self, partitions: Sequence[Partition], *, is_scan: bool = False) -> None:
        """Look at partitions that this broker leads, and send what is to be proposed."""
        asks: list[AlterPartition] = []
        async with self._replica_logs.changing:
            for partition in partitions:
                replica = self._roles.replicas.get(partition)
                if replica is None or replica.leader is None:
                    continue
                found = self._replica_logs.look(replica)
                if replica.leader is None:
                    continue
                decide = leading.on_time if is_scan else leading.propose
                ask = decide(
                    replica.leader, found.end, replica.high_watermark, self._config["replica.lag.time.max.ms"], self._now_ms()
                )
                if ask is not None:
                    asks.append(ask)
            if not asks:
                return
            failed = await self._replica_logs.apply([self._roles.replicas[ask.partition] for ask in asks])
            # Else its entrants don't count for the high watermark yet (R2): it is repeated.
            held = {*failed}
            withdrawn = [ask.partition for ask in asks if ask.partition not in held and not self._counts(ask.partition)]
            if withdrawn:
                await self._replica_logs.apply([self._roles.replicas[partition] for partition in withdrawn])
                held.update(withdrawn)
        for ask in asks:
            if ask.partition not in held:
                self._running.start(self._send(ask))

    def count_members(self, before: LeaderAndIsr | None, replica: Replica) -> None:
        """The ISR may be another one than in the state before, of which this broker led the same epoch."""
        if before is None or replica.leader is None:
            return
        after = replica.leader.state
        if before.leader_epoch == after.leader_epoch:
            self.isr_shrinks += not set(before.isr) <= set(after.isr)
            self.isr_expands += not set(after.isr) <= set(before.isr)

    def _take_entrants(self) -> None:
        """On the loop: a replica has caught up."""
        due = self._logs.take_entrants()
        if due:
            self._running.start(self.propose(due))

    async def _scan_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.propose(self._roles.led, is_scan=True)
                self._say_below_min_isr(asyncio.get_running_loop().time())
            except Exception:  # noqa: BLE001 - without this look no ISR would shrink any more
                _log.exception("a look at what this broker leads has failed")

    def _say_below_min_isr(self, now_s: float) -> None:
        """Of all partitions together, once they are below it and once they aren't; another count at most once a minute."""
        led = [self._roles.replicas[partition].leader for partition in self._roles.led]
        below = sum(len(one.state.isr) < one.state.needed(one.role.replicas) for one in led if one is not None)
        if below == self._below or (below and self._below and now_s - self._below_said_s < SAY_AGAIN_S):
            return
        if below:
            _log.warning(
                "%d partitions that this broker leads have fewer replicas in sync than min.insync.replicas: acks=all waits or "
                "is refused there, as are the groups and transactions that they hold", below,
            )  # fmt: skip
        else:
            _log.info("each partition that this broker leads has min.insync.replicas in sync again")
        self._below, self._below_said_s = below, now_s

    def _counts(self, partition: Partition) -> bool:
        """Whether a proposal may be sent, now that its entrants count. They are looked at again: the high watermark went on
        until then."""
        replica = self._roles.replicas[partition]
        self._replica_logs.look(replica)
        if replica.leader is None or replica.leader.proposal is None:
            return False
        return leading.count(replica.leader, replica.high_watermark)

    async def _send(self, ask: AlterPartition) -> None:
        again: AlterPartition | None = ask
        while again is not None:
            try:
                answer = await self._alter(again)
            except OSError:
                return  # It is sent again.
            again = await self._take(answer)

    async def _take(self, answer: AlterPartitionAnswer) -> AlterPartition | None:
        async with self._replica_logs.changing:
            replica = self._roles.replicas.get(answer.ask.partition)
            if replica is None or replica.leader is None:
                return None
            self._replica_logs.look(replica)
            before = None if replica.leader is None else replica.leader.state
            again = replicas.on_altered(replica, answer, self._now_ms())
            self.count_members(before, replica)
            if replica.leader is not None:
                await self._replica_logs.apply([replica])
            return again
