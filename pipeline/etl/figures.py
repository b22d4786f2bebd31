"""The figures of nights: what became of the last one of each table, how fresh the table is, when the next one is due.

`penstock etl --follow` shows them over HTTP. Every load writes them into a file for node_exporter's textfile collector once it
has ended, however it did; one that is killed leaves the file of before, whose times then grow old. What a load doesn't know
(when a night was loaded that it finds loaded) it takes over from that file, and of tables that aren't its own whatever the file
has when it writes: another load may have written it meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from penstock import log
from penstock.config import ConfigError
from penstock.durable import replace_file
from penstock.errors import os_error_text
from penstock.metrics import Family, Page
from penstock.pipeline.etl.errors import EtlError, Incomplete
from penstock.pipeline.etl.load import Outcome
from penstock.pipeline.etl.night import Night

TABLE = ("table",)
LOADED_AT = Family("penstock_night_last_loaded_timestamp_seconds", "gauge", "When a night was loaded last.", TABLE)
LOADED_TO = Family(
    "penstock_night_last_loaded_day_timestamp_seconds", "gauge", "The end of the newest night that the table has.", TABLE
)
ROWS = Family("penstock_night_rows", "gauge", "Rows of the night that was loaded last.", TABLE)
REJECTS = Family("penstock_night_rejects", "gauge", "Rejects of the night that was loaded last.", TABLE)
DURATION = Family(
    "penstock_night_duration_seconds", "gauge", "How long the night took that was loaded last, with waiting.", TABLE
)
EXIT_CODE = Family(
    "penstock_night_exit_code",
    "gauge",
    "How the last try of a night ended, as an exit code of `penstock etl`: 0 is loaded.",
    TABLE,
)
DUE = Family("penstock_night_due_timestamp_seconds", "gauge", "When the next night is over, and may be loaded.", TABLE)
LOADED_ROWS = Family("penstock_night_loaded_rows", "counter", "Rows of all nights that were loaded, or loaded again.", TABLE)
LOADED_REJECTS = Family("penstock_night_loaded_rejects", "counter", "Rejects of these.", TABLE)
WAITING = Family(
    "penstock_night_waiting",
    "gauge",
    "1 for what the next night waits for: its day's end, its arrival, another try.",
    (*TABLE, "reason"),
)
KEPT = (LOADED_AT, LOADED_TO, ROWS, REJECTS, DURATION, EXIT_CODE, DUE, LOADED_ROWS, LOADED_REJECTS)
FAMILIES = (*KEPT, WAITING)
REASONS = ("day", "arrival", "retry")

UNNAMED = "penstock.etl"  # the table of the plain keys; no named one is called so, since names have no dot
INTERRUPTED = 128  # and the signal's number
_LINE = re.compile(r'(?P<family>\w+)\{table="(?P<table>(?:[^"\\]|\\.)*)"\} (?P<number>\S+)')
_log = log.get(__name__)


@dataclass
class TableFigures:
    """Those of one table."""

    numbers: dict[Family, float] = field(default_factory=dict)
    is_ours: bool = False
    """This process has tried it, or asked for its next night."""
    is_open: bool = True
    """A night was begun, and nobody knows yet what becomes of it."""
    reason: str = ""
    """What the next night waits for: empty, or one of REASONS."""
    is_asked: bool = False
    """Its next night was asked for."""
    said: str = ""
    """Why its last try failed; empty: it didn't."""


class NightFigures:
    """Of the tables of one pipeline. A Source, and what `--follow` says of its health."""

    def __init__(self, tables: Iterable[str], zone: ZoneInfo, textfile: str) -> None:
        """`tables` are all that the pipeline's file has; `textfile` is empty if nobody wants one."""
        self._zone = zone
        self._path = Path(textfile) if textfile else None
        self._tables = {name: TableFigures() for name in tables}
        self._writing = threading.Lock()
        self._chosen: list[str] = []
        self._waits: Callable[[str], bool] = lambda name: False
        self._take_over(self._tables, KEPT)

    @contextlib.contextmanager
    def until_the_end(self, chosen: Iterable[str], first: Night | None) -> Iterator[None]:
        """These tables are loaded in the body; its end is the end of nights that it has begun, or didn't come to. A table that
        was never loaded is late from the end of `first` on, the first of these nights."""
        self._chosen, code = list(chosen), 1
        new = [name for name in self._chosen if DUE not in self._tables[name].numbers]
        if first is not None and new:
            for name in new:
                self._tables[name].numbers[DUE] = first.end_ms(self._zone) / 1000
            self._write()
        try:
            yield
            code = 0
        except ConfigError:
            code = 2
            raise
        finally:
            self.end(code)

    def watch(self, waits: Callable[[str], bool]) -> None:
        """`waits` says of a table whether it waits for its night's arrival."""
        self._waits = waits

    def begin(self, name: str) -> None:
        """A night of the table is tried."""
        table = self._tables[name]
        table.is_ours, table.is_open, table.reason = True, True, ""

    def done(self, name: str, outcome: Outcome, newest: Night | None) -> None:
        """A night is loaded, or is there already; `newest` is the newest that the table has."""
        table, commit = self._tables[name], outcome.commit
        if outcome.did != "already":
            table.numbers[LOADED_AT] = time.time()
            table.numbers[DURATION] = outcome.seconds
            self._take_over([name], (LOADED_ROWS, LOADED_REJECTS))
            for family, count in ((LOADED_ROWS, commit.rows), (LOADED_REJECTS, commit.rejects)):
                table.numbers[family] = table.numbers.get(family, 0) + count
        table.numbers |= {ROWS: commit.rows, REJECTS: commit.rejects}
        self._ended(name, 0, newest)

    def looked(self, name: str, newest: Night | None) -> None:
        """Something else was done to the table, and that is the newest night that it has now."""
        self._ended(name, 0, newest)

    def failed(self, name: str, error: EtlError, newest: Night | None) -> None:
        """A night is not loaded."""
        is_incomplete = isinstance(error, Incomplete)
        self._tables[name].reason = "arrival" if is_incomplete else "retry"
        self._tables[name].said = str(error)
        self._ended(name, 3 if is_incomplete else 1, newest)

    def next(self, name: str, night: Night, reason: str, newest: Night | None) -> None:
        """The night that comes next, and what it waits for: nothing, its day's end, or another try. `newest` is the newest that
        the table has."""
        table = self._tables[name]
        table.is_ours, table.reason, table.is_asked = True, reason, True
        due_s = night.end_ms(self._zone) / 1000
        # Each start would have a table that was never loaded begin with another night.
        table.numbers[DUE] = due_s if newest is not None else min(due_s, table.numbers.get(DUE, due_s))
        if newest is not None:
            table.numbers[LOADED_TO] = newest.end_ms(self._zone) / 1000

    def end(self, code: int) -> None:
        """The process ends; the nights that it has begun didn't get anywhere."""
        for name in self._chosen:
            if self._tables[name].is_open:
                self._tables[name].is_ours = True
                self._tables[name].numbers[EXIT_CODE] = code
        self._write()

    def _ended(self, name: str, code: int, newest: Night | None) -> None:
        table = self._tables[name]
        table.is_ours, table.is_open, table.is_asked = True, False, True
        table.numbers[EXIT_CODE] = code
        if code == 0:
            table.reason = table.said = ""
        if newest is not None:
            table.numbers[LOADED_TO] = newest.end_ms(self._zone) / 1000
            table.numbers[DUE] = newest.next.end_ms(self._zone) / 1000
        self._write()

    # Who looks at them

    async def metrics(self, page: Page) -> None:
        """See Source."""
        self._fill(page)

    def _fill(self, page: Page) -> None:
        for family in KEPT:
            page.family(family)
            for name, table in self._tables.items():
                if family in table.numbers:
                    page.sample((_label(name),), table.numbers[family])
        page.family(WAITING)
        for name, table in self._tables.items():
            reason = "arrival" if self._waits(name) else table.reason
            for each in REASONS:
                page.sample((_label(name), each), int(each == reason))

    def live(self) -> tuple[bool, dict[str, Any]]:
        """The loop answers this, so it turns; Spark, Delta and files have threads of their own."""
        return True, {}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Each table was asked once for its next night. One whose night fails is tried again: the body says why."""
        failed = {_label(name): self._tables[name].said for name in self._chosen if self._tables[name].said}
        unasked = [_label(name) for name in self._chosen if not self._tables[name].is_asked]
        return not unasked, {"unasked": unasked, "failed": failed}

    # The file

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            with self._writing, _alone_in(self._path.parent):
                self._take_over([name for name, table in self._tables.items() if not table.is_ours], KEPT)
                page = Page()
                self._fill(page)
                # Its reader is another user, whatever this one's umask is.
                replace_file(self._path, page.encode(), readable=True)
        except OSError as error:
            _log.warning("the figures of nights can't be written to `%s`: %s", self._path, os_error_text(error))

    def _take_over(self, tables: Iterable[str], kept: Iterable[Family]) -> None:
        """Take some figures of tables over from the file, where another load has left them."""
        families = {f"{family.name}{'_total' * (family.kind == 'counter')}": family for family in kept}
        names = {_label(name): name for name in tables}
        for found in self._lines():
            family, name = families.get(found["family"]), names.get(re.sub(r"\\(.)", _unescaped, found["table"]))
            with contextlib.suppress(ValueError):
                if family is not None and name is not None:
                    self._tables[name].numbers[family] = float(found["number"])

    def _lines(self) -> Iterator[re.Match[str]]:
        if self._path is None:
            return
        try:
            text = self._path.read_bytes().decode()  # as it is: a name may have any line end
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.warning("the figures of nights in `%s` can't be read, and begin again at nothing: %s", self._path, error)
            return
        yield from filter(None, map(_LINE.fullmatch, text.split("\n")))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Among the loads that write into a folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _label(name: str) -> str:
    return name or UNNAMED


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
