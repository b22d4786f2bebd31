"""What becomes of transactions after a power cut: the decision for each that is open, the fence, and shared flushes."""

from __future__ import annotations

import asyncio
import threading
from copy import deepcopy
from dataclasses import replace

import pytest

from penstock.broker.coordination import powercut, statelog
from penstock.broker.coordination.flushing import LogFlusher
from penstock.broker.coordination.machines import NEVER, Append, Appended, Now, Reply, TopicPartition
from penstock.broker.coordination.transactions import machine
from penstock.broker.coordination.transactions.events import (
    AfterChange,
    End,
    Init,
    MarkersWritten,
    PowerCut,
    ProducerResult,
    WriteMarkers,
)
from penstock.broker.coordination.transactions.producers import needs_producer_id
from penstock.broker.coordination.transactions.state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    Facts,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
    is_fenced,
)
from penstock.broker.transactionmessages import Fate, OpenTransaction
from penstock.errors import ErrorCode, KafkaError

HERE = ("flights", 0)
NOW = Now(1_000, 2_000)
State = TransactionState


def facts(state: State, epoch: int = 5, version: int = 2, partitions: tuple[TopicPartition, ...] = ()) -> Facts:
    return Facts(7, -1, -1, epoch, -1, 60_000, state, frozenset(partitions), 1_000, 1_000, version)


@pytest.mark.parametrize(
    ("known", "epoch", "flushed", "unflushed"),
    [
        # known: the id's state; epoch: of the records that are open in the log.
        (None, 5, Fate.ABORT, Fate.ABORT),
        (facts(State.ONGOING, partitions=(HERE,)), 5, Fate.LISTED, Fate.LISTED),
        (facts(State.PREPARE_COMMIT, partitions=(HERE,)), 4, Fate.LISTED, Fate.LISTED),
        (facts(State.PREPARE_COMMIT, partitions=(HERE,)), 5, Fate.ABORT, Fate.ABORT),  # came after that one's marker
        (facts(State.PREPARE_COMMIT, version=0, partitions=(HERE,)), 5, Fate.LISTED, Fate.LISTED),
        (facts(State.ONGOING, partitions=(("flights", 1),)), 5, Fate.ABORT, Fate.ABORT),
        (facts(State.COMPLETE_COMMIT), 4, Fate.COMMIT, Fate.COMMIT),  # only its marker is lost
        # So it is, and the next transaction has begun, or has ended: the state still tells of the last one.
        (replace(facts(State.ONGOING, partitions=(HERE,)), last_end=(4, True)), 4, Fate.COMMIT, Fate.COMMIT),
        (replace(facts(State.PREPARE_COMMIT, epoch=6, partitions=(HERE,)), last_end=(4, False)), 4, Fate.ABORT, Fate.ABORT),
        (replace(facts(State.ONGOING, partitions=(HERE,)), last_end=(4, True)), 5, Fate.LISTED, Fate.LISTED),
        (facts(State.COMPLETE_ABORT), 4, Fate.ABORT, Fate.ABORT),
        (facts(State.COMPLETE_COMMIT), 6, Fate.ABORT, Fate.ABORT),
        (facts(State.COMPLETE_COMMIT), 5, Fate.ABORT, Fate.ABORT),
        (facts(State.EMPTY, version=0), 5, Fate.ABORT, Fate.ABORT),
        (facts(State.COMPLETE_COMMIT), 3, Fate.ABORT, Fate.UNKNOWN),
        (facts(State.COMPLETE_COMMIT, version=0), 5, Fate.ABORT, Fate.UNKNOWN),
    ],
)
def test_what_becomes_of_an_open_transaction(known: Facts | None, epoch: int, flushed: Fate, unflushed: Fate) -> None:
    states = powercut.by_producer_id([] if known is None else [known])
    one = OpenTransaction(HERE, 7, epoch, 0)
    assert (powercut.fate(one, states, True), powercut.fate(one, states, False)) == (flushed, unflushed)


def test_an_id_that_was_used_up_is_known_by_the_next_one() -> None:
    after = replace(facts(State.COMPLETE_COMMIT, epoch=0), producer_id=8, previous_producer_id=7)
    states = powercut.by_producer_id([after])
    assert powercut.fate(OpenTransaction(HERE, 7, EPOCH_EXHAUSTED, 0), states, True) is Fate.COMMIT


@pytest.mark.parametrize("commit", [True, False])
def test_a_state_remembers_the_last_end_of_its_producer_id(commit: bool) -> None:
    state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    transaction = Transaction("x", TransactionConfig(), facts(state, epoch=5, partitions=(HERE,)))
    complete(transaction)
    assert transaction.facts is not None and transaction.facts.last_end == (4, commit)
    key, value = statelog.encode_transaction_record("x", TransactionRecord(transaction.facts))
    loaded = statelog.decode_transaction_record(key, value, 0)
    assert loaded is not None and isinstance(loaded.record, TransactionRecord)
    assert loaded.record.value == replace(transaction.facts, last_producer_epoch=-1)
    # Another producer id has epochs of its own.
    spent = replace(transaction.facts, producer_epoch=EPOCH_MAX)
    transaction = Transaction("x", TransactionConfig(), spent)
    machine.step(transaction, Init(object(), 60_000, fresh_producer_id=8), NOW)
    (change,) = transaction.in_flight.waiting.values()
    assert isinstance(change, AfterChange)
    assert change.facts.producer_id == 8 and change.facts.last_end is None


def fed(state: Facts) -> tuple[Transaction, list[object]]:
    transaction = Transaction("t", TransactionConfig())
    machine.load(transaction, TransactionRecord(state))
    done: list[object] = []
    waiting: list[object] = [PowerCut()]
    while waiting:
        _, actions = machine.step(transaction, waiting.pop(0), NOW)
        done += actions
        waiting += [Appended(action.id, ErrorCode.NONE, 0) for action in actions if isinstance(action, Append)]
    return transaction, done


def complete(transaction: Transaction) -> None:
    """The markers are written."""
    (append,) = machine.step(transaction, MarkersWritten(True), NOW)[1]
    assert isinstance(append, Append)
    machine.step(transaction, Appended(append.id, ErrorCode.NONE, 0), NOW)


def check_fenced(transaction: Transaction) -> None:
    """Nobody goes on with the id, whatever epoch was given and is lost: the next producer gets another one."""
    facts = transaction.facts
    assert facts is not None and facts.producer_epoch == EPOCH_MAX and is_fenced(transaction)
    for epoch in (0, 5, 6, 7, EPOCH_EXHAUSTED):
        for event in (
            End(None, facts.producer_id, epoch, True, True),
            End(None, facts.producer_id, epoch, True),
            Init(None, 1_000, facts.producer_id, epoch, 99),
        ):
            (reply,) = machine.step(deepcopy(transaction), event, NOW)[1]
            assert isinstance(reply, Reply) and reply.result == ProducerResult(ErrorCode.PRODUCER_FENCED)
    newcomer = Init(None, 1_000)
    assert needs_producer_id(transaction, newcomer)
    newcomer.fresh_producer_id = 99
    (append,) = machine.step(transaction, newcomer, NOW)[1]
    assert isinstance(append, Append)
    machine.step(transaction, Appended(append.id, ErrorCode.NONE, 0), NOW)
    assert transaction.facts is not None and (transaction.facts.producer_id, transaction.facts.producer_epoch) == (99, 0)
    assert not is_fenced(transaction)


@pytest.mark.parametrize("epoch", [0, 5, EPOCH_EXHAUSTED, EPOCH_MAX])
@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_idle_producer_is_fenced(state: State, epoch: int) -> None:
    transaction, _ = fed(facts(state, epoch, 2 if epoch < EPOCH_MAX else 0))
    assert transaction.facts is not None and transaction.facts.state is state
    check_fenced(transaction)


def test_an_ongoing_transaction_is_aborted_above_all_that_may_be_known() -> None:
    transaction, actions = fed(facts(State.ONGOING, partitions=(HERE,)))
    (markers,) = [action for action in actions if isinstance(action, WriteMarkers)]
    assert (markers.commit, markers.producer_epoch, markers.partitions) == (False, EPOCH_MAX, frozenset([HERE]))
    assert transaction.facts is not None and transaction.facts.state is State.PREPARE_ABORT
    complete(transaction)
    check_fenced(transaction)


def test_the_producer_of_a_decided_transaction_is_fenced_once_it_is_complete() -> None:
    transaction, actions = fed(facts(State.PREPARE_COMMIT, partitions=(HERE,)))
    assert actions == [] and transaction.facts is not None and transaction.facts.producer_epoch == 5
    complete(transaction)
    assert transaction.facts.state is State.COMPLETE_COMMIT and transaction.wake_at_ms == NEVER
    check_fenced(transaction)


def test_the_next_id_of_one_that_is_exhausted_is_fenced_as_well() -> None:
    transaction, _ = fed(replace(facts(State.PREPARE_COMMIT, EPOCH_EXHAUSTED, partitions=(HERE,)), next_producer_id=8))
    complete(transaction)
    assert transaction.facts is not None and transaction.facts.producer_id == 8
    check_fenced(transaction)


@pytest.mark.parametrize("version", [0, 2])
def test_markers_of_an_abort_that_were_refused_go_above_all_that_may_be_known(version: int) -> None:
    transaction, _ = fed(facts(State.PREPARE_ABORT, version=version, partitions=(HERE,)))
    (append,) = machine.step(transaction, MarkersWritten(False), NOW)[1]
    assert isinstance(append, Append)
    (markers,) = machine.step(transaction, Appended(append.id, ErrorCode.NONE, 0), NOW)[1]
    assert isinstance(markers, WriteMarkers) and (markers.commit, markers.producer_epoch) == (False, EPOCH_MAX)
    assert not machine.step(transaction, MarkersWritten(False), NOW)[1], "it is tried again later"
    complete(transaction)
    check_fenced(transaction)


def test_markers_that_were_written_twice_complete_a_transaction_once() -> None:
    transaction, _ = fed(facts(State.PREPARE_COMMIT, partitions=(HERE,)))
    complete(transaction)
    assert not machine.step(transaction, MarkersWritten(True), NOW)[1]


class CountingLogs:
    """Counts flushes of each log, and refuses those of one."""

    def __init__(self) -> None:
        self.flushed: list[TopicPartition] = []

    def flush(self, topic: str, partition: int) -> None:
        self.flushed.append((topic, partition))
        if topic == "offline":
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, topic)


def test_who_waits_for_one_log_shares_its_flushes() -> None:
    logs = CountingLogs()

    async def ask() -> None:
        flusher = LogFlusher(logs, lambda one: one[0])  # type: ignore[arg-type]  # all that it asks of logs
        await asyncio.gather(*(flusher.flush([HERE, ("flights", 1)]) for _ in range(100)))
        assert logs.flushed.count(HERE) == logs.flushed.count(("flights", 1)) == 2  # the one under way, and the next
        await flusher.flush([HERE])
        assert logs.flushed.count(HERE) == 3
        with pytest.raises(KafkaError):
            await flusher.flush([("offline", 0), HERE])
        assert logs.flushed.count(HERE) == 4
        await flusher.stop()

    asyncio.run(ask())


class HangingLogs:
    """Flushes of one folder's logs hang until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def flush(self, topic: str, partition: int) -> None:
        if topic == "hangs":
            assert self.let_go.wait(60)


class MeetingLogs:
    """Flushes that end once so many are under way."""

    def __init__(self, count: int) -> None:
        self._met = threading.Barrier(count)

    def flush(self, topic: str, partition: int) -> None:
        self._met.wait(30)


def test_many_logs_wait_for_a_disk_together() -> None:
    """A disk that is slow to flush makes one flush of all that wait; who waits for a thread isn't among them."""

    async def ask() -> None:
        flusher = LogFlusher(MeetingLogs(64), lambda one: "folder")  # type: ignore[arg-type]  # all that it asks of logs
        await flusher.flush(("flights", number) for number in range(64))
        await flusher.stop()

    asyncio.run(ask())


def test_a_disk_that_hangs_holds_up_its_own_logs_alone() -> None:
    logs = HangingLogs()

    async def ask() -> None:
        flusher = LogFlusher(logs, lambda one: one[0])  # type: ignore[arg-type]  # all that it asks of logs
        hanging = asyncio.ensure_future(flusher.flush(("hangs", number) for number in range(100)))
        await asyncio.sleep(0)
        await flusher.flush([HERE])
        assert not hanging.done()
        logs.let_go.set()
        await hanging
        await flusher.stop()

    asyncio.run(ask())
