"""What a person sees while the demo runs, and the samples behind its picture."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_PAUSE_S = 10.0


@dataclass
class Sample:
    """One sample of the pipeline: seconds since the start, how far each stage is behind the one before it, and what it had read
    by then."""

    at_s: float
    mirror_lag: int
    dedupe_lag: int
    nights_behind: int
    mirrored: int
    deduped: int


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
        self._line_at = self.started

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
        # Where there is no terminal bars are shown only at the end: a line now and then stands for them.
        if not self.console.is_terminal and time.monotonic() - self._line_at > LINE_PAUSE_S:
            self._line_at = time.monotonic()
            bars = ", ".join(f"{name} {self.completed(name):,}" for name in self._tasks)
            self.console.print(f"{self.elapsed_s:.0f} s: {bars}")

    def completed(self, bar: str) -> int:
        """How far a bar is."""
        task = next(task for task in self._progress.tasks if task.id == self._tasks[bar])
        return int(task.completed)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text)
