"""Rules of transactions and of coordinators that move, each broken in the product: seeded runs find that.

Among them are bugs that Apache Kafka and others have published, by their names. A mutant is made here, by a patch; the product
has no switch. What is judged stands in `transaction_world.py`; with all rules kept the runs find nothing
(`test_transactions_sim.py`). More is lost and late here than there, so that few runs are needed. Guards that runs seldom need,
as another one stands behind them, are in `mutants/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim.moving_world import Violation
from sim.test_transactions_sim import play
from sim.transaction_world import World

from penstock.broker.coordination import hangingtransactions, markers
from penstock.broker.coordination.delivery import Delivery
from penstock.broker.coordination.hangingtransactions import HangingTransactions
from penstock.broker.coordination.shell import Coordinator
from penstock.broker.coordination.transactions import ending, machine, producers
from penstock.broker.coordination.transactions.events import WriteMarkers
from penstock.broker.coordination.verification import Verifier
from penstock.broker.replication.commits import Commits
from penstock.broker.transactionmessages import Fate
from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import Appended

Patch = pytest.MonkeyPatch
SEEDS = range(1, 60)
LOSSY = 2.0
MARKER_MS = 2_999


def answer_at_once(patch: Patch) -> None:
    """A coordinator answers what only its own log has."""
    real = Coordinator._write_log

    def write(self: Coordinator[Any], *given: Any) -> Any:
        done = real(self, *given)
        return done._replace(waits=False) if isinstance(done, Appended) else done

    patch.setattr(Coordinator, "_write_log", write)


def send_no_markers_again(patch: Patch) -> None:
    """The next coordinator reads a decision, and leaves its markers to the one before."""
    real = machine.loaded
    patch.setattr(machine, "loaded", lambda *given: [one for one in real(*given) if not isinstance(one, WriteMarkers)])


class Believer:
    """A cluster whose store is never asked: what a picture lacks is gone."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def is_gone(self, partition: Any, topic_id: bytes = b"") -> bool:
        return True


def take_absence_for_deletion(patch: Patch) -> None:
    """A coordinator that has no picture of the cluster yet takes each partition for a deleted one."""
    real = Delivery._send

    async def send(self: Delivery, cluster: Any, *given: Any) -> Any:
        return await real(self, Believer(cluster), *given)

    patch.setattr(Delivery, "_send", send)


def complete_before_the_commit(patch: Patch) -> None:
    """A marker counts as written that only its leader has."""
    real = Commits.wait

    async def wait(self: Commits, partition: Any, needed: int, leader_epoch: int, timeout_ms: int = 30_000) -> int:
        return 0 if timeout_ms == MARKER_MS else await real(self, partition, needed, leader_epoch, timeout_ms)

    patch.setattr(markers, "COMMIT_TIMEOUT_MS", MARKER_MS)
    patch.setattr(Commits, "wait", wait)


def end_in_any_epoch(patch: Patch) -> None:
    """An EndTxn that comes late ends what its producer has open by then."""
    real = ending._end_raising_epoch

    def check(transaction: Any, facts: Any, event: Any) -> Any:
        return real(transaction, facts, replace(event, producer_id=facts.producer_id, producer_epoch=facts.producer_epoch))

    patch.setattr(ending, "_end_raising_epoch", check)


def give_an_epoch_twice(patch: Patch) -> None:
    """InitProducerId gives a newcomer the epoch of the producer that it replaces."""
    patch.setattr(producers, "_init_next", producers._init_as)


def verify_nothing(patch: Patch) -> None:
    """A leader appends the first batch of a transaction unasked."""

    async def ask(self: Verifier, question: Any) -> list[int]:
        return [int(ErrorCode.NONE)] * len(question.partitions)

    patch.setattr(Verifier, "ask", ask)


def append_unguarded(patch: Patch) -> None:
    """Nobody looks whether a marker, or another role, came between the question and the append."""
    patch.setattr(World, "guarded", False)


def ask_about_nothing(patch: Patch) -> None:
    """No lead is suspect."""
    patch.setattr(HangingTransactions, "led", lambda *_: None)
    patch.setattr(HangingTransactions, "led_uncleanly", lambda *_: None)


def abort_what_one_does_not_know(patch: Patch) -> None:
    """The answers that came are taken for all."""
    real = hangingtransactions.decide
    patch.setattr(hangingtransactions, "decide", lambda *given: [Fate.ABORT if fate is None else fate for fate in real(*given)])


def believe_in_markers(patch: Patch) -> None:
    """A transaction that is complete is taken for ended in each log."""
    patch.setattr(HangingTransactions, "_keeps_markers", lambda *_: True)


def hold_nothing(patch: Patch) -> None:
    """A later transaction of a producer joins the one that is open, and its marker ends both."""
    patch.setattr(HangingTransactions, "holds", lambda *_: False)


MUTANTS = {
    "Redpanda 6018: what isn't replicated is answered": answer_at_once,
    "KAFKA-9777: nobody sends the markers of a decision": send_no_markers_again,
    "KAFKA-9777: a partition that isn't known yet is taken for a deleted one": take_absence_for_deletion,
    "a marker that isn't committed": complete_before_the_commit,
    "KAFKA-17754: an EndTxn of an earlier transaction": end_in_any_epoch,
    "a producer that was replaced isn't fenced": give_an_epoch_twice,
    "KAFKA-14402, KIP-890: a transaction that no coordinator knows": verify_nothing,
    "KIP-890: a batch that comes after its transaction's marker": append_unguarded,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    break_rule: Callable[[Patch], None] = MUTANTS[name]
    break_rule(monkeypatch)
    with pytest.raises(Violation):
        for seed in SEEDS:
            play(seed, tmp_path, LOSSY)


FORGETS, CUTS = {"forgets": True}, {"power_cuts": True}
HANGING: dict[str, tuple[Callable[[Patch], None], dict[str, bool]]] = {
    "KIP-664: nobody ends a hanging transaction": (ask_about_nothing, FORGETS),
    "not every coordinator was asked": (abort_what_one_does_not_know, FORGETS),
    "a log that lost markers is taken for whole": (believe_in_markers, CUTS),
    "a later transaction joins an open one": (hold_nothing, CUTS),
}


@pytest.mark.parametrize("name", HANGING)
def test_a_broken_rule_of_hanging_transactions_is_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    break_rule, given = HANGING[name]
    break_rule(monkeypatch)
    with pytest.raises(Violation):
        for seed in SEEDS:
            play(seed, tmp_path, LOSSY, **given)
