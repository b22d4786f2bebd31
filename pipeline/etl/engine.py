"""Spark for the nights of one call: started when it is first needed, or while a night is waited for; all tables share it."""

from __future__ import annotations

from collections.abc import Callable
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

    def started(self, folder: Path, offsets: int = 0) -> Any:
        """Spark; the first call starts it, for a night of so many offsets. Raises EtlError."""
        if self._spark is None:
            self._on_step("starting Spark")
            self._spark = session.start(self._config, self._time_zone, folder, offsets)
            self._on_step(f"Spark {self._spark.version} is up")
        return self._spark

    def stop(self) -> None:
        """Stop Spark and its JVM, unless it was given; a later night starts both again."""
        if self._given is not None:
            return
        if self._spark is not None:
            session.stop(self._spark)
            self._spark = None
        JVM.end()
        JVM.forget()
