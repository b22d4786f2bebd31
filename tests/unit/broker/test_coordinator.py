"""The coordinators' shell over real partition logs: loading, markers in turns, timers, refused appends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.configs.features import Features
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.coordination import groupcoordinator, statelog, transactioncoordinator
from penstock.broker.coordination.classicgroups.events import Heartbeat, Join, Sync
from penstock.broker.coordination.classicgroups.state import Group
from penstock.broker.coordination.consumergroups.events import ConsumerHeartbeat
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.coordination.groupcoordinator import GroupCoordinator
from penstock.broker.coordination.groupoffsets import Commit, DeleteOffsets
from penstock.broker.coordination.offsets import Committed
from penstock.broker.coordination.producerids import BLOCK_SIZE, ProducerIds
from penstock.broker.coordination.transactioncoordinator import TransactionCoordinator
from penstock.broker.coordination.transactions.events import AddPartitions, End, Init
from penstock.broker.coordination.transactions.state import Facts, TransactionRecord, TransactionState
from penstock.broker.coordination.verification import Verifier
from penstock.broker.replication.commits import Commits
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.broker.transactionmessages import MarkerAnswer, MarkerWrite, Verification
from penstock.config import Config
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.record.rawbatch import marker, marker_type, split
from support.logs import LOGS

_ids = itertools.count(1)


class Topics:
    """Topics that are led in a folder of the test; the internal ones have one partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        self.made: dict[str, Any] = {}

    def make(self, name: str, count: int) -> Any:
        topic_id = next(_ids).to_bytes(16, "big")
        for index in range(count):
            LOGS.lead(name, topic_id, index, 0, str(self.folder), {})
        self.version += 1
        partitions = [SimpleNamespace(leader_epoch=0, isr=[1, 2], unclean_epoch=-1) for _ in range(count)]
        internal = name.startswith("__")
        self.made[name] = SimpleNamespace(name=name, topic_id=topic_id, partitions=partitions, internal=internal)
        return self.made[name]

    def all(self) -> list[Any]:
        return list(self.made.values())

    def get_by_id(self, topic_id: bytes) -> Any:
        return next((topic for topic in self.made.values() if topic.topic_id == topic_id), None)

    async def ensure(self, name: str, partitions: int, configs: object) -> Any:
        return self.made.get(name) or self.make(name, 1)

    def get(self, name: str) -> Any:
        return self.made.get(name)

    def partition(self, name: str, index: int) -> Any:
        return self.made[name].partitions[index]


class World:
    """A context, and coordinators that can be started again over the same logs."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.folder = folder
        self.topics = Topics(folder)
        given = {name.replace("_", "."): text for name, text in properties.items()}
        self.config = SCHEMA.parse({"group.initial.rebalance.delay.ms": "0", **given})
        self.group_configs: dict[str, dict[str, str]] = {}
        self.context: Any = None
        self.coordinators: Coordinators | None = None

    async def start(self) -> None:
        if self.coordinators is not None:
            await self.stop()
        self.context = SimpleNamespace(
            features=Features(),
            entities=SimpleNamespace(get=lambda entity: self.group_configs.get(entity.group, {})),
            config=self.config,
            topics=self.topics,
            log_manager=LOGS,
            commits=Commits(LOGS),
            node_id=1,
            cluster=None,
            store=await EmbeddedStore.open(self.folder / "store.db"),
            now_ms=lambda: time.time_ns() // 1_000_000,
            age_now_ms=lambda: time.time_ns() // 1_000_000,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
        )
        self.coordinators = Coordinators(self.context)
        await self.coordinators.start()

    async def stop(self) -> None:
        assert self.coordinators is not None
        await self.coordinators.stop()
        await self.context.store.close()
        self.coordinators = None

    @property
    def groups(self) -> GroupCoordinator:
        assert self.coordinators is not None
        return self.coordinators.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        assert self.coordinators is not None
        return self.coordinators.transactions

    @property
    def verifier(self) -> Verifier:
        assert self.coordinators is not None
        return self.coordinators.verifier


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Run a coroutine with a started world."""
    world = World(tmp_path, **{"group_min_session_timeout_ms": "1"})

    async def whole(what: Callable[[World], Awaitable[None]]) -> None:
        await world.start()
        try:
            await what(world)
        finally:
            if world.coordinators is not None:
                await world.stop()

    yield lambda what: asyncio.run(whole(what))
    for name, index in LOGS.partitions():
        if name in world.topics.made:
            LOGS.delete(name, index)


def commit(offset: int, **given: Any) -> Commit:
    return Commit(None, "", None, -1, {("t", 0): Committed(offset, -1, "", -1)}, **given)


def join(session_ms: int = 10_000, fresh: str = "m") -> Join:
    protocols = (("range", b""),)
    return Join(None, "", fresh, None, False, False, "c", "/h", 60_000, session_ms, "consumer", protocols)


def committed(world: World, group: str) -> int | None:
    machine = world.groups.find(group)
    value = machine.offsets.committed.get(("t", 0)) if machine is not None else None
    return None if value is None else value.offset


async def begin(world: World, name: str, partitions: list[tuple[str, int]]) -> tuple[int, int]:
    result = await world.transactions.init(name, Init(None, 60_000))
    assert not result.error
    owner = (result.producer_id, result.producer_epoch)
    assert not await world.transactions.ask(name, AddPartitions(None, *owner, partitions))
    return owner


def markers(topic: str, index: int) -> list[str]:
    """The markers in a partition, in order."""
    end = LOGS.offsets(topic, index).log_end
    return [marker_type(raw) for raw in (split(LOGS.read(topic, index, 0, 1 << 20)) if end else []) if raw.is_control]


def test_what_was_answered_is_there_after_a_restart(play: Play) -> None:
    async def steps(world: World) -> None:
        assert await world.groups.commit("g", commit(5)) == {("t", 0): 0}
        await world.groups.ask("members", join())
        await world.groups.ask("members", Sync(None, "m", None, 1, None, None, {"m": b"part"}))
        await world.start()
        assert committed(world, "g") == 5
        assert await world.groups.ask("members", Heartbeat(None, "m", None, 1)) == 0

    play(steps)


def test_an_open_transactions_offsets_are_pending_after_a_restart(play: Play) -> None:
    async def steps(world: World) -> None:
        owner = await begin(world, "x", [(GROUP_OFFSETS, 0)])
        await world.groups.ensure_topic()
        event = commit(9, producer_id=owner[0], producer_epoch=owner[1])
        assert await world.groups.commit("g", event) == {("t", 0): 0}
        await world.start()
        machine = world.groups.find("g")
        assert machine is not None and machine.offsets.is_unstable(("t", 0))
        assert not (await world.transactions.end("x", End(None, *owner, True))).error
        assert committed(world, "g") == 9
        await world.start()
        assert committed(world, "g") == 9

    play(steps)


class BrokerSender:
    """The others of a cluster: markers come to them after a while, and not at the first time."""

    def __init__(self) -> None:
        self.sent: list[MarkerWrite] = []
        self.was_asked_again, self.may_answer = asyncio.Event(), asyncio.Event()

    def lease_is_over(self) -> bool:
        return False

    async def write_markers(self, broker: int, write: MarkerWrite) -> dict[tuple[str, int], MarkerAnswer]:
        self.sent.append(write)
        if len(self.sent) == 1:
            raise RuntimeError("a fault of this broker")
        self.was_asked_again.set()
        await self.may_answer.wait()
        return dict.fromkeys(write.leader_epochs, MarkerAnswer(ErrorCode.NONE))


def test_a_cluster_answers_the_end_of_a_transaction_before_markers_that_are_late(play: Play) -> None:
    async def steps(world: World) -> None:
        others = world.context.cluster = BrokerSender()
        world.topics.make("data", 2)
        for state in world.topics.made["data"].partitions:
            state.leader = 2
        owner = await begin(world, "x", [("data", 0), ("data", 1)])
        assert not (await world.transactions.end("x", End(None, *owner, True))).error
        machine = world.transactions.find("x")
        assert machine is not None and machine.facts is not None
        assert machine.facts.state is TransactionState.PREPARE_COMMIT
        assert (
            await world.transactions.ask("x", AddPartitions(None, *owner, [("data", 0)])) == ErrorCode.CONCURRENT_TRANSACTIONS
        )
        await others.was_asked_again.wait()
        others.may_answer.set()
        error: int = ErrorCode.CONCURRENT_TRANSACTIONS
        while error == ErrorCode.CONCURRENT_TRANSACTIONS:
            await asyncio.sleep(0.01)
            error = (await world.transactions.end("x", End(None, *owner, True))).error
        assert error == ErrorCode.NONE, "it is complete"
        assert [one.leader_epochs for one in others.sent] == [{("data", 0): 0, ("data", 1): 0}] * 2

    play(steps)


def test_nobody_is_coordinated_from_a_corrupt_log_unless_an_operator_says_so(play: Play) -> None:
    async def steps(world: World) -> None:
        owner = await begin(world, "x", [("t", 0)])
        for batch in statelog.build_batches([(b"\0\0\0\1x", b"\0\x7f")], 1):
            LOGS.append(TRANSACTION_STATE, 0, batch)
        await world.start()
        assert world.transactions.verify("x", *owner, ("t", 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        late = Verification("x", *owner, (("t", 0),), adds=True)
        assert await world.verifier.answer(late) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        with pytest.raises(KafkaError) as raised:
            await world.transactions.end("x", End(None, *owner, True))
        assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.config = Config({**world.config, "penstock.coordinator.skip.corrupt": True}, frozenset())
        await world.start()
        assert world.transactions.verify("x", *owner, ("t", 0)) == ErrorCode.NONE
        assert not (await world.transactions.end("x", End(None, *owner, True))).error

    play(steps)


def test_no_group_of_an_unreadable_partition_is_served_from_the_half_that_was_read(play: Play) -> None:
    async def steps(world: World) -> None:
        world.topics.make(GROUP_OFFSETS, 2)
        await world.start()
        lost, whole = (next(n for n in "abcdef" if statelog.java_hash_partition(n, 2) == index) for index in (0, 1))
        for name in (lost, whole):
            assert await world.groups.commit(name, commit(5)) == {("t", 0): 0}
        for batch in statelog.build_batches([(b"\0\2\0\1x", b"\0\x7f")], 1):
            LOGS.append(GROUP_OFFSETS, 0, batch)
        await world.start()
        with pytest.raises(KafkaError) as raised:
            world.groups.look_up(lost)
        assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert committed(world, lost) is None
        assert world.groups.look_up(whole) is not None and committed(world, whole) == 5

    play(steps)


def test_a_decided_transaction_is_finished_at_the_start(play: Play) -> None:
    async def steps(world: World) -> None:
        world.topics.make("data", 2)
        world.topics.make(TRANSACTION_STATE, 1)
        decided = TransactionState.PREPARE_COMMIT
        partitions = frozenset({("data", 0), ("data", 1), ("deleted", 0)})
        facts = Facts(7, -1, -1, 0, -1, 60_000, decided, partitions, 1, 1, 0)
        pair = statelog.encode_transaction_record("x", TransactionRecord(facts))
        for batch in statelog.build_batches([pair], 1):
            LOGS.append(TRANSACTION_STATE, 0, batch)
        await world.start()
        assert markers("data", 0) == markers("data", 1) == ["commit"]
        machine = world.transactions.find("x")
        assert machine is not None and machine.facts is not None
        assert machine.facts.state is TransactionState.COMPLETE_COMMIT
        await world.start()
        assert markers("data", 0) == ["commit"], "once is enough when completion is stored"

    play(steps)


def test_a_transaction_over_many_partitions_takes_turns_with_others(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactioncoordinator, "MARKERS_AT_ONCE", 4)

    async def steps(world: World) -> None:
        count = transactioncoordinator.MARKERS_AT_ONCE * 2 + 5
        world.topics.make("wide", count)
        owner = await begin(world, "x", [("wide", n) for n in range(count)])
        ending = asyncio.create_task(world.transactions.end("x", End(None, *owner, False)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await world.transactions.ask("x", AddPartitions(None, *owner, [("wide", 0)])) == (
            ErrorCode.CONCURRENT_TRANSACTIONS
        )
        assert not (await ending).error
        assert all(markers("wide", n) == ["abort"] for n in range(count))

    play(steps)


def test_a_silent_member_is_noticed_by_the_loops_timer(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.groups.commit("g", commit(1))  # by none of its members: the group stays when they are gone
        await world.groups.ask("g", join(session_ms=30))
        await world.groups.ask("g", Sync(None, "m", None, 1, None, None, {}))
        machine = world.groups.find("g")
        assert isinstance(machine, Group)
        deadline = time.monotonic() + 120
        while machine.members:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert machine.state.value == "Empty" and machine.generation == 2

    play(steps)


def test_a_commit_that_the_log_refuses_is_an_error(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.groups.commit("g", commit(5))
        LOGS.delete(GROUP_OFFSETS, 0)
        refused = await world.groups.commit("g", commit(6))
        assert refused == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert committed(world, "g") == 5

    play(steps)


def test_a_deleted_topic_takes_its_offsets_and_the_internal_topic_takes_all(play: Play) -> None:
    async def steps(world: World) -> None:
        assert world.coordinators is not None
        await world.groups.commit("g", commit(5))
        world.coordinators.topic_deleted("t")
        assert committed(world, "g") is None
        await world.groups.ask("h", join())
        waiting = asyncio.create_task(world.groups.ask("h", join(fresh="n")))
        await asyncio.sleep(0)
        del world.topics.made[GROUP_OFFSETS]
        LOGS.delete(GROUP_OFFSETS, 0)
        world.coordinators.topic_deleted(GROUP_OFFSETS)
        assert (await waiting).error == ErrorCode.NOT_COORDINATOR
        assert not world.groups.entries
        assert await world.groups.commit("g", commit(6)) == {("t", 0): 0}, "the topic is made again"

    play(steps)


def test_the_newest_commit_counts_after_a_restart(play: Play) -> None:
    async def steps(world: World) -> None:
        for offset in (5, 9, 7):
            await world.groups.commit("newest", commit(offset))
        await world.groups.commit("gone", commit(5))
        await world.groups.ask("gone", DeleteOffsets(None, [("t", 0)]))
        await world.groups.commit("again", commit(5))
        await world.groups.ask("again", DeleteOffsets(None, [("t", 0)]))
        await world.groups.commit("again", commit(6))
        await world.groups.commit("after", commit(5))
        await world.groups.commit("after", commit(8, producer_id=7, producer_epoch=0))
        world.groups.marker_written(0, 7, True)
        LOGS.append(GROUP_OFFSETS, 0, marker(True, 7, 0, 0, 1))
        await world.groups.commit("older", commit(8, producer_id=9, producer_epoch=0))
        await world.groups.commit("older", commit(5))
        world.groups.marker_written(0, 9, True)
        LOGS.append(GROUP_OFFSETS, 0, marker(True, 9, 0, 0, 1))
        names = ("newest", "gone", "again", "after", "older")
        before = [committed(world, name) for name in names]
        assert before == [7, None, 6, 8, 5]
        await world.start()
        assert [committed(world, name) for name in names] == before

    play(steps)


def beat(epoch: int = 0, **said: Any) -> ConsumerHeartbeat:
    if not epoch:
        said = {"rebalance_timeout_ms": 10_000, "owned": {}, **said}
    return ConsumerHeartbeat(None, "m", epoch, **said)


def test_consumer_groups_follow_topics_settings_and_restarts(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupcoordinator, "PATTERNS_EVERY_MS", 0)

    async def steps(world: World) -> None:
        first = world.topics.make("t-1", 2).topic_id
        world.topics.make("other", 1)
        world.group_configs["g"] = {"consumer.heartbeat.interval.ms": "7000", "consumer.assignment.interval.ms": "0"}
        joined = await world.groups.heartbeat("g", beat(pattern="t-.*"))
        assert (joined.error, joined.heartbeat_interval_ms) == (ErrorCode.NONE, 7_000)
        assert joined.assignment == {first: frozenset({0, 1})}
        bad = await world.groups.heartbeat("g", beat(pattern="t-("))
        assert bad.error == ErrorCode.INVALID_REGULAR_EXPRESSION and "missing closing )" in (bad.message or "")
        await world.start()  # Again, over the same log.
        assert world.groups.consumer_group("g") is not None
        assert (await world.groups.heartbeat("g", beat(joined.member_epoch))).error == ErrorCode.NONE
        second = world.topics.make("t-2", 1).topic_id
        answer = joined
        while second not in (answer.assignment or {}):
            await asyncio.sleep(0)
            answer = await world.groups.heartbeat("g", beat(answer.member_epoch))
            assert answer.error == ErrorCode.NONE
        assert answer.assignment == {first: frozenset({0, 1}), second: frozenset({0})}

    play(steps)


def test_a_part_of_the_log_that_cannot_be_read_is_not_coordinated(play: Play) -> None:
    class Failing:
        """The logs, of which the offsets' can't be read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(LOGS, name)

        def read(self, topic: str, *rest: Any) -> bytes:
            if topic == GROUP_OFFSETS:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk has failed")
            return LOGS.read(topic, *rest)

    async def steps(world: World) -> None:
        await world.groups.commit("g", commit(5))
        world.context.log_manager = Failing()
        broken = GroupCoordinator(world.context)
        await broken.load()
        assert not broken.entries
        with pytest.raises(KafkaError) as raised:
            await broken.commit("g", commit(6))
        assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await broken.stop()
        world.context.log_manager = LOGS

    play(steps)


def test_records_of_several_batches_are_in_the_log_all_or_none(play: Play) -> None:
    class Filling:
        """The logs, on a disk that takes one more append."""

        left = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(LOGS, name)

        def append(self, topic: str, *rest: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
            return LOGS.append(topic, *rest)

    def many(offset: int) -> Commit:
        commits = {("t", index): Committed(offset, -1, "m" * 4000, -1) for index in range(600)}
        return Commit(None, "", None, -1, commits)

    def offsets(world: World) -> list[int]:
        machine = world.groups.find("g")
        assert machine is not None
        return [value.offset for _, value in sorted(machine.offsets.committed.items())]

    async def steps(world: World) -> None:
        results = await world.groups.commit("g", many(5))
        assert isinstance(results, dict) and set(results.values()) == {0}
        world.context.log_manager = Filling()
        await world.groups.commit("g", many(6))
        told = offsets(world)
        await world.start()
        assert offsets(world) == told

    play(steps)


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def none_known() -> int:
        return -1

    async def steps() -> None:
        given: list[int] = []
        for start in range(2):
            store = await EmbeddedStore.open(tmp_path / "store.db")
            first, second = (ProducerIds(store, node, none_known, lambda: 0) for node in (1, 2))
            for _ in range(BLOCK_SIZE // 2):
                given += [await first.next(), await second.next()]
            given += await asyncio.gather(*[first.next() for _ in range(BLOCK_SIZE)])
            await store.close()
            assert len(set(given)) == len(given), f"start {start}"

    asyncio.run(steps())
