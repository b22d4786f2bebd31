"""What a power cut of all in-sync replicas may take is told from any other loss, by the judge of a cluster's soak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from support import losses
from support.history import FINAL, Commit, End, History, Outcome, Poll, Send, check, kinds


def record(number: int, offset: int, at: float, *, partition: int = 0, transaction: str | None = None) -> Send:
    return Send("p", number, partition, f"p-{number}-{partition}", Outcome.OK, offset, at, at, transaction)


def final(*sends: Send) -> Poll:
    return Poll(FINAL, 0, [(one.partition, one.offset or 0, one.value) for one in sends], 100.0, 100.0)


BEFORE = [record(number, number, 1.0 + number) for number in range(6)]
AFTER = [record(number, number - 2, 20.0 + number) for number in range(6, 9)]
# Four records are left, and new ones stand where others were.
LOSS = losses.Loss({0: 4}, began=10.0, over=15.0, flushed={0: 4})


def judged(history: History, loss: losses.Loss = LOSS) -> set[str]:
    return kinds([*check(losses.without(history, loss)), *losses.excess(loss)])


def test_a_lawful_loss_is_told_from_any_other() -> None:
    left = [*BEFORE[:4], *AFTER]
    lawful = History(
        sends=[*BEFORE, *AFTER],
        polls=[Poll("m", 1, [(0, one.number, one.value) for one in BEFORE], 9.0, 9.0), final(*left)],
        commits=[Commit("g", {0: 6}, Outcome.OK, 9.0, 9.0)],
        ends=[End(0, 6, 9.0, 9.0), End(0, 4, 16.0, 16.0)],
    )
    assert judged(lawful) == set()
    assert [one.number for one in losses.lost(lawful, LOSS)] == [4, 5]
    assert kinds(check(lawful)) >= {"inconsistent_offset", "reread_differs", "end_regression"}


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda left: [one for one in left if one.number != 2], "lost_write"),  # below the end of what is left
        (lambda left: [one for one in left if one.number != 8], "unseen"),  # acknowledged after the cut
        (lambda left: [replace(one, offset=9) if one.number == 7 else one for one in left], "ack_offset_mismatch"),
        (lambda left: [*left, replace(left[0], offset=30)], "duplicate"),
    ],
    ids=["below", "after", "moved", "twice"],
)
def test_what_a_power_cut_may_not_take_is_found(spoil: Callable[[list[Send]], list[Send]], kind: str) -> None:
    history = History(sends=[*BEFORE, *AFTER], polls=[final(*spoil([*BEFORE[:4], *AFTER]))])
    assert kind in judged(history)


def test_a_loss_of_what_was_flushed_is_found() -> None:
    assert [one.kind for one in losses.excess(replace(LOSS, flushed={0: 5}))] == ["lost_flushed"]
    assert not list(losses.excess(LOSS))


def test_a_partition_that_lost_nothing_is_judged_as_ever() -> None:
    other = [record(number, number, 1.0 + number, partition=1) for number in range(3)]
    history = History(sends=[*BEFORE, *AFTER, *other], polls=[final(*BEFORE[:4], *AFTER, *other[:2])])
    assert "unseen" in judged(history)
