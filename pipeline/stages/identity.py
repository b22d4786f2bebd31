"""Taking a transactional id: for good, or again only if nobody else has taken it since."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.pipeline.clients.client import Client
from penstock.pipeline.clients.transaction import TRANSACTION_VERSION, Fenced, TransactionalSender
from penstock.pyx.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

ABORTING = ("PrepareEpochFence", "PrepareAbort", "CompleteAbort")  # states of the transaction coordinator
COMMITTING = ("PrepareCommit", "CompleteCommit")
EPOCH_LAST = 32_766  # a coordinator gives out a new producer id instead of the epoch behind it
TAKING_S = 1.0  # longer than it takes to take an identity


async def take_identity(client: Client, transactional_id: str, before: TransactionalSender | None) -> TransactionalSender:
    """A new sender for an identity. One that this worker had `before` is given up, and taken again only if nobody
    else has taken it since (KIP-360). Raises Fenced, KafkaError.
    """
    sender = TransactionalSender(client, transactional_id)
    if before is None or before.producer_id < 0:
        await sender.init()
        return sender
    await before.close()
    known = before.producer_id, before.producer_epoch
    try:
        await sender.init(*known)
    except Fenced:
        left = await _ended_itself(client, transactional_id, *known)
        if left is None:
            raise
        # Still nobody else's, or this is refused: the epoch says so.
        sender = TransactionalSender(client, transactional_id)
        await sender.init(*left)
    return sender


async def _ended_itself(client: Client, transactional_id: str, producer_id: int, producer_epoch: int) -> tuple[int, int] | None:
    """The producer id and epoch that the coordinator has now, if it raised the epoch only because our transaction took
    too long, or, with transactions v2, was ended by us and the answer got lost; None if it did so for somebody else.

    It leaves an ended transaction with the next epoch. So does somebody who is just taking the identity, but only
    until the markers of our transaction are written; and a commit of theirs raises the epoch once more. With
    transactions v2 the last epoch of a producer id is followed by epoch 0 of another one.
    """
    version2 = client.feature(TRANSACTION_VERSION) >= 2
    ended = ABORTING + COMMITTING if version2 else ABORTING
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def codes(answer: DescribeTransactionsResponse) -> list[int]:
        return [state.error_code for state in answer.transaction_states]

    seen = 0
    while seen < 2:
        answer = await client.retry(partial(client.ask_coordinator, transactional_id, "transaction", request, codes=codes))
        (state,) = answer.transaction_states
        is_next = (state.producer_id, state.producer_epoch) == (producer_id, producer_epoch + 1)
        goes_round = version2 and producer_epoch >= EPOCH_LAST and state.producer_epoch == 0
        if not (is_next or (goes_round and state.producer_id != producer_id)):
            return None
        if state.transaction_state not in ended:
            return None
        seen += state.transaction_state in ("CompleteAbort", "CompleteCommit")
        await asyncio.sleep(TAKING_S)
    return state.producer_id, state.producer_epoch
