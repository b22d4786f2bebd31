"""Transactions that no coordinator would end: which of them a leader asks about, and what it does with the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.api import list_transactions
from penstock.broker.context import Call
from penstock.broker.coordination import hangingtransactions
from penstock.broker.coordination.hangingtransactions import HangingTransactions, decide
from penstock.broker.coordination.markers import Markers
from penstock.broker.coordination.transactions.state import Facts, TransactionState
from penstock.broker.replication.commits import Commits
from penstock.broker.replication.transactionwire import read_fates, write_open
from penstock.broker.topic import TRANSACTION_STATE
from penstock.broker.transactionmessages import Fate, Fates, Marker, OpenTransaction
from penstock.errors import ErrorCode as E
from penstock.pyx.record.rawbatch import marker_type, split
from penstock.pyx.wire.message import WireError
from penstock.pyx.wire.messages import ListTransactionsResponse
from support.dataplane import batch, topic_id
from support.harness import topic_name
from support.logs import LOGS, NOW_MS

OTHER = 2  # the broker that coordinates
State = TransactionState


def lead(name: str, epoch: int) -> None:
    """This broker leads, and is in sync alone."""
    assert LOGS.set_leader(name, 0, broker_epoch=1, leader_epoch=epoch, partition_epoch=epoch, replicas=[], enough=1)


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    made = topic_name("hanging")
    LOGS.open_replica(made, topic_id(made), 0, str(tmp_path), {"verify_transactions": 0})
    lead(made, 5)
    yield made
    LOGS.delete(made, 0)


def begin(name: str, producer_id: int, epoch: int = 0, sequence: int = 0) -> None:
    """A transaction begins, or goes on."""
    records = batch([b"x"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    LOGS.append_client(name, 0, records)


def markers(name: str) -> list[str]:
    """All that the log has."""
    return [marker_type(raw) for raw in split(LOGS.read(name, 0, 0, 1 << 20)) if raw.is_control]


class Leader:
    """A broker that leads, in a cluster whose one partition of transactional ids another broker coordinates."""

    def __init__(self) -> None:
        self.fates: list[Fate | None] = []  # what is answered next; the last one for ever
        self.asked: list[list[OpenTransaction]] = []
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.stored = {0: (OTHER, 7)}
        coordinated = SimpleNamespace(partitions=[SimpleNamespace(leader=OTHER)])
        self.commits = Commits(LOGS)
        parts: Any = SimpleNamespace(
            log_manager=LOGS,
            commits=self.commits,
            node_id=1,
            now_ms=lambda: NOW_MS,
            topics=SimpleNamespace(get={TRANSACTION_STATE: coordinated}.get),
            cluster=SimpleNamespace(find_fates=self.find_fates, read_leaders=self.read_leaders),
        )
        self.markers = Markers(parts, cast(Any, None))
        self.hanging = HangingTransactions(parts, cast(Any, SimpleNamespace(markers=self.markers)))

    async def find_fates(self, broker: int, asked: Sequence[OpenTransaction]) -> Fates:
        self.asked.append(list(asked))
        if self.before_answer is not None:
            await self.before_answer()
        fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
        return Fates({0: 7}, [None if fate is None else (0, fate)] * len(asked))

    async def read_leaders(self, topic: str) -> Mapping[int, tuple[int, int]]:
        return self.stored

    def run(self, steps: Callable[[], Awaitable[None]]) -> None:
        async def work() -> None:
            self.commits.start()
            running = asyncio.create_task(self.hanging.run())
            try:
                await steps()
            finally:
                running.cancel()
                await self.commits.stop()

        asyncio.run(work())


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangingtransactions, "AGAIN_S", 0.001)
    monkeypatch.setattr(hangingtransactions, "LISTED_AGAIN_S", 0.001)


def test_what_no_coordinator_knows_is_aborted(name: str) -> None:
    leader = Leader()
    leader.fates = [None]
    begin(name, 1)
    lead(name, 6)

    async def steps() -> None:
        leader.hanging.led((name, 0), 6)
        await until(lambda: markers(name) == ["abort"])

    leader.run(steps)
    assert leader.hanging.ended == {Fate.ABORT: 1}


def test_a_lead_above_suspicion_is_not_looked_at(name: str) -> None:
    """Its transaction began after the newest unclean election of its partition, and no states were lost."""
    leader = Leader()
    leader.fates = [None]
    begin(name, 1)
    lead(name, 6)
    begin(name, 2)

    async def steps() -> None:
        leader.hanging.led((name, 0), -1)
        await asyncio.sleep(0.01)
        assert not leader.asked
        leader.hanging.led((name, 0), 6)
        await until(lambda: markers(name) == ["abort"])

    leader.run(steps)
    assert [one.producer_id for one in leader.asked[0]] == [1]
    assert LOGS.producer(name, 0, 2).txn_first_offset >= 0  # type: ignore[union-attr]


@pytest.mark.parametrize("leads_first", [True, False])
def test_every_lead_is_suspect_once_states_were_lost(name: str, leads_first: bool) -> None:
    leader = Leader()
    leader.fates = [Fate.LISTED]
    begin(name, 1)

    async def steps() -> None:
        if leads_first:
            leader.hanging.led((name, 0), -1)
        leader.hanging.led_uncleanly([("t", 0)])
        await asyncio.sleep(0.01)
        assert not leader.asked
        leader.hanging.led_uncleanly([(TRANSACTION_STATE, 3)])
        if not leads_first:
            leader.hanging.led((name, 0), -1)
        await until(lambda: len(leader.asked) > 1)

    leader.run(steps)
    (asked,) = leader.asked[-1]
    assert asked.keeps_markers and asked.partition == (name, 0)


def test_a_coordinator_that_will_end_it_is_asked_again(name: str) -> None:
    """The marker that it takes for committed may have been lost."""
    leader = Leader()
    leader.fates = [Fate.LISTED, Fate.LISTED, Fate.COMMIT]
    begin(name, 1)
    lead(name, 6)

    async def steps() -> None:
        leader.hanging.led((name, 0), 6)
        await until(lambda: markers(name) == ["commit"])

    leader.run(steps)
    assert len(leader.asked) == 3


def test_another_transaction_that_is_open_by_then_is_left_alone(name: str) -> None:
    """The one that was asked about has got its marker meanwhile. Both have one epoch: they are of transactions v1."""
    leader = Leader()
    leader.fates = [Fate.ABORT]
    begin(name, 1)
    lead(name, 6)

    async def end_and_begin() -> None:
        await leader.markers.write_committed((name, 0), Marker(1, 0, True, 0))
        begin(name, 1, sequence=1)

    async def steps() -> None:
        leader.before_answer = end_and_begin
        leader.hanging.led((name, 0), 6)
        await until(lambda: len(leader.asked) == 1)
        await asyncio.sleep(0.01)

    leader.run(steps)
    assert markers(name) == ["commit"]


def test_a_later_transaction_of_the_producer_waits_for_the_answer(name: str) -> None:
    """It would join the one that is open. Where the outcome of that is lost, nothing is gained by waiting."""
    leader = Leader()
    leader.fates = [Fate.LISTED]
    begin(name, 1, epoch=3)
    assert not leader.hanging.holds((name, 0), 1, 3) and not leader.hanging.holds((name, 0), 2, 4)

    async def steps() -> None:
        assert leader.hanging.holds((name, 0), 1, 4)
        await until(lambda: bool(leader.asked))  # though its lead isn't suspect
        answer = await leader.markers.write_committed((name, 0), Marker(1, 5, False, 0, version=2))
        assert (answer.error, markers(name)) == (E.CONCURRENT_TRANSACTIONS, [])
        leader.fates = [Fate.UNKNOWN]
        await until(lambda: not leader.hanging.holds((name, 0), 1, 4))
        answer = await leader.markers.write_committed((name, 0), Marker(1, 5, False, 0, version=2))
        assert (answer.error, markers(name)) == (E.NONE, ["abort"])

    leader.run(steps)
    assert leader.hanging.ended == {Fate.UNKNOWN: 1}


@pytest.mark.parametrize(
    ("answers", "stored", "fate"),
    [
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [None])}, {0: (1, 4), 1: (2, 9)}, Fate.ABORT),
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [(1, Fate.COMMIT)])}, {0: (1, 4), 1: (2, 9)}, Fate.COMMIT),
        # It doesn't have to be known what the others say.
        ({2: Fates({1: 9}, [(1, Fate.COMMIT)])}, {0: (1, 4), 1: (2, 9)}, Fate.COMMIT),
        # Somebody didn't answer; or has another one as its successor by now; or the store says nothing.
        ({1: Fates({0: 4}, [None])}, {0: (1, 4), 1: (2, 9)}, None),
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [None])}, {0: (1, 4), 1: (2, 10)}, None),
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [None])}, {0: (1, 4), 1: (3, 9)}, None),
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [(1, Fate.COMMIT)])}, {0: (1, 4), 1: (3, 10)}, None),
        ({1: Fates({0: 4}, [None]), 2: Fates({1: 9}, [None])}, {0: (1, 4), 1: (2, 9), 2: (-1, 3)}, None),
        ({1: Fates({0: 4}, [None])}, {}, None),
    ],
)
def test_an_answer_counts_that_the_store_confirms(
    answers: dict[int, Fates], stored: dict[int, tuple[int, int]], fate: Fate | None
) -> None:
    assert decide(answers, stored, 1) == [fate]


def coordinator(facts: Facts, leads: Sequence[Mapping[int, object]], current: Mapping[int, int]) -> HangingTransactions:
    """That has one id; leads: what it leads as it is asked, and as it answers. current: leader epochs of the logs."""
    entry = SimpleNamespace(machine=SimpleNamespace(facts=facts), partition=3)
    left = list(leads)
    transactions = SimpleNamespace(loaded=lambda: left.pop(0), entries={"x": entry}, markers=SimpleNamespace())
    logs = SimpleNamespace(offsets=lambda topic, index: SimpleNamespace(leader_epoch=current[index]))
    return HangingTransactions(cast(Any, SimpleNamespace(log_manager=logs)), cast(Any, transactions))


def facts(state: State, epoch: int, *partitions: tuple[str, int]) -> Facts:
    return Facts(7, -1, -1, epoch, -1, 60_000, state, frozenset(partitions), 1_000, 1_000, 2)


def test_a_coordinator_answers_for_what_it_leads_until_the_end() -> None:
    """In the newest epoch of a lead that went on; a lead that was lost in between doesn't count, though it came back."""
    kept = object()
    one = coordinator(facts(State.COMPLETE_COMMIT, 5), [{3: kept, 4: object()}, {3: kept, 4: object()}], {3: 12, 4: 2})
    asked = [OpenTransaction(("t", 0), 7, 4), OpenTransaction(("t", 0), 8, 4)]
    assert asyncio.run(one.answer(asked)) == Fates({3: 12}, [(3, Fate.COMMIT), None])


@pytest.mark.parametrize(
    ("state", "epoch", "keeps_markers", "fate"),
    [
        (State.ONGOING, 5, False, Fate.LISTED),
        (State.ONGOING, 4, False, Fate.UNKNOWN),
        (State.ONGOING, 4, True, Fate.ABORT),
        (State.PREPARE_COMMIT, 4, False, Fate.LISTED),
        (State.PREPARE_COMMIT, 3, False, Fate.UNKNOWN),
    ],
)
def test_the_end_of_a_later_transaction_is_none_of_an_earlier_ones(
    state: State, epoch: int, keeps_markers: bool, fate: Fate
) -> None:
    one = coordinator(facts(state, 5, ("t", 0)), [{}, {}], {})
    fates = asyncio.run(one.answer([OpenTransaction(("t", 0), 7, epoch, keeps_markers=keeps_markers)]))
    assert fates.found == [(3, fate)]


def test_strangers_are_told_nothing() -> None:
    asked = [OpenTransaction(("t", 0), 7, 4, keeps_markers=True)]
    for cluster in (None, object()):
        context: Any = SimpleNamespace(cluster=cluster, between_brokers="BROKERS")
        call = Call(2, None, "there:1", "CLIENTS")
        answer = asyncio.run(list_transactions.handle(context, write_open(asked), call))
        assert answer.error_code == E.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(WireError):
            read_fates(answer, 1)
    with pytest.raises(WireError):
        read_fates(ListTransactionsResponse(fates=[ListTransactionsResponse.TransactionFate(fate=9)]), 1)
