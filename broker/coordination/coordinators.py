"""Both coordinators: the groups' starts first and stops last, since the markers of a transaction bring it offsets."""

from __future__ import annotations

from collections.abc import Collection

from penstock.broker.configs.flushes import Flushes
from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.hangingtransactions import HangingTransactions
from penstock.broker.coordination.machines import TopicPartition
from penstock.broker.coordination.parts import Parts
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions import events as transaction_events
from penstock.broker.coordination.verification import Verifier
from penstock.broker.topic import GROUP_OFFSETS, INTERNAL


class Coordinators:
    """Both coordinators, as the server starts and stops them. They serve once they are started."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self.groups = GroupCoordinator(parts)
        self.transactions = TransactionCoordinator(parts, self.groups)
        self.hanging = HangingTransactions(parts, self.transactions)
        self.verifier = Verifier(parts, self.transactions, self.hanging)

    async def start(self, power_cut: bool = False, was_flushed: Flushes = Flushes.NONE) -> None:
        """Load the logs, finish decided transactions, start the timers. Called once both internal topics' logs are open
        and before anything is served. power_cut: what wasn't flushed may be gone, so `after_power_cut` will follow;
        was_flushed: of these transactions all was on the disk, as `penstock.transaction.flush` promises."""
        self.transactions.is_cut = power_cut
        self.transactions.was_flushed = was_flushed
        await self.groups.load()
        await self.transactions.load()
        self._start_sweeps()

    def start_in_cluster(self) -> None:
        """In place of `start`, in a cluster: what this broker coordinates comes by `elected`."""
        self.groups.is_alone = self.transactions.is_alone = False
        self._start_sweeps()
        self.transactions.spawn(self.hanging.run())

    def joined(self) -> None:
        """This broker is registered in its cluster: prepare for the time in which the store doesn't answer."""
        self.transactions.spawn(self.transactions.producer_ids.take_first_block())

    def elected(self, topic: str, partition: int, leader_epoch: int, unclean_epoch: int = -1) -> None:
        """This broker leads a partition in that epoch. unclean_epoch: the newest that an unclean election began; -1: none."""
        if topic in INTERNAL:
            self._of(topic).elected(partition, leader_epoch, unclean_epoch)
        self.hanging.led((topic, partition), unclean_epoch)

    def resigned(self, topic: str, partition: int) -> None:
        """Nobody knows this broker any more as the leader of a partition of an internal topic."""
        self._of(topic).resigned(partition)

    def led_uncleanly(self, partitions: Collection[TopicPartition]) -> None:
        """The picture of the cluster shows unclean elections of these: transactions may have lost records there."""
        self.transactions.led_uncleanly(partitions)
        self.hanging.led_uncleanly(partitions)

    def _of(self, topic: str) -> GroupCoordinator | TransactionCoordinator:
        return self.groups if topic == GROUP_OFFSETS else self.transactions

    def _start_sweeps(self) -> None:
        config = self._config
        self.groups.spawn(self.groups.sweep_for_ever(config["offsets.retention.check.interval.ms"], groupoffsets.Expire))
        every_ms = config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self.transactions.spawn(self.transactions.sweep_for_ever(every_ms, transaction_events.Expire))

    async def after_power_cut(self) -> None:
        """Once all logs are open: end what a power cut has left of transactions, if there was one."""
        await self.transactions.after_power_cut()

    async def stop(self) -> None:
        """End timers and tasks; what was answered is in the logs already."""
        await self.transactions.stop()
        await self.groups.stop()

    def topic_deleted(self, name: str) -> None:
        """Forget a deleted topic's committed offsets and transactions' partitions."""
        self.groups.topic_deleted(name)
        self.transactions.topic_deleted(name)
