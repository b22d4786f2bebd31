"""Programs that work between brokers, ours and others': each a process that can be held while its input is filled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import process
from penstock.bench.programs import ProgramError
from penstock.bench.sides import BEFORE, penstock_of
from penstock.bench.world import World
from penstock.broker.process import PROGRAM
from penstock.pyx.wire import messages
from penstock.pyx.wire.connection import WireConnection

STOP_LIMIT_S = 30.0
LIMIT_S = 600.0  # for whatever a stage is asked to do
LOOK_S = 0.02  # how often its output is looked at
QUIET_S = 0.3  # an output that doesn't grow for so long is whole
LIST_OFFSETS_VERSION = 5
LATEST = -1


class Stage:
    """A program with a log file of its own."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._command = list(command)
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it and don't wait."""
        with self._log_path.open("ab") as log:
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # a start must not measure Python's compiler
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    @property
    def pid(self) -> int:
        """Of the process while it runs."""
        assert self._process is not None, "launch it first"
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds since its start, user and system, all threads."""
        return process.cpu_s(self.pid)

    def rss_mib(self) -> float:
        """Resident memory."""
        return process.rss_mib(self.pid)

    def check(self) -> None:
        """Raises ProgramError with the log's end when it has ended."""
        if self._process is not None and self._process.poll() is not None:
            said = self._log_path.read_text(errors="replace").strip()[-1500:]
            raise ProgramError(f"{self._log_path.name} ended with exit code {self._process.returncode}: {said}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let it do nothing (SIGSTOP) meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it cleanly and wait; harmless when it is gone."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a JVM whose brokers are gone tries on
                self._process.wait(STOP_LIMIT_S)
        self.kill()


def penstock_stage(world: World, side: str, command: str, properties: Mapping[str, object]) -> Stage:
    """`penstock mirror` or `dedupe` of this checkout, or of the one before, with a pipeline's file of its own."""
    config = world.path(command)
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    program = [str(penstock_of(world.before))] if side == BEFORE and world.before else PROGRAM
    return Stage([*program, command, "--config", str(config)], config.with_suffix(".log"))


class Output:
    """A topic that a stage writes to, seen as its readers see it: what is committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        own = messages.ListOffsetsRequest
        wanted = [own.ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in range(partitions)]
        topics = [own.ListOffsetsTopic(name=topic, partitions=wanted)]
        self._request = own(replica_id=-1, isolation_level=1, topics=topics)

    def end(self) -> int:
        """The last stable offsets of all partitions together: committed records, and a marker for each transaction."""
        with WireConnection(self._bootstrap) as connection:
            answer = connection.ask(self._request, LIST_OFFSETS_VERSION)
        return sum(max(partition.offset, 0) for partition in answer.topics[0].partitions)

    def grown(self, stage: Stage, end: int) -> None:
        """Wait until it ends there or later. Raises ProgramError when the stage ends before, or takes minutes."""
        until(stage, lambda: self.end() >= end)


def until(stage: Stage, reached: Callable[[], bool]) -> None:
    """Wait until a stage has come so far. Raises ProgramError when it ends before, or takes minutes."""
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        stage.check()
        if time.monotonic() > deadline:
            raise ProgramError(f"not done in {LIMIT_S:g} s: {stage.pid}")
        time.sleep(LOOK_S)


@dataclass(frozen=True)
class Done:
    """What a stage took for its input: seconds until its output was there, CPU seconds, transactions."""

    seconds: float
    cpu_s: float
    transactions: int


def through(stage: Stage, output: Output, records: int, fill: Callable[[], object]) -> Done:
    """Let a stage that waits for input work on what `fill` puts there while it is held, which `records` of output follow."""
    before = output.end()
    with stage.held():
        fill()
        cpu_s, started = stage.cpu_s(), time.monotonic()
    output.grown(stage, before + records)
    seconds, end = time.monotonic() - started, output.end()
    while True:  # the last transactions, whose markers count as records until then
        time.sleep(QUIET_S)
        quiet, end = end == (later := output.end()), later
        if quiet:
            return Done(seconds, stage.cpu_s() - cpu_s, end - before - records)
