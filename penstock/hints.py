"""Commands in messages, which people paste into a shell."""

from __future__ import annotations

import shlex


def quoted(value: object) -> str:
    """A name, path or number as one word of a command."""
    return shlex.quote(str(value))
