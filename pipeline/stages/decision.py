"""What an operator decides about a partition: its new position and a record of `penstock.quarantine`, in one transaction.

The command takes the identity of the partition's worker, so that nothing is committed in between. The worker then reads the new
position, which has one more decision, and goes on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from penstock.failpoints import declare, failpoint
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.transaction import Fenced, TransactionalSender
from penstock.pipeline.stages.batches import send
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pipeline.stages.position import StagePosition
from penstock.pipeline.stages.quarantine import Quarantine
from penstock.pyx.record.rawbatch import RawBatch

P = TypeVar("P", bound=StagePosition)

SENT = declare("stage.decision_sent", "what an operator sets aside and the new position are sent, not committed")


class Decision:
    """A decision under way: a transaction of the partition's own identity."""

    def __init__(self, sender: TransactionalSender, place: TopicPartition, group: str, tp: TopicPartition) -> None:
        self._sender = sender
        self._place = place
        self._group = group
        self._tp = tp

    async def send(self, batches: Iterable[RawBatch]) -> None:
        """Send notes, or bytes that are set aside, to the quarantine. Raises Fenced, KafkaError."""
        await send(self._sender, self._place, list(batches))

    async def commit(self, after: P, others: Mapping[TopicPartition, P] | None = None) -> P:
        """Commit all, and the position, which counts one more decision; `others` are positions of other partitions that it goes
        with. Raises Fenced, KafkaError."""
        after = replace(after, decisions=after.decisions + 1)
        positions = {**(others or {}), self._tp: after}
        offsets = {tp: (position.offset, position.metadata()) for tp, position in positions.items()}
        await self._sender.send_offsets(self._group, offsets)
        failpoint(SENT)
        await self._sender.commit()
        return after


@contextlib.asynccontextmanager
async def fenced(
    target: Admin, quarantine: Quarantine, identity: str, group: str, tp: TopicPartition, name: object, status: str
) -> AsyncIterator[Decision]:
    """Take an identity to decide about a partition of a group. `quarantine` is the target's, `name` is what messages call the
    partition, `status` the command that shows where it stands. Raises OperatorNeeded when another process took the identity
    meanwhile, KafkaError.
    """
    place = await quarantine.place(tp[1])
    sender = TransactionalSender(target, identity)
    await sender.init()
    try:
        await sender.begin()
        yield Decision(sender, place, group, tp)
    except Fenced:
        raise OperatorNeeded(
            f"another process took over {name} before this was committed: `{status}` shows where it stands; if that is "
            "as before, run this again"
        ) from None
    finally:
        await sender.close()
