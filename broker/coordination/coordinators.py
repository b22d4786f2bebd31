"""Both coordinators: the groups' starts first and stops last, since the markers of a transaction tell it of offsets."""

from __future__ import annotations

from penstock.broker.context import Context
from penstock.broker.coordination import groupoffsets
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions import events as transaction_events


class Coordinators:
    """Both coordinators, as the server starts and stops them."""

    def __init__(self) -> None:
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None

    async def start(self, context: Context) -> None:
        """Load the logs, finish decided transactions, start the timers; sets context.groups and
        .transactions.
        """
        context.groups = self._groups = GroupCoordinator(context)
        context.transactions = self._transactions = TransactionCoordinator(context, self._groups)
        await self._groups.load()
        await self._transactions.load()
        config = context.config
        self._groups.spawn(self._groups.sweep_for_ever(config["offsets.retention.check.interval.ms"], groupoffsets.Expire))
        every_ms = config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self._transactions.spawn(self._transactions.sweep_for_ever(every_ms, transaction_events.Expire))

    async def stop(self) -> None:
        """End timers and tasks; what was answered is in the logs already."""
        if self._transactions is not None:
            await self._transactions.stop()
        if self._groups is not None:
            await self._groups.stop()

    def topic_deleted(self, name: str) -> None:
        """Forget a deleted topic's committed offsets and transactions' partitions."""
        if self._groups is not None and self._transactions is not None:
            self._groups.topic_deleted(name, lambda: groupoffsets.TopicDeleted(name))
            self._transactions.topic_deleted(name, lambda: transaction_events.TopicDeleted(name))
