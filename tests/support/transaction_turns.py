"""Our transactional client in turns: each writes some values, and its number as the position of the group `turns`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import KafkaError
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.transaction import TransactionalSender, TransactionState
from penstock.pyx.record.builder import BatchBuilder

GROUP = "turns"


def transactional_batch(sender: TransactionalSender, tp: tuple[str, int], *values: bytes) -> bytes:
    """A batch of these values in the transaction that is open."""
    builder = BatchBuilder()
    for value in values:
        builder.append(None, value, 0)
    sequence = sender.next_sequence(tp, len(values))
    return builder.build(sender.producer_id, sender.producer_epoch, sequence, True)


def values_of(turns: int, count: int) -> list[bytes]:
    """What that many turns of so many values leave in the partition."""
    return [b"%d-%d" % (turn, number) for turn in range(turns) for number in range(count)]


async def take_turns(client: Admin, tp: tuple[str, int], count: int, goes_on: Callable[[int], bool]) -> int:
    """Take turns of so many values while it goes on after those that the group's position says are whole; how many they are."""
    sender = TransactionalSender(client, "turns")
    await sender.init()
    turn = 0
    while goes_on(turn):
        try:
            await sender.begin()
            values = [b"%d-%d" % (turn, number) for number in range(count)]
            await asyncio.gather(*[sender.send_raw(tp, [transactional_batch(sender, tp, value)]) for value in values])
            await sender.send_offsets(GROUP, {tp: (turn + 1, "")})
            await sender.commit()
            await asyncio.sleep(0.02)
        except KafkaError:
            if sender.state is TransactionState.MUST_ABORT:
                await sender.abort()
            else:
                await sender.init()
        position = (await client.committed(GROUP, [tp]))[tp]
        turn = 0 if position is None else position[0]
    return turn
