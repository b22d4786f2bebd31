"""Spark for the nights of one call: started when it is first needed, or while a night is waited for; all tables share it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.pipeline.etl import session
from penstock.pipeline.etl.jvm import JVM


class Engine:
    """A Spark session, or none yet. One that is given is used and left running."""

    def __init__(self, config: Config, time_zone: str, on_step: Callable[[str], None], given: Any = None) -> None:
        self._config = config
        self._time_zone = time_zone
        self._on_step = on_step
        self._given = given
        self._spark = given
        self._starting: Future[Any] | None = None

    def begin(self, folder: Path, offsets: int) -> None:
        """Start Spark beside what the caller does; `started` waits for it, and raises what it failed with."""
        if self._spark is not None or self._starting is not None:
            return
        starting = self._starting = Future[Any]()

        def start() -> None:
            try:
                starting.set_result(self._start(folder, offsets))
            except BaseException as error:  # noqa: BLE001  (it is raised where Spark is needed)
                starting.set_exception(error)

        # A load that gives up doesn't wait for it, so the process's end must not either.
        threading.Thread(target=start, name="spark", daemon=True).start()

    def started(self, folder: Path, offsets: int = 0) -> Any:
        """Spark; the first call starts it, for a night of so many offsets. Raises EtlError."""
        if self._spark is None:
            starting, self._starting = self._starting, None
            self._spark = self._start(folder, offsets) if starting is None else starting.result()
        return self._spark

    def _start(self, folder: Path, offsets: int) -> Any:
        self._on_step("starting Spark")
        spark = session.start(self._config, self._time_zone, folder, offsets)
        self._on_step(f"Spark {spark.version} is up")
        return spark

    def stop(self) -> None:
        """Stop Spark and its JVM, unless it was given; a later night starts both again."""
        if self._given is not None:
            return
        self._starting = None  # what is on its way ends with the JVM
        if self._spark is not None:
            session.stop(self._spark)
            self._spark = None
        JVM.end()
        JVM.forget()
