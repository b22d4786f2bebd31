"""Standard output whose reader may go away before all is written (`penstock consume | head`)."""

from __future__ import annotations

import os
import sys


def visible(text: str) -> str:
    """A text of somebody else's that may be shown on a terminal: what isn't printed - line ends, control characters, those that
    change the direction of writing - is written as Python escapes it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def reader_is_gone() -> None:
    """Let what else is written go nowhere: Python would complain of its buffer at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
