"""Stages of the pipeline as processes, started like a user would: `python -m penstock mirror --config FILE`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.harness import until_still

LIMIT_S = 150.0  # of a wait for what must come, on a machine that does much else
STARTED = b" started\n"


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    """A pipeline's file."""
    lines = [name.replace(" ", "\\ ") + f"={value}\n" for name, value in properties.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


class StageProcess:
    """`penstock COMMAND --config FILE`. Its output of all starts is kept in `<folder>/<name>.log`, errors included."""

    def __init__(self, command: str, config: Path, name: str = "", arguments: Sequence[str] = ()) -> None:
        self.command = command
        self.config = config
        self.arguments = list(arguments)
        self.environment: dict[str, str] = {}
        """What the next starts have beside this process's own."""
        self.log_path = config.with_name(f"{name or command}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # where the last start's output begins in the log

    def start(self, failpoints: str = "", arguments: Sequence[str] = (), *, await_started: bool = True) -> StageProcess:
        """Start it, with failpoints armed if any, and wait for its started line unless it is armed."""
        assert not self.running, f"{self.command} runs already"
        self._began = self.log_path.stat().st_size if self.log_path.exists() else 0
        words = [sys.executable, "-m", "penstock", self.command, *self.arguments, "--config", str(self.config)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*words, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, "PENSTOCK_FAILPOINTS": failpoints},
            )
        if await_started and not failpoints:
            self.wait_for(STARTED.decode())
        return self

    @property
    def running(self) -> bool:
        """Whether the process lives (or is stopped by a signal)."""
        return self._process is not None and self._process.poll() is None

    def text(self) -> str:
        """What the last start wrote."""
        with self.log_path.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Wait until the last start has written this text."""
        deadline = time.monotonic() + limit_s
        while text not in self.text():
            assert self.running, f"{self.command} ended before it wrote `{text}`:\n{self.text()}"
            assert time.monotonic() < deadline, f"{self.command} did not write `{text}`:\n{self.text()}"
            time.sleep(0.02)

    def wait_for_state(self, letter: str, limit_s: float = LIMIT_S) -> None:
        """Wait until the process is in a state of proc(5), such as `T` (stopped by a signal)."""
        assert self._process is not None, f"{self.command} has not been started"
        deadline = time.monotonic() + limit_s
        while Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2][0] != letter:
            assert self.running and time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def pause_at(self, failpoint: str, limit_s: float = LIMIT_S) -> StageProcess:
        """Start it and wait until it stands at a failpoint, `name@passage`, by SIGSTOP."""
        name, _, passage = failpoint.partition("@")
        self.start(f"{name}=stop@{passage or 1}", await_started=False)
        self.wait_for_state("T", limit_s)
        return self

    def wait_replaced(self, feed: Callable[[], None], limit_s: float = LIMIT_S) -> str:
        """Let a paused process go on, and wait until it has given up all of its work to another; its last words."""
        self.signal(signal.SIGCONT)
        deadline = time.monotonic() + limit_s
        while self.running:
            assert time.monotonic() < deadline, self.text()
            feed()
            time.sleep(0.2)
        said = [line for line in self.text().splitlines() if line.startswith("penstock: ")]
        assert self.wait() == 4 and len(said) == 1 and "Traceback" not in self.text(), self.text()
        return said[0]

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Wait until it has ended; the exit code (minus the signal's number if one ended it)."""
        assert self._process is not None, f"{self.command} has not been started"
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.command} did not end:\n{self.text()}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the process, and to nothing else. After SIGSTOP it does stand still."""
        assert self._process is not None, f"{self.command} has not been started"
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            until_still(self._process.pid)

    def stop(self) -> int:
        """End it by SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self.running:
            self.signal(signal.SIGKILL)
            self.wait()

    def cpu_seconds(self) -> float:
        """The CPU time that the running process has used so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
