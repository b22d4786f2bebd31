"""A follower: asks its leader for what follows its log, and makes its log a part of the leader's.

Rule R4: a follower appends or cuts only if its role, its leader and its epoch are still those with which it asked, and its log
still ends at the offset and with the epoch that it named. *An answer of an old leader is appended in a new epoch.* The offset
alone isn't enough: *a fetch that was sent twice is answered "cut" twice; between the answers the log was cut and has grown to
the same offset with records that the leader has counted.* Offset and last epoch together name one log (I2).

Where logs part is found by epochs, never by the high watermark (KIP-101: a high watermark is a fetch old, so a cut to it loses
what was answered). The leader answers with its largest epoch up to the follower's last one, and where that epoch ends; the
follower cuts to the smaller of that end and its own end of its largest epoch up to that one, and asks again until it fits
(KIP-279: two quick failovers leave epochs that the leader never saw).

The order is: cut, append, high watermark (KAFKA-14704: a high watermark before the cut shows records that aren't committed).

The log never falls below the own high watermark (I8), unless the state names an unclean epoch between the last batch's and the
current one. Otherwise the replica stops and keeps its bytes: *the last good copy, cut by a leader that lost its tail*.

The leader's bytes may be read from its file long after it decided which to send. If its log was cut and written again in
between, other records come. So the follower takes no batch of an epoch above the one that it asked with, or below its log's
last; and a log that is cut goes on in a new segment, so that no range that was handed out is ever written again.

A log that may keep what was deleted is emptied and begins at the leader's log start (`leader.py` says when). What it copies
from below the leader's `removed_below` lacks deletions. The follower takes that offset over, on its disk, before it appends
(*a kill between the two; then it leads, and a third replica that was away keeps what was deleted*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.log import Log
from penstock.broker.cluster.messages import Fetch, Fetched
from penstock.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Truncate:
    """Decision: cut the log to an offset, continue in a new segment, and fsync before the next append."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Decision: append the first `count` of the batches that came."""

    count: int


@dataclass(frozen=True, slots=True)
class SetRemovedBelow:
    """Decision: the log lacks deletions up to that offset from now on; on the disk before what follows."""

    offset: int


@dataclass(frozen=True, slots=True)
class SetHighWatermark:
    """Decision: the high watermark stands there now."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Decision: the leader's log lacks what this replica has below its high watermark; the replica goes offline."""

    offset: int


Decision = Truncate | Append | SetRemovedBelow | SetHighWatermark | Stop


def ask(broker: int, broker_epoch: int, leader_epoch: int, log: Log) -> Fetch:
    """The next fetch: only after everything before it is written, since its offset says so."""
    return Fetch(broker, broker_epoch, leader_epoch, log.end, log.last_epoch)


def fits(fetch: Fetch, is_follower: bool, broker_epoch: int, leader_epoch: int, log: Log) -> bool:
    """Whether an answer still belongs to this replica: R4."""
    is_same_log = fetch.offset == log.end and fetch.last_epoch == log.last_epoch
    return is_follower and fetch.broker_epoch == broker_epoch and fetch.leader_epoch == leader_epoch and is_same_log


def on_fetched(
    fetch: Fetch, answer: Fetched, epochs: Sequence[int], state: LeaderAndIsr, log: Log, high_watermark: int
) -> list[Decision]:
    """What to do with an answer that fits. `epochs` are those of the batches that came with it."""
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return [Truncate(0), SetHighWatermark(0)]
    if answer.diverging is not None:
        return cut(answer.diverging, state, log, high_watermark)
    count = accept(epochs, fetch.leader_epoch, log.last_epoch)
    told = min(answer.high_watermark, log.end + count)
    rest: list[Decision] = [Append(count), SetHighWatermark(max(high_watermark, told))]
    return [SetRemovedBelow(answer.removed_below), *rest] if count and answer.removed_below > log.removed_below else rest


def accept(epochs: Sequence[int], asked_epoch: int, last_epoch: int) -> int:
    """How many of the batches may be appended: epochs don't fall, and none is above the asked one."""
    for count, epoch in enumerate(epochs):
        if not last_epoch <= epoch <= asked_epoch:
            return count
        last_epoch = epoch
    return len(epochs)


def cut(diverging: tuple[int, int], state: LeaderAndIsr, log: Log, high_watermark: int) -> list[Decision]:
    """Cut the log where it may leave the leader's."""
    epoch, end = diverging
    offset = min(end, log.epoch_end(epoch)[1], log.end)
    if offset >= high_watermark:
        return [Truncate(offset)]
    if log.last_epoch < state.unclean_epoch <= state.leader_epoch:
        return [Truncate(offset), SetHighWatermark(offset)]
    return [Stop(offset)]
