"""A network thread that is caught in a loop is told from one that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.broker.upkeep import pulse
from penstock.broker.upkeep.pulse import CAUGHT, HELD, MOVES, Beats
from penstock.pyx.net.border import ThreadFigures
from support.patience import until


class Threads:
    """In place of a data plane: a network thread that does what a test says, and how far it is."""

    def __init__(self) -> None:
        self.beats = 1
        self.waiting = False

    def threads(self) -> list[ThreadFigures]:
        return [ThreadFigures("network-0", 0, self.beats, self.waiting, {}), ThreadFigures("worker-0", 0, 7, False, {})]


@contextmanager
def running(work: Any) -> Iterator[None]:
    """A thread of a network thread's name that calls `work` again and again."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=run, name="network-0")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> tuple[Threads, Any]:
    monkeypatch.setattr(pulse, "STANDS_S", 0.2)
    monkeypatch.setattr(pulse, "RUNS_SHARE", 0.02)  # What a thread of a test gets on a machine on which many others run.
    threads = Threads()
    planes: Any = threads
    return threads, Beats(planes)


def state(found: Beats) -> str:
    found.look()
    assert found.states.keys() == {"network-0"}
    return found.states["network-0"]


def test_a_thread_that_runs_and_does_not_come_round_is_caught(beats: tuple[Threads, Any]) -> None:
    threads, found = beats
    with running(lambda: None):
        until(lambda: state(found) == CAUGHT, "a thread that is caught")
        assert not found.are_alive()
        threads.beats += 1
        assert state(found) == MOVES and found.are_alive()


def test_a_thread_that_sleeps_is_held(beats: tuple[Threads, Any]) -> None:
    threads, found = beats
    with running(lambda: threading.Event().wait(0.1)):
        until(lambda: state(found) == HELD, "a thread that is held")
        assert found.are_alive()
        threads.waiting = True
        assert state(found) == MOVES


def test_each_thread_tells_for_how_long_it_has_been_at_one_piece_of_work(beats: tuple[Threads, Any]) -> None:
    threads, found = beats
    found.look()
    assert found.stands_s == {"network-0": 0, "worker-0": 0}
    until(lambda: found.look() or min(found.stands_s.values()) > 0.1, "threads that stand still")
    threads.beats += 1
    found.look()
    assert found.stands_s["network-0"] == 0 < found.stands_s["worker-0"]
    threads.waiting = True
    until(lambda: found.look() or found.stands_s["worker-0"] > 0.5, "a worker at its work")
    assert found.stands_s["network-0"] == 0


def test_a_thread_that_nobody_knows_is_not_called_caught(beats: tuple[Threads, Any]) -> None:
    _, found = beats
    with running(lambda: None), running(lambda: None):  # two brokers in a process
        until(lambda: state(found) == HELD, "a thread that stands still")
