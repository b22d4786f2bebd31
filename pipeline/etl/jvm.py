"""Spark's JVM: started here rather than by PySpark, so that it can be ended, and asked why it ended, at any moment."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.pipeline.etl.children import CHILDREN
from penstock.pipeline.etl.errors import EtlError

OUTPUT = "jvm.log"
# PySpark connects to a JVM that these name, instead of starting one.
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
POLL_S = 0.05
GONE_WITHIN_S = 2.0  # a connection ends a moment before its process does
EXIT_WITHIN_S = 10.0
# Frames of a stack trace, and lines that stand beside one that says what is wrong.
SAYS_NOTHING = ("at ", "... ", "WARNING: ", "Picked up ", "Error: Could not create the Java", "Error: A fatal exception")
_THROWN = re.compile(r'^(?P<how>Exception in thread "[^"]*" |Caused by: )?(?:[\w$]+\.)+[\w$]+: (?P<words>.+)')


class Jvm:
    """The JVM that PySpark talks to; PySpark can have one a process. One that another process gave isn't ours to end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output = Path(OUTPUT)
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._starts = threading.Lock()
        self._connected = False

    def start(self, settings: Mapping[str, str], folder: Path) -> None:
        """Start the JVM and connect PySpark, unless there is one. What it says goes to a file in the folder.

        Raises EtlError with the reason that Spark or Java gave.
        """
        with self._starts:
            self._start(settings, folder)

    def _start(self, settings: Mapping[str, str], folder: Path) -> None:
        from pyspark import SparkContext

        if SparkContext._gateway is not None or PORT in os.environ:
            return
        self._connected = False
        self._output = folder / OUTPUT
        self._private = tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True)
        with self._private as private:
            info = Path(private) / "connection"
            with self._output.open("wb") as output:
                self._process = CHILDREN.start(
                    _command(settings),
                    stdin=subprocess.PIPE,  # the JVM ends when it is closed, also by kill -9 of this process
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)},
                )
            while not info.is_file():
                if self._process.poll() is not None:
                    raise EtlError(f"Spark did not start: {self._reason()}")
                time.sleep(POLL_S)
            port, length = struct.unpack_from(">ii", told := info.read_bytes())
            os.environ |= {PORT: str(port), SECRET: told[8 : 8 + length].decode()}
        try:
            SparkContext._ensure_initialized()
            self._connected = True
        finally:
            del os.environ[PORT], os.environ[SECRET]

    def end(self) -> None:
        """Let the JVM end by itself, as it does when nobody is left to talk to it; no trace of it stays then, and another
        one may be started."""
        if self._private is not None:
            self._private.cleanup()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_WITHIN_S if self._connected else 0)  # one that starts doesn't look at it yet
            CHILDREN.end_one(self._process)

    def forget(self) -> None:
        """Let PySpark forget a JVM that has ended: it would talk to that one for ever, and start no other."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if self._process is None or self._process.poll() is None:
            return
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        SparkContext._active_spark_context = SparkSession._instantiatedSession = None
        if gateway is not None:
            with contextlib.suppress(Exception):  # nobody is there to hear it
                gateway.shutdown()

    def gone(self) -> str:
        """How the JVM ended, in words; empty when it is there, or isn't ours."""
        if self._process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_WITHIN_S)
        code = self._process.returncode
        if code is None:
            return ""
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"{how}, and what it said last is in `{self._output}` and `spark.log` beside it"

    def _reason(self) -> str:
        return reason(self._output.read_text(encoding="utf-8", errors="replace")) or f"it said nothing: {self.gone()}"


def check_java() -> None:
    """See that there is a Java for Spark. Raises EtlError."""
    if PORT in os.environ:
        return
    install = "install one of version 17 or 21 (Debian: `apt install default-jre-headless`)"
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(Path(home) / "bin" / "java", os.X_OK):
        raise EtlError(f"Spark needs Java, but JAVA_HOME is `{home}`, which has no bin/java: correct it, or {install}")
    if not home and shutil.which("java") is None:
        raise EtlError(f"Spark needs Java, and none was found (no `java` in PATH, no JAVA_HOME): {install}")


def reason(said: str) -> str:
    """Of what a JVM said before it ended, the line that names the cause; empty when it said nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(SAYS_NOTHING)]
    thrown = [match for match in map(_THROWN.match, lines) if match is not None]
    caused = [match for match in thrown if (match["how"] or "").startswith("Caused")]
    if thrown:
        return (caused or thrown)[-1]["words"]
    return next((line for line in lines if line.startswith("Error")), lines[-1] if lines else "")


def _command(settings: Mapping[str, str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    return command + shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))


JVM = Jvm()
