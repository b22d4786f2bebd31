"""Logging for people and machines: one line an event, ids as fields (`broker=1 topic=a partition=0`).

As text the fields stand behind the message; as JSON a line is one object, and they are members of it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


class Fields(logging.LoggerAdapter[logging.Logger]):
    """A logger that appends fixed `name=value` fields to every line."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        fields = " ".join(f"{name}={value}" for name, value in (self.extra or {}).items())
        if args:
            fields = fields.replace("%", "%%")  # `client_id=90%` is no place for an argument
        extra = {"bare": msg, "fields": self.extra or {}}
        self.logger.log(level, f"{msg} {fields}" if fields else msg, *args, extra=extra, **kwargs)


def get(module: str, **fields: object) -> Fields:
    """The logger of a module (its `__name__`), with fields that stand on each of its lines."""
    return Fields(logging.getLogger(module), fields)


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")


class LevelError(ValueError):
    """A log level that there is not."""


class JsonLines(logging.Formatter):
    """A line is one object: `time` (RFC 3339, UTC), `level`, `process`, `logger`, `message`, `error` (a traceback), fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line end."""
        message = str(getattr(record, "bare", record.msg))
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._process,
            "logger": record.name,
            "message": message % record.args if record.args else message,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        for name, value in getattr(record, "fields", {}).items():
            line.setdefault(name, value if isinstance(value, (int, str)) else str(value))
        return json.dumps(line, ensure_ascii=False)


def setup(level: str = "INFO", form: str = "text", process: str = "") -> None:
    """Send every log line to standard error; standard output belongs to a command's answer. Raises LevelError.

    `form` is one of FORMATS; `process` (`broker-1`) stands on each line, so that those of several can be told apart.
    """
    if level.upper() not in LEVELS:
        raise LevelError(f"log level `{level}` is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    named = f"{process.replace('%', '%%')} " if process else ""
    text = logging.Formatter(f"%(asctime)s %(levelname)s {named}%(name)s: %(message)s")
    handler.setFormatter(JsonLines(process) if form == "json" else text)
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
