"""What a person sees while the demo runs, and the samples behind its picture."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@dataclass
class Sample:
    """One look at the pipeline: seconds since the start, and how far each stage is behind the one before it."""

    at_s: float
    mirror_lag: int
    dedupe_lag: int
    nights_behind: int


class Show:
    """Progress bars for collected events, mirrored and deduplicated ones, and nights."""

    def __init__(self, events: int, nights: int) -> None:
        self.console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self._tasks = {
            name: self._progress.add_task(name, total=total, note="")
            for name, total in (("collected", events), ("mirrored", events), ("deduped", events), ("nights", nights))
        }
        self.started = time.monotonic()

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the show began."""
        return time.monotonic() - self.started

    def advance(self, bar: str, count: int) -> None:
        """Add to a bar."""
        self._progress.advance(self._tasks[bar], count)

    def set(self, bar: str, completed: int, note: str = "") -> None:
        """Set a bar, with a word beside it."""
        self._progress.update(self._tasks[bar], completed=completed, note=note)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text)
