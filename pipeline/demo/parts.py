"""The demo's processes: started, watched, killed when asked for, started again."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STARTED = re.compile(r"started on \S+:(\d+), http on (\S+)")
CLUSTER_STARTED = re.compile(r"cluster started on (\S+)")
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


# Of few partitions each, so that brokers start quickly.
SMALL = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")


class BrokerPart(Part):
    """A broker: takes any free port at its first start and the same one later."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, [], folder)
        self.data = folder / name
        self.port = 0
        self.http = ""
        """Where it serves its figures, HOST:PORT; another one after each start."""

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it and wait until it serves. Raises PartError."""
        self.arguments = ["-m", "penstock", "broker", "--listen", self.bootstrap, "--data", str(self.data)]
        for setting in (*SMALL, "penstock.http.listen=127.0.0.1:0"):
            self.arguments += ["--set", setting]
        await super().start()
        while line := await self.line():
            match = STARTED.search(line)
            if match:
                self.port, self.http = int(match[1]), match[2]
                return
        raise PartError(f"broker {self.name} did not start:\n{self.log_tail()}")


class ClusterPart(Part):
    """Three brokers as one cluster, in one process: each of `kills` was one of them, which has come back."""

    ROLES = ("leader {topic} 0", "controller", "leader __transaction_state 0", "leader __consumer_offsets 0")
    http = ""
    """Its brokers serve no figures."""

    def __init__(self, name: str, folder: Path, topic: str, kill_done: Callable[[str], None]) -> None:
        super().__init__(name, ["-m", "penstock.broker.clusterprocess", str(folder / name)], folder)
        for setting in (*SMALL, "min.insync.replicas=2"):
            self.arguments += ["--set", setting]
        self.bootstrap = ""
        """The addresses of all brokers."""
        self._roles = itertools.cycle(role.format(topic=topic) for role in self.ROLES)
        self._kill_done = kill_done
        self._killing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it serves. Raises PartError."""
        await super().start()
        match = CLUSTER_STARTED.match(await self.line())
        if match is None:
            raise PartError(f"the cluster {self.name} did not start:\n{self.log_tail()}")
        self.bootstrap = match[1]

    def kill(self) -> None:
        """Kill the broker that has the next role: a leader, the controller, a coordinator; not while one is away."""
        if self.running and (self._killing is None or self._killing.done()):
            self._killing = asyncio.ensure_future(self._kill())

    async def _kill(self) -> None:
        await self.tell(next(self._roles))
        if said := await self.line():
            self.kills += 1
            self._kill_done(f"[red]{self.name}: {said}[/red]")

    async def stop(self) -> None:
        """As `Part.stop`."""
        await super().stop()
        if self._killing is not None:
            await asyncio.wait([self._killing])
