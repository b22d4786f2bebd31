"""Leaders that are moved by somebody's wish: a broker that stops, an operator, a tool, the balance of preferred leaders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from penstock import log
from penstock.broker.cluster import balance
from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import Out
from penstock.broker.cluster.leaderandisr import NO_LEADER
from penstock.broker.cluster.messages import Partition
from penstock.broker.replication.reading import read_preferred
from penstock.broker.replication.termevents import TermEvents
from penstock.broker.store.base import BadValueError, BadVersionError, Delete, Event, NoNodeError, Store, paths
from penstock.errors import ErrorCode

MOVED_A_SECOND = 50
"""How many leaders are moved in a second, where nothing but their balance asks for it."""

REASSIGNMENT_REFUSED = (
    f"the node `{paths.REASSIGNMENT}` asks to move replicas to other brokers, which this version can't: nothing is moved, and "
    "the node stays"
)

_log = log.get(__name__)


class LeaderMoves:
    """Of one term. config: the broker's properties, of which those about elections count."""

    def __init__(self, events: TermEvents, store: Store, config: Mapping[str, Any]) -> None:
        self._events = events
        self._controller = events.controller
        self._store = store
        self._config = config
        self.is_reassignment_asked = False
        """Whether a node of an old tool asks to move replicas to other brokers, which no controller does yet."""

    async def move_away(self, broker: int) -> list[Partition]:
        """Controlled shutdown: have others in sync lead what a broker leads. Answers what it still leads. Raises
        ConnectionError."""
        led = [partition for partition, image in self._controller.partitions.items() if image.state.leader == broker]
        for partition in led:
            image = self._controller.partitions[partition]
            others = [one for one in image.replicas if one in image.state.isr and one != broker]
            live = [one for one in others if one in self._controller.registrations and one not in image.unwritable]
            if live:
                self._events.put(partial(self._move, partition, live[0]))
        await self._events.settle()
        left = {one: image.state.leader for one, image in self._controller.partitions.items()}
        return [one for one in led if left.get(one) == broker]

    async def elect(self, asked: Sequence[Partition] | None, *, unclean: bool, timeout_s: float) -> dict[Partition, int]:
        """Have preferred leaders elected; or `unclean`: where nobody can lead, any live replica, whatever is lost by that.
        Answers an error code each; of all partitions (None) those are left out that need no election. Raises
        ConnectionError."""
        wanted = list(self._controller.partitions) if asked is None else list(dict.fromkeys(asked))
        answers: dict[Partition, int] = {}
        try:
            async with asyncio.timeout(timeout_s):
                for partition in wanted:
                    answers[partition] = machine.refuse_election(self._controller, partition, unclean=unclean)
                held = [one for one in wanted if answers[one] == ErrorCode.NONE]
                answers.update(dict.fromkeys(held, int(ErrorCode.REQUEST_TIMED_OUT)))
                for at in range(0, len(held), MOVED_A_SECOND):
                    if at:
                        await asyncio.sleep(1)
                    await self._elect_some(held[at : at + MOVED_A_SECOND], unclean, answers)
        except TimeoutError:
            _log.debug("not all of %d elections were over within %g s", len(wanted), timeout_s)
        if asked is None:
            return {one: error for one, error in answers.items() if error != ErrorCode.ELECTION_NOT_NEEDED}
        return answers

    async def _elect_some(self, wanted: Sequence[Partition], unclean: bool, answers: dict[Partition, int]) -> None:
        for partition in wanted:
            if unclean:
                _log.warning("topic=%s partition=%d: an operator gives up what its live replicas lack", *partition)
                self._events.put(partial(machine.on_wish, self._controller, partition, self._events.clock(), unclean=True))
            else:
                self._events.put(partial(self._prefer, partition))
        await self._events.settle()
        open_ = set(wanted)
        while open_:
            moved = self._events.next_move
            for partition in list(open_):
                error = self._outcome(partition, unclean)
                if error is not None:
                    answers[partition] = error
                    open_.discard(partition)
            if open_:
                await self._events.until_moved(moved)

    def _prefer(self, partition: Partition) -> Out:
        image = self._controller.partitions.get(partition)
        return [] if image is None else self._move(partition, image.replicas[0])

    def _outcome(self, partition: Partition, unclean: bool) -> int | None:
        """How an election has ended; None: not yet."""
        image = self._controller.partitions.get(partition)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if image.state.leader == image.replicas[0] or (unclean and image.state.leader != NO_LEADER):
            return ErrorCode.NONE
        if unclean or image.wanted_leader is not None or partition in self._controller.writing:
            return None
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    def _move(self, partition: Partition, leader: int) -> Out:
        return machine.on_wish(self._controller, partition, self._events.clock(), leader=leader)

    def look(self, _: str = "", __: Event = Event.CREATED) -> None:
        """Read what an old tool may have asked for."""
        self._events.look_again("preferred leaders", self._read_preferred)

    async def _read_preferred(self) -> None:
        """What an old tool has asked for by `/admin/preferred_replica_election`: it is taken, and the node removed."""
        if await self._store.exists(paths.PREFERRED_ELECTION, self.look) is None:
            return
        try:
            data, stat = await self._store.get(paths.PREFERRED_ELECTION)
        except NoNodeError:
            return
        try:
            asked = read_preferred(data)
        except BadValueError as error:
            _log.error("an election of preferred leaders isn't held: %s", error)
        else:
            try:
                await self.elect(asked, unclean=False, timeout_s=60 + len(asked) / MOVED_A_SECOND)
            except ConnectionError:
                return  # The next controller finds the node, too.
        with contextlib.suppress(NoNodeError, BadVersionError):
            await self._store.multi([*machine.guard(self._controller), Delete(paths.PREFERRED_ELECTION, stat.version)])

    def look_at_reassignment(self, _: str = "", __: Event = Event.CREATED) -> None:
        """See whether an old tool has asked to move replicas."""
        self._events.look_again("reassignment", self._see_reassignment)

    async def _see_reassignment(self) -> None:
        """What an old tool asks for by `/admin/reassign_partitions` is said, and left there: the tool shows it as pending."""
        before = self.is_reassignment_asked
        stat = await self._store.exists(paths.REASSIGNMENT, self.look_at_reassignment)
        self.is_reassignment_asked = stat is not None
        if self.is_reassignment_asked and not before:
            _log.warning("%s; `penstock cluster` shows how to take that back", REASSIGNMENT_REFUSED)

    async def balance_for_ever(self) -> None:
        """Have preferred leaders lead again, now and then, where too many partitions have others."""
        while True:
            await asyncio.sleep(self._config["leader.imbalance.check.interval.seconds"])
            if not self._config["auto.leader.rebalance.enable"]:
                continue
            controller, percentage = self._controller, self._config["leader.imbalance.per.broker.percentage"]
            unbalanced = balance.find_unbalanced(controller.partitions, controller.registrations, percentage)
            if not unbalanced:
                continue
            _log.info("%d partitions are to be led by their preferred leaders again", len(unbalanced))
            try:
                # The bound: however many there are, each has its turn, and answers.
                await self.elect(unbalanced, unclean=False, timeout_s=60 + len(unbalanced) / MOVED_A_SECOND)
            except ConnectionError:
                return
