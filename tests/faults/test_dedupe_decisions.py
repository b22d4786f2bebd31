"""An operator's decision for dedupe is noted and takes effect in one transaction, or not at all; also while the stage runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock.pipeline.stages.decision  # noqa: F401  (declares its failpoints)
from penstock import failpoints
from support.dedupe_world import World
from support.failpoint_cells import cells
from support.harness import BrokerProcess
from support.kafka_jars import ApacheKafka
from support.stages import StageProcess

DECLARED = list(failpoints.declared("stage."))  # test_mirror_decisions.py has the mirror's commands


@pytest.mark.parametrize(("failpoint", "role"), cells(DECLARED, {(name, "ours") for name in DECLARED}, ("ours", "both")))
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_command_that_did_not_commit_leaves_nothing(
    tmp_path: Path,
    shared_broker: BrokerProcess,
    kafka_as: Callable[[str], dict[str, ApacheKafka]],
    failpoint: str,
    role: str,
    fault: str,
) -> None:
    """Killed before the commit, or paused there until a worker has taken the partition."""
    cluster = shared_broker if role == "ours" else kafka_as("target")["target"]
    with World(tmp_path, cluster, session_timeout_ms=300) as w:
        w.fill()
        w.run_once()
        w.fill(1)
        before = w.position()
        command = StageProcess("dedupe", w.config, "command", ["position", f"{w.topic}:0", "--at", "0", "--because", "a test"])
        try:
            if fault == "kill":
                command.start(f"{failpoint}=kill")
                assert command.wait() == -signal.SIGKILL, command.text()
                assert w.position() == before
            else:
                command.pause_at(failpoint)
            w.stage.start()
            w.await_done()
            if fault == "pause":
                command.signal(signal.SIGCONT)
                assert command.wait() == 1
                said = command.text().splitlines()[-1]  # it says before that it waits
                assert f"another process took over {w.topic}-0 before this was committed" in said
            w.fill(1)
            w.finish()
            assert w.position()[1]["decisions"] == 0 and w.quarantined() == []
        finally:
            command.kill()
