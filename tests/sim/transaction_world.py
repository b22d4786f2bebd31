"""A seeded world of three brokers, their transactions and their coordinators that move: shell, machines, delivery of markers,
verification, the messages between brokers and the logs are the real ones; controller, network, time and clients are the test's.

Any replica may be elected for any partition at any moment, as all are in sync. A broker hears late of its role, its
coordinators after its log, and it hears later still of who leads elsewhere: one that was killed and is back coordinates before
it has seen anything of the cluster. Requests between brokers are lost, answered in vain, or hang in a connection and are read
seconds later. One topic is deleted and made again under its name; its brokers hear of that one by one.

Judged at the end, by the logs that all replicas have then, and by what clients were told:

- a transaction is committed in all of its partitions, or in none, as the answer of EndTxn said; it is committed only if its
  producer asked for that. So no marker has ended records of another transaction;
- what was acknowledged of a committed transaction is there, but for topics that were deleted meanwhile;
- no transaction hangs, and no records of one are left open;
- with power cuts: one topic has a replica in sync alone, and the leader after a power cut lacks records. What was acknowledged
  there of a committed transaction is there, unless the power was cut after its producer asked for the end. With transactions v2
  what is left there of it has its outcome. No transaction stays open there, unless a broker has said that its outcome is lost;
- where coordinators forget: so it is with one of the two partitions of transactional ids. The outcome of a transaction counts
  unless the power was cut after its producer asked for the end. Nothing stays open, where no marker was lost;
- each state of a transactional id follows from the one before it in the log: a decision is followed by its own completion
  alone, no epoch falls, no producer id comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sim.moving_world import Inline, Violation

from penstock.broker.api import list_transactions, write_txn_markers
from penstock.broker.configs.features import Features
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.coordination import statelog
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.coordination.transactions.events import End, Init, ProducerResult
from penstock.broker.coordination.transactions.state import EPOCH_MAX, PREPARED, Facts, TransactionRecord, TransactionState
from penstock.broker.replication.commits import Commits
from penstock.broker.replication.transactionwire import read_fates, read_marker_answers, write_markers, write_open
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import Fates, MarkerAnswer, MarkerWrite, OpenTransaction, Verification
from penstock.errors import ErrorCode as E
from penstock.errors import KafkaError
from penstock.pyx.log.logmanager import FollowResult, LogManager
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.record.rawbatch import RawBatch, marker_type, records
from support.dataplane import batch

Partition = tuple[str, int]

BROKERS = (1, 2, 3)
REMADE = "remade"
ALONE = "alone"
TOPICS = {TRANSACTION_STATE: 2, "stays": 2, REMADE: 1, ALONE: 1}  # how many partitions each has
DATA: list[Partition] = [("stays", 0), ("stays", 1), (REMADE, 0)]
STATES: list[Partition] = [(TRANSACTION_STATE, 0), (TRANSACTION_STATE, 1)]
TXN_TIMEOUT_MS, PATIENCE_S, COMMIT_MS = 8_000, 15.0, 3_000
BETWEEN_BROKERS = "BETWEEN"
COORDINATORS_S = 0.03  # in which they hear of what their broker's log has heard; now and then much later
CONTROLLER_S = 0.05  # in which a broker hears of what the controller says
LATE_S = (0.05, 6.0)  # how late a request may be that hangs in a connection
ASK_AGAIN = (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR)
SEND_AGAIN = (*ASK_AGAIN, E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(frozen=True)
class Lead:
    """What the controller wants of a partition."""

    topic_id: bytes
    leader: int
    epoch: int
    version: int
    unclean_epoch: int = -1


@dataclass
class Seen:
    """A partition, as a broker sees it in its picture of the cluster."""

    index: int
    leader: int
    leader_epoch: int
    directory: str = ""
    isr: Sequence[int] = BROKERS
    unclean_epoch: int = -1


@dataclass
class SeenTopic:
    """A topic in it."""

    name: str
    topic_id: bytes
    partitions: list[Seen]
    internal: bool = False


class Turns:
    """A handler's turns that never end."""

    async def take(self) -> None:
        """There is nobody else."""


class Network:
    """What one broker asks of the others (`coordination/parts.py`). One request of a kind is out to a broker at a time."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._last = 0
        self._lines: dict[tuple[str, int], asyncio.Lock] = {}
        self.news = asyncio.Event()

    def lease_is_over(self) -> bool:
        """Nobody loses its session here."""
        return False

    def brokers_for(self, listener: str) -> Sequence[int]:
        """All are known."""
        return BROKERS

    async def verify(self, broker: int, question: Verification) -> Sequence[int]:
        """Ask a coordinator."""
        to = self._world.brokers[broker]
        answers: Sequence[int] = await self._ask("verify", broker, lambda: to.coordinators.verifier.answer(question))
        return answers

    async def write_markers(self, broker: int, write: MarkerWrite) -> Mapping[Partition, MarkerAnswer]:
        """Have another broker append markers, by the message that brokers send for that."""
        to, sender = self._world.brokers[broker], self._world.brokers[self._number]
        async with self._line("markers", broker):
            self._last += 1
            request = write_markers([write], self._number, sender.epoch, self._last)
            call: Any = SimpleNamespace(turns=Turns(), listener=BETWEEN_BROKERS)

            async def arrive() -> Any:
                answer = await write_txn_markers.handle(to.context, request, call)
                found = read_marker_answers(answer, [write])[0]
                self._world.note("markers", self._number, broker, write.marker, sorted(found.items()))
                if any(one.error == E.STALE_BROKER_EPOCH for one in found.values()):
                    self._world.counts["late markers"] += 1
                return found

            answers: Mapping[Partition, MarkerAnswer] = await self._send(arrive)
            return answers

    async def find_led(self, broker: int, epochs: Mapping[Partition, int]) -> list[Partition]:
        """Ask a leader."""
        to = self._world.brokers[broker]

        async def answer() -> list[Partition]:
            return [one for one, epoch in epochs.items() if to.leads(one, epoch)]

        led: list[Partition] = await self._ask("leads", broker, answer)
        return led

    async def find_fates(self, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        """Ask coordinators, by the message that brokers send for that."""
        to, request = self._world.brokers[broker], write_open(asked)
        call: Any = SimpleNamespace(turns=Turns(), listener=BETWEEN_BROKERS)

        async def answer() -> Fates:
            return read_fates(await list_transactions.handle(to.context, request, call), len(asked))

        fates: Fates = await self._ask("fates", broker, answer)
        return fates

    async def read_leaders(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """By the store."""
        await self._world.pause(1, 30)
        leads = self._world.leads
        return {index: (leads[topic, index].leader, leads[topic, index].epoch) for index in range(TOPICS[topic])}

    async def is_gone(self, partition: Partition, topic_id: bytes = b"") -> bool:
        """By the store."""
        await self._world.pause(1, 30)
        stored_id = self._world.ids.get(partition[0])
        return stored_id is None or topic_id not in (b"", stored_id)

    async def next_picture(self, timeout_s: float) -> None:
        """Wait for news."""
        self.news.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.news.wait()
        except TimeoutError:
            pass

    def _line(self, kind: str, broker: int) -> asyncio.Lock:
        return self._lines.setdefault((kind, broker), asyncio.Lock())

    async def _ask(self, kind: str, broker: int, work: Callable[[], Awaitable[Any]]) -> Any:
        async with self._line(kind, broker):
            return await self._send(work)

    async def _send(self, work: Callable[[], Awaitable[Any]]) -> Any:
        world = self._world
        await world.pause(1, 30)
        if world.loses(0.06):
            if world.fault(0.6):
                world.counts["hung"] += 1
                world.spawn(self._arrive_late(work))
            raise ConnectionError("the connection is lost")
        answer = await work()
        await world.pause(1, 30)
        if world.loses(0.04):
            raise ConnectionError("the answer is lost")
        return answer

    async def _arrive_late(self, work: Callable[[], Awaitable[Any]]) -> None:
        await asyncio.sleep(self._world.random.uniform(*LATE_S))
        await work()


class Line:
    """What is sent arrives late, and in its order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free_s = 0.0

    def send(self, action: Callable[[], None], most_s: float) -> None:
        """In that time; now and then much later."""
        world, loop = self._world, asyncio.get_running_loop()
        late_s = world.random.uniform(0, 30 * most_s) if world.fault(0.15) else world.random.uniform(0, most_s)
        # A loop keeps no order among what is due at the same time.
        self._free_s = max(self._free_s + 1e-6, loop.time() + late_s)
        loop.call_at(self._free_s, world.arrive, action)


class Broker:
    """One of them: its logs, its coordinators, and what it sees of the cluster."""

    def __init__(self, world: World, number: int, folder: Path) -> None:
        self.world = world
        self.number = number
        self.epoch = 100 + number  # of its registration
        self.folder = folder
        self.logs = LogManager()
        folder.mkdir()
        self.commits = Commits(self.logs)
        self.roles: dict[Partition, Lead] = {}
        self.picture: dict[str, SeenTopic] = {}
        self.deleted: set[bytes] = set()
        self.dark: dict[Partition, int] = {}  # by partition the newest version of its state as the power of its folder was cut
        self.life = 0
        self.unknown: set[OpenTransaction] = set()  # whose outcome is lost, as it has said so far
        self.line, self.own_line = Line(world), Line(world)  # from the controller, and from the logs to the coordinators
        self.network = Network(world, number)
        self.context: Any = SimpleNamespace(
            features=Features(),
            entities=SimpleNamespace(get=lambda entity: {}),
            config=SCHEMA.parse({}),
            topics=SimpleNamespace(
                get=self.picture.get, all=lambda: list(self.picture.values()), version=0, ensure=self._not_seen
            ),
            log_manager=self.logs,
            commits=self.commits,
            cluster=self.network,
            between_brokers=BETWEEN_BROKERS,
            store=None,
            node_id=number,
            now_ms=lambda: world.now_ms + 1_700_000_000_000,
            age_now_ms=lambda: world.now_ms + 1_700_000_000_000,
            monotonic_ms=lambda: world.now_ms,
        )
        self.coordinators = Coordinators(self.context)
        self.context.coordinators, self.context.transactions = self.coordinators, self.coordinators.transactions
        self.transactions = self.coordinators.transactions
        self.transactions._readers = Inline()  # type: ignore[assignment]
        self.transactions.producer_ids = world.producer_ids

    async def _not_seen(self, name: str, *_: object) -> None:
        """Every topic is there, and this broker has no picture of it yet."""
        raise KafkaError(E.COORDINATOR_NOT_AVAILABLE, name)

    def take_role(self, partition: Partition, lead: Lead) -> None:
        """LeaderAndIsr of one partition. A log of an earlier topic of the name is gone by then."""
        before = self.roles.get(partition)
        if lead.version <= self.dark.get(partition, -1):
            return
        if lead.topic_id in self.deleted or (
            before is not None and before.topic_id == lead.topic_id and before.version >= lead.version
        ):
            return
        if before is None or before.topic_id != lead.topic_id:
            home = self.folder / f"{partition[0]}-{partition[1]}-{lead.topic_id.hex()}"
            home.mkdir()
            self.logs.open_replica(partition[0], lead.topic_id, partition[1], str(home), {})
        self.roles[partition] = lead
        if lead.leader == self.number:
            in_sync = partition not in self.world.alone
            others = [Replica(one, in_sync, in_sync, self.world.brokers[one].epoch) for one in BROKERS if one != self.number]
            self.logs.set_leader(
                *partition, broker_epoch=self.epoch, leader_epoch=lead.epoch, partition_epoch=lead.version, replicas=others,
                enough=2 if in_sync else 1,
            )  # fmt: skip
        else:
            self.logs.set_follower(
                *partition, broker_epoch=self.epoch, leader=lead.leader, leader_epoch=lead.epoch, partition_epoch=lead.version,
                unclean_epoch=lead.unclean_epoch,
            )  # fmt: skip
        self.own_line.send(partial(self._tell_coordinators, partition, lead, self.life), COORDINATORS_S)

    def _tell_coordinators(self, partition: Partition, lead: Lead, life: int) -> None:
        """They hear of a role once the log has it."""
        self.unknown |= self.coordinators.hanging.unknown
        if life == self.life and lead.leader == self.number:
            self.coordinators.elected(*partition, lead.epoch, lead.unclean_epoch)
        elif life == self.life and partition[0] == TRANSACTION_STATE:
            self.coordinators.resigned(*partition)

    def restart(self) -> None:
        """Killed, and there again: the logs are as they were. It has no role, coordinates nothing, and has seen nothing."""
        self.life += 1
        self.logs.fence_all()
        hanging = self.coordinators.hanging
        self.unknown |= hanging.unknown
        hanging.unknown, hanging._suspects, hanging._open = set(), set(), set()
        hanging._unclean_epochs, hanging._are_states_lost = {}, False
        for partition, role in self.roles.items():
            self.roles[partition] = replace(role, version=-1)
            if partition[0] == TRANSACTION_STATE:
                self.coordinators.resigned(*partition)
        self.picture.clear()

    def see(self, partition: Partition, lead: Lead) -> None:
        """UpdateMetadata of one partition."""
        name, index = partition
        topic = self.picture.get(name)
        if lead.topic_id in self.deleted:
            return
        if topic is None or topic.topic_id != lead.topic_id:
            if topic is not None:
                self.unsee(name)
            seen = [Seen(number, -1, -1) for number in range(TOPICS[name])]
            topic = self.picture[name] = SeenTopic(name, lead.topic_id, seen, name == TRANSACTION_STATE)
        if lead.epoch > topic.partitions[index].leader_epoch:
            before = topic.partitions[index].unclean_epoch
            isr = (lead.leader,) if partition in self.world.alone else BROKERS
            topic.partitions[index] = Seen(index, lead.leader, lead.epoch, isr=isr, unclean_epoch=lead.unclean_epoch)
            if before < lead.unclean_epoch:
                self.coordinators.led_uncleanly([partition])
        self.network.news.set()

    def leads(self, partition: Partition, epoch: int) -> bool:
        """Whether this broker leads a partition in that leader epoch."""
        try:
            state = self.logs.replica_state(*partition)
        except KafkaError:
            return False
        return state.role == "leader" and state.leader_epoch == epoch

    def cut_power(self, partition: Partition, version: int) -> None:
        """It leads this partition no more, before anybody knows."""
        self.dark[partition] = version
        if partition in self.roles:
            self.logs.fence(*partition)

    def unsee(self, name: str) -> None:
        """The picture has the topic no more."""
        if self.picture.pop(name, None) is not None:
            self.coordinators.topic_deleted(name)
            self.network.news.set()

    def delete(self, name: str, topic_id: bytes) -> None:
        """StopReplica of a topic's partitions."""
        self.deleted.add(topic_id)
        for index in range(TOPICS[name]):
            role = self.roles.get((name, index))
            if role is not None and role.topic_id == topic_id:
                self.logs.delete(name, index)
                del self.roles[name, index]
        topic = self.picture.get(name)
        if topic is not None and topic.topic_id == topic_id:
            self.unsee(name)


@dataclass
class Sent:
    """What a client was told of one transaction."""

    asked_commit: bool = False
    version: int = 0  # of the protocol
    home: Partition = ("", 0)  # of its transactional id
    answered: bool | None = None  # committed
    acknowledged: list[tuple[Partition, bytes]] = field(default_factory=list)
    since_ms: int = 0  # when it began, or its client asked for its end


class World:
    """One run: `await run()` plays it and raises Violation."""

    guarded = True  # as the broker does; else a produce is appended whatever came since its coordinator was asked

    def __init__(
        self,
        seed: int,
        folder: Path,
        duration_s: float = 40.0,
        lossy: float = 1.0,
        *,
        power_cuts: bool = False,
        forgets: bool = False,
    ) -> None:
        """lossy: so many times as often as usual what is sent is lost, or comes late. power_cuts, forgets: see above."""
        self.random = random.Random(seed)
        self.lossy = lossy
        self.duration_s = duration_s
        self.data = [*DATA, (ALONE, 0)] if power_cuts else DATA
        self.alone = {(ALONE, 0)} if power_cuts else set[Partition]()  # of which one replica alone is in sync
        if forgets:
            self.alone.add(STATES[1])
        self.cuts_ms: list[tuple[Partition, int]] = []  # when the power of whoever led one of them was cut
        self.faults = True
        self.counts: Counter[str] = Counter()
        self.history: list[tuple[object, ...]] = []
        self.ids: dict[str, bytes] = {}  # what the store has
        self.leads: dict[Partition, Lead] = {}
        self._numbers = itertools.count(1)
        numbers = itertools.count(1_000)

        async def next_id() -> int:
            return next(numbers)

        self.producer_ids: Any = SimpleNamespace(next=next_id)
        self.next_transaction = itertools.count(1)
        self.sent: dict[int, Sent] = {}
        self.brokers = {number: Broker(self, number, folder / str(number)) for number in BROKERS}
        names = (("tx0", 0), ("tx1", 2), ("tx0", 2), ("tx2", 0), ("tx3", 2), ("tx4", 0))
        self.producers = [Producer(self, name, version) for name, version in names]
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    @property
    def now_ms(self) -> int:
        """Of the loop."""
        return int(asyncio.get_running_loop().time() * 1000) + 1_000

    def note(self, *what: object) -> None:
        """One line of the run's story, for whoever replays a seed."""
        self.history.append((self.now_ms, *what))

    def fault(self, probability: float) -> bool:
        """Whether a fault happens now; never once the faults have stopped."""
        return self.faults and self.random.random() < probability

    def loses(self, probability: float) -> bool:
        """Whether something that is sent is lost, or late."""
        return self.fault(self.lossy * probability)

    async def pause(self, least_ms: int, most_ms: int) -> None:
        """Something takes some time; now and then much."""
        most_ms = 20 * most_ms if self.fault(0.03) else most_ms
        await asyncio.sleep(self.random.randint(least_ms, most_ms) / 1000)

    def spawn(self, work: Any) -> None:
        """Beside all else; what it raises ends the run."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    async def run(self) -> World:
        """With faults, then without."""
        for broker in self.brokers.values():
            broker.commits.start()
            broker.coordinators.start_in_cluster()
        try:
            for name in dict.fromkeys([TRANSACTION_STATE, *(name for name, _ in self.data)]):
                self.make(name)
            for broker in self.brokers.values():
                self.spawn(self._follow(broker))
            await asyncio.sleep(2)
            for producer in self.producers:
                self.spawn(producer.run())
            self.spawn(self._disturb())
            await self._until(self.duration_s)
            self.faults = False
            for producer in self.producers:
                producer.stopped = True
            await self._until(self.duration_s + 60)
            self.check()
        finally:
            for task in list(self._tasks):
                task.cancel()
            for broker in self.brokers.values():
                await broker.coordinators.stop()
                await broker.commits.stop()
                for topic, index in broker.logs.partitions():
                    broker.logs.delete(topic, index)
        return self

    async def _until(self, end_s: float) -> None:
        while asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.5)
            if self._failure is not None:
                raise self._failure

    # --- the controller
    def make(self, name: str) -> None:
        """A topic is made."""
        topic_id = self.ids[name] = b"topic-id" + next(self._numbers).to_bytes(8, "big")
        self.note("made", name, topic_id)
        for index in range(TOPICS[name]):
            self.leads[name, index] = Lead(topic_id, self.random.choice(BROKERS), 0, 0)
            self.tell((name, index))

    def elect(self, partition: Partition, number: int) -> None:
        """Another leader, or the same one in another epoch."""
        before = self.leads[partition]
        self.leads[partition] = replace(before, leader=number, epoch=before.epoch + 1, version=before.version + 1)
        self.counts["election"] += 1
        self.note("elected", partition, self.leads[partition])
        self.tell(partition)

    def tell(self, partition: Partition) -> None:
        """All brokers hear of a partition: of their roles, then of the picture."""
        for broker in self.brokers.values():
            self._tell_role(broker, partition)
            self._tell_picture(broker, partition)

    def _tell_role(self, broker: Broker, partition: Partition) -> None:
        role = partial(broker.take_role, partition, self.leads[partition])
        broker.line.send(_of_life(broker, role), CONTROLLER_S)

    def _tell_picture(self, broker: Broker, partition: Partition) -> None:
        picture = partial(broker.see, partition, self.leads[partition])
        broker.line.send(_of_life(broker, picture), CONTROLLER_S)

    def _restart(self, broker: Broker) -> None:
        """What it led gets leaders, itself among them; all roles come before the first picture."""
        broker.restart()
        self.counts["restart"] += 1
        self.note("restarted", broker.number)
        for partition, lead in list(self.leads.items()):
            if lead.leader == broker.number:
                # Nobody else has the records of some.
                leader = broker.number if partition in self.alone else self.random.choice(BROKERS)
                self.leads[partition] = replace(lead, leader=leader, epoch=lead.epoch + 1, version=lead.version + 1)
                for other in self.brokers.values():
                    if other is not broker:
                        self._tell_role(other, partition)
                        self._tell_picture(other, partition)
            self._tell_role(broker, partition)
        for partition in self.leads:
            self._tell_picture(broker, partition)

    def arrive(self, action: Callable[[], None]) -> None:
        """Something is told."""
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - it ends the run
            self._failure = self._failure or error

    async def _remake(self) -> None:
        """A topic is deleted and made again: its name is free once all brokers have deleted what they had."""
        topic_id = self.ids[REMADE]
        left, is_over = set(BROKERS), asyncio.Event()

        def delete(broker: Broker) -> None:
            broker.delete(REMADE, topic_id)
            left.discard(broker.number)
            if not left:
                is_over.set()

        for broker in self.brokers.values():
            broker.line.send(partial(delete, broker), CONTROLLER_S)
        await is_over.wait()
        self.note("deleted", topic_id)
        del self.ids[REMADE]
        self.leads.pop((REMADE, 0))
        self.counts["deleted"] += 1
        await self.pause(1, 300)
        self.make(REMADE)

    async def _disturb(self) -> None:
        while self.faults:
            await asyncio.sleep(self.random.choice((0.05, 0.3, 1.0, 2.5)))
            chance = self.random.random()
            if chance < 0.12 and REMADE in self.ids:
                await self._remake()
            elif chance < 0.22:
                self._restart(self.brokers[self.random.choice(BROKERS)])
            elif self.alone and self.random.random() < 0.3:
                await self._cut_power(self.random.choice(sorted(self.alone)))
            else:
                partition = self.random.choice([one for one in (*DATA, *STATES) if one not in self.alone])
                former = self.leads[partition].leader
                self.elect(partition, self.random.choice(BROKERS))
                if self.fault(0.3):  # The lead comes back, maybe before whoever had it knows that it was lost.
                    await asyncio.sleep(self.random.uniform(0.05, 0.5))
                    self.elect(partition, former)

    async def _cut_power(self, partition: Partition) -> None:
        """Of the one replica in sync. Another one, which lacks records, leads some time later."""
        before = self.leads[partition]
        self.brokers[before.leader].cut_power(partition, before.version)
        self.cuts_ms.append((partition, self.now_ms))
        self.counts["power cut"] += 1
        self.note("power cut", partition, before)
        await self.pause(10, 2_000)
        leader = self.random.choice([one for one in BROKERS if one != before.leader])
        self.leads[partition] = Lead(before.topic_id, leader, before.epoch + 1, before.version + 1, before.epoch + 1)
        self.note("elected uncleanly", partition, self.leads[partition])
        self.tell(partition)

    # --- replication
    async def _follow(self, broker: Broker) -> None:
        """A broker's fetches."""
        while True:
            await self.pause(4, 30)
            for partition in list(broker.roles):
                self._fetch(broker, partition)

    def _fetch(self, broker: Broker, partition: Partition) -> None:
        if partition in self.alone and self.fault(0.9):
            return  # It lags far behind.
        ask = broker.logs.follower_ask(*partition)
        if ask is None or ask.leader < 0:
            return
        to, own = self.brokers[ask.leader], broker.roles[partition]
        its = to.roles.get(partition)
        if its is None or its.topic_id != own.topic_id:
            return
        told = to.logs.replica_fetched(
            *partition, replica=broker.number, broker_epoch=ask.broker_epoch, leader_epoch=ask.leader_epoch, offset=ask.offset,
            last_epoch=ask.last_epoch, now_ms=self.now_ms,
        )  # fmt: skip
        if told.error:
            return
        if told.diverging is not None:
            self.counts["cut"] += 1
            result = broker.logs.follower_cut(*partition, ask, *told.diverging)
        else:
            content = to.logs.read(*partition, ask.offset, 1 << 20) if ask.offset < told.log_end else b""
            result = broker.logs.follower_append(*partition, ask, content, told.high_watermark)
        if result not in (FollowResult.DONE, FollowResult.STALE):
            raise Violation(f"broker {broker.number} of {partition}: {result!r}")

    # --- clients
    async def coordinator(self, name: str, work: Callable[[Broker], Awaitable[Any]]) -> Any:
        """Ask a transaction's coordinator, or whom the client takes for it; None: no answer came."""
        number = self.leads[home_of(name)].leader if self.random.random() < 0.85 else self.random.choice(BROKERS)
        await self.pause(1, 20)
        if self.fault(0.02):
            await asyncio.sleep(1)
            return None
        result = await self._ask(lambda: work(self.brokers[number]))
        await self.pause(1, 20)
        return None if self.fault(0.03) else result

    async def _ask(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """An answer, an error code, or None if none comes in time; what was asked goes on."""

        async def answered() -> Any:
            try:
                return await work()
            except KafkaError as error:
                return error.code

        task = asyncio.get_running_loop().create_task(answered())
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        return task.result() if done else None

    async def produce(self, name: str, version: int, batch_of: tuple[int, int, int, int], partition: Partition) -> int | None:
        """Send a batch to who leads; it may come twice, or much later; the error code, or None if no answer came."""
        if partition not in self.leads:
            return int(E.UNKNOWN_TOPIC_OR_PARTITION)
        number = self.leads[partition].leader if self.random.random() < 0.9 else self.random.choice(BROKERS)
        await self.pause(1, 20)
        if self.loses(0.03):
            if self.fault(0.6):
                self.counts["produced late"] += 1
                self.spawn(self._produced_late(self.brokers[number], name, version, batch_of, partition))
            return None
        if self.loses(0.02):  # It hangs between question and append, and its client waits no longer.
            self.counts["appended late"] += 1
            late_s = self.random.uniform(*LATE_S)
            self.spawn(self._produced(self.brokers[number], name, version, batch_of, partition, late_s))
            return None
        error = await self._produced(self.brokers[number], name, version, batch_of, partition)
        await self.pause(1, 20)
        return None if self.fault(0.03) else error

    async def _produced_late(self, *given: Any) -> None:
        await asyncio.sleep(self.random.uniform(*LATE_S))
        await self._produced(*given)

    async def _produced(
        self,
        broker: Broker,
        name: str,
        version: int,
        batch_of: tuple[int, int, int, int],
        partition: Partition,
        late_s: float = 0.0,
    ) -> int:
        """As the data plane and `transactionalproduce.py` do: a batch that begins a transaction is verified, or added, and
        appended if neither a marker of its producer nor another role came since."""
        producer_id, epoch, sequence, number = batch_of
        logs = broker.logs
        try:
            goes_on = any(
                one.producer_id == producer_id and one.producer_epoch == epoch and one.txn_first_offset >= 0
                for one in logs.producers(*partition)
            )
            if not goes_on:
                guard = logs.guard()
                ids = frozenset({(partition[0], logs.topic_id(*partition))})
                question = Verification(name, producer_id, epoch, (partition,), version >= 2, ids)
                (error,) = await broker.coordinators.verifier.ask(question)
                if error:
                    return error
                await self.pause(0, 10)
                await asyncio.sleep(late_s)
                if self.guarded and not logs.is_guarded(*partition, producer_id, epoch, guard):
                    self.counts["refused by its guard"] += 1
                    return int(E.NOT_ENOUGH_REPLICAS)
            logs.check_leads(*partition)
            leader_epoch, topic_id = logs.offsets(*partition).leader_epoch, broker.roles[partition].topic_id
            content = batch(
                [b"%d" % number], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
            )
            appended = logs.append_client(*partition, content)
        except KafkaError as refused:
            return refused.code
        error = await broker.commits.wait(partition, appended.needed, leader_epoch, COMMIT_MS)
        self.note("produced", broker.number, partition, topic_id, batch_of, error)
        if not error:
            self.sent[number].acknowledged.append((partition, topic_id))
        return error

    # --- the end
    def _batches(self, broker: Broker, partition: Partition) -> list[RawBatch]:
        where = broker.logs.offsets(*partition)
        offset, found = where.log_start, list[RawBatch]()
        if where.high_watermark != where.log_end:
            raise Violation(f"{partition} is not at rest: {where}")
        while offset < where.log_end:
            found += statelog.read_batches(broker.logs, *partition, offset)
            offset = found[-1].next_offset
        return found

    def check(self) -> None:
        """By the logs that all have now."""
        outcomes: dict[int, dict[Partition, bool]] = {}
        for partition in self.data:
            leader = self.brokers[self.leads[partition].leader]
            open_: dict[int, list[int]] = {}
            lost = self._lost_outcomes(partition)
            for raw in self._batches(leader, partition):
                if raw.is_control:
                    for number in open_.pop(raw.producer_id, []):
                        if self.sent[number].version < 2 or raw.producer_id in lost:
                            is_excused = self._is_excused(number, partition)
                        else:
                            is_excused = self._is_excused(number, None)
                        if not is_excused:
                            outcomes.setdefault(number, {})[partition] = marker_type(raw) == "commit"
                else:
                    open_.setdefault(raw.producer_id, []).extend(int(one.value or b"") for one in records(raw))
            if open_.keys() - lost:
                raise Violation(f"{partition} has open transactions: {open_}")
        for number, found in outcomes.items():
            sent = self.sent[number]
            if len(set(found.values())) > 1:
                raise Violation(f"transaction {number} is committed and aborted: {found}; {sent}")
            committed = next(iter(found.values()))
            if committed and not sent.asked_commit:
                raise Violation(f"transaction {number} is committed, and nobody asked for that: {found}; {sent}")
            if sent.answered not in (None, committed):
                raise Violation(f"transaction {number}: answered {sent.answered}, the logs say {found}; {sent}")
        for number, sent in self.sent.items():
            for partition, topic_id in sent.acknowledged:
                is_there = partition in outcomes.get(number, {}) or self._is_excused(number, partition)
                if sent.answered and self.ids[partition[0]] == topic_id and not is_there:
                    raise Violation(f"transaction {number} is committed, and lacks what {partition} acknowledged: {sent}")
        self._check_states()

    def _is_excused(self, number: int, partition: Partition | None) -> bool:
        """Whether a power cut may have taken records, markers or the decision of a transaction whose end was asked for before,
        if ever."""
        sent = self.sent[number]
        return any(where in (partition, sent.home) and cut_ms >= sent.since_ms for where, cut_ms in self.cuts_ms)

    def _lost_outcomes(self, partition: Partition) -> set[int]:
        """The producers of which a broker has said that the outcome of a transaction is lost."""
        said = set().union(*(broker.unknown | broker.coordinators.hanging.unknown for broker in self.brokers.values()))
        return {one.producer_id for one in said if one.partition == partition}

    def _check_states(self) -> None:
        for index in range(TOPICS[TRANSACTION_STATE]):
            last: dict[str, Facts] = {}
            ids: dict[str, list[int]] = {}
            partition = (TRANSACTION_STATE, index)
            for raw in self._batches(self.brokers[self.leads[partition].leader], partition):
                for name, record, _, _ in statelog.read_records(raw, statelog.decode_transaction_record, *partition):
                    assert isinstance(record, TransactionRecord) and record.value is not None
                    facts, before = record.value, last.get(name)
                    had = ids.setdefault(name, [])
                    if (before is not None and not _follows(facts, before)) or facts.producer_id in had[:-1]:
                        raise Violation(f"{name}: {facts} after {before}")
                    if facts.producer_id not in had:
                        had.append(facts.producer_id)
                    last[name] = facts
            for name, facts in last.items():
                if facts.state in (*PREPARED, TransactionState.ONGOING):
                    raise Violation(f"{name} is still {facts.state.shown}")


def home_of(name: str) -> Partition:
    """The partition of a transactional id."""
    return TRANSACTION_STATE, statelog.java_hash_partition(name, TOPICS[TRANSACTION_STATE])


def _follows(facts: Facts, before: Facts) -> bool:
    """Whether a transactional id may come into this state from that one. With transactions v2 nothing at all may be aborted.
    The last epoch of a producer id fences whoever has it."""
    states = TransactionState
    if facts.producer_id == before.producer_id and facts.producer_epoch < before.producer_epoch:
        return False
    if before.state in PREPARED:
        return facts.state is (states.COMPLETE_COMMIT if before.state is states.PREPARE_COMMIT else states.COMPLETE_ABORT)
    if before.state is states.ONGOING:
        return facts.state in (states.ONGOING, *PREPARED)
    if facts.state is before.state and facts.producer_epoch == EPOCH_MAX:
        return True
    return facts.state in (states.EMPTY, states.ONGOING) or (facts.state is states.PREPARE_ABORT and facts.client_version >= 2)


def _of_life(broker: Broker, action: Callable[[], None]) -> Callable[[], None]:
    """What is told to a process is lost with it."""
    life = broker.life
    return lambda: action() if broker.life == life else None


class Producer:
    """A transactional producer of one version of the protocol; two of them may share an identity, and fence each other."""

    def __init__(self, world: World, name: str, version: int) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.id, self.epoch = -1, -1
        self.sequences: dict[Partition, int] = {}
        self.unsure = False  # a batch may or may not have been stored
        self.stopped = False

    async def run(self) -> None:
        """As a process does that is started again after each error."""
        while not self.stopped:
            result = await self._ask(lambda broker: broker.transactions.init(self.name, Init(None, TXN_TIMEOUT_MS)))
            if not isinstance(result, ProducerResult) or result.error:
                await self.world.pause(50, 300)
                continue
            self._go_on_as(result)
            while not self.stopped and await self._transact():
                await self.world.pause(5, 400)
            await self.world.pause(200, 4_000)

    async def _ask(self, work: Callable[[Broker], Awaitable[Any]]) -> Any:
        return await self.world.coordinator(self.name, work)

    def _go_on_as(self, result: ProducerResult) -> None:
        """Sequences begin at 0 in each epoch."""
        if (result.producer_id, result.producer_epoch) != (self.id, self.epoch):
            self.sequences.clear()
            self.unsure = False
        self.id, self.epoch = result.producer_id, result.producer_epoch

    async def _transact(self) -> bool:
        """One transaction; whether this process goes on."""
        world = self.world
        number = next(world.next_transaction)
        world.sent[number] = Sent(version=self.version, home=home_of(self.name), since_ms=world.now_ms)
        partitions = world.random.sample(world.data, world.random.randint(1, len(world.data)))
        if self.version < 2 and not await self._add(partitions):
            return False
        if world.fault(0.05):
            await world.pause(0, 2 * TXN_TIMEOUT_MS)
        commit = world.random.random() < 0.75
        for partition in partitions:
            error = await self._send(partition, number)
            if error is None or error == E.TRANSACTION_ABORTABLE:
                commit = False
                break
            if error:
                return False
        if world.fault(0.08):
            world.counts["producer died"] += 1
            return False
        return await self._end(number, commit)

    async def _ask_to_add(self, partitions: Sequence[Partition], broker: Broker) -> Any:
        return await broker.transactions.add(self.name, (self.id, self.epoch), partitions)

    async def _ask_to_end(self, event: End, broker: Broker) -> Any:
        return await broker.transactions.end(self.name, event)

    async def _add(self, partitions: list[Partition]) -> bool:
        while not self.stopped:
            error = await self._ask(partial(self._ask_to_add, partitions))
            if error == E.NONE:
                return True
            if error is not None and error not in ASK_AGAIN:
                return False
            await self.world.pause(20, 100)
        return False

    async def _send(self, partition: Partition, number: int) -> int | None:
        """Until it is stored; not for ever."""
        error: int | None = None
        before, may_come = self.unsure, False
        for _ in range(8):
            batch_of = (self.id, self.epoch, self.sequences.get(partition, 0), number)
            self.unsure = True
            error = await self.world.produce(self.name, self.version, batch_of, partition)
            if error == E.NONE:
                self.sequences[partition] = batch_of[2] + 1
                # What comes twice is known by its number in the same log alone, and not in that of the next topic of a name.
                self.unsure = before or (may_come and partition[0] == REMADE)
                return error
            may_come |= error is None
            if error is not None and error not in SEND_AGAIN:
                self.world.counts[f"refused {KafkaError(error).name}"] += 1
                return error
            await self.world.pause(20, 200)
        return None

    async def _end_late(self, end: End) -> None:
        await asyncio.sleep(self.world.random.uniform(*LATE_S))
        await self._ask(partial(self._ask_to_end, end))

    async def _end(self, number: int, commit: bool) -> bool:
        """EndTxn, also again."""
        world, sent = self.world, self.world.sent[number]
        sent.asked_commit |= commit
        sent.since_ms = world.now_ms
        while True:
            end = End(None, self.id, self.epoch, commit, self.version >= 2)
            if self.version >= 2 and world.fault(0.1):  # one of the first protocol has nothing to tell a repetition by
                world.spawn(self._end_late(replace(end)))
            result = await self._ask(partial(self._ask_to_end, end))
            world.note("end", self.name, number, end.producer_id, end.producer_epoch, commit, result)
            error = result.error if isinstance(result, ProducerResult) else result
            if error == E.NONE:
                break
            if error is not None and error not in ASK_AGAIN:
                return False
            if self.stopped and world.now_ms > (world.duration_s + 40) * 1000:
                return False
            await world.pause(20, 100)
        sent.answered = commit
        world.counts[f"{'committed' if commit else 'aborted'} v{self.version}"] += 1
        self._go_on_as(result)
        # A batch of the first protocol that may still come could join the next transaction: that takes a new epoch.
        return not (self.unsure and self.version < 2)
