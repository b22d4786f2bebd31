"""A seeded cluster around the real machines of `broker/cluster`: brokers, ZooKeeper, a network, disks, clients, faults.

Time is a number and chance is one `random.Random(seed)`: the same seed gives the same run. Machines, messages and the bytes of
nodes are the product's; the store, the logs and the network are models (`zookeeper_model.py`, `cluster_log.py`). After each
event the laws are asked (`cluster_laws.py`), and at the end, when all faults have healed, whether the cluster is whole again.

Each thing that happens later is posted under a kind and a broker, e.g. ("fetched", 2): the answer of a fetch on its way to 2.
A scripted history (`calm=True`: no delays, no timers, no faults but its own) can `hold` such things and `release` them in
another order. Order within a connection stays: what is posted from one broker to another under one kind arrives in order, but
for requests of a connection that was lost, which may come late, and after their repetition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from sim.clockwork import Clockwork
from sim.cluster_laws import Laws, Violation
from sim.cluster_log import Batch, Range, ReplicaLog
from sim.topic_feeder import Term, TopicFeeder
from sim.zookeeper_model import Node, Session, ZooKeeper

from penstock.broker.cluster import (
    acks,
    controller,
    follower,
    fulldisks,
    hungdisks,
    leader,
    lease,
    planning,
    registration,
    replica,
    roles,
)
from penstock.broker.cluster.controller import Controller, Outcome
from penstock.broker.cluster.leaderandisr import NO_EPOCH, NO_LEADER, NOT_CREATED, LeaderAndIsr, read_state, state_json
from penstock.broker.cluster.messages import (
    AlterPartition,
    AlterPartitionAnswer,
    Fetch,
    Fetched,
    LeaderAndIsrAnswer,
    LeaderAndIsrRequest,
    Partition,
    PartitionRole,
    RoleAnswer,
)
from penstock.broker.cluster.replica import Replica, Role
from penstock.broker.store.base import Check, Create, Delete, Operation, Set, paths
from penstock.errors import ErrorCode

TOPIC = "topic"
SESSION_MS, TICK_MS, LAG_MS = 2_400, 800, 1_600
FETCH_WAIT_MS, FETCH_LOST_MS, ALTER_LOST_MS, PRODUCE_MS = 400, 1_200, leader.REPEAT_MS, 3_000
ANYBODY = -9  # as the source of what is held
QUIET_MS = 16_000  # until the cluster has to be whole: a session, an unanswered request of the controller, the lag time
REST_MS = 1_000  # how often it is looked at then
SETTLE_MS = 1_200  # a disk has to have room for so long
FULL = "folder"  # of a broker, whose disk is full or has room
HANG_MS, LOOK_MS = 2_000, 100  # a disk hangs for so long before its broker leaves; how often that is looked at
FATES = ("in time", "never", "in time, answer lost", "late")


@dataclass
class Parked:
    """A fetch that waits at its leader."""

    fetch: Fetch
    answer: Callable[[Fetched, Range], None]
    lead: object
    until_ms: int


@dataclass
class Asking:
    """A request of proposals that is under way to a controller."""

    since_ms: int
    waiting: dict[Partition, AlterPartition]  # what goes in the next one


@dataclass
class Question:
    """Proposals that came together, at the controller: they are answered together."""

    asks: list[AlterPartition]
    answer: Callable[[list[AlterPartitionAnswer]], object]
    answers: dict[int, AlterPartitionAnswer] = field(default_factory=dict)

    def take(self, at: int, answer: AlterPartitionAnswer) -> None:
        """One of them is answered."""
        self.answers[at] = answer
        if len(self.answers) == len(self.asks):
            self.answer([self.answers[one] for one in range(len(self.asks))])


@dataclass
class Broker:
    """One broker: its disks, which outlive its process, and its process."""

    id: int
    logs: dict[Partition, ReplicaLog]  # in the place that the name has
    checkpoints: dict[Partition, int]
    held: dict[tuple[Partition, bytes], ReplicaLog] = field(default_factory=dict)  # by topic, in their place or beside it
    deleted: set[bytes] = field(default_factory=set)  # topics of whose deletion the process has heard
    is_clean: bool = True
    life: int = 0
    is_up: bool = False
    paused_until_ms: int = 0
    rate: float = 1.0  # of its clock
    store_is_cut: bool = False
    is_full: bool = False  # its disk
    full_disks: fulldisks.FullDisks = field(default_factory=lambda: fulldisks.FullDisks(SETTLE_MS))
    has_reported: bool = False  # its registration says that its disk is full
    hangs_since_ms: int | None = None  # its disk
    hung: hungdisks.HungDisks = field(default_factory=lambda: hungdisks.HungDisks(HANG_MS, SETTLE_MS))
    session: Session | None = None
    member: registration.OwnRegistration = field(default_factory=lambda: registration.OwnRegistration(-1, "", True))
    roles: roles.Roles = field(default_factory=lambda: roles.Roles(-1))
    waits: dict[Partition, acks.Waits] = field(default_factory=dict)
    parked: dict[Partition, dict[int, Parked]] = field(default_factory=dict)
    told: dict[tuple[Partition, int], int] = field(default_factory=dict)  # high watermarks that followers heard of
    fetching: dict[Partition, int] = field(default_factory=dict)
    asking: dict[int, Asking] = field(default_factory=dict)  # by controller
    lease: lease.Lease = field(default_factory=lambda: lease.Lease(SESSION_MS))
    controller: Controller | None = None
    term: Term | None = None  # what the controller's feeder knows
    controller_id: int | None = None
    newer_epoch: int = 0


class ClusterWorld(Clockwork):
    """A cluster of brokers 0, 1, 2, ... with some partitions that all of them replicate."""

    log_type = ReplicaLog

    def __init__(
        self,
        seed: int,
        *,
        duration_ms: int = 24_000,
        brokers: int = 3,
        partitions: int = 1,
        isr: tuple[int, ...] | None = None,
        min_isr: int = 2,
        calm: bool = False,
        order: tuple[int, ...] | None = None,
        remakes: bool = False,
    ) -> None:
        super().__init__(seed, duration_ms)
        self.remakes = remakes  # the topic is deleted and made again under its name
        # Only what is lost or late can be taken for another topic's.
        self.lossy, self.late_write_ms = (0.03, 2_500) if remakes else (0.01, 900)
        self.min_isr = min_isr
        self.calm, self.faults = calm, not calm
        self.laws = Laws()
        self.store = ZooKeeper(self._server_lags)
        self.channels: dict[tuple[str, int, int], int] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.held: dict[tuple[str, int, int], list[Callable[[], None]]] = {}
        self.last_record = 0
        self.produces: dict[int, tuple[Partition, bytes, int, Batch]] = {}
        self.answered: dict[int, int] = {}
        self.positions: dict[tuple[Partition, int], tuple[bytes, int]] = {}
        self.story: deque[tuple[object, ...]] = deque(maxlen=400)
        # Unclean elections end most laws of a partition, so most runs lose no more disks than they must survive.
        self.losses_left = self.random.choice((0, 1, 1, 2, 2, 3, 1_000))
        replicas = tuple(range(brokers))
        self.partitions: list[Partition] = [(TOPIC, number) for number in range(partitions)]
        self.new = self.partitions[1:]  # they have no state yet: the controller creates it
        self.brokers = [Broker(number, {}, dict.fromkeys(self.partitions, 0)) for number in replicas]
        self.topics = TopicFeeder(self)
        self.setup = self.store.open(lambda path: None, 0)  # of clients and old tools: it reaches the store at once
        topic_id = self.topics.next_id()
        state = LeaderAndIsr(0, 0, replicas if isr is None else isr, min_isr=min_isr, topic_id=topic_id)
        self.store.multi(self.setup, self._first_nodes(topic_id, state))
        self.add_topic(topic_id, state)
        for partition in self.partitions:
            for broker in self.brokers:
                broker.logs[partition] = log = broker.held[partition, topic_id]
                log.is_made = True
        for number in order or replicas:
            self.brokers[number].rate = 1.0 if calm else self.random.uniform(0.99, 1.01)
            self.start(number)
            if calm:
                self.settle()
        if not calm:
            self._begin_clients()
            self.later(self.random.randint(500, 1500), self._disturb)

    def add_topic(self, topic_id: bytes, state: LeaderAndIsr | None = None) -> None:
        """A topic is there, by its node. state: of partitions that aren't `new`."""
        replicas = tuple(broker.id for broker in self.brokers)
        for partition in self.partitions:
            logs = {broker.id: self.log_type(topic_id, is_made=False) for broker in self.brokers}
            for broker in self.brokers:
                broker.held[partition, topic_id] = logs[broker.id]
            first = replace(NOT_CREATED, min_isr=self.min_isr) if state is None or partition in self.new else state
            self.laws.add(partition, topic_id, replicas, first, logs)

    def _first_nodes(self, topic_id: bytes, state: LeaderAndIsr) -> list[Operation]:
        nodes: list[Operation] = [Create(paths.CONTROLLER_EPOCH, b"0"), Create(paths.topic(TOPIC), topic_id)]
        nodes.append(Create(paths.DELETED))
        nodes += [Create(paths.moved(broker.id)) for broker in self.brokers]
        nodes += [Create(controller.state_path(one), state_json(state)) for one in self.partitions if one not in self.new]
        return nodes

    def note(self, *what: object) -> None:
        """One line of the run's story, for whoever replays a seed."""
        self.story.append((self.now_ms, *what))

    def tell_story(self) -> list[str]:
        """Its lines, the latest ones."""
        return [" ".join(_short(one) if isinstance(one, LeaderAndIsr) else str(one) for one in what) for what in self.story]

    # Time, mail and connections

    def post(self, kind: str, to: int, action: Callable[[], None], delay_ms: int | None = None, source: int = -1) -> None:
        """Let something happen later, in the order of its connection; nothing if the receiving process has ended by then."""
        broker = self.brokers[to]
        life = broker.life

        def arrive() -> None:
            if broker.life != life or not broker.is_up:
                return
            if self.now_ms < broker.paused_until_ms:
                self.later(broker.paused_until_ms - self.now_ms, arrive)
                return
            if self.held:
                for key in ((kind, to, source), (kind, to, ANYBODY)):
                    if key in self.held:
                        self.held[key].append(arrive_held)
                        return
            action()

        def arrive_held() -> None:
            if broker.life == life and broker.is_up:
                action()

        self.later(self._delay(kind, to, delay_ms, source), arrive)

    def _delay(self, kind: str, to: int, delay_ms: int | None, source: int) -> int:
        if delay_ms is not None:
            return delay_ms
        if self.calm:
            return 0
        chance = self.random.random()
        delay = int(chance * 5 / 0.9) if chance < 0.9 or not self.faults else self.random.randint(5, 400)
        channel = (kind, source, to)
        at = max(self.channels.get(channel, 0), self.now_ms + delay)
        self.channels[channel] = at
        return at - self.now_ms

    def send(self, kind: str, source: int, to: int, action: Callable[[], None]) -> bool:
        """A message from one broker to another: it may be lost with its connection, or come late over the old one. False: its
        connection is lost, and the sender sees it."""
        if (source, to) in self.cuts or self.fault(self.lossy):
            self.count("message lost")
            if self.fault(0.5):
                self.post(kind, to, action, self.random.randint(100, 3_000))
            return not self.fault(0.5)
        if not self.brokers[to].is_up:
            return not self.faults
        self.post(kind, to, action, None, source)
        return True

    def hold(self, kind: str, to: int, source: int = ANYBODY) -> None:
        """Keep what arrives at a broker under a kind, until it is released."""
        self.held.setdefault((kind, to, source), [])

    def release(self, kind: str, to: int, source: int = ANYBODY) -> None:
        """Let what was held arrive now, and hold no longer."""
        for action in self.held.pop((kind, to, source)):
            action()
        self.settle()

    def release_first(self, kind: str, to: int, source: int = ANYBODY) -> None:
        """Let the first thing that was held arrive now; hold what comes."""
        self.held[kind, to, source].pop(0)()
        self.settle()

    def drop(self, kind: str, to: int, source: int = ANYBODY) -> None:
        """Lose what was held, and hold no longer."""
        assert self.held.pop((kind, to, source)), "nothing was held"

    def settle(self) -> None:
        """Of a calm world: all that is due happens."""
        events = 0
        while self._events and self._events[0][0] <= self.now_ms:
            heapq.heappop(self._events)[2]()
            events += 1
            if events > 20_000:
                raise AssertionError("a calm world never comes to rest")

    def advance(self, ms: int) -> None:
        """Of a calm world: time passes, and the brokers' timers run once."""
        self.now_ms += ms
        for broker in self.brokers:
            if broker.is_up:
                self._run_timers(broker)
        self.settle()

    # Processes

    def start(self, number: int) -> None:
        """Start a broker's process."""
        broker = self.brokers[number]
        self.note("start", number, "clean" if broker.is_clean else "unclean")
        broker.life += 1
        broker.is_up = True
        broker.paused_until_ms = 0
        incarnation = f"{number}.{broker.life}"
        broker.member = registration.OwnRegistration(number, incarnation, broker.is_clean)
        broker.roles = roles.Roles(number)
        broker.lease = lease.Lease(SESSION_MS)
        broker.waits, broker.parked, broker.told, broker.fetching, broker.asking = {}, {}, {}, {}, {}
        broker.deleted = set()
        broker.session = broker.controller = broker.term = broker.controller_id = None
        broker.newer_epoch = 0
        broker.full_disks = fulldisks.FullDisks(SETTLE_MS)
        broker.hung, broker.hangs_since_ms = hungdisks.HungDisks(HANG_MS, SETTLE_MS), None
        for partition, log in broker.logs.items():
            checkpoint = min(broker.checkpoints[partition], log.end)
            broker.roles.replicas[partition] = Replica(number, partition, checkpoint)
            broker.waits[partition], broker.parked[partition] = acks.Waits(), {}
        self.connect(broker)
        if not self.calm:
            self._tick(broker, broker.life)

    def kill(self, number: int) -> None:
        """kill -9: what was written stays."""
        broker = self.brokers[number]
        broker.is_up, broker.life = False, broker.life + 1
        for partition, one in broker.roles.replicas.items():
            if self.calm or self.random.random() < 0.5:
                broker.checkpoints[partition] = one.high_watermark
            self.laws.on_stop(partition, broker.logs[partition].topic_id, number)
        self.note("kill", number)
        self.count("kill")

    def power_cut(self, number: int, keep: int | None = None) -> None:
        """The machine loses power: of what isn't flushed any suffix is lost, in each folder another."""
        broker = self.brokers[number]
        if broker.is_up:
            self.kill(number)
        broker.is_clean = False
        for partition, log in broker.logs.items():
            self.laws.on_loss(partition, log.topic_id, number)
            end = self.random.randint(min(log.flushed, log.end), log.end) if keep is None else keep
            log.lose(end)
            broker.checkpoints[partition] = min(broker.checkpoints[partition], log.end)
            self.note("power cut of", number, partition, "ends at", log.end)
            self.laws.on_change(partition, log.topic_id)
        self.count("power cut")

    def lose_log(self, number: int, partition: Partition, keep: int) -> None:
        """A stopped broker's log is missing (keep=0) or damaged: the others are whole, and recovery sees it."""
        broker = self.brokers[number]
        log = broker.logs[partition]
        self.laws.on_loss(partition, log.topic_id, number)
        log.is_whole = False
        log.lose(keep)
        broker.checkpoints[partition] = min(broker.checkpoints[partition], keep)
        self.note("log of", number, partition, "ends at", keep)
        self.laws.on_change(partition, log.topic_id)
        self.count("log lost")

    def put_back(self, number: int) -> None:
        """A stopped broker's folders are put back from a copy: their note of the last incarnation doesn't fit the store's."""
        broker = self.brokers[number]
        broker.is_clean = False
        for partition, log in broker.logs.items():
            self.laws.on_loss(partition, log.topic_id, number)
            same = 0
            while same < min(log.end, len(log.copy)) and log.batches[same] == log.copy[same]:
                same += 1
            log.lose(same)
            log.append(log.copy[same:])
            log.gone, log.removed_below = set(log.copied[0]), log.copied[1]
            log.flushed = log.end
            broker.checkpoints[partition] = 0
            self.laws.of(partition, log.topic_id).replaced.add(number)
            self.laws.on_change(partition, log.topic_id)
        self.note("put back", number, [log.end for log in broker.logs.values()])
        self.count("put back")

    def compact(self, number: int, partition: Partition) -> None:
        """A pass of the cleaner over a replica's log."""
        broker = self.brokers[number]
        if broker.is_up and partition in broker.roles.replicas:
            log = broker.logs[partition]
            log.compact(min(broker.roles.replicas[partition].high_watermark, log.flushed))
            self.laws.on_change(partition, log.topic_id)
            self.count("compaction")

    def fill(self, number: int) -> None:
        """A broker's disk is full: it appends nothing."""
        self.brokers[number].is_full = True
        self.note("disk of", number, "full")
        self.count("disk full")
        if self.calm:
            self.advance(0)

    def drain(self, number: int) -> None:
        """There is room again."""
        self.brokers[number].is_full = False
        self.note("disk of", number, "has room")
        if self.calm:  # No timer has a follower ask again.
            for partition in self.partitions:
                self._fetch_again(self.brokers[number], partition)

    def hang(self, number: int, for_ms: int) -> None:
        """A broker's disk hangs: its loop and its network threads stand still, and what keeps the session and looks at disks
        doesn't (`broker/replication/hangwatch.py`)."""
        broker = self.brokers[number]
        if not broker.is_up or broker.hangs_since_ms is not None:
            return
        broker.hangs_since_ms = self.now_ms
        broker.paused_until_ms = max(broker.paused_until_ms, self.now_ms + for_ms)
        self.note("disk of", number, "hangs", for_ms)
        self.count("disk hung")
        self._look_at_hang(broker, broker.life, self.now_ms + for_ms)

    def _look_at_hang(self, broker: Broker, life: int, until_ms: int) -> None:
        if broker.life != life:
            return
        session = broker.session
        if self.now_ms >= until_ms:
            broker.hangs_since_ms = None
        elif session is not None and session.alive and not broker.store_is_cut:
            session.expires_ms = self.now_ms + SESSION_MS  # by its pings, which prove no lease
        since_ms = broker.hangs_since_ms
        was_out, write_ms = broker.hung.is_out, 0 if since_ms is None else self.now_ms - since_ms
        hungdisks.on_look(broker.hung, write_ms, self._can_be_replaced(broker), self.now_ms)
        if broker.hung.is_out and not was_out:
            self.note("left for its disk", broker.id)
            self.count("left for a hung disk")
            if session is not None and session.alive and not broker.store_is_cut:
                self.store.expire(session)
        if since_ms is not None or broker.hung.is_out:
            self.later(LOOK_MS, lambda: self._look_at_hang(broker, life, until_ms))

    def _can_be_replaced(self, broker: Broker) -> bool:
        leaders = [one.leader for one in broker.roles.replicas.values() if one.leader is not None]
        return not leaders or any(len(lead.state.seats) > 1 for lead in leaders)

    def pause(self, number: int, for_ms: int) -> None:
        """SIGSTOP: mail piles up, timers come late. A second one makes it no shorter: mail would overtake mail then."""
        broker = self.brokers[number]
        broker.paused_until_ms = max(broker.paused_until_ms, self.now_ms + for_ms)
        self.note("pause", number, for_ms)
        self.count("pause")

    # The store, as brokers use it

    def connect(self, broker: Broker) -> None:
        """Open a session; then register, and look who the controller is."""
        life = broker.life

        def opened() -> None:
            if broker.store_is_cut or broker.hung.is_out:
                self.post("store", broker.id, opened, 300)
                return
            expires_ms = self.now_ms + SESSION_MS + (0 if self.calm else self.random.randint(0, TICK_MS))

            def fire(path: str) -> None:
                if broker.life == life and broker.session is session:
                    kind = "moves" if path == paths.moved(broker.id) else "store"
                    self.post(kind, broker.id, lambda: self._on_watch(broker, session, path), None, -2)

            session = self.store.open(fire, expires_ms)
            broker.session = session
            if not self.calm:
                self.later(expires_ms - self.now_ms, lambda: self._check_expiry(session, broker))
            self._register(broker)
            self.look_at_controller(broker)
            self._look_at_moves(broker)

        self.post("store", broker.id, opened)

    def _server_lags(self, session: Session) -> None:
        """The session's server applies a change late; in a calm world at once."""
        if self.calm:
            self.store.catch_up(session)
        else:
            late = self.fault(0.1)
            self.later(
                self.random.randint(100, 1_500) if late else self.random.randint(1, 25), partial(self._catch_up, session)
            )

    def _catch_up(self, session: Session) -> None:
        if session.alive:
            self.store.catch_up(session)

    def _check_expiry(self, session: Session, broker: Broker) -> None:
        if not session.alive:
            return
        if self.now_ms < session.expires_ms:
            self.later(session.expires_ms - self.now_ms, lambda: self._check_expiry(session, broker))
            return
        if broker.session is session and broker.is_up and broker.lease.holds(self._clock(broker)):
            raise Violation(f"lease: the session of {broker.id} has expired, its lease lasts")
        self.store.expire(session)
        self.note("session of", broker.id, "expired")
        self.count("expired")

    def _clock(self, broker: Broker) -> int:
        return int(self.now_ms * broker.rate)

    def expire(self, number: int) -> None:
        """The session ends at once; its owner hears of it when it next asks for something."""
        session = self.brokers[number].session
        if session is not None and session.alive:
            self.brokers[number].lease.until_ms = 0  # not by time: the lease can't know
            self.store.expire(session)
            self.count("expired by force")

    def expel(self, number: int) -> None:
        """Somebody removes a broker's registration, rightly or wrongly, by the design's multi."""
        path = paths.incarnation(number)
        node = self.store.nodes.get(path)
        operations: list[Operation] = [] if node is None else [Check(path, node.version), Delete(paths.broker(number))]
        chair = self.store.nodes.get(paths.CONTROLLER)
        if chair is not None and b'"brokerid":%d,' % number in chair.data:
            operations += [
                Check(paths.CONTROLLER_EPOCH, self.store.nodes[paths.CONTROLLER_EPOCH].version),
                Delete(paths.CONTROLLER),
            ]
        if node is not None and self.store.multi(self.setup, operations) is None:
            self.note("expelled", number)
            self.count("expelled")

    def _close(self, broker: Broker) -> None:
        """The broker ends its session by itself, and begins a new one."""
        session = broker.session
        if session is not None:
            if session.alive:
                self.store.expire(session)
            self._session_lost(broker, session)

    def _session_lost(self, broker: Broker, session: Session) -> None:
        """The broker learns that its session is over."""
        if broker.session is not session:
            return
        broker.session = None
        self._unregistered(broker)
        self.connect(broker)

    def _unregistered(self, broker: Broker) -> None:
        registration.on_lost(broker.member)
        broker.controller = broker.term = None
        for partition, one in broker.roles.replicas.items():
            replica.fence(one)
            self._after(broker, partition)

    def write(self, broker: Broker, operations: list[Operation], done: Callable[[Outcome, str, int], None]) -> None:
        """One multi, asked in the broker's present session; `done` hears the outcome, the refused path and the zxid."""
        session = broker.session
        if session is None:
            return
        fate = self.random.choice(FATES) if broker.store_is_cut or self.fault(2 * self.lossy) else FATES[0]
        if broker.store_is_cut:
            fate = FATES[1]

        def answer(outcome: Outcome, refused: str, zxid: int) -> None:
            def arrive() -> None:
                if broker.session is session:
                    done(outcome, refused, zxid)

            self.post("store", broker.id, arrive, None, -2)

        def apply() -> None:
            if not session.alive:
                self.post("store", broker.id, lambda: self._session_lost(broker, session), None, -2)
                return
            refused = self._multi(session, operations)
            if fate == FATES[0]:
                answer(Outcome.DONE if refused is None else Outcome.REFUSED, refused or "", self.store.zxid)

        late = 0 if self.calm else self.random.randint(0, 3)
        if fate != FATES[0]:
            self.count("unknown outcome")
            self.post("store", broker.id, lambda: self._reconnected(broker, session, done), late + self.random.randint(5, 300))
        if fate != FATES[1]:
            self.later(late + (self.random.randint(5, self.late_write_ms) if fate == FATES[3] else 0), apply)

    def _multi(self, session: Session, operations: list[Operation]) -> str | None:
        refused = self.store.multi(session, operations)
        if refused is None:
            for operation in operations:
                if operation.path.endswith("/state"):
                    partition = self.partitions[int(operation.path.split("/")[-2])]
                    if isinstance(operation, Set | Create):
                        self._on_state_written(partition, operation)
                    elif isinstance(operation, Delete):
                        self.note("state", partition[1], "is gone")
                        self.laws.on_gone(partition)
        return refused

    def _on_state_written(self, partition: Partition, operation: Set | Create) -> None:
        truth = self.laws.truths[partition]
        old = truth.state
        node = self.store.nodes[operation.path]
        new = read_state(operation.path, node.data, node.version)
        self.note("state", partition[1], new)
        if new.topic_id != truth.topic_id:
            raise Violation(f"a state of a former topic was written in the place of {old}: {new}")
        self.laws.on_state(partition, new, int(self.store.nodes[paths.CONTROLLER_EPOCH].data))
        if new.leader != old.leader and new.leader != NO_LEADER:
            self.count("election")
            if new.leader in old.elr:
                self.count("election from the ELR")
            if old.leader in old.isr and self.brokers[old.leader].has_reported:
                self.count("lead of a full disk moved")
        if new.unclean_epoch != old.unclean_epoch:
            self.count("unclean election")
        if len(new.isr) > len(old.isr):
            self.count("ISR grows")
        if len(new.isr) < len(old.isr):
            self.count("ISR shrinks")

    def _reconnected(self, broker: Broker, session: Session, done: Callable[[Outcome, str, int], None]) -> None:
        """The connection was lost and is there again: watches are gone, so everything is looked at again."""
        if broker.session is not session:
            return
        if broker.store_is_cut:
            self.post("store", broker.id, lambda: self._reconnected(broker, session, done), 300)
            return
        if not session.alive:
            self._session_lost(broker, session)
            return
        session.watches.clear()
        self.store.catch_up(session)  # sync
        done(Outcome.UNKNOWN, "", 0)
        self._look_again(broker)

    def read(self, broker: Broker, look: Callable[[Session], Any], done: Callable[[Any], None]) -> None:
        """Read something, in the broker's present session."""
        session = broker.session
        if session is None:
            return

        def at_store() -> None:
            if broker.session is not session:
                return
            if broker.store_is_cut:
                self.post("store", broker.id, at_store, 300)
                return
            if not session.alive:
                self.post("store", broker.id, lambda: self._session_lost(broker, session), None, -2)
                return
            found = look(session)
            self.post("store", broker.id, lambda: done(found) if broker.session is session else None, None, -2)

        self.later(0 if self.calm else self.random.randint(0, 3), at_store)

    def _look_again(self, broker: Broker) -> None:
        self._look_at_registration(broker)
        self.look_at_controller(broker)
        self._look_at_moves(broker)
        if broker.controller is not None:
            self.read_brokers(broker)
            self.topics.look(broker)

    def _on_watch(self, broker: Broker, session: Session, path: str) -> None:
        if broker.session is not session:
            return
        if path == paths.broker(broker.id):
            self._look_at_registration(broker)
        if path == paths.CONTROLLER:
            self.look_at_controller(broker)
        elif path == paths.moved(broker.id):
            self._look_at_moves(broker)
        elif path == paths.DELETED:
            self.topics.read_leftovers(broker)
        elif path in (paths.TOPICS, paths.topic(TOPIC), paths.DELETE_TOPICS):
            self.topics.look(broker)
        elif broker.controller is not None:
            self.read_brokers(broker)

    # Registration and lease

    def _register(self, broker: Broker) -> None:
        """Register. A registration of this broker's own former session is replaced: its folders' locks are ours."""
        member, path = broker.member, paths.incarnation(broker.id)

        def known(found: tuple[Node | None, Node | None]) -> None:
            there, stays = found
            session = broker.session
            assert session is not None
            if there is not None and there.owner == session.id:
                self._registered(broker, there.czxid)
                return
            operations = registration.register(
                broker.id, member.incarnation, member.clean, is_first=stays is None, replaces=there is not None
            )

            def done(outcome: Outcome, refused: str, zxid: int) -> None:
                if outcome is Outcome.DONE:
                    self._registered(broker, zxid)
                else:
                    self.post("store", broker.id, lambda: self._register(broker), 0 if self.calm else 50)

            self.write(broker, operations, done)

        def look(session: Session) -> tuple[Node | None, Node | None]:
            self.store.catch_up(session)
            return self.store.get(session, paths.broker(broker.id)), self.store.get(session, path)

        if member.epoch == NO_EPOCH:
            self.read(broker, look, known)

    def _registered(self, broker: Broker, zxid: int) -> None:
        if broker.member.epoch != NO_EPOCH:
            return
        registration.on_registered(broker.member, zxid)
        broker.has_reported = False
        self.note("registered", broker.id, zxid)
        self.count("registered")
        self._look_at_registration(broker)
        self.topics.read_leftovers(broker)
        for partition in broker.logs:
            self._after(broker, partition)

    def _look_at_registration(self, broker: Broker) -> None:
        def seen(node: Node | None) -> None:
            epoch = broker.member.epoch
            if epoch != NO_EPOCH and (node is None or node.czxid > epoch):
                self.count("found itself expelled")
                self._close(broker)

        self.read(broker, lambda session: self.store.get(session, paths.broker(broker.id), watch=True), seen)

    def _look_at_disk(self, broker: Broker) -> None:
        """Say in the registration whether the disk is full, as `broker/replication/diskreports.py` does."""
        full = fulldisks.on_look(broker.full_disks, [FULL] if broker.is_full else [], self._clock(broker))
        epoch = broker.member.epoch
        if bool(full) is broker.has_reported or epoch == NO_EPOCH:
            return

        def look(session: Session) -> tuple[Node | None, Node | None]:
            own, stays = paths.broker(broker.id), paths.incarnation(broker.id)
            return self.store.get(session, own), self.store.get(session, stays)

        def seen(found: tuple[Node | None, Node | None]) -> None:
            own, stays = found
            if own is None or stays is None or own.czxid != epoch:
                return
            unwritable = registration.Unwritable(is_all=bool(full))
            writes = registration.report_unwritable(broker.id, own.data, own.version, stays.version, unwritable)
            self.write(broker, writes, lambda outcome, refused, zxid: reported(outcome))

        def reported(outcome: Outcome) -> None:
            if outcome is Outcome.DONE and broker.member.epoch == epoch:
                broker.has_reported = bool(full)
                self.note("disk of", broker.id, "reported", "full" if full else "writable")

        self.read(broker, look, seen)

    def _look_at_moves(self, broker: Broker) -> None:
        """Read who leads by now what this broker leads."""

        def look(session: Session) -> dict[Partition, Node]:
            self.store.get(session, paths.moved(broker.id), watch=True)
            led = [one for one, held in broker.roles.replicas.items() if held.leader is not None]
            nodes = {one: self.store.get(session, controller.state_path(one)) for one in led}
            return {one: node for one, node in nodes.items() if node is not None}

        def seen(nodes: dict[Partition, Node]) -> None:
            for one, node in nodes.items():
                held, log = broker.roles.replicas[one], broker.logs[one]
                state = read_state(controller.state_path(one), node.data, node.version)
                if replica.on_stored(held, state, broker.member.epoch, log, self._clock(broker)):
                    self.note("has read", broker.id, one[1], state, held.role.name)
                    self.count("found another leader")
                    if held.role is Role.FOLLOWER:
                        self._fetch_again(broker, one)
                    self._after(broker, one)

        self.read(broker, look, seen)

    def _renew(self, broker: Broker) -> None:
        """The lease's write: it proves the session when it is answered. It never outlives a cut connection here."""
        session, sent_ms = broker.session, self._clock(broker)
        if session is None or broker.store_is_cut or self.fault(0.05):
            return

        def at_store() -> None:
            if not session.alive:
                self.post("store", broker.id, lambda: self._session_lost(broker, session), None, -2)
                return
            session.expires_ms = self.now_ms + SESSION_MS
            self.post("store", broker.id, answered, None, -2)

        def answered() -> None:
            if broker.session is session and session.alive:
                lease.renew(broker.lease, sent_ms)

        self.later(self.random.randint(0, 3), at_store)

    # The controller

    def look_at_controller(self, broker: Broker) -> None:
        """Who is the controller? If nobody is, stand. The epoch is read first: if the node is ours, that epoch is ours, too."""

        def look(session: Session) -> tuple[Node | None, Node | None]:
            self.store.catch_up(session)
            epoch = self.store.get(session, paths.CONTROLLER_EPOCH)
            return epoch, self.store.get(session, paths.CONTROLLER, watch=True)

        def seen(found: tuple[Node | None, Node | None]) -> None:
            epoch, node = found
            session = broker.session
            assert epoch is not None and session is not None
            if node is None:
                if broker.member.epoch == NO_EPOCH:
                    self.post("store", broker.id, lambda: self.look_at_controller(broker), 0 if self.calm else 100)
                else:
                    self._stand(broker, epoch)
                return
            broker.controller_id = int(node.data.split(b'"brokerid":')[1].split(b",")[0])
            if node.owner != session.id:
                broker.controller = broker.term = None
            elif broker.controller is None or broker.controller.epoch != int(epoch.data):
                self._take_over(broker, int(epoch.data), epoch.version)

        self.read(broker, look, seen)

    def _stand(self, broker: Broker, epoch: Node) -> None:
        known = max(int(epoch.data), broker.newer_epoch)
        operations = controller.stand(broker.id, known, epoch.version, self.now_ms)
        self.write(broker, operations, lambda outcome, refused, zxid: self.look_at_controller(broker))

    def _take_over(self, broker: Broker, epoch: int, version: int) -> None:
        new = Controller(broker.id, epoch, version)
        broker.controller, broker.term = new, Term(new)
        self.note("controller", broker.id, epoch)
        self.count("controller elected")
        self.topics.begin(broker)

    def images(self, topic_id: bytes, nodes: dict[Partition, Node | None]) -> dict[Partition, planning.PartitionImage]:
        """The partitions of a topic, by the nodes of their states."""
        replicas = tuple(one.id for one in self.brokers)
        images = {}
        for partition, node in nodes.items():
            stored = None if node is None else read_state(controller.state_path(partition), node.data, node.version)
            images[partition] = planning.image_of(topic_id, replicas, stored, self.min_isr)
        return images

    def brokers_of(self, session: Session) -> Any:
        registrations, incarnations = {}, {}
        for name in self.store.children(session, paths.BROKER_IDS):
            node = self.store.get(session, paths.broker(int(name)), watch=True)
            if node is not None:
                registrations[int(name)] = registration.read_registration(int(name), node.data, node.czxid)
        for number in registrations:
            node = self.store.get(session, paths.incarnation(number))
            if node is not None:
                incarnations[number] = registration.read_incarnation(number, node.data, node.version)
        return registrations, incarnations

    def read_brokers(self, broker: Broker) -> None:
        machine = broker.controller

        def read(found: Any) -> None:
            if machine is not None and broker.controller is machine and broker.term is not None and broker.term.has_begun:
                registrations, incarnations = found
                self.act(broker, controller.on_brokers(machine, registrations, incarnations, self.now_ms))

        self.read(broker, self.brokers_of, read)

    def act(self, broker: Broker, actions: controller.Out) -> None:
        """Carry out what the controller decided."""
        machine = broker.controller
        if machine is None:
            return
        for action in actions:
            if isinstance(action, controller.WriteStates):
                self._write_states(broker, machine, action)
            elif isinstance(action, controller.ReadState):
                self._read_state(broker, machine, action.partition)
            elif isinstance(action, controller.ReadBrokers):
                self.read_brokers(broker)
            elif isinstance(action, controller.ReadDeletions):
                self._read_deletions(broker, machine)
            elif isinstance(action, controller.SendRoles):
                self._send_roles(broker, machine, action.request)
            elif isinstance(action, controller.AnswerAlter):
                question, at = cast("tuple[Question, int]", action.token)
                question.take(at, action.answer)
            else:
                broker.newer_epoch = max(broker.newer_epoch, action.newer_epoch)
                self.count("controller resigned")
                self._close(broker)
                return

    def _write_states(self, broker: Broker, machine: Controller, action: controller.WriteStates) -> None:
        def done(outcome: Outcome, refused: str, zxid: int) -> None:
            if broker.controller is machine:
                self.act(broker, controller.on_written(machine, action.id, outcome, self.now_ms, refused))

        self.write(broker, list(action.operations), done)

    def _read_state(self, broker: Broker, machine: Controller, partition: Partition) -> None:
        path = controller.state_path(partition)

        def look(session: Session) -> Node | None:
            self.store.catch_up(session)
            return self.store.get(session, path)

        def read(node: Node | None) -> None:
            if broker.controller is machine:
                state = None if node is None else read_state(path, node.data, node.version)
                self.act(broker, controller.on_state_read(machine, partition, state, self.now_ms))

        self.read(broker, look, read)

    def _read_deletions(self, broker: Broker, machine: Controller) -> None:
        def read(node: Node | None) -> None:
            if broker.controller is machine and node is not None:
                self.act(broker, controller.on_deletions(machine, node.version, self.now_ms))

        self.read(broker, lambda session: self.store.get(session, paths.DELETED), read)

    def _send_roles(self, broker: Broker, machine: Controller, request: LeaderAndIsrRequest) -> None:
        to = self.brokers[request.broker]

        def answered(answer: LeaderAndIsrAnswer) -> None:
            if broker.controller is machine:
                self.act(broker, controller.on_answer(machine, request, answer, self.now_ms))

        def arrive() -> None:
            answer = self._take_roles(to, request)
            self.send("answer", to.id, broker.id, lambda: answered(answer))

        def unanswered() -> None:
            if broker.controller is machine:
                self.act(broker, controller.on_unanswered(machine, request, self.now_ms))

        if not self.send("roles", broker.id, to.id, arrive):
            self.post("answer", broker.id, unanswered)

    def wish(
        self,
        *,
        leader: int | None = None,
        min_isr: int | None = None,
        unclean: bool = False,
        partition: Partition = ("topic", 0),
    ) -> None:
        """Ask the controller that acts for another leader or another min.insync.replicas, or give up what no live replica
        has."""
        if unclean:
            self.laws.unclean_wanted.add(partition)
        for broker in self.brokers:
            machine = broker.controller
            if broker.is_up and machine is not None and partition in machine.partitions:
                self.act(
                    broker,
                    controller.on_wish(machine, partition, self.now_ms, leader=leader, min_isr=min_isr, unclean=unclean),
                )
        if self.calm:
            self.settle()

    # Replicas

    def _take_roles(self, broker: Broker, request: LeaderAndIsrRequest) -> LeaderAndIsrAnswer:
        refusal = roles.refuse(broker.roles, request.controller_epoch, request.broker_epoch, broker.member.epoch)
        if refusal:
            self.count(f"roles refused {refusal}")
            return LeaderAndIsrAnswer(broker.id, broker.member.epoch, refusal, broker.roles.controller_epoch)
        if registration.on_roles(broker.member, request):
            broker.is_clean = True
        answers: dict[Partition, RoleAnswer] = {}
        for role in request.roles:
            refused = self._open(broker, role)
            if refused:
                self.note("role", broker.id, role.partition[1], role.state, "refused", refused)
                answers[role.partition] = RoleAnswer(refused)
                continue
            one, log = broker.roles.replicas[role.partition], broker.logs[role.partition]
            led = one.leader
            answer = replica.on_role(one, role, request.broker_epoch, log, self._clock(broker), is_whole=log.is_whole)
            answers[role.partition] = answer
            self.note("role", broker.id, role.partition[1], role.state, answer, one.role.name, one.high_watermark)
            if answer.error == ErrorCode.NONE:
                log.is_whole = True
                self.laws.on_dealt_with(role.partition, role.topic_id, broker.id)
            if one.leader is not None and one.leader is not led:
                self.laws.on_lead(role.partition, role.topic_id, role.state.leader_epoch, broker.id, request.broker_epoch)
                self.note("leads", broker.id, role.partition[1], role.state.leader_epoch)
                self.count("lead")
            if one.role is Role.FOLLOWER:
                self._fetch_again(broker, role.partition)
            self._after(broker, role.partition)
        return LeaderAndIsrAnswer(broker.id, request.broker_epoch, ErrorCode.NONE, broker.roles.controller_epoch, answers)

    def _open(self, broker: Broker, role: PartitionRole) -> int:
        """The log of a role is in its place, as `broker/replication/replicas.py` has it; or an error code. A log of another
        topic is set aside. One that isn't there is made only where this broker has no seat."""
        if role.topic_id in broker.deleted:
            self.count("role of a deleted topic")
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition, log = role.partition, broker.held[role.partition, role.topic_id]
        before = broker.logs[partition]
        if before is not log:
            if before.is_made:
                if not self._is_stored(broker, role.topic_id):
                    self.count("late role of another topic")
                    return ErrorCode.UNKNOWN_TOPIC_ID
                before.is_aside = True
                self.note("set aside", broker.id, partition[1], before.topic_id[-2:], "for", log.topic_id[-2:])
                self.count("set aside")
                self.laws.on_set_aside(partition, before.topic_id, broker.id)
            self.put_in_place(broker, partition, log)
        if log.is_made and log.is_aside:
            if replica.holds_seat(broker.id, role.state):
                return ErrorCode.KAFKA_STORAGE_ERROR
            self.count("taken back")
        elif not log.is_made:
            if not role.state.is_new and broker.id in role.state.seats:
                self.count("seat without a log")
                return ErrorCode.KAFKA_STORAGE_ERROR
            log.is_made = True
        log.is_aside = False
        return ErrorCode.NONE

    def _is_stored(self, broker: Broker, topic_id: bytes) -> bool:
        """Whether the store has a topic under its name, as a broker reads it after a sync; False: it can't be asked, too."""
        session = broker.session
        if session is None or not session.alive or broker.store_is_cut:
            return False
        self.store.catch_up(session)
        node = self.store.get(session, paths.topic(TOPIC))
        return node is not None and node.data == topic_id

    def put_in_place(self, broker: Broker, partition: Partition, log: ReplicaLog) -> None:
        """Another log has a name on a broker from now on: it has no role yet, and nothing that was under way is about it."""
        replica.fence(broker.roles.replicas[partition])
        self._after(broker, partition)
        self.laws.on_stop(partition, broker.logs[partition].topic_id, broker.id)
        broker.logs[partition], broker.checkpoints[partition] = log, 0
        broker.roles.replicas[partition] = Replica(broker.id, partition, 0)
        broker.fetching[partition] = broker.fetching.get(partition, 0) + 1
        for key in [key for key in broker.told if key[0] == partition]:
            del broker.told[key]

    def _fetch_again(self, broker: Broker, partition: Partition) -> None:
        broker.fetching[partition] = broker.fetching.get(partition, 0) + 1
        self._fetch(broker, partition, broker.fetching[partition])

    def _fetch(self, broker: Broker, partition: Partition, turn: int) -> None:
        """Ask the leader for what follows; only one question is out."""
        one, log = broker.roles.replicas[partition], broker.logs[partition]
        if broker.fetching.get(partition) != turn:
            return
        fetch = replica.next_fetch(one, broker.member.epoch, log)
        if fetch is None or one.state is None:
            return
        topic_id = log.topic_id
        broker.fetching[partition] = turn = turn + 1
        to = self.brokers[one.state.leader]

        def answer(fetched: Fetched, taken: Range) -> None:
            life = to.life

            def read_bytes() -> None:  # by the leader's sendfile: its log may have been cut in the meantime
                batches = taken.read()
                self.send(
                    "fetched",
                    to.id,
                    broker.id,
                    lambda: self._fetched(broker, partition, log, turn, fetch, fetched, batches, taken.gone),
                )

            def in_life() -> None:
                if to.life == life:
                    read_bytes()

            self.post("bytes", to.id, in_life, None, broker.id)

        self.send("fetch", broker.id, to.id, lambda: self._on_fetch(to, partition, topic_id, fetch, answer))
        if not self.calm:
            self.post("timer", broker.id, lambda: self._fetch(broker, partition, turn), FETCH_LOST_MS)

    def _on_fetch(
        self, broker: Broker, partition: Partition, topic_id: bytes, fetch: Fetch, answer: Callable[[Fetched, Range], None]
    ) -> None:
        one, log = broker.roles.replicas[partition], broker.logs[partition]
        if log.topic_id != topic_id:
            answer(Fetched(ErrorCode.UNKNOWN_TOPIC_ID), log.take(0, 0))
            return
        state = one.state
        fetched = replica.on_fetch(one, fetch, log, self._clock(broker))
        start = end = fetch.offset
        if fetched.error == ErrorCode.NONE and fetched.diverging is None:
            end = fetched.end
        nothing_new = start == end and broker.told.get((partition, fetch.replica)) == fetched.high_watermark
        if fetched.error == ErrorCode.NONE and fetched.diverging is None and nothing_new:
            parked = Parked(fetch, answer, one.leader, self.now_ms + FETCH_WAIT_MS)
            broker.parked[partition][fetch.replica] = parked
        else:
            broker.told[partition, fetch.replica] = fetched.high_watermark
            answer(fetched, log.take(start, max(start, end)))
        if fetched.error == ErrorCode.NONE and state is not None and fetch.leader_epoch != state.leader_epoch:
            raise Violation("a fetch of another epoch was answered")
        self._after(broker, partition)

    def _wake(self, broker: Broker, partition: Partition) -> None:
        """Answer fetches that wait: there are records, the high watermark has moved, the lead is over, or the time is."""
        one, log = broker.roles.replicas[partition], broker.logs[partition]
        for follower_id, parked in list(broker.parked[partition].items()):
            if parked.lead is not one.leader:
                fetched = Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif (
                log.end > parked.fetch.offset
                or self.now_ms >= parked.until_ms
                or broker.told.get((partition, follower_id)) != one.high_watermark
            ):
                assert one.leader is not None
                fetched = leader.on_retry(one.leader, parked.fetch, log, one.high_watermark)
            else:
                continue
            del broker.parked[partition][follower_id]
            broker.told[partition, follower_id] = fetched.high_watermark
            parked.answer(fetched, log.take(parked.fetch.offset, max(parked.fetch.offset, fetched.end)))

    def _fetched(
        self,
        broker: Broker,
        partition: Partition,
        log: ReplicaLog,
        turn: int,
        fetch: Fetch,
        fetched: Fetched,
        batches: list[Batch],
        gone: frozenset[int],
    ) -> None:
        one = broker.roles.replicas[partition]
        if broker.logs[partition] is not log or not log.is_made:
            return  # A fetcher lets go of a log before it goes.
        if broker.is_full and batches:
            if not self.calm:
                self.post("timer", broker.id, lambda: self._fetch(broker, partition, turn), 100)
            return
        for decision in replica.on_fetched(one, fetch, fetched, [epoch for epoch, _ in batches], log):
            if isinstance(decision, follower.Append):
                log.append(batches[: decision.count])
                self.laws.on_append(partition, log.topic_id, batches[: decision.count])
                log.gone |= {offset for offset in gone if offset < log.end}
            elif isinstance(decision, follower.SetRemovedBelow):
                log.removed_below = decision.offset
            elif isinstance(decision, follower.Truncate):
                if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.laws.on_begin(partition, log.topic_id, broker.id)
                    self.count("begun again")
                if decision.offset < log.end:
                    self.note("cut", broker.id, partition[1], decision.offset, log.batches[decision.offset :])
                    self.count("truncation")
                log.cut(decision.offset)
            elif isinstance(decision, follower.Stop):
                self.laws.on_refused_cut(partition, broker.id, decision.offset)
            replica.decided(one, decision)
        self._after(broker, partition)
        is_good = fetched.error == ErrorCode.NONE or fetched.removed_below > 0
        wait = 0 if is_good else 100
        if not self.calm or is_good:
            self.post("timer", broker.id, lambda: self._fetch(broker, partition, turn), wait)

    def _after(self, broker: Broker, partition: Partition) -> None:
        """What follows from any change of a replica."""
        one, log = broker.roles.replicas[partition], broker.logs[partition]
        replica.move_high_watermark(one, log)
        self.laws.on_high_watermark(partition, log.topic_id, broker.id, one.high_watermark, leads=one.leader is not None)
        now_ms = self._clock(broker)
        for token, error in acks.answer(broker.waits[partition], one.high_watermark, one.leads_since, one.is_enough, now_ms):
            self._answer_produce(broker, token, error)
        if one.leader is not None:
            ask = leader.propose(one.leader, log.end, one.high_watermark, LAG_MS, now_ms)
            if ask is not None:
                replica.move_high_watermark(one, log)
                self._alter(broker, ask)
        self._wake(broker, partition)
        self.laws.on_change(partition, log.topic_id)

    def _alter(self, broker: Broker, *asks: AlterPartition) -> None:
        """Ask the controller for other ISRs: now, or together with others once a request to it is over."""
        controller_id = broker.controller_id
        if controller_id is None:
            return
        asking = broker.asking.get(controller_id)
        if asking is None or self.now_ms - asking.since_ms >= ALTER_LOST_MS:
            waiting = {} if asking is None else asking.waiting
            broker.asking[controller_id] = asking = Asking(self.now_ms, waiting)
            asking.waiting.update((ask.partition, ask) for ask in asks)
            self._send_together(broker, controller_id, asking)
        else:
            asking.waiting.update((ask.partition, ask) for ask in asks)

    def _send_together(self, broker: Broker, controller_id: int, asking: Asking) -> None:
        """Send all that waits in one request; what comes until it is over goes in the next one."""
        to, asks, asking.waiting = self.brokers[controller_id], [*asking.waiting.values()], {}
        if len(asks) > 1:
            self.count("asked together")

        def over(answers: list[AlterPartitionAnswer]) -> None:
            for answer in answers:
                self._altered(broker, answer)
            if broker.asking.get(controller_id) is asking:
                del broker.asking[controller_id]
                if asking.waiting:
                    self._alter(broker, *asking.waiting.values())

        def arrive() -> None:
            question = Question(asks, lambda answers: self.send("altered", to.id, broker.id, lambda: over(answers)))
            if to.controller is None or to.term is None or not to.term.has_begun:
                for at, ask in enumerate(asks):
                    question.take(at, AlterPartitionAnswer(ask, ErrorCode.NOT_CONTROLLER))
            else:
                tokens = [(question, at) for at in range(len(asks))]
                self.act(to, controller.on_alter(to.controller, zip(tokens, asks, strict=True), self.now_ms))

        if not self.send("alter", broker.id, to.id, arrive):
            self.post("altered", broker.id, lambda: over([]))

    def _altered(self, broker: Broker, answer: AlterPartitionAnswer) -> None:
        partition = answer.ask.partition
        one = broker.roles.replicas[partition]
        self.note("altered", broker.id, partition[1], answer.error, answer.ask.isr, answer.ask.partition_epoch)
        self.count(f"altered {answer.error}")
        ask = replica.on_altered(one, answer, self._clock(broker))
        if ask is not None:
            self._alter(broker, ask)
        self._after(broker, partition)

    def _tick(self, broker: Broker, life: int) -> None:
        """A broker's timers."""
        if broker.life == life:
            self._renew(broker)
            self._run_timers(broker)
            self.post("timer", broker.id, lambda: self._tick(broker, life), broker.lease.renew_ms)

    def _run_timers(self, broker: Broker) -> None:
        for partition, one in broker.roles.replicas.items():
            if one.leader is not None:
                log = broker.logs[partition]
                ask = leader.on_time(one.leader, log.end, one.high_watermark, LAG_MS, self._clock(broker))
                if ask is not None:
                    self._alter(broker, ask)
            self._after(broker, partition)
        self._look_at_disk(broker)
        if broker.controller is not None:
            self.act(broker, controller.on_time(broker.controller, self.now_ms))

    # Clients

    def produce(self, to: int, partition: Partition = ("topic", 0), acks_wanted: int = -1) -> int:
        """Append one record on a broker that leads; its number is the token of its answer. 0: refused."""
        broker = self.brokers[to]
        one, log = broker.roles.replicas[partition], broker.logs[partition]
        state = one.state
        if not broker.is_up or one.leader is None or state is None or (acks_wanted == -1 and not one.is_enough):
            return 0
        if broker.is_full:
            self.count("refused by a full disk")
            return 0
        self.last_record += 1
        batch = (state.leader_epoch, self.last_record)
        log.append([batch])
        self.laws.on_append(partition, log.topic_id, [batch])
        self.note("append", to, partition[1], log.end - 1, batch, acks_wanted, "hw", one.high_watermark)
        if self.laws.of(partition, log.topic_id).state.leader_epoch > state.leader_epoch:
            self.count("append of a zombie")
        if acks_wanted == -1:
            self.produces[self.last_record] = (partition, log.topic_id, log.end - 1, batch)
            deadline_ms = self._clock(broker) + PRODUCE_MS
            assert one.leads_since is not None
            acks.add(broker.waits[partition], acks.Wait(log.end, self.last_record, one.leads_since, deadline_ms))
        self._after(broker, partition)
        if self.calm:
            self.settle()
        return self.last_record

    def _answer_produce(self, broker: Broker, token: int, error: int) -> None:
        partition, topic_id, offset, batch = self.produces[token]
        if token in self.answered:
            raise Violation(f"{batch} was answered twice")
        self.answered[token] = error
        self.count(f"answered {error}")
        if error == ErrorCode.NONE:
            one = broker.roles.replicas[partition]
            assert one.leader is not None
            needed = one.leader.state.needed(one.leader.role.replicas)
            self.laws.on_answer(partition, topic_id, offset, batch, needed)
            if self.laws.of(partition, topic_id).state.leader_epoch > one.leader.state.leader_epoch:
                self.count("answer of a zombie")

    def _begin_clients(self) -> None:
        for partition in self.partitions:
            self.later(self.random.randint(50, 400), partial(self._produce_now, partition))
            for reader in range(2):
                self.positions[partition, reader] = (b"", 0)
                self.later(self.random.randint(50, 900), partial(self._read_now, partition, reader))

    def _produce_now(self, partition: Partition) -> None:
        """A producer believes of one or two brokers that they lead."""
        for broker in self.brokers:
            one = broker.roles.replicas.get(partition)
            if broker.is_up and one is not None and one.leader is not None and self.random.random() < 0.9:
                acks_wanted = -1 if self.random.random() < 0.7 else 1
                self.post("produce", broker.id, partial(self._produce_to, broker.id, partition, acks_wanted))
        if self.now_ms < self.duration_ms + REST_MS:
            burst = self.random.random() < 0.3
            self.later(
                self.random.randint(1, 10) if burst else self.random.randint(60, 900), lambda: self._produce_now(partition)
            )

    def _produce_to(self, to: int, partition: Partition, acks_wanted: int) -> None:
        self.produce(to, partition, acks_wanted)

    def _read_now(self, partition: Partition, reader: int) -> None:
        """A consumer polls any replica up to its high watermark."""
        broker = self.random.choice(self.brokers)
        one = broker.roles.replicas.get(partition)
        topic_id, position = self.positions[partition, reader]
        if broker.is_up and one is not None and one.role in (Role.LEADER, Role.FOLLOWER):
            log = broker.logs[partition]
            if log.topic_id != topic_id:
                topic_id, position = log.topic_id, 0
            batches = log.batches[position : one.high_watermark]
            if self.random.random() < 0.5:
                batches = batches[:1]
            self.laws.on_read(partition, topic_id, position, batches)
            self.positions[partition, reader] = (topic_id, position + len(batches))
        if self.now_ms < self.duration_ms + QUIET_MS:
            self.later(self.random.randint(100, 900), lambda: self._read_now(partition, reader))

    # Faults

    def _disturb(self) -> None:
        """One fault of many, then the next one after a while."""
        if self.now_ms >= self.duration_ms:
            return
        broker = self.random.choice(self.brokers)
        partition = self.random.choice(self.partitions)
        leader_id = self.laws.truths[partition].state.leader
        if self.random.random() < 0.4 and leader_id != NO_LEADER:
            broker = self.brokers[leader_id]
        self.random.choice(self._faults)(self, broker, partition)
        for one in self.brokers:
            for held, log in one.logs.items():
                if self.random.random() < 0.3:
                    self.compact(one.id, held)
                if self.random.random() < 0.1:
                    log.flushed = log.end
                if self.random.random() < 0.05:
                    log.copy = list(log.batches)
                    log.copied = (frozenset(log.gone), log.removed_below)
        self.later(self.random.choice((1, 30, 200, 500, 900, 2_000)), self._disturb)

    def _back(self, broker: Broker, most_ms: int = 5_000) -> None:
        life = broker.life

        def start() -> None:
            if broker.life == life and not broker.is_up:
                self.start(broker.id)

        self.later(self.random.choice((5, 100, 700, self.random.randint(0, most_ms))), start)

    def _fault_kill(self, broker: Broker, partition: Partition) -> None:
        if broker.is_up:
            self.kill(broker.id)
            self._back(broker)

    def _may_lose(self) -> bool:
        self.losses_left -= 1
        return self.losses_left >= 0

    def _fault_power(self, broker: Broker, partition: Partition) -> None:
        if self._may_lose():
            self.power_cut(broker.id)
            self._back(broker)

    def _fault_all_power(self, broker: Broker, partition: Partition) -> None:
        if self.random.random() < 0.15 and self.losses_left > 3:
            for one in self.brokers:
                self.power_cut(one.id)
                self._back(one)

    def _fault_log(self, broker: Broker, partition: Partition) -> None:
        if not self._may_lose():
            return
        if broker.is_up:
            self.kill(broker.id)
        log = broker.logs[partition]
        self.lose_log(broker.id, partition, self.random.choice((0, self.random.randint(0, log.end))))
        self._back(broker)

    def _fault_put_back(self, broker: Broker, partition: Partition) -> None:
        if self.random.random() < 0.5 and self._may_lose():
            if broker.is_up:
                self.kill(broker.id)
            self.put_back(broker.id)
            self._back(broker)

    def _fault_full(self, broker: Broker, partition: Partition) -> None:
        self.fill(broker.id)
        if self.random.random() < 0.7:
            self.later(self.random.choice((30, 1_000, 6_000)), lambda: self.drain(broker.id))

    def _fault_hang(self, broker: Broker, partition: Partition) -> None:
        self.hang(broker.id, self.random.choice((300, 1_900, 4_000, 9_000)))

    def _fault_pause(self, broker: Broker, partition: Partition) -> None:
        if broker.is_up:
            self.pause(broker.id, self.random.choice((50, 600, 2_000, 5_000)))

    def _fault_expire(self, broker: Broker, partition: Partition) -> None:
        self.expire(broker.id)

    def _fault_expel(self, broker: Broker, partition: Partition) -> None:
        self.expel(broker.id)

    def _fault_cut(self, broker: Broker, partition: Partition) -> None:
        other = self.random.choice(self.brokers)
        cut = {(broker.id, other.id)} if self.random.random() < 0.4 else {(broker.id, other.id), (other.id, broker.id)}
        self.cuts |= cut
        self.count("link cut")
        self.later(self.random.randint(100, 5_000), lambda: self.cuts.difference_update(cut))

    def _fault_store_cut(self, broker: Broker, partition: Partition) -> None:
        broker.store_is_cut = True
        self.count("store cut")

        def heal() -> None:
            broker.store_is_cut = False

        self.later(self.random.randint(100, 6_000), heal)

    def _fault_alone(self, broker: Broker, partition: Partition) -> None:
        """A broker is cut off from all others, but not from ZooKeeper."""
        cut = {(broker.id, other.id) for other in self.brokers} | {(other.id, broker.id) for other in self.brokers}
        self.cuts |= cut
        self.later(self.random.randint(100, 5_000), lambda: self.cuts.difference_update(cut))

    def _fault_move(self, broker: Broker, partition: Partition) -> None:
        self.wish(leader=broker.id, partition=partition)

    def _fault_min_isr(self, broker: Broker, partition: Partition) -> None:
        self.wish(min_isr=self.random.choice((1, 2, 2, 2)), partition=partition)

    def _fault_remake(self, broker: Broker, partition: Partition) -> None:
        if self.remakes:
            self.topics.remake()
            if self.random.random() < 0.5:
                self._fault_cut(broker, partition)

    def _fault_no_controller(self, broker: Broker, partition: Partition) -> None:
        node = self.store.nodes.get(paths.CONTROLLER)
        if node is not None and node.owner in self.store.sessions:
            self.store.expire(self.store.sessions[node.owner])

    _faults: tuple[Callable[[ClusterWorld, Broker, Partition], None], ...] = (
        _fault_kill,
        _fault_kill,
        _fault_kill,
        _fault_power,
        _fault_all_power,
        _fault_log,
        _fault_put_back,
        _fault_full,
        _fault_full,
        _fault_hang,
        _fault_pause,
        _fault_pause,
        _fault_expire,
        _fault_expel,
        _fault_cut,
        _fault_cut,
        _fault_store_cut,
        _fault_alone,
        _fault_move,
        _fault_move,
        _fault_min_isr,
        _fault_no_controller,
        _fault_remake,
        _fault_remake,
    )

    def run(self) -> ClusterWorld:
        """Play the whole run: faults, then quiet, then the cluster has to be whole."""
        self.play(self.duration_ms)
        self.faults = False
        self.cuts.clear()
        self.held.clear()
        for broker in self.brokers:
            broker.store_is_cut = False
            if not broker.is_up:
                self.start(broker.id)
        if any(broker.is_full for broker in self.brokers):
            self._play_until_served()
            for broker in self.brokers:
                self.drain(broker.id)
        self._come_to_rest(self.now_ms + QUIET_MS)
        if self._ask_operator():
            self._come_to_rest(self.now_ms + QUIET_MS)
        self.check_whole()
        return self

    def _come_to_rest(self, until_ms: int) -> None:
        """Play on until the cluster is whole, but no longer than it may take."""
        while self.now_ms < until_ms:
            self.play(self.now_ms + REST_MS)
            if self.now_ms > self.duration_ms + 2 * REST_MS and self.find_fault() is None:
                return

    def _play_until_served(self) -> None:
        """I12 while disks are full: play on until nobody leads on a full disk where another seat could lead."""
        until_ms = self.now_ms + QUIET_MS
        while fault := self._find_full_leader():
            if self.now_ms >= until_ms:
                raise Violation(fault)
            self.play(self.now_ms + REST_MS)

    def _find_full_leader(self) -> str | None:
        for partition in self.partitions:
            state = self.laws.truths[partition].state
            others = [one for one in state.seats if not self.brokers[one].is_full and one not in state.unclean]
            if state.leader != NO_LEADER and self.brokers[state.leader].is_full and others:
                return f"I12: {state.leader} leads {partition} on a full disk, and {others} could: {state}"
        return None

    def _ask_operator(self) -> bool:
        """Where the last seat's log isn't there nobody leads until an operator gives up what it held."""
        asked = False
        for partition, truth in self.laws.truths.items():
            state = truth.state
            if state.is_created and state.leader == NO_LEADER and any(not truth.logs[one].is_made for one in state.seats):
                if not truth.has_lost:
                    raise Violation(f"I12: {partition} waits for an operator, and nothing of it was ever lost: {state}")
                self.count("operator asked")
                self.wish(unclean=True, partition=partition)
                asked = True
        return asked

    def check_whole(self) -> None:
        """I12."""
        fault = self.find_fault()
        if fault is not None:
            raise Violation(fault)

    def find_fault(self) -> str | None:
        """Why the cluster isn't whole, or None."""
        if self.store.nodes.keys() & {paths.deleted_topic(TOPIC)} or paths.topic(TOPIC) not in self.store.nodes:
            return "I12: the topic isn't deleted, or isn't made again, at the end"
        for partition in self.partitions:
            state = self.laws.truths[partition].state
            if state.leader == NO_LEADER or set(state.isr) != {broker.id for broker in self.brokers}:
                return f"I12: {partition} isn't whole at the end: {state}"
            leads = [one.id for one in self.brokers if one.roles.replicas[partition].leader is not None]
            if leads != [state.leader]:
                return f"I12: {leads} lead {partition}, the state says {state}"
            for broker in self.brokers:
                if broker.waits[partition].heap:
                    return f"I12: somebody still waits on {broker.id}: {broker.waits[partition]}"
            logs = [broker.logs[partition].batches for broker in self.brokers]
            if any(log != logs[0] for log in logs):
                return f"I2: the logs differ at the end: {logs}"
        return None


def _short(state: LeaderAndIsr) -> str:
    seats = f"isr{state.isr} elr{state.elr} unclean{state.unclean} min{state.min_isr}"
    return f"v{state.partition_epoch} {state.leader}@{state.leader_epoch} {seats}"
