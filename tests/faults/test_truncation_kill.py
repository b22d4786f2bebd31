"""Killed at each step of a cut, a log is as it was before the cut or as it is after it, never between; and it goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.pyx.log.amendment import NAME, read_amendment
from penstock.pyx.log.logmanager import CUTTING, LogManager
from support.followed import KEY, TOPIC, Batch, Follower, sent
from support.logs import TOPIC_ID

BATCHES = [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (3, 6), (3, 7), (3, 8), (3, 9), (3, 10)]
MORE = [(4, 11), (4, 12), (4, 13), (4, 14), (4, 15), (4, 16)]
STEPS_MAX = 16
"""More than a cut of these logs has."""
CONFIG = {"segment_bytes": 150}


def filled(root: Path, *, noted: bool = True) -> Follower:
    """A follower of several segments, whose checkpoints know all of it, or nothing."""
    log = Follower(root, **CONFIG)
    log.follow(1, 3)
    for offset, batch in enumerate(BATCHES):
        append(log, offset, [batch])
    if noted:
        log.logs.flush(*KEY)
        log.logs.write_checkpoints()
    return log


def append(log: Follower, offset: int, batches: list[Batch]) -> None:
    asked = log.logs.follower_ask(*KEY)
    assert asked is not None and asked.offset == offset
    assert log.logs.follower_append(*KEY, asked, sent(offset, batches), 0) == 0


def run(root: Path, step: int, cut: int, *, noted: bool) -> bool:
    """The life in a forked process that is killed at a step; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            log = filled(root, noted=noted)
            failpoints.arm(f"{CUTTING}=kill@{step}")
            log.logs.truncate(*KEY, cut)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def reopened(root: Path, *, power_cut: bool = False) -> Follower:
    log = Follower.__new__(Follower)
    log.root, log.lives = root, 0
    log.config = {"segment_bytes": 400, "retention_ms": -1, "index_interval_bytes": 100, **CONFIG}
    log.open(clean=False, power_cut=power_cut)
    return log


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "new"])
@pytest.mark.parametrize("cut", [0, 1, 4, 7, 9])
def test_every_step_of_a_cut_can_be_the_last(tmp_path: Path, cut: int, noted: bool) -> None:
    before, after = BATCHES, BATCHES[:cut]
    outcomes = []
    for step in range(1, STEPS_MAX + 1):
        root = tmp_path / str(step)
        killed = run(root, step, cut, noted=noted)
        log = reopened(root, power_cut=step % 2 == 0 and noted)
        content = log.content()
        assert content in (before, after), f"step {step}"
        outcomes.append((killed, content == after))
        amendment = read_amendment(str(log.folder))
        assert amendment is None or amendment.done
        log.follow(1, 4)
        append(log, len(content), MORE)
        content = [*content, *MORE]
        for _ in range(2):
            log.kill()
            assert log.content() == content, f"step {step}"
        log.logs.write_checkpoints()
        assert not (log.folder / NAME).exists()
        log.stop()
        assert log.content() == content, f"step {step}"
        log.logs.delete(*KEY)
    # First the log is as before, then as after; the steps are all there are.
    assert [is_after for _, is_after in outcomes] == sorted(is_after for _, is_after in outcomes)
    assert outcomes[0] == (True, False) and outcomes[1] == (True, True) and outcomes[-1] == (False, True)
    assert sum(killed for killed, _ in outcomes) >= 9


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_a_start_that_is_killed_while_it_finishes_a_cut_is_made_good_by_the_next(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, 2, cut, noted=True)
    removed: list[str] = []
    unlink = Path.unlink

    def unlink_two(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == 2:
            raise InterruptedError(path)
        removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Path, "unlink", unlink_two)
        LogManager().open_replica(TOPIC, TOPIC_ID, 0, str(tmp_path / "0"), CONFIG)
    log = reopened(tmp_path)
    assert log.content() == BATCHES[:cut]
    log.logs.delete(*KEY)
