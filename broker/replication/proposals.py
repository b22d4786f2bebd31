"""Proposals of other ISRs (AlterPartition) for the partitions that this broker leads, and the controller's answers.

`cluster.leader` decides what is proposed: as soon as the data plane says that a replica has caught up, and some times a second
for members that lag and proposals without an answer. A proposal is sent only once its entrants count for the high watermark
(R2).

One request is under way to a controller. What comes meanwhile goes together in the next one: after a restart, or once ZooKeeper
is back, that are hundreds of partitions. A controller that doesn't answer holds up no other one: each has a list of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

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
"""How often proposals without an answer and members that lag are looked for."""
SAY_AGAIN_S = 60.0
TOGETHER_MAX = 200
"""Proposals of one request: to take their answers holds the loop for some milliseconds."""

_log = log.get(__name__)


class Proposals:
    """Of one broker, on the loop.

    controller: which broker is the controller; -1: none is known. alter: asks that broker for other ISRs, each of another
    partition, all under one registration; answers in their order. Raises OSError where it can't be reached.
    """

    def __init__(
        self,
        replica_logs: ReplicaLogs,
        logs: LogManager,
        config: BrokerConfig,
        controller: Callable[[], int],
        alter: Callable[[int, Sequence[AlterPartition]], Awaitable[Sequence[AlterPartitionAnswer]]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._replica_logs = replica_logs
        self._roles = replica_logs.roles
        self._logs = logs
        self._config = config
        self._controller = controller
        self._alter = alter
        self._now_ms = monotonic_ms
        self.isr_shrinks = 0
        self.isr_expands = 0
        """How often an ISR lost and got members while this broker led."""
        self._below, self._below_said_s = 0, -SAY_AGAIN_S
        self._waiting: dict[int, dict[Partition, AlterPartition]] = {}
        """Of each controller to which a request is under way: what goes in the next one."""
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
        self._send([ask for ask in asks if ask.partition not in held])

    async def scan(self) -> None:
        """Look at all that this broker leads, but for what is whole: of that the data plane says where a member lags. To look
        at one in Python takes some 20 us."""
        now_ms, lag_ms = self._now_ms(), self._config["replica.lag.time.max.ms"]
        # In a thread: the lock of a partition may be held by a write that hangs.
        unsettled = set(await self._replica_logs.in_thread(self._logs.unsettled, lag_ms, now_ms))
        due = []
        for partition in self._roles.led:
            leader = self._roles.replicas[partition].leader
            if leader is not None and leading.is_whole(leader) and partition not in unsettled:
                leader.scanned_ms = now_ms
            else:
                due.append(partition)
        await self.propose(due, is_scan=True)

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
                await self.scan()
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

    def _send(self, asks: Iterable[AlterPartition]) -> None:
        """Have them asked of the controller: now, or together with others once a request to it is over."""
        controller = self._controller()
        if controller not in self._waiting:
            self._waiting[controller] = {}
            self._running.start(self._send_all(controller))
        # A later proposal of a partition takes the place of one that was not sent yet.
        self._waiting[controller].update((ask.partition, ask) for ask in asks)

    async def _send_all(self, controller: int) -> None:
        waiting = self._waiting[controller]
        try:
            while waiting:
                asks = _take_together(waiting)
                try:
                    answers = await self._alter(controller, asks)
                except OSError:
                    continue  # They are sent again.
                self._send(await self._take(answers))
        finally:
            del self._waiting[controller]

    async def _take(self, answers: Sequence[AlterPartitionAnswer]) -> list[AlterPartition]:
        """The controller's answers; what is to be asked after them."""
        again, changed = [], []
        async with self._replica_logs.changing:
            for answer in answers:
                replica = self._roles.replicas.get(answer.ask.partition)
                if replica is None or replica.leader is None:
                    continue
                self._replica_logs.look(replica)
                before = None if replica.leader is None else replica.leader.state
                ask = replicas.on_altered(replica, answer, self._now_ms())
                self.count_members(before, replica)
                if ask is not None:
                    again.append(ask)
                if replica.leader is not None:
                    changed.append(replica)
            if changed:
                await self._replica_logs.apply(changed)
        return again


def _take_together(waiting: dict[Partition, AlterPartition]) -> list[AlterPartition]:
    """Proposals that go in one request, of those that wait. The leads of a former registration are over: theirs are dropped."""
    newest = max(ask.broker_epoch for ask in waiting.values())
    for partition in [partition for partition, ask in waiting.items() if ask.broker_epoch != newest]:
        del waiting[partition]
    return [waiting.pop(partition) for partition in sorted([*waiting][:TOGETHER_MAX])]
