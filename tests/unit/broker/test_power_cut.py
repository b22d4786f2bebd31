"""What becomes of transactions after a power cut: the decision for each that is open, the fence, and shared flushes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from penstock.broker.coordination import powercut
from penstock.broker.coordination.flushing import LogFlusher
from penstock.broker.coordination.machines import NEVER, Append, Appended, Now, TopicPartition
from penstock.broker.coordination.powercut import Fate, Open
from penstock.broker.coordination.transactions import machine
from penstock.broker.coordination.transactions.events import MarkersWritten, PowerCut, WriteMarkers
from penstock.broker.coordination.transactions.producers import EPOCHS_UNKNOWN
from penstock.broker.coordination.transactions.state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    Facts,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
)
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
    one = Open(HERE, 7, epoch, 0)
    assert (powercut.fate(one, states, True), powercut.fate(one, states, False)) == (flushed, unflushed)


def test_an_id_that_was_used_up_is_known_by_the_next_one() -> None:
    after = replace(facts(State.COMPLETE_COMMIT, epoch=0), producer_id=8, previous_producer_id=7)
    states = powercut.by_producer_id([after])
    assert powercut.fate(Open(HERE, 7, EPOCH_EXHAUSTED, 0), states, True) is Fate.COMMIT


def fed(state: Facts, known_epoch: int) -> tuple[Transaction, list[object]]:
    transaction = Transaction("t", TransactionConfig())
    machine.load(transaction, TransactionRecord(state))
    done: list[object] = []
    waiting: list[object] = [PowerCut(known_epoch)]
    while waiting:
        _, actions = machine.step(transaction, waiting.pop(0), NOW)
        done += actions
        waiting += [Appended(action.id, ErrorCode.NONE, 0) for action in actions if isinstance(action, Append)]
    return transaction, done


@pytest.mark.parametrize("known_epoch", [-1, 4, 5, 9])
@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_idle_producer_is_fenced_above_all_that_is_known(state: State, known_epoch: int) -> None:
    transaction, _ = fed(facts(state), known_epoch)
    assert transaction.facts is not None and transaction.facts.state is state
    # An InitProducerId may have given the next epochs, and be lost: nobody has this one, or can ask for the next of an old one.
    assert transaction.facts.producer_epoch == max(5, known_epoch) + EPOCHS_UNKNOWN
    assert transaction.facts.last_producer_epoch == -1


def test_an_ongoing_transaction_is_aborted_above_all_that_is_known() -> None:
    transaction, actions = fed(facts(State.ONGOING, partitions=(HERE,)), 9)
    (markers,) = [action for action in actions if isinstance(action, WriteMarkers)]
    assert (markers.commit, markers.producer_epoch, markers.partitions) == (False, 9 + EPOCHS_UNKNOWN + 1, frozenset([HERE]))
    assert transaction.facts is not None and transaction.facts.state is State.PREPARE_ABORT


def test_the_producer_of_a_decided_transaction_is_fenced_once_it_is_complete() -> None:
    transaction, actions = fed(facts(State.PREPARE_COMMIT, partitions=(HERE,)), 6)
    assert actions == [] and transaction.facts is not None and transaction.facts.producer_epoch == 5
    (append,) = machine.step(transaction, MarkersWritten(True), NOW)[1]
    assert isinstance(append, Append)
    machine.step(transaction, Appended(append.id, ErrorCode.NONE, 0), NOW)
    assert transaction.facts.state is State.COMPLETE_COMMIT and transaction.facts.producer_epoch == 6 + EPOCHS_UNKNOWN
    assert transaction.wake_at_ms == NEVER


def test_an_epoch_has_an_end() -> None:
    transaction, _ = fed(facts(State.EMPTY, epoch=EPOCH_EXHAUSTED), EPOCH_MAX)
    assert transaction.facts is not None and transaction.facts.producer_epoch == EPOCH_MAX


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
