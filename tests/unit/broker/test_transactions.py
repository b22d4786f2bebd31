"""The transaction machine: Kafka's answers, step by step, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.coordination.machines import NEVER, Tick
from penstock.broker.coordination.transactions.events import (
    AddPartitions,
    End,
    Expire,
    Init,
    MarkersWritten,
    ProducerResult,
    TopicDeleted,
    WriteMarkers,
)
from penstock.broker.coordination.transactions.machine import load, loaded, step
from penstock.broker.coordination.transactions.partitions import verify
from penstock.broker.coordination.transactions.producers import needs_producer_id
from penstock.broker.coordination.transactions.state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    RETRY_MS,
    Facts,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
    is_disposable,
)
from penstock.errors import ErrorCode as E
from support.machine_bench import MachineBench

TIMEOUT_MS, DAY_MS = 60_000, 24 * 3_600_000
PART, OTHER = ("t", 0), ("t", 1)


class Bench(MachineBench):
    """A transaction, and partitions that take its markers unless they are told not to."""

    def __init__(self, version: int = 2) -> None:
        super().__init__()
        self.config = TransactionConfig(DAY_MS, 900_000, version)
        self.transaction = Transaction("x", self.config)
        self.markers: list[WriteMarkers] = []
        self.markers_fail = False
        self.next_id = 100

    @property
    def facts(self) -> Facts:
        assert self.transaction.facts is not None
        return self.transaction.facts

    @property
    def state(self) -> str:
        return self.facts.state.shown

    @property
    def wake_at_ms(self) -> int:
        return self.transaction.wake_at_ms

    def step(self, event: object) -> Sequence[Any]:
        return step(self.transaction, event, self.now)[1]

    def carry_out(self, action: Any) -> object:
        if isinstance(action, WriteMarkers):
            if not self.markers_fail:
                self.markers.append(action)
            return MarkersWritten(not self.markers_fail)
        assert all(isinstance(record, TransactionRecord) for record in action.records)
        return super().carry_out(action)

    def ask(self, event: Any) -> Any:
        if isinstance(event, Init | End) and needs_producer_id(self.transaction, event):
            event.fresh_producer_id = self.next_id
            self.next_id += 1
        return super().ask(event)

    def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = TIMEOUT_MS) -> tuple[int, int, int]:
        result: ProducerResult = self.ask(Init(None, timeout_ms, producer_id, epoch))
        return result.error, result.producer_id, result.producer_epoch

    def add(self, *partitions: tuple[str, int], producer: tuple[int, int] = (100, 0), version: int = 0) -> int:
        return int(self.ask(AddPartitions(None, *producer, partitions, version)))

    def end(self, commit: bool, producer: tuple[int, int] = (100, 0), raises: bool = False) -> Any:
        result: ProducerResult | None = self.ask(End(None, *producer, commit, raises))
        return None if result is None else result.error if not raises else result

    def ongoing(self) -> None:
        assert self.init() == (E.NONE, 100, 0)
        assert self.add(PART) == E.NONE

    def restart(self) -> None:
        """A new coordinator knows what is in the log and nothing else."""
        self.transaction = Transaction("x", self.config)
        self.hold, self.held = False, []
        for record in self.log:
            load(self.transaction, record)
        for action in loaded(self.transaction, self.now):
            assert isinstance(action, WriteMarkers)
            self.feed(self.carry_out(action))

    def states(self) -> list[str]:
        """What the log says, in order."""
        return [record.value.state.shown for record in self.log if record.value is not None]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_decided_then_marked_then_complete(commit: bool) -> None:
    bench = Bench()
    bench.ongoing()
    assert bench.end(commit) == E.NONE
    word = "Commit" if commit else "Abort"
    assert bench.states() == ["Empty", "Ongoing", "Prepare" + word, "Complete" + word]
    assert bench.markers == [WriteMarkers(100, 0, commit, frozenset({PART}))]
    assert bench.end(commit) == E.NONE, "asked again after a lost answer"
    assert bench.end(not commit) == E.INVALID_TXN_STATE
    assert bench.add(OTHER) == E.NONE
    assert bench.facts.partitions == {OTHER}, "the next transaction starts with nothing"


def test_every_step_is_stored_before_it_is_answered() -> None:
    bench = Bench()
    bench.hold = True
    assert bench.ask(Init(None, TIMEOUT_MS)) is None
    assert step(bench.transaction, Tick(), bench.now)[1] == []
    bench.release()
    assert bench.replies[1].producer_id == 100
    bench.hold = True
    assert bench.ask(AddPartitions(None, 100, 0, [PART])) is None
    assert bench.add(OTHER) == E.CONCURRENT_TRANSACTIONS
    assert bench.init()[0] == E.CONCURRENT_TRANSACTIONS
    bench.release()
    assert bench.replies[2] == E.NONE
    bench.hold = True
    assert bench.end(True) is None and bench.states()[-1] == "Ongoing"
    bench.release()


def test_partitions_that_are_in_already_cost_nothing() -> None:
    bench = Bench()
    bench.ongoing()
    bench.add(OTHER)
    stored = len(bench.log)
    assert bench.add(PART, OTHER) == E.NONE
    assert len(bench.log) == stored


def test_strangers_and_zombies() -> None:
    bench = Bench()
    assert bench.add(PART) == E.INVALID_PRODUCER_ID_MAPPING
    assert bench.end(True) == E.INVALID_PRODUCER_ID_MAPPING
    assert is_disposable(bench.transaction)
    bench.ongoing()
    assert bench.add(PART, producer=(5, 0)) == E.INVALID_PRODUCER_ID_MAPPING
    assert bench.add(PART, producer=(100, 1)) == E.PRODUCER_FENCED
    assert bench.end(True, producer=(100, 1)) == E.PRODUCER_FENCED
    assert bench.end(True, producer=(5, 0)) == E.INVALID_PRODUCER_ID_MAPPING


def test_a_replaced_producer_that_asks_on_does_not_end_its_successors_transaction() -> None:
    bench = Bench()
    assert bench.init() == (E.NONE, 100, 0)
    assert bench.init() == (E.NONE, 100, 1)
    assert bench.add(PART, producer=(100, 1)) == E.NONE
    stored = len(bench.log)
    assert bench.init(100, 0)[0] == E.PRODUCER_FENCED
    assert (bench.state, len(bench.log), bench.markers) == ("Ongoing", stored, [])
    assert bench.end(True, producer=(100, 1)) == E.NONE


def test_nothing_to_end() -> None:
    bench = Bench()
    bench.init()
    assert bench.end(True) == E.INVALID_TXN_STATE
    assert bench.end(False) == E.INVALID_TXN_STATE


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_refused(timeout_ms: int) -> None:
    bench = Bench()
    assert bench.init(timeout_ms=timeout_ms)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert is_disposable(bench.transaction)


def test_a_new_producer_fences_the_old_one() -> None:
    bench = Bench()
    bench.init()
    assert bench.init() == (E.NONE, 100, 1)
    assert bench.add(PART) == E.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_a_new_producer_aborts_the_old_ones_transaction_first(version: int) -> None:
    bench = Bench(version)
    bench.ongoing()
    assert bench.init()[0] == E.CONCURRENT_TRANSACTIONS
    assert bench.markers == [WriteMarkers(100, 1, False, frozenset({PART}), version)], "under the fencing epoch"
    assert bench.init() == (E.NONE, 100, 2), "the fencing epoch is nobody's"
    assert bench.end(True) == E.PRODUCER_FENCED


def test_a_producer_goes_on_after_an_error() -> None:
    bench = Bench()
    bench.init()
    assert bench.init(100, 0) == (E.NONE, 100, 1)
    assert bench.init(100, 0) == (E.NONE, 100, 1), "asked again: no second bump"
    assert bench.init(100, 1) == (E.NONE, 100, 2)
    assert bench.init(100, 0)[0] == E.PRODUCER_FENCED
    assert bench.init(99, 2)[0] == E.PRODUCER_FENCED
    assert bench.init() == (E.NONE, 100, 3)
    assert bench.init(100, 2)[0] == E.PRODUCER_FENCED, "a newer producer took over in between"


def test_used_up_epochs_mean_a_new_producer_id() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    assert bench.init() == (E.NONE, 101, 0)
    assert bench.add(PART, producer=(100, EPOCH_EXHAUSTED)) == E.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_goes_on_with_used_up_epochs() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    assert bench.init(100, EPOCH_EXHAUSTED) == (E.NONE, 101, 0)
    assert bench.init(100, EPOCH_EXHAUSTED) == (E.NONE, 101, 0), "asked again"


def test_the_last_epoch_is_kept_for_fencing() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    bench.add(PART, producer=(100, EPOCH_EXHAUSTED))
    assert bench.init()[0] == E.CONCURRENT_TRANSACTIONS
    assert bench.markers[-1].producer_epoch == EPOCH_MAX
    assert bench.init() == (E.NONE, 101, 0)


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(version: int) -> None:
    bench = Bench(version)
    bench.ongoing()
    bench.pass_ms(TIMEOUT_MS - 1)
    assert bench.state == "Ongoing"
    bench.pass_ms(1)
    assert bench.state == "CompleteAbort"
    assert bench.markers == [WriteMarkers(100, 1, False, frozenset({PART}), version)]
    assert bench.end(True) == E.PRODUCER_FENCED
    assert bench.add(OTHER) == E.PRODUCER_FENCED
    assert bench.transaction.wake_at_ms == NEVER


def test_the_timeout_goes_on_over_a_restart() -> None:
    bench = Bench()
    bench.ongoing()
    bench.pass_ms(TIMEOUT_MS // 2)
    bench.restart()
    assert bench.state == "Ongoing"
    bench.pass_ms(TIMEOUT_MS // 2)
    assert bench.state == "CompleteAbort"


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_completed_after_a_crash(commit: bool) -> None:
    bench = Bench()
    bench.ongoing()
    bench.markers_fail = True
    assert bench.end(commit) == E.NONE, "the decision is stored"
    bench.markers_fail = False
    bench.restart()
    assert bench.markers == [WriteMarkers(100, 0, commit, frozenset({PART}))]
    assert bench.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_markers_that_fail_are_tried_again() -> None:
    bench = Bench()
    bench.ongoing()
    bench.markers_fail = True
    bench.end(True)
    assert bench.add(PART) == E.CONCURRENT_TRANSACTIONS
    assert bench.end(True) == E.CONCURRENT_TRANSACTIONS
    assert bench.end(False) == E.INVALID_TXN_STATE
    bench.pass_ms(5_000)
    assert bench.state == "PrepareCommit"
    bench.markers_fail = False
    bench.pass_ms(RETRY_MS)
    assert bench.state == "CompleteCommit"


def test_a_completion_that_cannot_be_stored_is_tried_again() -> None:
    bench = Bench()
    bench.ongoing()
    bench.hold = True
    bench.end(True)
    [prepare] = bench.held
    bench.held, bench.hold = [], False
    appended = bench.carry_out(prepare)
    bench.refuse = E.NOT_ENOUGH_REPLICAS
    bench.feed(appended)
    assert bench.state == "PrepareCommit"
    bench.refuse = 0
    bench.pass_ms(RETRY_MS)
    assert bench.state == "CompleteCommit"


def test_what_is_not_stored_has_not_happened() -> None:
    bench = Bench()
    bench.refuse = E.NOT_ENOUGH_REPLICAS
    assert bench.init()[0] == E.COORDINATOR_NOT_AVAILABLE
    assert is_disposable(bench.transaction)
    bench.refuse = 0
    bench.next_id = 100
    bench.init()
    bench.refuse = E.NOT_LEADER_OR_FOLLOWER
    assert bench.add(PART) == E.NOT_COORDINATOR
    assert bench.state == "Empty"
    bench.refuse = 0
    bench.add(PART)
    bench.refuse = E.MESSAGE_TOO_LARGE
    assert bench.end(True) == E.UNKNOWN_SERVER_ERROR
    assert bench.state == "Ongoing" and not bench.markers
    bench.refuse = 0
    assert bench.end(True) == E.NONE


def test_a_timeout_that_cannot_be_stored_is_tried_again() -> None:
    bench = Bench()
    bench.ongoing()
    bench.refuse = E.NOT_ENOUGH_REPLICAS
    bench.pass_ms(TIMEOUT_MS + 2_000)
    assert bench.state == "Ongoing"
    bench.refuse = 0
    bench.pass_ms(RETRY_MS)
    assert bench.state == "CompleteAbort" and bench.facts.producer_epoch == 1


def test_unused_ids_expire() -> None:
    bench = Bench()
    bench.ongoing()
    bench.wall_ms += DAY_MS
    bench.feed(Expire())
    assert bench.state == "Ongoing", "not while it is in use"
    bench.end(True)
    bench.feed(Expire())
    assert bench.state == "CompleteCommit"
    bench.wall_ms += DAY_MS
    bench.feed(Expire())
    assert bench.state == "Dead" and bench.log[-1].value is None
    assert is_disposable(bench.transaction)


def test_a_deleted_topic_needs_no_marker() -> None:
    bench = Bench()
    bench.ongoing()
    bench.feed(TopicDeleted("t"))
    bench.end(True)
    assert bench.markers[-1].partitions == frozenset()


def test_verification() -> None:
    bench = Bench()
    assert verify(bench.transaction, 100, 0, PART) == E.INVALID_PRODUCER_ID_MAPPING
    bench.ongoing()
    assert verify(bench.transaction, 100, 0, PART) == E.NONE
    assert verify(bench.transaction, 100, 0, OTHER) == E.TRANSACTION_ABORTABLE
    assert verify(bench.transaction, 100, 1, PART) == E.PRODUCER_FENCED
    bench.end(True)
    assert verify(bench.transaction, 100, 0, PART) == E.TRANSACTION_ABORTABLE
    bench.add(OTHER)
    assert verify(bench.transaction, 100, 0, PART) == E.TRANSACTION_ABORTABLE, "late for the one before"
    bench.markers_fail = True
    bench.end(True)
    assert verify(bench.transaction, 100, 0, OTHER) == E.CONCURRENT_TRANSACTIONS


# --- EndTxn from v5 on (KIP-890) --------------------------------------------------------------------------------------


def test_each_transaction_raises_the_epoch() -> None:
    bench = Bench()
    bench.ongoing()
    assert bench.end(True, raises=True) == ProducerResult(E.NONE, 100, 1)
    assert bench.markers[-1].producer_epoch == 1
    assert bench.end(True, raises=True) == ProducerResult(E.NONE, 100, 1), "asked again"
    assert bench.end(False, raises=True).error == E.INVALID_TXN_STATE, "asked again for the opposite"
    assert bench.add(PART, producer=(100, 1)) == E.NONE
    assert bench.end(True, raises=True).error == E.PRODUCER_FENCED


def test_an_abort_of_nothing_raises_the_epoch_too() -> None:
    bench = Bench()
    bench.init()
    assert bench.end(True, raises=True).error == E.INVALID_TXN_STATE
    assert bench.end(False, raises=True) == ProducerResult(E.NONE, 100, 1)
    assert bench.end(False, producer=(100, 1), raises=True) == ProducerResult(E.NONE, 100, 2)


def test_raising_the_last_epoch_means_a_new_producer_id() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    last = (100, EPOCH_EXHAUSTED)
    bench.add(PART, producer=last)
    assert bench.end(True, last, raises=True) == ProducerResult(E.NONE, 101, 0)
    assert bench.markers[-1].producer_id == 100 and bench.markers[-1].producer_epoch == EPOCH_MAX
    assert bench.end(True, last, raises=True) == ProducerResult(E.NONE, 101, 0), "asked again"
    assert bench.add(PART, producer=(101, 0)) == E.NONE


def test_the_next_producer_id_waits_for_the_markers_of_the_one_before() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    last = (100, EPOCH_EXHAUSTED)
    bench.add(PART, producer=last)
    bench.markers_fail = True
    assert bench.end(True, last, raises=True) == ProducerResult(E.NONE, 101, 0), "the decision is stored"
    assert bench.add(PART, producer=(101, 0)) == E.CONCURRENT_TRANSACTIONS
    bench.restart()
    assert bench.add(PART, producer=(101, 0)) == E.CONCURRENT_TRANSACTIONS
    bench.markers_fail = False
    bench.pass_ms(2 * RETRY_MS)
    assert bench.add(PART, producer=(101, 0)) == E.NONE
    assert bench.add(PART, producer=last) == E.INVALID_PRODUCER_ID_MAPPING


def test_a_late_end_does_not_end_the_next_transaction() -> None:
    bench = Bench()
    bench.ongoing()
    assert bench.end(True, raises=True) == ProducerResult(E.NONE, 100, 1)
    bench.add(OTHER, producer=(100, 1), version=2)
    for commit in (True, False):
        assert bench.end(commit, raises=True).error == E.PRODUCER_FENCED
        assert bench.end(commit) == E.PRODUCER_FENCED
    assert (bench.state, bench.facts.partitions, len(bench.markers)) == ("Ongoing", frozenset({OTHER}), 1)


def test_who_asks_again_after_a_restart_is_known() -> None:
    bench = Bench()
    bench.ongoing()
    bench.end(False, raises=True)
    bench.restart()
    assert bench.end(False, raises=True) == ProducerResult(E.NONE, 100, 1)
    assert bench.end(True, raises=True).error == E.INVALID_TXN_STATE
    assert bench.init(100, 0) == (E.NONE, 100, 1), "or by InitProducerId"


def test_who_asks_again_for_its_next_producer_id_after_a_restart_is_known() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    last = (100, EPOCH_EXHAUSTED)
    bench.add(PART, producer=last)
    bench.end(True, last, raises=True)
    bench.restart()
    assert bench.end(True, last, raises=True) == ProducerResult(E.NONE, 101, 0)
    assert bench.init(*last) == (E.NONE, 101, 0)


def test_an_older_producer_does_not_take_its_successors_commit_for_its_own() -> None:
    bench = Bench()
    bench.init()
    assert bench.init() == (E.NONE, 100, 1), "the successor, of transactions v1"
    bench.add(PART, producer=(100, 1))
    bench.end(True, producer=(100, 1))
    assert bench.end(True, producer=(100, 0), raises=True).error == E.PRODUCER_FENCED
    assert bench.end(True, producer=(99, 0), raises=True).error == E.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_may_go_on_after_its_transaction_took_too_long() -> None:
    bench = Bench()
    bench.ongoing()
    bench.pass_ms(TIMEOUT_MS)
    assert bench.end(True, raises=True).error == E.INVALID_TXN_STATE, "it is aborted"
    assert bench.end(False, raises=True) == ProducerResult(E.NONE, 100, 1)
    assert bench.init(100, 0) == (E.NONE, 100, 1)
    assert bench.add(PART, producer=(100, 1), version=2) == E.NONE


def test_nobody_goes_on_with_the_last_epoch() -> None:
    bench = Bench()
    bench.init()
    bench.transaction.facts = replace(bench.facts, producer_epoch=EPOCH_EXHAUSTED)
    last = (100, EPOCH_EXHAUSTED)
    bench.add(PART, producer=last)
    bench.pass_ms(TIMEOUT_MS)
    assert bench.facts.producer_epoch == EPOCH_MAX
    assert bench.end(False, last, raises=True).error == E.PRODUCER_FENCED
    assert bench.init(*last)[0] == E.PRODUCER_FENCED
    error, producer_id, epoch = bench.init()
    assert (error, epoch) == (E.NONE, 0) and producer_id != 100


def test_each_transaction_is_of_its_clients_version() -> None:
    bench = Bench()
    bench.ongoing()
    bench.end(True)
    assert bench.markers[-1].version == 0 and bench.facts.client_version == 0
    assert bench.add(PART, version=2) == E.NONE
    assert bench.facts.client_version == 2
    assert bench.end(True, raises=True) == ProducerResult(E.NONE, 100, 1)
    assert bench.markers[-1] == WriteMarkers(100, 1, True, frozenset({PART}), 2)
    assert bench.add(PART, producer=(100, 1)) == E.NONE
    assert bench.end(False, producer=(100, 1)) == E.NONE, "an older client's"
    assert bench.markers[-1] == WriteMarkers(100, 1, False, frozenset({PART}), 0)


def test_state_names_are_kafkas() -> None:
    assert [state.shown for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


FORMER, LATER = bytes([1] * 16), bytes([2] * 16)


def test_a_transaction_keeps_the_topics_that_its_partitions_were_added_under() -> None:
    """A coordinator whose picture is old adds the former topic of a name; the leader of the later one adds that, too."""
    bench = Bench()
    assert bench.init() == (E.NONE, 100, 0)
    name = PART[0]
    for topic_id in (FORMER, LATER, LATER):
        assert bench.ask(AddPartitions(None, 100, 0, [PART], 2, frozenset({(name, topic_id)}))) == E.NONE
    assert len(bench.log) == 3, "the third one was no news"
    both = frozenset({(name, FORMER), (name, LATER)})
    bench.feed(TopicDeleted(name))
    bench.restart()
    assert (bench.facts.partitions, bench.facts.topic_ids) == (frozenset({PART}), both), (
        "which of the two was deleted is asked later"
    )
    assert bench.end(True) == E.NONE
    assert bench.markers == [WriteMarkers(100, 0, True, frozenset({PART}), topic_ids=both)]
    assert bench.facts.topic_ids == frozenset()


def test_a_partition_is_verified_for_the_topic_under_which_it_was_added() -> None:
    bench = Bench()
    bench.init()
    bench.ask(AddPartitions(None, 100, 0, [PART], topic_ids=frozenset({(PART[0], FORMER)})))
    asked = {topic_id: verify(bench.transaction, 100, 0, PART, topic_id) for topic_id in (FORMER, LATER, b"")}
    assert asked == {FORMER: E.NONE, LATER: E.TRANSACTION_ABORTABLE, b"": E.NONE}
    bench.ask(AddPartitions(None, 100, 0, [OTHER]))
    assert verify(bench.transaction, 100, 0, OTHER, LATER) == (E.NONE if OTHER[0] != PART[0] else E.TRANSACTION_ABORTABLE)
