"""Produces with acks=all that wait until their records are committed.

A wait names the leader epoch in which its records were appended. It is over when the lead was lost, even if this broker leads
again by then: another record may stand at that offset (*the false acknowledgement*). The same wait serves a batch that an
idempotent producer sent twice: the offset of a duplicate is no answer until the high watermark is past it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from penstock.errors import ErrorCode


@dataclass(frozen=True, slots=True, order=True)
class Wait:
    """One produce to one partition: answered once the high watermark has reached `offset`."""

    offset: int
    token: int
    leads_since: int  # of the lead in which the records were appended
    deadline_ms: int


@dataclass(slots=True)
class Waits:
    """All waits of one partition, the lowest offset first."""

    heap: list[Wait] = field(default_factory=list)


Answer = tuple[int, int]  # token and error code


def add(waits: Waits, wait: Wait) -> None:
    """Begin to wait."""
    heapq.heappush(waits.heap, wait)


def answer(waits: Waits, high_watermark: int, leads_since: int | None, is_enough: bool, now_ms: int) -> list[Answer]:
    """The waits that are over, with what each is answered. leads_since: None if this broker doesn't lead."""
    over: list[Answer] = []
    stays = []
    for wait in waits.heap:
        if wait.leads_since != leads_since:
            over.append((wait.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif high_watermark >= wait.offset:
            over.append((wait.token, ErrorCode.NONE))
        elif now_ms >= wait.deadline_ms:
            over.append((wait.token, ErrorCode.REQUEST_TIMED_OUT if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        else:
            stays.append(wait)
    if over:
        waits.heap = stays
        heapq.heapify(stays)
    return over
