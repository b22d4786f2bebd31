"""What a power cut of all in-sync replicas may take out of a history, and what has to hold of the rest.

The longest log that is left of a partition leads then, in an epoch that its state calls unclean. So what is gone is an end of
that log: each record that was acknowledged below has to be there, in its place. Nothing is promised of the positions of groups
and of the outcome of transactions behind such a cut: of groups the time before it is judged, of transactions those records
that were committed before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from support.history import FINAL, Anomaly, History, Outcome, Poll, Send


@dataclass(frozen=True)
class Loss:
    """A power cut.

    ends: where the logs of partitions that lost records end now, by partition. began: when power was gone.
    over: a moment before anything new was acknowledged by any of these partitions. flushed: by partition, an offset below which
    all was on a disk.
    """

    ends: Mapping[int, int]
    began: float
    over: float
    flushed: Mapping[int, int] = field(default_factory=dict)


def lost(history: History, loss: Loss) -> Iterator[Send]:
    """Each acknowledged record that the power cut took lawfully."""
    final = {(partition, offset): value for poll in history.polls for partition, offset, value in _final(poll)}
    for send in history.sends:
        end = loss.ends.get(send.partition)
        if end is None or send.outcome is not Outcome.OK or send.offset is None or send.offset < end:
            continue
        # A transaction that began before the cut may be committed after it, with what is left of it.
        is_old = send.started < loss.began and (send.ended < loss.over or send.transaction is not None)
        if is_old and final.get((send.partition, send.offset)) != send.value:
            yield send


def without(history: History, loss: Loss) -> History:
    """The history as far as it has to hold."""
    gone = {(send.partition, send.value) for send in lost(history, loss)}
    told = [send for send in history.sends if send.transaction is None or send.outcome is Outcome.OK]
    untold = {send.value for send in history.sends if send.transaction is not None and send.outcome is not Outcome.OK}
    kept = History(
        sends=[
            replace(send, outcome=Outcome.INFO, offset=None, transaction=None) if (send.partition, send.value) in gone else send
            for send in told
        ],
        assigned=[one for one in history.assigned if one.started < loss.began],
        commits=[one for one in history.commits if one.ended < loss.began],
        ends=[one for one in history.ends if one.ended < loss.began],
    )
    for poll in history.polls:
        if poll.consumer == FINAL or poll.ended < loss.began:
            records = [one for one in poll.records if one[2] not in untold and (one[0], one[2]) not in gone]
            kept.polls.append(replace(poll, records=records))
    return kept


def excess(loss: Loss) -> Iterator[Anomaly]:
    """What the power cut took that was on a disk."""
    for partition, end in loss.ends.items():
        if end < loss.flushed.get(partition, 0):
            yield Anomaly("lost_flushed", f"{partition} ends at {end}, and all below {loss.flushed[partition]} was flushed")


def _final(poll: Poll) -> list[tuple[int, int, str]]:
    return poll.records if poll.consumer == FINAL else []
