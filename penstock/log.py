"""Logging for people and machines: one line an event, ids as fields (`broker=1 topic=a partition=0`)."""

from __future__ import annotations

import logging
import sys
from typing import Any


class Fields(logging.LoggerAdapter[logging.Logger]):
    """A logger that appends fixed `name=value` fields to every line."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        fields = " ".join(f"{name}={value}" for name, value in (self.extra or {}).items())
        if args:
            fields = fields.replace("%", "%%")  # `client_id=90%` is no place for an argument
        self.logger.log(level, f"{msg} {fields}" if fields else msg, *args, **kwargs)


def get(module: str, **fields: object) -> Fields:
    """The logger of a module (its `__name__`), with fields that stand on each of its lines."""
    return Fields(logging.getLogger(module), fields)


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class LevelError(ValueError):
    """A log level that there is not."""


def setup(level: str = "INFO") -> None:
    """Send every log line to standard error; standard output belongs to a command's answer. Raises LevelError."""
    if level.upper() not in LEVELS:
        raise LevelError(f"log level `{level}` is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
