"""The log that a lane reads, held against what its position notes of it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.fetcher import Fetched
from penstock.pipeline.stages.failures import OperatorNeeded


class SourceLog:
    """The log that a lane reads, held against what its position notes: offsets, leader epochs, topic id.

    `where` names the log's cluster for people; `lost` and `cut` say how an operator goes on when offsets are gone before
    they were read, and when the log was cut back.
    """

    def __init__(self, admin: Admin, tp: TopicPartition, where: str, lost: str, cut: str) -> None:
        self._admin = admin
        self._tp = tp
        self._name = f"{where}: `{tp[0]}` partition {tp[1]}"
        self._lost = lost
        self._cut = cut

    async def start(self) -> int:
        """The offset that the log begins at. Raises KafkaError."""
        return await self._admin.start_offset(self._tp)

    async def check(self, offset: int, leader_epoch: int) -> None:
        """The log must still have what comes next at an offset, and what came before it under that leader epoch.

        Raises OperatorNeeded, KafkaError.
        """
        start = await self.start()
        end = await self._admin.end_offset(self._tp)
        if offset < start:
            raise self.gone(offset, start)
        if offset > end:
            raise OperatorNeeded(
                f"{self._name} was cut back: it ends at offset {end}, but everything below {offset} was read; {self._cut}"
            )
        await self._check_epoch(leader_epoch, offset)

    def gone(self, offset: int, start: int) -> OperatorNeeded:
        """What to say when the log begins above an offset that has to be read."""
        return OperatorNeeded(
            f"{self._name} begins at offset {start}: the offsets from {offset} to {start} are gone before they were read; "
            f"nothing is skipped silently: {self._lost}"
        )

    async def _check_epoch(self, leader_epoch: int, offset: int) -> None:
        """The log must not have been cut back and grown again since it was read under a leader epoch (KIP-320)."""
        if leader_epoch < 0:
            return
        found = await self._admin.offsets_for_leader_epoch({self._tp: leader_epoch})
        _, end = found[self._tp]
        if end < offset:
            ends = f"its epoch {leader_epoch} ends at {end}" if end >= 0 else f"it knows no epoch {leader_epoch}"
            raise OperatorNeeded(f"{self._name} was cut back: {ends}, but everything below {offset} was read; {self._cut}")

    async def check_fetched(self, fetched: Sequence[Fetched], offset: int, leader_epoch: int) -> int:
        """What was fetched must come from the log that was read up to an offset; gives its last leader epoch.

        Raises OperatorNeeded, KafkaError.
        """
        for part in fetched:
            if part.leader_epoch not in (leader_epoch, -1):
                await self._check_epoch(leader_epoch, offset)
                leader_epoch = part.leader_epoch
            offset = part.next_offset
        return leader_epoch
