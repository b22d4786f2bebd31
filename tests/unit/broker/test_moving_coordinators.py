"""Coordinators whose partitions this broker wins and loses, over real logs; the other replica's fetches are made by hand."""

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
from penstock.broker.coordination import losses, shell, statelog
from penstock.broker.coordination.classicgroups.events import Heartbeat, Join, Sync
from penstock.broker.coordination.classicgroups.state import Group
from penstock.broker.coordination.coordinators import Coordinators
from penstock.broker.coordination.groupoffsets import Commit
from penstock.broker.coordination.offsets import Committed
from penstock.broker.coordination.transactions.events import End, Init
from penstock.broker.coordination.transactions.state import TransactionState
from penstock.broker.replication.commits import Commits
from penstock.broker.store.embedded import EmbeddedStore
from penstock.broker.topic import GROUP_OFFSETS, TRANSACTION_STATE
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.log.replicatable import Replica
from penstock.pyx.record.rawbatch import marker, marker_type, split
from support.logs import LOGS

US_EPOCH, OTHER, OTHER_EPOCH = 50, 2, 102
_ids = itertools.count(1 << 40)
Key = tuple[str, int]


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go on until something is so."""
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.001)


class World:
    """A broker's coordinators, and what its controller and the other replica of each partition do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topics: dict[str, Any] = {}
        self.deleted: set[str] = set()
        self.led: dict[Key, int] = {}  # what another broker leads, and in which epoch
        self.answers = True  # it does
        self.unclean_epoch = -1  # of the internal topics
        self.lease_is_over = False
        self.ahead_ms = 0  # of the clock, by which sessions end
        self.epoch = 3
        self.versions = itertools.count()
        config = SCHEMA.parse({"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"})
        self.context: Any = SimpleNamespace(
            features=Features(),
            entities=SimpleNamespace(get=lambda entity: {}),
            config=config,
            topics=SimpleNamespace(
                get=self.topics.get,
                all=lambda: list(self.topics.values()),
                version=0,
                partition=self.state,
            ),
            log_manager=LOGS,
            commits=Commits(LOGS),
            cluster=SimpleNamespace(
                lease_is_over=lambda: self.lease_is_over,
                is_gone=self.is_gone,
                next_picture=self.picture,
                find_led=self.find_led,
            ),
            node_id=1,
            now_ms=lambda: time.time_ns() // 1_000_000,
            age_now_ms=lambda: time.time_ns() // 1_000_000,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000 + self.ahead_ms,
        )

    async def find_led(self, broker: int, epochs: dict[Key, int]) -> list[Key]:
        """What another broker says to lead in these epochs."""
        if not self.answers:
            raise ConnectionError("its machine has no power")
        return [one for one, epoch in epochs.items() if self.led.get(one) == epoch]

    async def is_gone(self, partition: Key, topic_id: bytes = b"") -> bool:
        """As the store says."""
        return partition[0] in self.deleted

    async def picture(self, timeout_s: float) -> None:
        """Another one from the controller."""
        await asyncio.sleep(0.01)

    def state(self, name: str, index: int) -> Any:
        return self.topics[name].partitions[index]

    async def start(self) -> None:
        self.context.store = await EmbeddedStore.open(self.folder / "store.db")
        self.context.commits.start()
        self.coordinators = Coordinators(self.context)
        self.groups, self.transactions = self.coordinators.groups, self.coordinators.transactions
        self.coordinators.start_in_cluster()
        for name in (GROUP_OFFSETS, TRANSACTION_STATE):
            self.make(name, replicated=True)

    async def stop(self) -> None:
        await self.coordinators.stop()
        await self.context.commits.stop()
        await self.context.store.close()

    def make(self, name: str, *, replicated: bool = False) -> None:
        topic_id = next(_ids).to_bytes(16, "big")
        state = SimpleNamespace(index=0, leader=1, leader_epoch=0, isr=[1], unclean_epoch=-1)
        self.topics[name] = SimpleNamespace(name=name, topic_id=topic_id, partitions=[state], internal=replicated)
        if replicated:
            LOGS.open_replica(name, topic_id, 0, str(self.folder), {})
        else:
            LOGS.lead(name, topic_id, 0, 0, str(self.folder), {})

    # --- roles, in the data plane and as the coordinators hear of them
    def lead(self, name: str = GROUP_OFFSETS, *, isr: tuple[int, ...] = (OTHER,), fresh: bool = True) -> None:
        self.epoch += fresh
        assert LOGS.set_leader(
            name, 0, broker_epoch=US_EPOCH, leader_epoch=self.epoch, partition_epoch=next(self.versions),
            replicas=[Replica(OTHER, OTHER in isr, OTHER in isr, OTHER_EPOCH)], enough=1 + len(isr),
        )  # fmt: skip

    def follow(self, name: str = GROUP_OFFSETS) -> None:
        self.epoch += 1
        assert LOGS.set_follower(
            name, 0, broker_epoch=US_EPOCH, leader=OTHER, leader_epoch=self.epoch, partition_epoch=next(self.versions),
            unclean_epoch=-1,
        )  # fmt: skip

    def elect(self, name: str = GROUP_OFFSETS) -> None:
        self.lead(name)
        self.coordinators.elected(name, 0, self.epoch, self.unclean_epoch)

    def resign(self, name: str = GROUP_OFFSETS) -> None:
        self.follow(name)
        self.coordinators.resigned(name, 0)

    def catch_up(self, name: str = GROUP_OFFSETS) -> None:
        """The other replica has all there is."""
        end = LOGS.offsets(name, 0).log_end
        last = LOGS.replica_state(name, 0).last_epoch
        done = LOGS.replica_fetched(
            name, 0, replica=OTHER, broker_epoch=OTHER_EPOCH, leader_epoch=self.epoch, offset=end, last_epoch=last,
            now_ms=time.monotonic_ns() // 1_000_000,
        )  # fmt: skip
        assert done.error == 0 and done.diverging is None and done.high_watermark == end

    def caught_up(self, name: str) -> bool:
        """As `catch_up`, which fails if it can't."""
        self.catch_up(name)
        return True

    async def begin(self, name: str = GROUP_OFFSETS) -> None:
        """Elect, and wait until this broker serves."""
        self.elect(name)
        self.catch_up(name)
        of = self.groups if name == GROUP_OFFSETS else self.transactions
        await until(lambda: not (of.is_loading and self.caught_up(name)))

    async def answered(self, work: Awaitable[Any], name: str = GROUP_OFFSETS) -> Any:
        """The answer of work, whatever it appends is fetched at once."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self.catch_up(name)
            await asyncio.sleep(0.001)
        return task.result()

    def position(self, group: str = "g") -> int | None:
        """As OffsetFetch shows it. Raises KafkaError."""
        machine = self.groups.look_up(group)
        value = machine.offsets.committed.get(("t", 0)) if machine is not None else None
        return None if value is None else value.offset

    def refusal(self, group: str = "g") -> int:
        with pytest.raises(KafkaError) as raised:
            self.position(group)
        return raised.value.code


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Run a coroutine with a started world."""
    world = World(tmp_path)

    async def whole(what: Callable[[World], Awaitable[None]]) -> None:
        await world.start()
        try:
            await what(world)
        finally:
            await world.stop()

    yield lambda what: asyncio.run(whole(what))
    for name, index in LOGS.partitions():
        if name in world.topics:
            LOGS.delete(name, index)


def commit(offset: int, **given: Any) -> Commit:
    return Commit(None, "", None, -1, {("t", 0): Committed(offset, -1, "", -1)}, **given)


def join(session_ms: int = 10_000, fresh: str = "m", member: str = "") -> Join:
    protocols = (("range", b""),)
    return Join(None, member, fresh, None, False, False, "c", "/h", 60_000, session_ms, "consumer", protocols)


async def passes(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def code_of(task: Awaitable[Any]) -> int:
    with pytest.raises(KafkaError) as raised:
        await task
    return raised.value.code


def test_a_position_is_answered_and_shown_once_it_is_committed(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        task = asyncio.create_task(world.groups.commit("g", commit(5)))
        await passes()
        assert not task.done() and world.position() is None
        world.catch_up()
        assert await task == {("t", 0): 0}
        assert world.position() == 5

    play(steps)


def test_names_of_partitions_that_others_lead_are_refused(play: Play) -> None:
    async def steps(world: World) -> None:
        assert world.refusal() == ErrorCode.NOT_COORDINATOR
        assert await code_of(world.groups.commit("g", commit(5))) == ErrorCode.NOT_COORDINATOR
        assert world.transactions.verify("x", 1, 0, ("t", 0)) == ErrorCode.NOT_COORDINATOR
        await world.begin()
        await world.answered(world.groups.commit("g", commit(5)))
        world.resign()
        assert world.refusal() == ErrorCode.NOT_COORDINATOR and not world.groups.entries

    play(steps)


def test_nothing_is_answered_until_all_that_was_loaded_is_committed(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        pending = asyncio.create_task(world.groups.commit("g", commit(5)))
        await passes()
        world.resign()
        assert await code_of(pending) == ErrorCode.NOT_COORDINATOR
        world.elect()
        await asyncio.sleep(0.05)
        assert world.groups.is_loading and world.refusal() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await code_of(world.groups.ask("g", join())) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.catch_up()
        await until(lambda: not world.groups.is_loading)
        assert world.position() == 5, "it was pending, never undone"

    play(steps)


def test_time_alone_ends_a_wait_and_undoes_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "COMMIT_PATIENCE_MS", 1)

    async def steps(world: World) -> None:
        await world.begin()
        assert await code_of(world.groups.commit("g", commit(5))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.position() is None
        world.catch_up()
        await until(lambda: world.position() is not None)
        assert world.position() == 5

    play(steps)


def test_a_coordinator_that_has_not_heard_of_its_end_appends_nothing(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        await world.answered(world.groups.commit("g", commit(5)))
        world.follow()
        world.lead()  # Somebody else has led in between; no coordinator was told yet.
        end = LOGS.offsets(GROUP_OFFSETS, 0).log_end
        refused = await world.groups.commit("g", commit(6))
        assert refused == {("t", 0): ErrorCode.NOT_COORDINATOR}
        assert LOGS.offsets(GROUP_OFFSETS, 0).log_end == end
        world.coordinators.elected(GROUP_OFFSETS, 0, world.epoch)
        assert world.refusal() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "what it had loaded holds no more"

    play(steps)


def test_a_load_that_is_overtaken_has_no_effect(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        for group in ("g", "h"):
            await world.answered(world.groups.commit(group, commit(5)))
        world.resign()
        for _ in range(3):
            world.elect()
            await passes(world.epoch % 5)
            world.resign()
        await asyncio.sleep(0.05)
        assert not world.groups.entries and world.refusal() == ErrorCode.NOT_COORDINATOR
        await world.begin()
        assert world.position("g") == world.position("h") == 5

    play(steps)


def test_a_lead_that_goes_on_in_a_new_epoch_goes_on_coordinating(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        epoch = world.groups.epoch_of(0)
        pending = asyncio.create_task(world.groups.commit("g", commit(5)))
        await passes()
        world.elect()
        assert world.position() is None and world.groups.epoch_of(0) == epoch
        world.catch_up()
        assert await pending == {("t", 0): 0}
        assert await world.answered(world.groups.commit("g", commit(6))) == {("t", 0): 0}

    play(steps)


def test_who_waits_for_a_group_hears_of_the_new_coordinator(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        for group in ("g", "h"):
            await world.answered(world.groups.ask(group, join()))
        await world.answered(world.groups.ask("h", Sync(None, "m", None, 1, None, None, {"m": b"part"})))
        joining = asyncio.create_task(world.groups.ask("h", join(fresh="n")))
        syncing = asyncio.create_task(world.groups.ask("g", Sync(None, "m", None, 1, None, None, {"m": b"part"})))
        await passes()
        world.resign()
        for task in (syncing, joining):
            try:
                assert (await task).error == ErrorCode.NOT_COORDINATOR
            except KafkaError as error:
                assert error.code == ErrorCode.NOT_COORDINATOR

    play(steps)


def test_members_have_a_full_session_from_the_end_of_loading(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        await world.answered(world.groups.ask("g", join(session_ms=60_000)))
        await world.answered(world.groups.ask("g", Sync(None, "m", None, 1, None, None, {"m": b"part"})))
        pending = asyncio.create_task(world.groups.commit("other", commit(5)))
        await passes()
        world.resign()
        assert await code_of(pending) == ErrorCode.NOT_COORDINATOR
        world.elect()
        world.ahead_ms += 60_000
        await passes()
        assert world.groups.is_loading
        before_ms = world.context.monotonic_ms()
        world.catch_up()
        await until(lambda: not world.groups.is_loading)
        machine = world.groups.look_up("g")
        assert isinstance(machine, Group) and machine.members["m"].deadline_ms >= before_ms + 60_000
        assert await world.groups.ask("g", Heartbeat(None, "m", None, 1)) == 0
        assert await world.groups.ask("g", Heartbeat(None, "m", None, 0)) == ErrorCode.ILLEGAL_GENERATION

    play(steps)


def test_a_refused_append_is_answered_behind_the_pending_ones_of_its_group(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        first = asyncio.create_task(world.groups.commit("g", commit(5)))
        await passes()
        world.lead(isr=(), fresh=False)
        LOGS.set_leader(
            GROUP_OFFSETS, 0, broker_epoch=US_EPOCH, leader_epoch=world.epoch, partition_epoch=next(world.versions),
            replicas=[Replica(OTHER, False, False, OTHER_EPOCH)], enough=2,
        )  # fmt: skip
        second = asyncio.create_task(world.groups.commit("g", commit(6)))
        await passes()
        assert not first.done() or await first == {("t", 0): 0}
        world.lead(fresh=False)
        world.catch_up()
        assert await first == {("t", 0): 0}
        assert await second in ({("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}, {("t", 0): 0})
        assert world.position() == 5

    play(steps)


def test_markers_and_deletions_that_come_while_a_log_is_loaded_count(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        await world.answered(world.groups.commit("g", commit(9, producer_id=7, producer_epoch=0)))
        gone = {("gone", 0): Committed(4, -1, "", -1)}
        await world.answered(world.groups.commit("g", Commit(None, "", None, -1, gone)))
        world.resign()
        world.elect()
        assert world.groups.is_loading
        LOGS.append(GROUP_OFFSETS, 0, marker(True, 7, 0, 0, 1))
        world.groups.marker_written(0, 7, True)
        world.coordinators.topic_deleted("gone")
        world.catch_up()
        await until(lambda: not world.groups.is_loading)
        assert world.position() == 9
        machine = world.groups.look_up("g")
        assert machine is not None and not machine.offsets.is_unstable(("t", 0))
        while ("gone", 0) in machine.offsets.committed:
            world.catch_up()
            await asyncio.sleep(0.001)

    play(steps)


def test_a_deletion_that_no_coordinator_has_heard_of_is_found_in_the_store(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        for topic in ("missed", "unseen"):
            place = {(topic, 0): Committed(4, -1, "", -1)}
            await world.answered(world.groups.commit("g", Commit(None, "", None, -1, place)))
        world.resign()
        world.deleted.add("missed")
        await world.begin()
        machine = world.groups.look_up("g")
        assert machine is not None
        while ("missed", 0) in machine.offsets.committed:
            world.catch_up()
            await asyncio.sleep(0.001)
        assert ("unseen", 0) in machine.offsets.committed

    play(steps)


def test_nothing_is_coordinated_while_the_lease_is_over(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        await world.answered(world.groups.commit("g", commit(5)))
        world.lease_is_over = True
        assert world.refusal() == ErrorCode.NOT_COORDINATOR
        assert await code_of(world.groups.ask("g", join())) == ErrorCode.NOT_COORDINATOR
        world.lease_is_over = False
        assert world.position() == 5

    play(steps)


def markers(topic: str) -> list[str]:
    end = LOGS.offsets(topic, 0).log_end
    return [marker_type(raw) for raw in (split(LOGS.read(topic, 0, 0, 1 << 20)) if end else []) if raw.is_control]


def test_no_marker_is_written_before_the_decision_is_committed(play: Play) -> None:
    async def steps(world: World) -> None:
        world.make("data")
        await world.begin(TRANSACTION_STATE)
        here = TRANSACTION_STATE
        result = await world.answered(world.transactions.init("x", Init(None, 60_000)), here)
        owner = (result.producer_id, result.producer_epoch)
        adding = world.transactions.add("x", owner, [("data", 0)])
        assert not await world.answered(adding, here)
        ending = asyncio.create_task(world.transactions.end("x", End(None, *owner, True)))
        await passes()
        assert not ending.done() and markers("data") == []
        world.resign(here)
        assert await code_of(ending) == ErrorCode.NOT_COORDINATOR
        assert markers("data") == []
        await world.begin(here)
        while True:  # The next coordinator finishes what was decided.
            world.catch_up(here)
            machine = world.transactions.look_up("x")
            assert machine is not None and machine.facts is not None
            if machine.facts.state is TransactionState.COMPLETE_COMMIT:
                break
            await asyncio.sleep(0.001)
        assert markers("data") == ["commit"]

    play(steps)


DATA = ("data", 0)


async def ongoing(world: World, unclean_epoch: int = -1) -> tuple[int, int]:
    """Begin a transaction in `data`, which was led uncleanly in that epoch before; its producer."""
    world.make("data")
    await world.begin(TRANSACTION_STATE)
    world.state(*DATA).unclean_epoch = unclean_epoch
    result = await world.answered(world.transactions.init("x", Init(None, 60_000)), TRANSACTION_STATE)
    owner = (result.producer_id, result.producer_epoch)
    assert not await world.answered(world.transactions.add("x", owner, [DATA]), TRANSACTION_STATE)
    return owner


async def ended(world: World, owner: tuple[int, int], raises: bool = False) -> int:
    """What a client that asks for a commit until it is decided hears at last."""
    error: int = ErrorCode.CONCURRENT_TRANSACTIONS
    while error == ErrorCode.CONCURRENT_TRANSACTIONS:
        ending = world.transactions.end("x", End(None, *owner, True, raises))
        error = (await world.answered(ending, TRANSACTION_STATE)).error
    return error


REFUSED = {False: ErrorCode.PRODUCER_FENCED, True: ErrorCode.INVALID_TXN_STATE}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_a_transaction_that_may_have_lost_records_is_aborted(play: Play, moves: bool, is_told: bool, raises: bool) -> None:
    """Whether or not the coordinator heard of the election when it was shown, or was another one then."""

    async def steps(world: World) -> None:
        owner = await ongoing(world, unclean_epoch=3)
        world.state(*DATA).unclean_epoch = 5
        if moves:
            world.resign(TRANSACTION_STATE)
            await world.begin(TRANSACTION_STATE)
        if is_told:
            world.coordinators.led_uncleanly([DATA])
            await until(lambda: world.caught_up(TRANSACTION_STATE) and markers("data") == ["abort"])
        assert await ended(world, owner, raises) == REFUSED[raises]
        await until(lambda: world.caught_up(TRANSACTION_STATE) and markers("data") == ["abort"])

    play(steps)


@pytest.mark.parametrize("moves", [False, True])
def test_a_transaction_that_began_after_an_unclean_election_is_committed(play: Play, moves: bool) -> None:
    async def steps(world: World) -> None:
        owner = await ongoing(world, unclean_epoch=3)
        world.coordinators.led_uncleanly([DATA])
        if moves:
            world.resign(TRANSACTION_STATE)
            await world.begin(TRANSACTION_STATE)
        # What is noted of a partition is how it was when it was added first.
        assert not await world.answered(world.transactions.add("x", owner, [DATA]), TRANSACTION_STATE)
        assert await ended(world, owner) == ErrorCode.NONE
        assert markers("data") == ["commit"]

    play(steps)


def test_what_is_noted_of_a_partition_stays_as_it_was_when_it_was_added(play: Play) -> None:
    async def steps(world: World) -> None:
        owner = await ongoing(world)
        world.make("more")
        world.state(*DATA).unclean_epoch = world.state("more", 0).unclean_epoch = 5
        adding = world.transactions.add("x", owner, [DATA, ("more", 0)])
        assert not await world.answered(adding, TRANSACTION_STATE)
        assert await ended(world, owner) == ErrorCode.PRODUCER_FENCED

    play(steps)


@pytest.mark.parametrize("why", ["nobody leads", "it does not answer", "it leads in a later epoch"])
def test_a_commit_waits_for_the_leader_of_what_nobody_else_has(play: Play, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PATIENCE_S", 0.05)

    async def steps(world: World) -> None:
        owner = await ongoing(world)
        state = world.state(*DATA)
        state.leader, world.led[DATA] = OTHER, 0
        if why == "nobody leads":
            state.leader = -1
        elif why == "it does not answer":
            world.answers = False
        else:
            world.led[DATA] = 1
        ending = world.transactions.end("x", End(None, *owner, True))
        assert await code_of(world.answered(ending, TRANSACTION_STATE)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        machine = world.transactions.find("x")
        assert machine is not None and machine.facts is not None and machine.facts.state is TransactionState.ONGOING
        state.leader, world.answers, world.led[DATA] = 1, True, 0
        assert await ended(world, owner) == ErrorCode.NONE

    play(steps)


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"])
def test_producers_of_a_coordinator_that_may_have_lost_states_are_fenced_once(play: Play, state: str) -> None:
    """Also if a coordinator dies before it has fenced all of them."""
    here = TRANSACTION_STATE

    async def steps(world: World) -> None:
        if state == "Empty":
            await world.begin(here)
            result = await world.answered(world.transactions.init("x", Init(None, 60_000)), here)
            owner = (result.producer_id, result.producer_epoch)
        else:
            owner = await ongoing(world)
        ending = None
        if state == "PrepareCommit":
            world.state(*DATA).leader = -1  # whoever is to get its marker
            ending = asyncio.create_task(world.transactions._ask_with_id("x", End(None, *owner, True)))
            await until(lambda: world.caught_up(here) and shown_state(world) == state)
        elif state == "CompleteCommit":
            assert await ended(world, owner) == ErrorCode.NONE
        world.unclean_epoch = world.epoch + 2
        world.resign(here)
        world.elect(here)
        await passes()
        world.resign(here)
        await world.begin(here)
        if ending is not None:
            assert (await ending).error == ErrorCode.NOT_COORDINATOR
            world.state(*DATA).leader = 1
        error: int = ErrorCode.CONCURRENT_TRANSACTIONS
        while error == ErrorCode.CONCURRENT_TRANSACTIONS:
            error = await world.answered(world.transactions.add("x", owner, [DATA]), here)
        assert error == ErrorCode.PRODUCER_FENCED and await ended(world, owner) == ErrorCode.PRODUCER_FENCED
        if state != "Empty":
            assert markers("data") == ["abort" if state == "Ongoing" else "commit"]
        result = await world.answered(world.transactions.init("x", Init(None, 60_000)), here)
        assert (result.error, result.producer_epoch) == (ErrorCode.NONE, 0) and result.producer_id != owner[0]
        world.resign(here)
        await world.begin(here)
        again = await world.answered(world.transactions.init("x", Init(None, 60_000)), here)
        assert (again.producer_id, again.producer_epoch) == (result.producer_id, 1)

    play(steps)


def shown_state(world: World) -> str:
    machine = world.transactions.find("x")
    return "" if machine is None or machine.facts is None else machine.facts.state.shown


def test_a_partition_that_cannot_be_read_is_refused_until_its_next_election(play: Play) -> None:
    async def steps(world: World) -> None:
        await world.begin()
        await world.answered(world.groups.commit("g", commit(5)))
        for batch in statelog.build_batches([(b"\0\1\0\x7f", b"")], 1):
            LOGS.append(GROUP_OFFSETS, 0, batch)
        world.resign()
        await world.begin()
        assert world.refusal() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await code_of(world.groups.commit("g", commit(6))) == ErrorCode.COORDINATOR_NOT_AVAILABLE

    play(steps)
