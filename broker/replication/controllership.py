"""Who the controller is; and while it is this broker, its machine, fed.

Every broker watches `/controller`. Where it is gone each stands for it: one multi makes the node and raises the epoch,
so one of them wins. The winner reads what there is, gives it to `cluster.controller`, and carries out what that decides. Events
come one by one, from one queue: what watches, answers and time have to say. Every write checks the controller epoch (R1), so a
controller that was replaced without knowing it has no effect.

A topic is created by whoever writes its node; the controller sees it and gives its partitions their first states. A topic is
deleted by a node below `/admin/delete_topics`: the controller tells everybody, has the live replicas deleted, and removes the
nodes: those of the partitions in as many multis as it takes, the topic's own in the last one. A controller that is elected in
between knows from the start that the topic is being deleted, and goes on. Which brokers were away, and still hold the topic, is
noted in `/penstock/deleted` (`leftovers.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from penstock import log
from penstock.broker import tasks
from penstock.broker.cluster import balance
from penstock.broker.cluster import controller as machine
from penstock.broker.cluster.controller import (
    AnswerAlter,
    Controller,
    Out,
    Outcome,
    ReadBrokers,
    ReadState,
    Resign,
    SendRoles,
    WriteStates,
)
from penstock.broker.cluster.leaderandisr import NO_LEADER, LeaderAndIsr
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    StoppedReplica,
    StopReplica,
    StopReplicaAnswer,
    UpdateMetadata,
)
from penstock.broker.cluster.planning import Image
from penstock.broker.context import Endpoint
from penstock.broker.replication.pictures import Pictures
from penstock.broker.replication.reading import (
    MAY_LOSE,
    MIN_ISR,
    StoredTopic,
    controller_of,
    read_brokers,
    read_deleted,
    read_log_dir_event,
    read_one_state,
    read_one_topic,
    read_preferred,
    read_states,
    read_topics,
)
from penstock.broker.store.base import (
    TRIES,
    BadValueError,
    BadVersionError,
    Create,
    Delete,
    Event,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionLostError,
    Stat,
    Store,
    StoreError,
    UnknownOutcomeError,
    paths,
    setting,
)
from penstock.broker.store.values import INT_MAX, to_json, whole_number
from penstock.broker.uuids import uuid_text
from penstock.errors import ErrorCode
from penstock.failpoints import declare, failpoint

TICK_S = 0.2
"""How often the controller looks for what wasn't answered."""
MOVED_A_SECOND = 50
"""How many leaders are moved in a second, where nothing but their balance asks for it."""
UNREADABLE = INT_MAX
"""In place of the controller's number, where what its node says can't be read."""
AGAIN_S = 0.5
"""How long it waits before it asks again for what the store refused to say."""
UNDELETED_S = 60
"""How long a topic waits whose deletion the store has refused. It ends no term: all else goes on."""

EMPTIED = declare("controller.emptied", "the states of a topic that is deleted are gone, its own node and the mark are there")

_log = log.get(__name__)


class Others(Protocol):
    """What a controller says to brokers, itself among them. What is sent raises OSError where one can't be reached."""

    def know(self, endpoints: Mapping[int, Mapping[str, Endpoint]]) -> None:
        """Where brokers are reached."""
        ...

    async def send_roles(self, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        """Its roles."""
        ...

    async def send_picture(self, picture: UpdateMetadata) -> int:
        """Who lives and who leads; answers its error code."""
        ...

    async def send_stop(self, request: StopReplica) -> StopReplicaAnswer:
        """Which replicas it has no longer."""
        ...


@dataclass(slots=True)
class Elections:
    """Leaders that one broker has elected as the controller, over all its terms. A partition's first one is none."""

    leaders: int = 0
    unclean: int = 0
    _known: dict[Partition, LeaderAndIsr] = field(default_factory=dict)

    def begin(self, images: Mapping[Partition, Image]) -> None:
        """A term begins with these states."""
        self._known = {partition: image.state for partition, image in images.items()}

    def look(self, changed: Iterable[Partition], images: Mapping[Partition, Image]) -> None:
        """These states are others."""
        for partition in changed:
            image, before = images.get(partition), self._known.get(partition)
            if image is None:
                self._known.pop(partition, None)
                continue
            state = self._known[partition] = image.state
            if before is not None and before.leader_epoch < state.leader_epoch and state.leader != NO_LEADER:
                self.leaders += 1
                self.unclean += before.unclean_epoch < state.unclean_epoch


class Controllership:
    """Of one broker in one session. config: its properties, of which those about elections count while it is the controller."""

    def __init__(
        self,
        node_id: int,
        store: Store,
        others: Others,
        config: Mapping[str, Any],
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        newer_epoch: Callable[[], int],
        lease_is_over: Callable[[], bool],
        elections: Elections,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._others = others
        self._config = config
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._newer_epoch = newer_epoch
        self._lease_is_over = lease_is_over
        self._elections = elections
        self.term: Term | None = None
        """While this broker is the controller."""
        self._won: Controller | None = None
        """The machine of the election that this session has won, until its term begins."""
        self._heard_of = -1  # the latest controller epoch that a broker has refused this one with

    async def run(self) -> None:
        """For as long as the session lasts. Raises SessionLostError."""
        while True:
            changed = asyncio.Event()
            controller, is_own = await self._look(changed)
            try:
                if controller < 0:
                    await self._stand()
                elif is_own:
                    await self._lead()
                else:
                    await changed.wait()
            except SessionLostError:
                raise
            except StoreError as error:
                _log.error("the controller's node can't be read or written: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _look(self, changed: asyncio.Event) -> tuple[int, bool]:
        """Who the controller is, and whether it is this session."""
        try:
            data, stat = await self._store.get(paths.CONTROLLER, setting(changed))
        except NoNodeError:
            return -1, False
        try:
            return controller_of(data), stat.ephemeral_session == self._store.session
        except BadValueError as error:
            _log.error("nobody is the controller until this node is right, or gone: %s", error.why)
            return UNREADABLE, False

    async def _stand(self) -> None:
        """Become the controller, if nobody was quicker. Raises StoreError."""
        data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
        written = whole_number(paths.CONTROLLER_EPOCH, data, 0, INT_MAX - 1)
        # Brokers may have heard of a later one, if the store was put back from a copy.
        epoch = max(written, self._newer_epoch(), self._heard_of)
        try:
            await self._store.multi(machine.stand(self._node_id, epoch, stat.version, self._now_ms()))
        except (NodeExistsError, BadVersionError):
            return
        self._won = Controller(self._node_id, epoch + 1, stat.version + 1)

    async def _lead(self) -> None:
        """Be the controller until another one is elected. Raises StoreError."""
        own, self._won = self._won, None
        if own is None:  # The answer to the multi got lost, or the term has failed: another election, another epoch.
            await self._store.delete(paths.CONTROLLER)
            return
        _log.info("broker %d is the controller of epoch %d", self._node_id, own.epoch)
        self.term = Term(
            own, self._store, self._others, self._config, self._now_ms, self._monotonic_ms, self._lease_is_over, self._elections
        )  # fmt: skip
        try:
            await self.term.run()
        finally:
            self._heard_of = max(self._heard_of, self.term.newer_epoch)
            self.term = None
        _log.warning("another controller has been elected: epoch %d is over", own.epoch)


class Term:
    """One epoch of this broker as the controller."""

    def __init__(
        self,
        controller: Controller,
        store: Store,
        others: Others,
        config: Mapping[str, Any],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        lease_is_over: Callable[[], bool],
        elections: Elections,
    ) -> None:
        self._controller = controller
        self._store = store
        self._others = others
        self._config = config
        self._now_ms = now_ms
        self._clock = monotonic_ms
        self._lease_is_over = lease_is_over
        self._elections = elections
        self._events: asyncio.Queue[Callable[[], Out] | None] = asyncio.Queue()
        self._running = tasks.Group("controller")
        self._pictures = Pictures(controller, self._send_picture, self._running)
        self._asked: dict[object, asyncio.Future[AlterPartitionAnswer]] = {}
        self._looking: set[str] = set()  # what is being read: brokers, topics, deletions
        self._dirty: set[str] = set()  # what a watch has said something of since
        self._topics: dict[str, StoredTopic] = {}
        self._removed: set[bytes] = set()
        """The ids of topics that were removed since the last look at topics began: that one may still have seen them."""
        self._failed: BaseException | None = None
        self._moved = asyncio.Event()  # set when something may have changed, then another one
        self._is_over = False
        self.newer_epoch = -1
        """The controller epoch that a broker has refused this one with; -1: none has."""

    async def run(self) -> None:
        """Until another controller has been elected. Raises StoreError."""
        try:
            await self._begin()
            self._running.start(self._tick_for_ever())
            self._running.start(self._balance_for_ever())
            while (event := await self._events.get()) is not None:
                # Another broker may be the controller by now: this one goes on once it knows that it still is.
                while self._lease_is_over():  # noqa: ASYNC110 - it ends by time
                    await asyncio.sleep(TICK_S)
                self._carry_out(event())
            if self._failed is not None:
                raise self._failed
        finally:
            self._is_over = True
            self._moved.set()
            await self._running.stop()
            for asked in self._asked.values():
                asked.cancel()

    async def alter(self, ask: AlterPartition) -> AlterPartitionAnswer:
        """A leader's proposal. Raises ConnectionError: this term is over, the leader asks the next controller."""
        token = object()
        answer: asyncio.Future[AlterPartitionAnswer] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        self._put(lambda: machine.on_alter(self._controller, token, ask, self._clock()))
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            raise ConnectionError("another controller has been elected") from None
        finally:
            del self._asked[token]

    @property
    def queued(self) -> int:
        """Events that wait for the machine."""
        return self._events.qsize()

    async def move_leaders(self, broker: int) -> list[Partition]:
        """Controlled shutdown: have others in sync lead what a broker leads. Answers what it still leads. Raises
        ConnectionError."""
        led = [partition for partition, image in self._controller.partitions.items() if image.state.leader == broker]
        for partition in led:
            image = self._controller.partitions[partition]
            others = [one for one in image.replicas if one in image.state.isr and one != broker]
            live = [one for one in others if one in self._controller.registrations]
            if live:
                self._put(partial(self._move, partition, live[0]))
        await self._settle()
        left = {one: image.state.leader for one, image in self._controller.partitions.items()}
        return [one for one in led if left.get(one) == broker]

    async def elect(self, asked: Sequence[Partition] | None, *, gives_up: bool, timeout_s: float) -> dict[Partition, int]:
        """Have preferred leaders elected; or, if it `gives_up`, any live replica where nobody can lead, whatever is lost by
        that. Answers an error code each; of all partitions (None) those are left out that need no election. Raises
        ConnectionError."""
        wanted = list(self._controller.partitions) if asked is None else list(dict.fromkeys(asked))
        answers: dict[Partition, int] = {}
        try:
            async with asyncio.timeout(timeout_s):
                for partition in wanted:
                    answers[partition] = machine.refuse_election(self._controller, partition, gives_up=gives_up)
                held = [one for one in wanted if answers[one] == ErrorCode.NONE]
                answers.update(dict.fromkeys(held, int(ErrorCode.REQUEST_TIMED_OUT)))
                for at in range(0, len(held), MOVED_A_SECOND):
                    if at:
                        await asyncio.sleep(1)
                    await self._elect_some(held[at : at + MOVED_A_SECOND], gives_up, answers)
        except TimeoutError:
            _log.debug("not all of %d elections were over within %g s", len(wanted), timeout_s)
        if asked is None:
            return {one: error for one, error in answers.items() if error != ErrorCode.ELECTION_NOT_NEEDED}
        return answers

    async def _elect_some(self, wanted: Sequence[Partition], gives_up: bool, answers: dict[Partition, int]) -> None:
        for partition in wanted:
            if gives_up:
                _log.warning("topic=%s partition=%d: an operator gives up what its live replicas lack", *partition)
                self._put(partial(machine.on_wish, self._controller, partition, self._clock(), gives_up=True))
            else:
                self._put(partial(self._prefer, partition))
        await self._settle()
        open_ = set(wanted)
        while open_:
            moved = self._moved
            for partition in list(open_):
                error = self._outcome(partition, gives_up)
                if error is not None:
                    answers[partition] = error
                    open_.discard(partition)
            if open_:
                await self._until_moved(moved)

    async def _until_moved(self, moved: asyncio.Event | None = None) -> None:
        """Until an event was dealt with, since now or since this was the one to wait for. Raises ConnectionError."""
        await (moved or self._moved).wait()
        if self._is_over:
            raise ConnectionError("another controller has been elected")

    def _prefer(self, partition: Partition) -> Out:
        image = self._controller.partitions.get(partition)
        return [] if image is None else self._move(partition, image.replicas[0])

    def _outcome(self, partition: Partition, gives_up: bool) -> int | None:
        """How an election has ended; None: not yet."""
        image = self._controller.partitions.get(partition)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if image.state.leader == image.replicas[0] or (gives_up and image.state.leader != NO_LEADER):
            return ErrorCode.NONE
        if gives_up or image.wanted_leader is not None or partition in self._controller.writing:
            return None
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    def _move(self, partition: Partition, leader: int) -> Out:
        return machine.on_wish(self._controller, partition, self._clock(), leader=leader)

    async def _settle(self) -> None:
        """Until what is in the queue now has been dealt with, and its writes are over, too; a second is the most that these are
        waited for, as others' writes may follow without an end. Raises ConnectionError: this term is over."""
        done = asyncio.Event()

        def mark() -> Out:
            done.set()
            return []

        self._put(mark)
        while not done.is_set():
            await self._until_moved()
        for _ in range(50):
            if not self._controller.writes:
                return
            await asyncio.sleep(0.02)

    def is_registered(self, broker: int, broker_epoch: int) -> bool:
        """Whether a broker lives under this registration."""
        registration = self._controller.registrations.get(broker)
        return registration is not None and registration.epoch == broker_epoch

    def configs_changed(self) -> None:
        """A topic's configs are others: elections depend on two of them."""
        self._on_topics("", Event.CHANGED)

    # Events

    def _put(self, event: Callable[[], Out]) -> None:
        self._events.put_nowait(event)

    def _end(self, failure: BaseException | None = None) -> None:
        self._failed = self._failed or failure
        self._events.put_nowait(None)

    def _carry_out(self, actions: Out) -> None:
        for action in actions:
            match action:
                case WriteStates():
                    self._work(partial(self._write, action))
                case ReadState():
                    self._work(partial(self._read_state, action.partition))
                case ReadBrokers():
                    self._look_again("brokers", self._read_brokers)
                case SendRoles():
                    self._pictures.on_roles(action.request)
                    self._work(partial(self._send_roles, action.request))
                case AnswerAlter():
                    answer = self._asked.get(action.token)
                    if answer is not None and not answer.done():
                        answer.set_result(action.answer)
                case Resign():
                    self.newer_epoch = max(self.newer_epoch, action.newer_epoch)
                    self._end()
        if self._controller.news:
            self._elections.look(self._controller.news, self._controller.partitions)
            self._pictures.on_states(self._controller.news)
            self._controller.news.clear()
        self._pictures.send()
        self._moved.set()
        self._moved = asyncio.Event()

    def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        self._running.start(self._ending(work))

    async def _ending(self, work: Callable[[], Awaitable[None]]) -> None:
        """What the store refuses ends the term: the next one reads everything again."""
        try:
            await work()
        except StoreError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - a controller that has lost an event decides nothing right any more
            _log.exception("the controller of epoch %d has failed", self._controller.epoch)
            self._end(StoreError(paths.CONTROLLER, str(error)))

    async def _balance_for_ever(self) -> None:
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
                await self.elect(unbalanced, gives_up=False, timeout_s=60 + len(unbalanced) / MOVED_A_SECOND)
            except ConnectionError:
                return

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self._lease_is_over():
                self._put(lambda: machine.on_time(self._controller, self._clock()))

    # The store

    async def _begin(self) -> None:
        """Read what there is, and give it to the machine."""
        self._looking.add("topics")  # A watch that fires meanwhile asks for one more look, after this one.
        await self._store.sync()
        brokers = await read_brokers(self._store, self._on_brokers)
        self._topics = await self._stored_topics()
        images = await read_states(self._store, list(self._topics.values()), self._patience_ms)
        self._elections.begin(images)
        out = machine.on_deleting(self._controller, await self._deleted_partitions(), self._clock())
        out += machine.on_image(self._controller, images, brokers.registrations, brokers.incarnations, self._clock())
        self._others.know(brokers.endpoints)
        self._pictures.on_brokers(brokers.endpoints, brokers.racks)
        self._carry_out(out)
        self._look_again("deletions", self._read_deleted)
        self._on_preferred("", Event.CREATED)
        self._on_log_dirs("", Event.CREATED)
        self._looking.discard("topics")
        if "topics" in self._dirty:
            self._dirty.discard("topics")
            self._look_again("topics", self._read_topics)

    def _on_brokers(self, _: str, __: Event) -> None:
        self._look_again("brokers", self._read_brokers)

    def _on_topics(self, _: str, __: Event) -> None:
        self._look_again("topics", self._read_topics)

    def _on_deleted(self, _: str, __: Event) -> None:
        self._look_again("deletions", self._read_deleted)

    def _on_log_dirs(self, _: str, __: Event) -> None:
        self._look_again("log folders", self._read_log_dirs)

    def _on_preferred(self, _: str, __: Event) -> None:
        self._look_again("preferred leaders", self._read_preferred)

    def _look_again(self, about: str, read: Callable[[], Awaitable[None]]) -> None:
        """One look at a time; a watch that fires meanwhile asks for one more."""
        if about in self._looking:
            self._dirty.add(about)
        else:
            self._looking.add(about)
            self._work(partial(self._look, about, read))

    async def _look(self, about: str, read: Callable[[], Awaitable[None]]) -> None:
        await read()
        while about in self._dirty:
            self._dirty.discard(about)
            await read()
        self._looking.discard(about)

    async def _read_brokers(self) -> None:
        brokers = await read_brokers(self._store, self._on_brokers)

        def event() -> Out:
            out = machine.on_brokers(self._controller, brokers.registrations, brokers.incarnations, self._clock())
            self._others.know(brokers.endpoints)
            self._pictures.on_brokers(brokers.endpoints, brokers.racks)
            # Which replicas are offline depends on who lives.
            self._pictures.on_states(self._controller.partitions)
            return out

        self._put(event)

    async def _stored_topics(self) -> dict[str, StoredTopic]:
        """All topics; a change of one of them, and a new one, is looked at."""
        given = {MAY_LOSE: str(self._config[MAY_LOSE]).lower(), MIN_ISR: str(self._config[MIN_ISR])}
        return await read_topics(self._store, self._on_topics, await self._store.children(paths.TOPICS, self._on_topics), given)

    @property
    def _patience_ms(self) -> int:
        patience_ms: int = self._config["unclean.recovery.timeout.ms"]
        return patience_ms

    async def _read_topics(self) -> None:
        removed = self._removed = set()
        topics = {name: topic for name, topic in (await self._stored_topics()).items() if topic.topic_id not in removed}
        known = self._topics
        others = [topic for name, topic in topics.items() if known.get(name) != topic]
        gone = [topic for name, topic in known.items() if name not in topics or topics[name].topic_id != topic.topic_id]
        self._topics = topics
        if gone:  # By an old tool, which told nobody.
            self._put(lambda: self._gone(gone))
        if others:
            images = await read_states(self._store, others, self._patience_ms)
            left = [topic for topic in others if topic.topic_id not in removed]
            there = {partition: images[partition] for partition in _partitions_of(left) if partition in images}
            self._put(lambda: self._others_changed(left, there))

    def _gone(self, topics: Sequence[StoredTopic]) -> Out:
        self._pictures.on_deleted({topic.name: topic.topic_id for topic in topics})
        return machine.on_deleted(self._controller, _partitions_of(topics), self._clock())

    def _others_changed(self, topics: Sequence[StoredTopic], images: Mapping[Partition, Image]) -> Out:
        """Topics that are new, have grown, or have other configs."""
        out = machine.on_partitions(self._controller, images, self._clock())
        for topic in topics:
            for partition in _partitions_of([topic]):
                image = self._controller.partitions.get(partition)
                if image is None:
                    continue
                may_lose = topic.may_lose(partition[1])
                # A write that is out may make the stored state another one: what is wanted after it counts, too.
                if {image.state.min_isr, image.min_isr} != {topic.min_isr} or image.may_lose != may_lose:
                    out += machine.on_wish(self._controller, partition, self._clock(), min_isr=topic.min_isr, may_lose=may_lose)
        return out

    async def _read_log_dirs(self) -> None:
        """Brokers whose log folders have failed are told all roles: they answer which replicas they have no longer."""
        for name in await self._store.children(paths.LOG_DIR_EVENTS, self._on_log_dirs):
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
                self._put(partial(machine.on_log_dir_failure, self._controller, broker, self._clock()))
                await self._settle()
            with contextlib.suppress(NoNodeError):
                await self._store.multi([*machine.guard(self._controller), Delete(path)])

    async def _read_preferred(self) -> None:
        """What an old tool has asked for by `/admin/preferred_replica_election`: it is taken, and the node removed."""
        if await self._store.exists(paths.PREFERRED_ELECTION, self._on_preferred) is None:
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
                await self.elect(asked, gives_up=False, timeout_s=60 + len(asked) / MOVED_A_SECOND)
            except ConnectionError:
                return  # The next controller finds the node, too.
        with contextlib.suppress(NoNodeError, BadVersionError):
            await self._store.multi([*machine.guard(self._controller), Delete(paths.PREFERRED_ELECTION, stat.version)])

    async def _read_state(self, partition: Partition) -> None:
        state = await read_one_state(self._store, partition)
        self._put(lambda: machine.on_state_read(self._controller, partition, state, self._clock()))

    async def _write(self, action: WriteStates) -> None:
        outcome, refused = Outcome.DONE, ""
        try:
            await self._store.multi(action.operations)
        except UnknownOutcomeError:
            outcome = Outcome.UNKNOWN
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            outcome, refused = Outcome.REFUSED, error.path
        self._put(lambda: machine.on_written(self._controller, action.id, outcome, self._clock(), refused))

    # Brokers

    async def _send_roles(self, request: LeaderAndIsrRequest) -> None:
        try:
            answer = await self._others.send_roles(request)
        except OSError as error:
            _log.debug("broker %d can't be told its roles: %s", request.broker, error)
            self._put(lambda: self._answered(request, None))
        else:
            self._put(lambda: self._answered(request, answer))

    def _answered(self, request: LeaderAndIsrRequest, answer: LeaderAndIsrAnswer | None) -> Out:
        self._pictures.on_answered(request)
        if answer is None:
            return machine.on_unanswered(self._controller, request, self._clock())
        return machine.on_answer(self._controller, request, answer, self._clock())

    async def _send_picture(self, picture: UpdateMetadata) -> int:
        error = await self._others.send_picture(picture)
        if error == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._end()
        return error

    # Deletions

    async def _read_deleted(self) -> None:
        names = await self._store.children(paths.DELETE_TOPICS, self._on_deleted)
        data, stat = await self._store.get(paths.DELETE_TOPICS, self._on_deleted)
        for name in read_deleted(names, data):
            try:
                await self._delete(name, await self._deleted_id(name))
            except StoreError as error:
                if isinstance(error, (SessionLostError, UnknownOutcomeError)) or error.path == paths.CONTROLLER_EPOCH:
                    raise
                # The next controller would fail by the same, and decide nothing else either.
                _log.error("topic=%s can't be deleted, and is tried again in %d s: %s", name, UNDELETED_S, error)
                self._running.start(self._delete_later())
        if data and read_deleted([], data):
            with contextlib.suppress(BadVersionError):  # Somebody has listed others, which are looked at again.
                await self._store.set(paths.DELETE_TOPICS, to_json(version=1, topics=[]), stat.version)

    async def _delete_later(self) -> None:
        await asyncio.sleep(UNDELETED_S)
        self._on_deleted("", Event.CHANGED)

    async def _deleted_partitions(self) -> list[Partition]:
        """The partitions of topics of which a former controller may have removed a part."""
        data, _ = await self._store.get(paths.DELETE_TOPICS)
        names = read_deleted(await self._store.children(paths.DELETE_TOPICS), data)
        topics = [self._topics[name] for name in names if name in self._topics]
        return list(
            _partitions_of([one for one in topics if await self._deleted_id(one.name) in ("", uuid_text(one.topic_id))])
        )

    async def _deleted_id(self, name: str) -> str:
        """The id of the topic that a mark is about; "": whichever has the name, as it is with Kafka's tools."""
        try:
            data, _ = await self._store.get(paths.deleted_topic(name))
        except NoNodeError:
            return ""
        return data.decode("ascii", "replace")

    async def _delete(self, name: str, topic_id: str) -> None:
        """Delete a topic everywhere; if another id than its own is given, only the mark goes. What a controller that ended has
        left of it is done again. Raises StoreError."""
        for _ in range(TRIES):
            stat = await self._store.exists(paths.topic(name))
            topic = None if stat is None else await self._stored_topic(name)
            if topic is not None and topic_id not in ("", uuid_text(topic.topic_id)):
                _log.info("topic=%s isn't deleted: it was made after the one that somebody wanted to be deleted", name)
                await self._store.multi([*machine.guard(self._controller), Delete(paths.deleted_topic(name))])
                return
            partitions = [] if topic is None else _partitions_of([topic])
            await self._begin_deletion(topic, partitions)
            away = [] if topic is None else await self._stop_replicas(topic)
            try:
                await self._remove_nodes(name, stat, topic, away)
                break
            except (BadVersionError, NotEmptyError, NodeExistsError, NoNodeError) as error:
                if error.path == paths.CONTROLLER_EPOCH:
                    raise
                _log.info("topic=%s has changed while it was deleted: it is looked at again", name)
        else:
            raise StoreError(paths.topic(name), "others change it as quickly as it is deleted")
        if topic is not None:
            self._removed.add(topic.topic_id)
        self._topics.pop(name, None)
        self._put(lambda: machine.on_deleted(self._controller, partitions, self._clock()))
        _log.info("deleted topic=%s%s", name, f"; brokers {sorted(away)} still hold it" if away else "")

    async def _begin_deletion(self, topic: StoredTopic | None, partitions: Sequence[Partition]) -> None:
        """Have everybody told that these go; no write of their states is out then, or follows."""
        done = asyncio.Event()

        def begin() -> Out:
            if topic is not None:
                self._pictures.on_deleted({topic.name: topic.topic_id})
            out = machine.on_deleting(self._controller, partitions, self._clock())
            done.set()
            return out

        self._put(begin)
        await done.wait()
        while not machine.is_settled(self._controller, partitions):  # noqa: ASYNC110 - writes that are out end by themselves
            await asyncio.sleep(TICK_S / 10)

    async def _remove_nodes(self, name: str, stat: Stat | None, topic: StoredTopic | None, away: Collection[int]) -> None:
        """Remove a topic's nodes, its own by the version that was read: it may have grown since. Raises StoreError."""
        last = machine.guard(self._controller)
        if topic is not None and away:
            path = f"{paths.DELETED}/{uuid_text(topic.topic_id)}"
            if await self._store.exists(path) is None:
                last.append(Create(path, to_json(version=1, topic=name, brokers=sorted(away)), parents=True))
        if stat is not None:
            await self._store.empty(paths.topic(name), machine.guard(self._controller))
            failpoint(EMPTIED)
            last.append(Delete(paths.topic(name), stat.version))
        else:  # Refused if somebody has made it meanwhile, whose configs these would be.
            last += [Create(paths.topic(name)), Delete(paths.topic(name))]
        for path in (paths.topic_config(name), paths.deleted_topic(name)):
            if await self._store.exists(path) is not None:
                last.append(Delete(path, recursive=True))
        await self._store.multi(last)

    async def _stored_topic(self, name: str) -> StoredTopic | None:
        """A topic as the store has it, since the look that shows it may still be under way; if it can't be read, as it was
        known."""
        try:
            return await read_one_topic(self._store, name)
        except BadValueError as error:
            _log.error("topic=%s is deleted as this controller knew it: %s", name, error.why)
            return self._topics.get(name)

    async def _stop_replicas(self, topic: StoredTopic) -> set[int]:
        """Have all replicas of a topic deleted. Answers the brokers that didn't say that they did."""
        holders: dict[int, list[StoppedReplica]] = {}
        for index, replicas in enumerate(topic.replicas):
            for broker in replicas:
                holders.setdefault(broker, []).append(StoppedReplica((topic.name, index), topic.topic_id, delete=True))
        done = await asyncio.gather(*(self._stop_on(broker, tuple(held)) for broker, held in holders.items()))
        return {broker for broker, is_done in zip(holders, done, strict=True) if not is_done}

    async def _stop_on(self, broker: int, held: tuple[StoppedReplica, ...]) -> bool:
        registration = self._controller.registrations.get(broker)
        if registration is None:
            return False
        request = StopReplica(self._controller.broker, self._controller.epoch, broker, registration.epoch, held)
        try:
            answer = await self._others.send_stop(request)
        except OSError:
            return False
        return answer.error == ErrorCode.NONE and not any(answer.errors.values())


def _partitions_of(topics: Iterable[StoredTopic]) -> Sequence[Partition]:
    return [(topic.name, index) for topic in topics for index in range(len(topic.replicas))]
