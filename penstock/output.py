"""Standard output whose reader may go away before all is written (`penstock consume | head`)."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class Output(Console):
    """rich's console for standard output, without its own exit code for a reader that has gone."""

    def on_broken_pipe(self) -> None:
        """Called where the error is handled: it goes on to whoever knows how the command ends. Raises BrokenPipeError."""
        raise BrokenPipeError


def visible(text: str) -> str:
    """A text of somebody else's that may be shown on a terminal: what isn't printed - line ends, control characters, those that
    change the direction of writing - is written as Python escapes it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def reader_is_gone() -> None:
    """Let what else is written go nowhere: Python would complain of its buffer at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
