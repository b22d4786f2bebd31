"""Waiting until records are committed: until all replicas that are in sync have them, so that no election takes them back.

A wait names the leader epoch in which its records were appended. It is over when the lead is lost, though this broker lead
again by then: another record may stand at that offset (`broker/cluster/acks.py` is the specification; network threads keep
the same rule for produces). What was appended stays appended, however a wait ends.

The data plane writes into an eventfd when a partition has moved for which somebody waits here; nobody polls. On one node a
record is committed when it is appended, and nobody ever waits.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from dataclasses import dataclass, field

from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.logmanager import LogManager

Partition = tuple[str, int]


@dataclass(order=True, slots=True)
class _Wait:
    """The order is that in which waits are answered: of the log, then as they came."""

    needed: int
    number: int
    leader_epoch: int = field(compare=False)
    answer: asyncio.Future[int] = field(compare=False)


class Commits:
    """All waits of one broker for its logs. On the loop, from `start` to `stop`."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._waits: dict[Partition, list[_Wait]] = {}
        self._numbers = itertools.count()

    def start(self) -> None:
        """Begin to hear of partitions that have moved."""
        asyncio.get_running_loop().add_reader(self._logs.moved_fd, self._hear)

    async def stop(self) -> None:
        """Hear nothing more: a wait ends by its time alone."""
        asyncio.get_running_loop().remove_reader(self._logs.moved_fd)

    async def wait(self, partition: Partition, needed: int, leader_epoch: int, timeout_ms: int = 30_000) -> int:
        """Wait until all below the offset `needed` is committed; an error code:

        0: it is, and this broker has led since that leader epoch without a pause. NOT_LEADER_OR_FOLLOWER: it hasn't, so what
        becomes of the records is for another to say. REQUEST_TIMED_OUT: not yet; the records stay.
        """
        answer = self._ask(partition, needed, leader_epoch)
        if answer is not None:
            return answer
        wait = _Wait(needed, next(self._numbers), leader_epoch, asyncio.get_running_loop().create_future())
        waits = self._waits.setdefault(partition, [])
        bisect.insort(waits, wait)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await wait.answer
        except TimeoutError:
            answer = self._ask(partition, needed, leader_epoch)
            return ErrorCode.REQUEST_TIMED_OUT if answer is None else answer
        finally:
            self._forget(partition, wait)

    def is_committed(self, partition: Partition, needed: int, leader_epoch: int) -> bool:
        """Whether `wait` would answer 0 at once."""
        return self._ask(partition, needed, leader_epoch) == ErrorCode.NONE

    def _ask(self, partition: Partition, needed: int, leader_epoch: int) -> int | None:
        """None: not yet; then the partition is among those that are heard of next."""
        try:
            return self._logs.committed(*partition, needed, leader_epoch)
        except KafkaError:  # It isn't here any more, or not open.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _hear(self) -> None:
        for partition in self._logs.take_moved():
            not_yet: set[int] = set()  # Leader epochs: of later offsets the answer is the same.
            for wait in self._waits.get(partition, ()):
                if wait.leader_epoch in not_yet or wait.answer.done():
                    continue
                answer = self._ask(partition, wait.needed, wait.leader_epoch)
                if answer is None:
                    not_yet.add(wait.leader_epoch)
                else:
                    wait.answer.set_result(answer)

    def _forget(self, partition: Partition, wait: _Wait) -> None:
        waits = self._waits[partition]
        del waits[bisect.bisect_left(waits, wait)]
        if not waits:
            del self._waits[partition]
