"""What ends a night's load with words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def words_of(error: Exception) -> str:
    """The first line of what a library says, for people."""
    if isinstance(error, KeyError):
        return f"it lacks `{error.args[0]}`"
    return (str(error) or type(error).__name__).splitlines()[0]


class EtlError(RuntimeError):
    """The load stopped; the text says why and what to do. Nothing was committed, unless it says that the night is loaded."""


class Refused(EtlError):
    """What was asked contradicts what the table or a plan already holds."""


class Incomplete(EtlError):
    """The night's records have not all arrived."""


@contextmanager
def refused_as(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn a failure of these kinds into an EtlError: what can't be done, then the first line of its own words."""
    try:
        yield
    except kinds as error:
        raise EtlError(f"{what}: {words_of(error)}") from None
