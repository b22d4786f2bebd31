"""ZooKeeper for benchmarks, tests and the demo: the server whose jars Kafka 3.9 brings, on a port of 127.0.0.1.

`python -m penstock.bench.zookeeper DIR` runs one for a program that has no other way to it: it prints `zookeeper started on
HOST:PORT` once it serves, and ends by SIGTERM, or with its input.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from penstock.bench.apache_kafka import START_LIMIT_S, kafka_classpath
from penstock.ports import hold_ports

VERSION = "3.9.1"
"""Of the Kafka that brings it: ZooKeeper 3.8."""
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM = ("-Xmx512M", "-Xms512M", "-Djava.awt.headless=true")
# As Debian's package has them: a session of 6 s ends after 6 to 8 s.
SETTINGS = "tickTime=2000\ninitLimit=10\nsyncLimit=5\n"
LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class ZooKeeper:
    """One server. Folder, port and data stay over `kill()` and `start()`."""

    def __init__(
        self, folder: Path, *, port: int = 0, number: int = 1, settings: str = SETTINGS, jvm: Sequence[str] = JVM
    ) -> None:
        """Write its files. settings: more lines of its configuration, an ensemble's too; number: of the server in that."""
        self.folder = folder
        self.port = port or hold_ports(1)[0]
        self.process: subprocess.Popen[bytes] | None = None
        self._jvm = list(jvm)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(f"{number}\n")
        (folder / "log4j.properties").write_text(LOG4J)
        (folder / "zoo.cfg").write_text(
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\ndataDir={folder / 'data'}\nadmin.enableServer=false\n"
            f"maxClientCnxns=0\n4lw.commands.whitelist=srvr\n{settings}"
        )

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        """Start it and don't wait."""
        options = [*self._jvm, f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["java", *options, "-cp", kafka_classpath(VERSION), MAIN, str(self.folder / "zoo.cfg")],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def start(self) -> Self:
        """Start it and wait until it serves. Raises RuntimeError with the log's end."""
        self.launch()
        assert self.process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while not self.serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start: {self.log_text()[-3000:]}")
            time.sleep(0.05)
        return self

    def mode(self) -> str:
        """`standalone`, `leader`, `follower`; "" while it doesn't serve."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as asked:
            asked.sendall(b"srvr")
            said = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
            return said.partition("Mode: ")[2].split("\n")[0]
        return ""

    def serves(self) -> bool:
        """Whether clients get answers."""
        return self.mode() != ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill it and wait for its end."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def log_text(self) -> str:
        """What it has logged."""
        return (self.folder / "server.log").read_text(errors="replace")


def main() -> None:
    """Run one server in the folder that the command line names."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = ZooKeeper(Path(sys.argv[1]))
    try:
        print(f"zookeeper started on {server.start().address}", flush=True)
        sys.stdin.read()
    finally:
        server.kill(signal.SIGTERM)


if __name__ == "__main__":
    main()
