"""A standalone Spark cluster: a master and two workers of PySpark's own jars, whose executors are processes of their own.

They run outside of the checkout, on an interpreter that has no Penstock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from penstock.ports import hold_ports

LIMIT_S = 120.0
HEAP = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# What the driver and its executors are told: small ones, and a driver that they reach.
PROPERTIES = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": HEAP,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class SparkCluster:
    """Started when made; `stop` ends all of its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        port = hold_ports(1)[0]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for _ in range(2):
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m", self.master)
            self._start("worker.Worker", "--work-dir", str(folder / "work"), *words)
        deadline = time.monotonic() + LIMIT_S
        while self.log().count("Registering worker") < 2:
            assert time.monotonic() < deadline and all(one.poll() is None for one in self._running), self.log()
            time.sleep(0.05)

    def _start(self, name: str, *words: str) -> None:
        home = Path(_find_spark_home())
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK", "PYSPARK"))}
        kept |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": HEAP, "PYSPARK_PYTHON": "/usr/bin/python3"}
        with (self._folder / "spark-cluster.log").open("ab") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=kept,
            )
        self._running.append(process)

    def log(self) -> str:
        """What master and workers have written."""
        return (self._folder / "spark-cluster.log").read_text(errors="replace")

    def executors(self) -> list[int]:
        """The pids of the executors that live now."""
        found = []
        for worker in self._running[1:]:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{worker.pid}/task").iterdir():
                    for child in (task / "children").read_text().split():
                        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                            found.append(int(child))
        return found

    def stop(self) -> None:
        """End workers, their executors and the master."""
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in reversed(self._running):
            process.kill()
            process.wait()
