"""The demo's processes: started, watched, killed when asked for, started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.ports import hold_ports

STARTED = re.compile(r"started on \S+, http on (\S+)")
STOP_TIMEOUT_S = 30


class PartError(RuntimeError):
    """A part ended or failed to start when it should have run; the text says where its log is."""


class Part:
    """One process with a log file of its own, and how often the demo has killed it."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.log_path = folder / f"{name}.log"
        self.kills = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process."""
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
                limit=1 << 20,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.returncode is None

    async def line(self) -> str:
        """The next line of its standard output; empty when it has ended."""
        assert self.process is not None and self.process.stdout is not None
        return (await self.process.stdout.readline()).decode(errors="replace").strip()

    async def tell(self, line: str) -> None:
        """Write a line to its standard input; a part that has just died is noticed by its reader."""
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            await self.process.stdin.drain()
        except ConnectionError:
            pass

    def kill(self) -> None:
        """kill -9 the process and whatever it started (Spark's JVM among it)."""
        if self.running:
            assert self.process is not None
            self.kills += 1
            os.killpg(self.process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, then wait; SIGKILL when it takes too long."""
        if not self.running:
            return
        assert self.process is not None
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    def log_tail(self) -> str:
        """The last lines of its log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])


async def killed(part: Part) -> None:
    """Wait for the end of a part that runs. Raises PartError if it was no kill of the demo."""
    kills = part.kills
    code = await part.wait()
    if part.kills == kills:
        raise PartError(f"{part.name} ended by itself (exit code {code}):\n{part.log_tail()}")


# Of few partitions each, so that brokers start quickly.
SMALL = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")


class BrokerPart(Part):
    """A broker, on a port that no other process is given while the broker is down. options: more words of its command line."""

    def __init__(self, name: str, folder: Path, *options: str) -> None:
        super().__init__(name, [], folder)
        self.data = folder / name
        (self.port,) = hold_ports(1)
        self.http = ""
        """Where it serves its figures, HOST:PORT; another one after each start."""
        self._options = options

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def nodes(self) -> Sequence[BrokerPart]:
        """The brokers of its cluster: itself."""
        return [self]

    async def start(self) -> None:
        """Start it and wait until it serves; again, where the demo kills it meanwhile. Raises PartError."""
        self.arguments = ["-m", "penstock", "broker", "--listen", self.bootstrap, "--data", str(self.data), *self._options]
        for setting in (*SMALL, "penstock.http.listen=127.0.0.1:0"):
            self.arguments += ["--set", setting]
        while True:
            kills = self.kills
            await super().start()
            while line := await self.line():
                match = STARTED.search(line)
                if match:
                    self.http = match[1]
                    return
            await self.wait()
            if self.kills == kills:
                raise PartError(f"broker {self.name} did not start:\n{self.log_tail()}")

    async def keep(self) -> None:
        """Start it again whenever the demo has killed it. Raises PartError when it has ended by itself."""
        while True:
            await killed(self)
            await self.start()
