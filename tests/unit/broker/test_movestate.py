"""The rules of a partition's move, tried out in every order of what may be asked and happen."""

from __future__ import annotations

import itertools
from enum import Enum

import pytest

from penstock.broker.logs.movestate import MoveState, Phase, ask, copied, forget, over


class Folder(Enum):
    """A log folder."""

    A = "a"
    B = "b"
    C = "c"


EVENTS = ("ask a", "ask b", "ask c", "copied", "done", "failed", "forget")


def happens(state: MoveState[Folder] | None, here: Folder, event: str) -> tuple[MoveState[Folder] | None, Folder]:
    """The partition after an event; what can't happen in its state changes nothing."""
    if event.startswith("ask"):
        return ask(state, here, Folder(event[-1])), here
    if event == "forget":
        return forget(state), here
    if state is None:
        return state, here
    if event == "copied":
        return (copied(state) if state.phase is Phase.COPYING else state), here
    if event == "failed":
        return over(state, here), here
    if state.phase is Phase.COPYING:
        return state, here
    return over(state, state.target), state.target


@pytest.mark.parametrize("length", [3, 5])
def test_the_folder_that_was_named_last_counts(length: int) -> None:
    for events in itertools.product(EVENTS, repeat=length):
        state: MoveState[Folder] | None = None
        here = wanted = Folder.A
        for event in events:
            before = state
            state, here = happens(state, here, event)
            if event.startswith("ask"):
                wanted = Folder(event[-1])
            elif event == "forget" or event == "failed":
                # It stays where it is then, or where the move brings it that can't be given up, or goes on to `then`.
                wanted = here if state is None else state.then or state.target
            if before is not None and before.phase is Phase.SWAPPING and event not in ("done", "failed"):
                assert state is not None and state.phase is Phase.SWAPPING, events
                assert state.target == before.target, events  # Its names are being changed: no other way is open.
            assert state is None or state.target != here, events
        while state is not None:  # All goes well from here on.
            state, here = happens(*happens(state, here, "copied"), "done")
        assert here == wanted, events


def test_a_partition_that_is_gone_does_not_go_on() -> None:
    state = ask(copied(MoveState(Phase.COPYING, Folder.B)), Folder.A, Folder.C)
    assert state is not None and state.then is Folder.C
    assert over(state, None) is None
