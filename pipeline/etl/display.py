"""What `penstock etl` shows: progress for people on standard error, the answer on standard output."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock import log
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.load import Outcome

DID = {
    "loaded": "loaded",
    "reloaded": "loaded again",
    "already": "is in the table already",
    "joined": "has the rows of the nights that were taken back",
}


class Display:
    """Progress and answers of one call."""

    def __init__(self, nights: int, as_json: bool) -> None:
        self._as_json = as_json
        self._over = False
        self._log = log.get(__name__)
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("nights"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=nights or None)

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        if self._progress is not None:
            self._progress.stop()

    def step(self, words: str, table: str = "") -> None:
        """Say what is going on."""
        if self._over:
            return  # an interrupt has the last word
        words = f"{table}: {words}" if table else words
        if self._progress is not None:
            self._progress.update(self._task, description=words)
        else:
            self._log.info("%s", words)

    def failed(self, table: str, error: EtlError) -> None:
        """Say why a table's night is not loaded, where the command goes on."""
        click.echo(f"penstock: {f'table {table}: ' if table else ''}{error}", err=True)

    def taken_back(self, outcome: Outcome | None, table: str = "") -> None:
        """Say what became of the nights that weren't over."""
        if outcome is not None:
            self.done(outcome, table)
        elif not self._as_json:
            click.echo(f"{f'table {table}: ' if table else ''}no night is in the table before its end: nothing was taken back")

    def done(self, outcome: Outcome, table: str = "") -> None:
        """Say what became of a night."""
        commit = outcome.commit
        if self._progress is not None:
            self._progress.advance(self._task)
        if self._as_json:
            facts = {"table": table, "did": outcome.did, "seconds": round(outcome.seconds, 3)}
            document = json.loads(commit.to_json()) | facts
            document["ranges"] = [
                {"topic": topic, "partition": partition} | asdict(part)
                for (topic, partition), part in sorted(commit.partitions.items())
            ]
            document |= {"records": commit.records, "rows": commit.rows, "rejects": commit.rejects}
            print(json.dumps(document), flush=True)
            return
        words = f"{f'table {table}: ' if table else ''}night {commit.night} {DID[outcome.did]}: {commit.rows:,} rows"
        if commit.later:
            words += f" ({commit.later:,} of records of later days)"
        if commit.nights:
            words += f", with those of {', '.join(commit.nights)}"
        if commit.rejects:
            words += f", {commit.rejects:,} rejects"
        if commit.missing:
            words += f"; marked incomplete: {'; '.join(commit.missing)}"
        if commit.decided:
            words += f"; {'; '.join(commit.decided)}"
        print(f"{words} (run {commit.run}, {outcome.seconds:.1f} s)", flush=True)
