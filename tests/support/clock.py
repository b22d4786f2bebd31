"""A wall clock that a test sets, in a process that a library is preloaded into; see clock.c."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Clock:
    """The clock of the processes that are started with `environment`: right at first."""

    def __init__(self, folder: Path) -> None:
        library = folder / "clock.so"
        source = Path(__file__).parent / "clock.c"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self._control = folder / "clock"
        self.set_ahead(0)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_CTL": str(self._control)}

    def set_ahead(self, ahead_s: int) -> None:
        """So many seconds ahead of the right time; negative: behind it."""
        beside = self._control.with_suffix(".new")
        beside.write_text(str(ahead_s))
        beside.replace(self._control)
