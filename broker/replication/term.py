"""One controller epoch of this broker: the machine of `cluster.controller`, fed, and its decisions carried out.

The term reads what there is and gives it to the machine. Events come one by one, from one queue (`termevents.py`): what
watches, answers and time have to say. Every write checks the controller epoch (R1), so a controller that was replaced without
knowing it has no effect.

A topic is created by whoever writes its node; the controller sees it and gives its partitions their first states.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock import log
from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import (
    AnswerAlter,
    Controller,
    Out,
    Outcome,
    ReadBrokers,
    ReadDeletions,
    ReadState,
    Resign,
    SendRoles,
    WriteStates,
)
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    UpdateMetadata,
)
from penstock.broker.cluster.registration import WRITABLE, Registration
from penstock.broker.replication.electioncount import ElectionCount
from penstock.broker.replication.leadermoves import LeaderMoves
from penstock.broker.replication.pictures import Pictures
from penstock.broker.replication.reading import read_brokers, read_log_dir_event, read_one_state
from penstock.broker.replication.sender import ControllerSender
from penstock.broker.replication.storedtopics import StoredTopics
from penstock.broker.replication.termevents import TermEvents
from penstock.broker.replication.topicdeletions import TopicDeletions
from penstock.broker.store.base import (
    BadValueError,
    BadVersionError,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    Store,
    UnknownOutcomeError,
    paths,
)
from penstock.errors import ErrorCode

TICK_S = 0.2
"""How often the controller looks for what wasn't answered."""

_log = log.get(__name__)


class Term:
    """Of one broker. config: its properties, of which those about elections count."""

    def __init__(
        self,
        controller: Controller,
        store: Store,
        sender: ControllerSender,
        config: Mapping[str, Any],
        monotonic_ms: Callable[[], int],
        lease_is_over: Callable[[], bool],
        elections: ElectionCount,
    ) -> None:
        self._controller = controller
        self._store = store
        self._sender = sender
        self._clock = monotonic_ms
        self._lease_is_over = lease_is_over
        self._elections = elections
        self._events = TermEvents(controller, monotonic_ms)
        self._pictures = Pictures(controller, self._send_picture, self._events.running)
        self._topics = StoredTopics(self._events, store, config, self._pictures)
        self._deletions = TopicDeletions(self._events, store, sender, self._pictures, self._topics)
        self.moves = LeaderMoves(self._events, store, config)
        self._asked: dict[object, asyncio.Future[AlterPartitionAnswer]] = {}
        self.has_begun = False
        """Whether it has read what there is."""
        self.newer_epoch = -1
        """The controller epoch that a broker has refused this one with; -1: none has."""

    async def run(self) -> None:
        """Until another controller has been elected. Raises StoreError."""
        try:
            await self._begin()
            self._events.running.start(self._tick_for_ever())
            self._events.running.start(self.moves.balance_for_ever())
            while (event := await self._events.next()) is not None:
                # Another broker may be the controller by now: this one goes on once it knows that it still is.
                while self._lease_is_over():  # noqa: ASYNC110 - it ends by time
                    await asyncio.sleep(TICK_S)
                self._carry_out(event())
        finally:
            await self._events.stop()
            for asked in self._asked.values():
                asked.cancel()

    async def alter(self, asks: Sequence[AlterPartition]) -> Sequence[AlterPartitionAnswer]:
        """The proposals of one leader, at least one; the answers in their order, once all are there. Raises ConnectionError:
        this term is over, the leader asks the next controller."""
        loop = asyncio.get_running_loop()
        asked: dict[object, asyncio.Future[AlterPartitionAnswer]] = {object(): loop.create_future() for _ in asks}
        self._asked.update(asked)
        self._events.put(lambda: machine.on_alter(self._controller, zip(asked, asks, strict=True), self._clock()))
        try:
            await asyncio.wait(asked.values())
            return [answer.result() for answer in asked.values()]
        except asyncio.CancelledError:
            if not any(answer.cancelled() for answer in asked.values()):
                raise
            raise ConnectionError("another controller has been elected") from None
        finally:
            for token in asked:
                del self._asked[token]

    @property
    def queued(self) -> int:
        """Events that wait for the machine."""
        return self._events.queued

    def is_registered(self, broker: int, broker_epoch: int) -> bool:
        """Whether a broker lives under this registration."""
        registration = self._controller.registrations.get(broker)
        return registration is not None and registration.epoch == broker_epoch

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic; None: there is none with that id."""
        return self._topics.name_of(topic_id)

    def configs_changed(self) -> None:
        """A topic's configs are others: elections depend on two of them."""
        self._topics.look()

    def _carry_out(self, actions: Out) -> None:
        for action in actions:
            match action:
                case WriteStates():
                    self._events.work(partial(self._write, action))
                case ReadState():
                    self._events.work(partial(self._read_state, action.partition))
                case ReadBrokers():
                    self._look_at_brokers()
                case ReadDeletions():
                    self._events.work(self._read_deletions)
                case SendRoles():
                    self._pictures.on_roles(action.request)
                    self._events.work(partial(self._send_roles, action.request))
                case AnswerAlter():
                    answer = self._asked.get(action.token)
                    if answer is not None and not answer.done():
                        answer.set_result(action.answer)
                case Resign():
                    self.newer_epoch = max(self.newer_epoch, action.newer_epoch)
                    self._events.end()
        if self._controller.news:
            self._elections.look(self._controller.news, self._controller.partitions)
            self._pictures.on_states(self._controller.news)
            self._controller.news.clear()
        self._pictures.send()
        self._events.tell_moved()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self._lease_is_over():
                self._events.put(lambda: machine.on_time(self._controller, self._clock()))

    # The store

    async def _begin(self) -> None:
        """Read what there is, and give it to the machine."""
        self._topics.begin_look()
        await self._store.sync()
        brokers = await read_brokers(self._store, self._look_at_brokers)
        _, deletions = await self._store.get(paths.DELETED)
        machine.on_deletions(self._controller, deletions.version, self._clock())
        images = await self._topics.begin()
        self._elections.begin(images)
        out = machine.on_deleting(self._controller, await self._deletions.begun(), self._clock())
        out += machine.on_image(self._controller, images, brokers.registrations, brokers.incarnations, self._clock())
        self._sender.know(brokers.endpoints)
        self._pictures.on_brokers(brokers.endpoints, brokers.racks)
        self._carry_out(out)
        self._deletions.look()
        self.moves.look()
        self.moves.look_at_reassignment()
        self._look_at_log_dirs()
        self._topics.end_look()
        self.has_begun = True

    def _look_at_brokers(self, _: str = "", __: Event = Event.CHANGED) -> None:
        self._events.look_again("brokers", self._read_brokers)

    def _look_at_log_dirs(self, _: str = "", __: Event = Event.CREATED) -> None:
        self._events.look_again("log folders", self._read_log_dirs)

    async def _read_brokers(self) -> None:
        brokers = await read_brokers(self._store, self._look_at_brokers)

        def event() -> Out:
            _say_unwritable(self._controller.registrations, brokers.registrations)
            out = machine.on_brokers(self._controller, brokers.registrations, brokers.incarnations, self._clock())
            self._sender.know(brokers.endpoints)
            self._pictures.on_brokers(brokers.endpoints, brokers.racks)
            # Which replicas are offline depends on who lives.
            self._pictures.on_states(self._controller.partitions)
            return out

        self._events.put(event)

    async def _read_log_dirs(self) -> None:
        """Brokers whose log folders have failed are told all roles: they answer which replicas they have no longer."""
        for name in await self._store.children(paths.LOG_DIR_EVENTS, self._look_at_log_dirs):
            path = f"{paths.LOG_DIR_EVENTS}/{name}"
            try:
                data, _ = await self._store.get(path)
                broker = read_log_dir_event(path, data)
            except NoNodeError:
                continue
            except BadValueError as error:
                _log.error("the failure of a log folder can't be read: %s", error)
            else:
                _log.warning("a log folder of broker %d has failed: others lead what it led there", broker)
                self._events.put(partial(machine.on_log_dir_failure, self._controller, broker, self._clock()))
                await self._events.settle()
            with contextlib.suppress(NoNodeError):
                await self._store.multi([*machine.guard(self._controller), Delete(path)])

    async def _read_state(self, partition: Partition) -> None:
        state = await read_one_state(self._store, partition)
        self._events.put(lambda: machine.on_state_read(self._controller, partition, state, self._clock()))

    async def _read_deletions(self) -> None:
        _, deletions = await self._store.get(paths.DELETED)
        self._events.put(lambda: machine.on_deletions(self._controller, deletions.version, self._clock()))

    async def _write(self, action: WriteStates) -> None:
        outcome, refused = Outcome.DONE, ""
        try:
            await self._store.multi(action.operations)
        except UnknownOutcomeError:
            outcome = Outcome.UNKNOWN
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            outcome, refused = Outcome.REFUSED, error.path
        self._events.put(lambda: machine.on_written(self._controller, action.id, outcome, self._clock(), refused))

    # Brokers

    async def _send_roles(self, request: LeaderAndIsrRequest) -> None:
        try:
            answer = await self._sender.send_roles(request)
        except OSError as error:
            _log.debug("broker %d can't be told its roles: %s", request.broker, error)
            self._events.put(lambda: self._answered(request, None))
        else:
            self._events.put(lambda: self._answered(request, answer))

    def _answered(self, request: LeaderAndIsrRequest, answer: LeaderAndIsrAnswer | None) -> Out:
        self._pictures.on_answered(request)
        if answer is None:
            return machine.on_unanswered(self._controller, request, self._clock())
        return machine.on_answer(self._controller, request, answer, self._clock())

    async def _send_picture(self, picture: UpdateMetadata) -> int:
        error = await self._sender.send_picture(picture)
        if error == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._events.end()
        return error


def _say_unwritable(before: Mapping[int, Registration], now: Mapping[int, Registration]) -> None:
    """Log which brokers have begun or ended to report full log folders."""
    for broker, known in now.items():
        was = before[broker].unwritable if broker in before else WRITABLE
        if known.unwritable != WRITABLE == was:
            _log.warning("log folders of broker %d are full: brokers that are in sync lead what it led there", broker)
        elif known.unwritable == WRITABLE != was and before[broker].epoch == known.epoch:
            _log.info("no log folder of broker %d is full any more", broker)
