"""A seeded world around our own consumers: the real `Consumer` and the real coordinator, a network that loses and hangs, and
time that is a number.

Several consumers, cooperative ones, eager ones and some on the way from one to the other, read a topic and commit after their
work. They die, stand still, leave, come again; requests and answers are lost; brokers hang; the coordinator crashes and reads
its log again. The consumers' loops are one virtual loop, which runs while one of them waits.

Checked all the time, by what the consumers were given and by the coordinator's log:

- a partition that is assigned is no other member's of the same generation;
- a record that is given out is not below the offset that was committed when its partition was assigned;
- a committed offset never goes back.

When the faults stop, all partitions have a reader, and each record was read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from sim.consumer_world import Violation, World
from sim.virtualtime import VirtualLoop

from penstock.broker.coordination.classicgroups import events
from penstock.broker.coordination.classicgroups.state import Group
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.offsets import Committed, OffsetRecord
from penstock.errors import KafkaError
from penstock.pipeline.clients import background, consumer
from penstock.pipeline.clients.admin import EARLIEST, Admin
from penstock.pipeline.clients.connection import RequestTimedOut
from penstock.pipeline.clients.consumer import Consumer
from penstock.pipeline.clients.metadata import Broker, Cluster, PartitionInfo, TopicInfo
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.wire import messages
from penstock.pyx.wire.message import Message

TopicPartition = tuple[str, int]
TOPIC, TOPIC_ID, GROUP, BROKER = "t1", b"t" * 16, "g", 1
PARTITIONS, ROUNDS = 6, 120
STRATEGIES = ("cooperative-sticky", "range,cooperative-sticky", "cooperative-sticky", "cooperative-sticky,range")
LIMITS = {
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
    "max.poll.interval.ms": 8_000,
    "default.api.timeout.ms": 4_000,
    "request.timeout.ms": 2_000,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "max.poll.records": 3,
    "retry.backoff.ms": 50,
}


class SharedLoop(background.BackgroundLoop):
    """What a consumer takes for a loop in a thread: the world's, which runs while the consumer waits."""

    world: ReaderWorld

    def __init__(self, name: str) -> None:
        self.loop = self.world.loop
        self.tasks = self.world.tasks_of_next

    @property
    def inside(self) -> bool:
        return False

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        future = self.start(work)
        if not self.wait(future, timeout_s):
            future.cancel()
            raise TimeoutError
        return future.result(0)

    def start(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        async def owned() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self.world.owners[task] = self.tasks
            return await work

        return super().start(owned())

    def wait(self, future: concurrent.futures.Future[Any], wait_s: float | None) -> bool:
        async def waiting() -> None:
            wrapped = asyncio.wrap_future(future)
            await asyncio.wait([wrapped], timeout=wait_s)
            if wrapped.done() and not wrapped.cancelled():
                wrapped.exception()  # the caller raises it

        self.loop.run_until_complete(waiting())
        return future.done()

    def stop(self) -> None:
        """The loop is the world's."""


class SimulatedAdmin(Admin):
    """A client whose requests the world answers."""

    world: ReaderWorld
    is_dead = False

    async def start(self, timeout_ms: float | None = None) -> None:
        """There is nobody to reach."""

    def _look(self) -> Cluster:
        parts = {n: PartitionInfo(BROKER, 0, (BROKER,), (BROKER,)) for n in range(PARTITIONS)}
        return Cluster({BROKER: Broker(BROKER, "b", 1)}, {TOPIC: TopicInfo(TOPIC, TOPIC_ID, parts)})

    async def metadata(self, topics: list[str] | None, refresh: bool = False) -> Cluster:
        await self.world.pass_network(self)
        self._cluster = self._look()
        self._stale.clear()
        return self._cluster

    async def coordinator(self, key: str, kind: Any) -> int:
        return BROKER

    async def connection(self, node_id: int, purpose: str = "control") -> Any:
        return self  # a fetcher asks it for its number

    number = 1

    async def send_on(self, connection: Any, node_id: int, request: Message, **options: Any) -> Any:
        return await self.send(node_id, request, **options)

    async def send(self, node_id: int, request: Message, *, timeout_ms: float | None = None, **options: Any) -> Any:
        limit_ms = timeout_ms if timeout_ms is not None else self.config["request.timeout.ms"]
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self.world.serve(self, request)
        except TimeoutError:
            raise RequestTimedOut("the simulated broker gave no answer in time") from None


class Reader:
    """A consumer, and what it was given."""

    def __init__(self, world: ReaderWorld, name: str) -> None:
        self.world = world
        self.tasks: set[asyncio.Task[Any]] = set()
        self.floor: dict[TopicPartition, int] = {}  # what was committed when it was assigned
        self.wakes_at = 0.0
        self.strategy = world.random.choice(STRATEGIES)
        world.tasks_of_next = self.tasks
        given = {**LIMITS, "group.id": GROUP, "client.id": name, "partition.assignment.strategy": self.strategy}
        self.consumer = Consumer("b:1", **given)
        self.consumer.subscribe([TOPIC], on_assigned=self.assigned, on_revoked=self.revoked, on_lost=self.lost)

    @property
    def admin(self) -> SimulatedAdmin:
        client = self.consumer._client
        assert isinstance(client, SimulatedAdmin)
        return client

    @property
    def member_id(self) -> str:
        assert self.consumer._subscription is not None
        return self.consumer._subscription._member.member_id

    def assigned(self, tps: list[TopicPartition]) -> None:
        self.world.count("assigned" if tps else "nothing new")
        assert self.consumer._subscription is not None
        if self.consumer._subscription._member.lost:
            raise Violation(f"{tps} were assigned to {self.member_id}, which knows that it has lost its membership")
        for tp in tps:
            self.floor[tp] = self.world.committed.get(tp, 0)
            if not self.world.counts_member(self):
                continue  # the answer was under way for so long that it is of an old generation, as the next heartbeat will say
            for other in self.world.readers:
                if other is not self and tp in other.consumer.assignment() and self.world.counts_member(other):
                    raise Violation(f"{tp} was assigned to {self.member_id}, and {other.member_id} still has it")

    def revoked(self, tps: list[TopicPartition]) -> None:
        self.world.count("revoked while others stay" if len(tps) < len(self.consumer.assignment()) else "all revoked")
        self.commit()

    def lost(self, tps: list[TopicPartition]) -> None:
        self.world.count("lost")

    def commit(self) -> None:
        try:
            self.consumer.commit()
        except KafkaError as error:
            self.world.count(f"commit refused: {error.name}")

    def step(self) -> None:
        """Poll, work, commit."""
        world = self.world
        try:
            records = self.consumer.poll(world.random.choice((0.0, 0.1, 0.5)))
        except KafkaError as error:
            world.count(f"poll failed: {error.name}")
            for tp, offset in self.consumer.positions().items():  # a partition with an error stands still until then
                self.consumer.seek(tp, offset)
            return
        for record in records:
            tp = record.topic, record.partition
            if record.offset < self.floor[tp]:
                raise Violation(f"{tp} gave {record.offset}, but {self.floor[tp]} was committed before it was assigned")
            if (tp, record.offset) in world.read:
                world.count("read again")
            world.read.add((tp, record.offset))
        if records and world.random.random() < 0.5:
            self.commit()


class ReaderWorld(World):
    """One run: `run()` plays it and raises Violation."""

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop()
        super().__init__(seed, classic=False)
        self.members = []
        self.readers: list[Reader] = []
        self.tasks_of_next: set[asyncio.Task[Any]] = set()
        self.owners: dict[asyncio.Task[Any], set[asyncio.Task[Any]]] = {}
        self.logs: dict[TopicPartition, list[bytes]] = {(TOPIC, n): [] for n in range(PARTITIONS)}
        self.committed: dict[TopicPartition, int] = {}
        self.read: set[tuple[TopicPartition, int]] = set()
        self.hangs_until = 0.0
        self.names = 0
        self.loop.set_task_factory(self._new_task)
        self.loop.set_exception_handler(lambda loop, context: None)  # of tasks that died with their reader

    # --- time and tasks are the loop's

    @property
    def now_ms(self) -> int:
        return 1_000 + round(self.loop.time() * 1000)

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        """Clockwork's own clock stands still."""

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.loop.call_later(max(0, delay_ms) / 1000, action)

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        """Tasks that a consumer's tasks begin are that consumer's, so that it can die with all of them."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **named)
        try:
            parent = asyncio.current_task(loop)
        except RuntimeError:
            parent = None
        owner = self.owners.get(parent) if parent is not None else None
        if owner is not None:
            self.owners[task] = owner
            owner.add(task)
            task.add_done_callback(owner.discard)
        task.add_done_callback(lambda done: self.owners.pop(done, None))
        return task

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        before = random.getstate()
        random.seed(self.seed)  # for the pauses between tries
        loop_type = type("Loop", (SharedLoop,), {"world": self})
        admin_type = type("SimulatedAdmin", (SimulatedAdmin,), {"world": self})
        with (
            mock.patch.object(background, "BackgroundLoop", loop_type),
            mock.patch.object(consumer, "Admin", admin_type),
            mock.patch.object(time, "monotonic", self.loop.time),
        ):
            try:
                yield
            finally:
                random.setstate(before)

    # --- the network and the broker

    async def pass_network(self, client: SimulatedAdmin) -> None:
        """A request's way, which may end, or wait until its time is over."""
        if client.is_dead:
            await asyncio.Event().wait()
        await asyncio.sleep(self.random.randrange(1, 30) / 1000)
        if self.loop.time() < self.hangs_until:
            self.count("hung")
            await asyncio.sleep(self.hangs_until - self.loop.time())
        if self.fault(0.01):
            self.count("lost on the way")
            raise RequestTimedOut("lost on the way")

    async def serve(self, client: SimulatedAdmin, request: Message) -> Any:
        await self.pass_network(client)
        answer = await self._answer_to(client, request)
        await self.pass_network(client)
        return answer

    async def _answer_to(self, client: SimulatedAdmin, request: Any) -> Any:
        if isinstance(request, messages.JoinGroupRequest):
            return await self._join(client, request)
        if isinstance(request, messages.SyncGroupRequest):
            shares = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            named = request.protocol_type, request.protocol_name
            synced = await self._ask_group(events.Sync(None, request.member_id, None, request.generation_id, *named, shares))
            return messages.SyncGroupResponse(
                error_code=synced.error, protocol_name=synced.protocol, assignment=synced.assignment
            )
        if isinstance(request, messages.HeartbeatRequest):
            code = await self._ask_group(events.Heartbeat(None, request.member_id, None, request.generation_id))
            return messages.HeartbeatResponse(error_code=code)
        if isinstance(request, messages.LeaveGroupRequest):
            await self._ask_group(events.Leave(None, [(member.member_id, None) for member in request.members]))
            return messages.LeaveGroupResponse()
        if isinstance(request, messages.OffsetCommitRequest):
            return await self._commit(request)
        if isinstance(request, messages.OffsetFetchRequest):
            return self._offsets(request)
        if isinstance(request, messages.ListOffsetsRequest):
            return self._list(request)
        assert isinstance(request, messages.FetchRequest), type(request)
        return await self._fetch(request)

    async def _ask_group(self, event: Any) -> Any:
        future: asyncio.Future[Any] = self.loop.create_future()

        def answered(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        self.ask(event, answered)
        answer = await future
        if answer is None:
            raise RequestTimedOut("the coordinator gave no answer")
        return answer

    async def _join(self, client: SimulatedAdmin, request: messages.JoinGroupRequest) -> messages.JoinGroupResponse:
        event = events.Join(
            token=None,
            member_id=request.member_id,
            fresh_member_id=f"{client.config['client.id']}-{next(self.ids)}",
            instance_id=None,
            require_known_member=True,
            can_skip_assignment=False,
            client_id=client.config["client.id"],
            client_host="/h",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        )
        result = await self._ask_group(event)
        member = messages.JoinGroupResponse.JoinGroupResponseMember
        return messages.JoinGroupResponse(
            error_code=result.error,
            generation_id=result.generation,
            protocol_name=result.protocol,
            leader=result.leader,
            member_id=result.member_id,
            members=[member(member_id=name, group_instance_id=None, metadata=data) for name, _, data in result.members],
        )

    async def _commit(self, request: messages.OffsetCommitRequest) -> messages.OffsetCommitResponse:
        commits = {
            (topic.name, part.partition_index): Committed(part.committed_offset, -1, "", -1)
            for topic in request.topics
            for part in topic.partitions
        }
        event = Commit(None, request.member_id, None, request.generation_id_or_member_epoch, commits)
        result = await self._ask_group(event)
        form = messages.OffsetCommitResponse
        parts = [
            form.OffsetCommitResponsePartition(
                partition_index=n, error_code=result if isinstance(result, int) else result.get((name, n), 0)
            )
            for name, n in commits
        ]
        return form(topics=[form.OffsetCommitResponseTopic(name=TOPIC, partitions=parts)])

    def _offsets(self, request: messages.OffsetFetchRequest) -> messages.OffsetFetchResponse:
        form = messages.OffsetFetchResponse
        parts = [
            form.OffsetFetchResponsePartition(
                partition_index=n, committed_offset=self.committed.get((TOPIC, n), -1), committed_leader_epoch=-1
            )
            for topic in request.topics or ()
            for n in topic.partition_indexes
        ]
        return form(topics=[form.OffsetFetchResponseTopic(name=TOPIC, partitions=parts)])

    def _list(self, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
        form = messages.ListOffsetsResponse
        parts = [
            form.ListOffsetsPartitionResponse(
                partition_index=part.partition_index,
                offset=0 if part.timestamp == EARLIEST else len(self.logs[TOPIC, part.partition_index]),
            )
            for part in request.topics[0].partitions
        ]
        return form(topics=[form.ListOffsetsTopicResponse(name=TOPIC, partitions=parts)])

    async def _fetch(self, request: messages.FetchRequest) -> messages.FetchResponse:
        form = messages.FetchResponse
        parts = []
        for part in request.topics[0].partitions:
            log = self.logs[TOPIC, part.partition]
            data = b"".join(log[part.fetch_offset : part.fetch_offset + 5])
            end = len(log)
            parts.append(
                form.PartitionData(
                    partition_index=part.partition, high_watermark=end, last_stable_offset=end, log_start_offset=0, records=data
                )
            )
        if not any(part.records for part in parts):
            await asyncio.sleep(request.max_wait_ms / 1000)
        return form(responses=[form.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=parts)])

    def _write(self, append: Any) -> None:
        super()._write(append)
        for record in append.records:
            if isinstance(record, OffsetRecord) and record.value is not None:
                tp = record.topic, record.partition
                if record.value.offset < self.committed.get(tp, 0):
                    raise Violation(f"the committed offset of {tp} goes back to {record.value.offset}")
                self.committed[tp] = record.value.offset

    # --- what happens

    def counts_member(self, reader: Reader) -> bool:
        """Whether the coordinator counts a reader among the members of its present generation."""
        group = self.group
        return (
            isinstance(group, Group) and reader.member_id in group.members and self._generation_of(reader) == group.generation
        )

    @staticmethod
    def _generation_of(reader: Reader) -> int:
        assert reader.consumer._subscription is not None
        return reader.consumer._subscription._member.generation_id

    def produce(self) -> None:
        for tp, log in self.logs.items():
            if self.random.random() < 0.5:
                builder = BatchBuilder(0, -1, 1000)
                builder.append(b"k", b"v", 1, ())
                batch = bytearray(builder.build())
                batch[:8] = len(log).to_bytes(8, "big")
                self.logs[tp].append(bytes(batch))

    def come(self) -> None:
        self.names += 1
        self.readers.append(Reader(self, f"c{self.names}"))
        self.count("came")

    def go(self, reader: Reader) -> None:
        """Leave in order, or die: all that the process had under way ends, and its requests with it."""
        self.readers.remove(reader)
        if self.random.random() < 0.5:
            self.count("left")
            self.readers.append(reader)  # it has its partitions until it has left
            reader.consumer.close(1.0)
            self.readers.remove(reader)
        else:
            self.count("died")
            reader.admin.is_dead = True
            for task in list(reader.tasks):
                task.cancel()

    def disturb_once(self) -> None:
        """Perhaps one fault."""
        chance = self.random.random()
        if chance < 0.05 and len(self.readers) < 5:
            self.come()
        elif chance < 0.09 and len(self.readers) > 1:
            self.go(self.random.choice(self.readers))
        elif chance < 0.12:
            self.count("stood still")
            self.random.choice(self.readers).wakes_at = self.loop.time() + self.random.choice((2.0, 9.0, 15.0))
        elif chance < 0.14:
            self.hangs_until = self.loop.time() + self.random.choice((1.0, 5.0, 12.0))
        elif chance < 0.155:
            self.crash()

    def turn(self) -> None:
        """Each reader that is awake polls once, in any order."""
        for reader in self.random.sample(self.readers, len(self.readers)):
            if reader in self.readers and self.loop.time() >= reader.wakes_at:
                reader.step()
        self.loop.run_until_complete(asyncio.sleep(self.random.choice((0.05, 0.3))))

    def run(self) -> ReaderWorld:
        try:
            with self._in_place():
                self._run()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
        return self

    def _run(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.come()
        for _ in range(ROUNDS):
            self.produce()
            self.disturb_once()
            self.turn()
        self.faults = False
        self.hangs_until = 0.0
        everything = {(tp, offset) for tp, log in self.logs.items() for offset in range(len(log))}
        for _ in range(2_000):
            self.turn()
            held = sorted(tp for reader in self.readers for tp in reader.consumer.assignment())
            if self.read >= everything and held == sorted(self.logs):
                self.count("came to rest")
                return
        missing = len(everything - self.read)
        raise Violation(
            f"{missing} records are unread, and {held} is held by {[r.consumer.assignment() for r in self.readers]}"
        )


def play(seed: int) -> ReaderWorld:
    """One run; a Violation names its seed."""
    try:
        return ReaderWorld(seed).run()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
