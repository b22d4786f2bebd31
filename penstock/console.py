"""rich's console for standard output. Its users import it where they print: it takes a command a tenth of its start."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """Without rich's own exit code for a reader that has gone."""

    def on_broken_pipe(self) -> None:
        """Called where the error is handled: it goes on to whoever knows how the command ends. Raises BrokenPipeError."""
        raise BrokenPipeError
