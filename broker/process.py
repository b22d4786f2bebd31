"""`penstock broker` as a process that its caller starts, kills and stops: for programs that measure or test a broker.

Inside the process of the caller it is `penstock.broker.Broker`.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.ports import HeldPort

PROGRAM = (sys.executable, "-m", "penstock")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
STARTED = re.compile(rb"penstock broker (-?\d+) started on (\S+):(\d+)(?:, http on (\S+))?\n")


class BrokerProcess:
    """`penstock broker` as a process of its own, on 127.0.0.1.

    The first `start()` takes any free port; later ones (after `kill()` or `stop()`) the same port and folder. No other process
    is given that port meanwhile.
    Standard error goes to `<data>.log` beside the data folder, `log_text()` reads it. `program` is the `penstock` that is
    started: this one, if nothing else is said.
    """

    def __init__(
        self,
        data: Path,
        properties: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.program = list(program)
        self.data = data
        self.properties = dict(properties or {})
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.port = 0
        self._held: HeldPort | None = None
        self.http = ""
        """Where it serves figures and health, if the property `penstock.http.listen` says so."""
        self.log_path = data.with_name(data.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """The command line of the next start."""
        given = [f"{name}={_text(value)}" for name, value in self.properties.items()]
        sets = [word for pair in given for word in ("--set", pair)]
        listen = f"127.0.0.1:{self.port}"
        base = [*self.program, "broker", "--listen", listen, "--data", str(self.data)]
        return [*base, *sets, *self.arguments]

    def start(self) -> Self:
        """Start it and wait until it serves."""
        if not self.port:
            self._held = HeldPort()
            self.port = self._held.number
        self.launch()
        self.port = self._await_started()
        return self

    def launch(self) -> None:
        """Start it and don't wait; a first launch needs `port` to be set, and its first line stays unread."""
        assert not self.running, "the broker runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def _await_started(self) -> int:
        process = self._process
        assert process is not None and process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        said = b""
        while time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.5)[0]:
                piece = os.read(process.stdout.fileno(), 4096)
                said += piece
                if match := STARTED.search(said):
                    self.http = (match[4] or b"").decode()
                    return int(match[3])
                if not piece:
                    break
        process.kill()
        code = process.wait()
        raise AssertionError(f"the broker did not start (exit code {code}), its log:\n{self.log_text()}")

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """End it by SIGTERM; returns the exit code (0 = a clean stop)."""
        self.signal(signal.SIGTERM)
        return self._reap()

    def restart(self) -> Self:
        """Stop cleanly and start again."""
        assert self.stop() == 0, self.log_text()
        return self.start()

    def signal(self, number: int) -> None:
        """Send a signal to the process, and to nothing else."""
        assert self._process is not None, "the broker has not been started"
        self._process.send_signal(number)

    def _reap(self) -> int:
        process = self._process
        assert process is not None
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not stop, its log:\n{self.log_text()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        self._process = None
        return code

    def close(self) -> None:
        """Make sure that it is gone; for the end of a test."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._reap()

    def log_text(self) -> str:
        """What it logged so far, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
